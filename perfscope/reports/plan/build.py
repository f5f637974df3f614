"""Turns a plan into the one Report that the HTML and PDF renderers draw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from perfscope import __version__, units
from perfscope.analysis.plan.records import Basis, Excluded, Planned, Trial, Unfit
from perfscope.messages.plan import LOWER_BOUNDS, PREDICTIONS
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Bar,
    Block,
    ChartPart,
    Column,
    Curve,
    CurveChart,
    Facet,
    KeyFigure,
    Note,
    Report,
    Section,
    StackedBars,
    Table,
    Unit,
    Verdict,
)
from perfscope.reports.plan.naming import label

_MOST_ROWS, _MOST_BARS = 2000, 12
_PARTS = (
    ChartPart.of_step("forward"),
    ChartPart.of_step("backward"),
    ChartPart(key="optimizer", title="Update and input"),
    ChartPart.of_step("exposed_comm"),
    ChartPart(key="idle", title="Bubble", hint="a pipeline that fills and drains"),
)


class PlanPage(Struct, frozen=True, kw_only=True):
    """What a page is made of.

    Attributes:
        heading: model, input and machine, a line.
        plans: all that fit, the best first.
        command: trains the first one.
        excluded: what is none.
        memory_limit: bytes of a rank; None: no limit.
        assumed: sentences.
        trials: what was trained for a few steps.
        document: of --json.
    """

    heading: str
    plans: Sequence[Planned]
    command: str
    excluded: Sequence[Excluded]
    memory_limit: float | None
    assumed: Sequence[str]
    trials: Sequence[Trial]
    document: Mapping[str, object]


def build_plan_report(page: PlanPage) -> Report:
    """The report of a plan, the first way as its verdict."""
    best = page.plans[0]
    is_bound = best.basis is Basis.RATES
    at_least = "at least " if is_bound else ""
    sections = (
        _ways(page),
        _front(page),
        *_verified(page.trials),
        *_not_possible(page),
        Section(
            id="assumed", title="Assumed", blocks=tuple(Note(text=visible(s, 600)) for s in page.assumed)
        ),
    )
    return Report(
        title="Plan of a training",
        subtitle=visible(page.heading, 200),
        verdict=Verdict(
            headline=f"{label(best.candidate)} with a batch of {best.candidate.batch:,}: "
            f"{at_least}{units.format_ns(best.step_s * 1e9)} per step",
            detail=LOWER_BOUNDS if is_bound else PREDICTIONS,
            action=f"`{visible(page.command, 600)}`",
            tone="plain",
        ),
        overview=None,
        figures=tuple(_figures(page, best)),
        sections=sections,
        document=page.document,
        version=__version__,
    )


def _figures(page: PlanPage, best: Planned) -> Iterator[KeyFigure]:
    rate = f"{1 / best.sample_s:,.1f}"
    memory = best.candidate.memory
    yield KeyFigure(id="rate", title="Samples/s", value=rate, note="of the first way")
    yield KeyFigure(
        id="memory",
        title="Memory of a rank",
        value=units.format_bytes(memory.peak),
        note="" if page.memory_limit is None else f"limit {units.format_bytes(page.memory_limit)}",
    )
    if best.cost is not None:
        yield KeyFigure(id="cost", title="Cost of a million samples", value=f"{best.cost:,.2f}")
    fitting = len(page.plans)
    yield KeyFigure(id="ways", title="Ways that fit", value=f"{fitting:,}")
    yield KeyFigure(
        id="front", title="On the Pareto front", value=f"{sum(plan.is_pareto for plan in page.plans):,}"
    )


def _ways(page: PlanPage) -> Section:
    plans = page.plans[:_MOST_ROWS]
    low, high = (" ≥", " ≤") if page.plans[0].basis is Basis.RATES else ("", "")
    left_out = len(page.plans) - len(plans)
    table = Table(
        id="plan-ways",
        title="All ways that fit",
        columns=(
            Column(key="way", title="Way", primary=True),
            Column(key="ranks", title="Ranks", unit=Unit.COUNT),
            Column(key="batch", title="Batch", unit=Unit.COUNT, primary=True),
            Column(key="step", title=f"Step{low}", unit=Unit.TIME, primary=True),
            Column(key="rate", title=f"Samples/s{high}", unit=Unit.SAMPLES, primary=True),
            Column(key="comm", title="Communication", unit=Unit.RATIO, hint="exposed, of the step"),
            Column(key="bubble", title="Bubble", unit=Unit.RATIO, hint="of the step"),
            Column(key="memory", title="Memory", unit=Unit.BYTES, primary=True, hint="of the fullest rank"),
            Column(key="activations", title="Activations", unit=Unit.BYTES, hint="of it"),
            Column(
                key="efficiency",
                title=f"Efficiency{high}",
                unit=Unit.RATIO,
                hint="FLOP/s of the model / peak",
            ),
            Column(key="cost", title=f"Cost of 1M samples{low}", unit=Unit.NUMBER),
            Column(key="front", title="Pareto front"),
        ),
        rows=tuple(_row(plan) for plan in plans),
        facets=_facets(plans),
        sorted_by=("rate", True),
        cards=True,
        print_rows=40,
        caption="m: microbatches; il, zb, gpipe: the pipeline's schedule where it is not 1F1B; bucket: DDP's "
        "bucket_cap_mb; ckpt: activations are computed again."
        + (f" {left_out:,} slower ways are left out." if left_out else ""),
    )
    return Section(id="ways", title="Ways to train", blocks=(_parts(page.plans), table.trimmed()))


def _row(plan: Planned) -> tuple[str | int | float | None, ...]:
    option = plan.candidate
    return (
        label(option),
        option.num_ranks,
        option.batch,
        plan.step_s * 1e9,
        1 / plan.sample_s,
        plan.communication_ratio or None,
        plan.bubble_ratio or None,
        option.memory.peak,
        option.memory.activations,
        plan.efficiency,
        plan.cost,
        "yes" if plan.is_pareto else None,
    )


def _facets(plans: Sequence[Planned]) -> tuple[Facet, ...]:
    options = [plan.candidate for plan in plans]
    facets = (
        Facet(title="Mesh", values=tuple((_axes(option.mesh),) for option in options)),
        Facet(title="Batch", values=tuple((f"{option.batch}",) for option in options)),
        Facet(title="Ranks", values=tuple((f"{option.num_ranks}",) for option in options)),
        Facet(title="Precision", values=tuple((option.dtype,) for option in options)),
        Facet(title="Schedule", values=tuple((option.schedule or "none",) for option in options)),
        Facet(title="Checkpointing", values=tuple(("yes" if o.checkpointing else "no",) for o in options)),
        Facet(title="Pareto front", values=tuple(("yes" if plan.is_pareto else "no",) for plan in plans)),
    )
    return tuple(facet for facet in facets if len(set(facet.values)) > 1)


def _axes(mesh: str) -> str:
    return " ".join(word.partition("=")[0] for word in mesh.split(",") if word) or "serial"


def _parts(plans: Sequence[Planned]) -> StackedBars:
    return StackedBars(
        id="plan-steps",
        title="Time per sample of the fastest ways",
        parts=_PARTS,
        bars=tuple(_bar(plan) for plan in plans[:_MOST_BARS]),
    )


def _bar(plan: Planned) -> Bar:
    option = plan.candidate
    exposed, bubble = plan.communication_ratio * plan.step_s, plan.bubble_ratio * plan.step_s
    seconds = (option.forward_s, option.backward_s, option.update_s, exposed, bubble)
    return Bar(
        label=f"{label(option)}, batch {option.batch:,}",
        values=tuple(1e9 * part / option.batch for part in seconds),
    )


def _front(page: PlanPage) -> Section:
    blocks: list[Block] = [
        _chart(
            page.plans,
            "memory",
            "memory of a rank",
            Unit.BYTES,
            [p.candidate.memory.peak for p in page.plans],
        )
    ]
    costs = [plan.cost for plan in page.plans]
    if all(cost is not None for cost in costs):
        prices = [cost for cost in costs if cost is not None]
        blocks.append(_chart(page.plans, "cost", "cost of a million samples", Unit.NUMBER, prices))
    return Section(
        id="pareto",
        title="Pareto front",
        lead="Ways that no other one beats in time per sample and memory (and cost) at once.",
        blocks=tuple(blocks),
    )


def _chart(plans: Sequence[Planned], key: str, title: str, unit: Unit, values: Sequence[float]) -> CurveChart:
    points = sorted(
        zip([plan.sample_s * 1e9 for plan in plans], values, [p.is_pareto for p in plans], strict=True)
    )
    front = [(x, y) for x, y, is_pareto in points if is_pareto]
    others = [(x, y) for x, y, is_pareto in points if not is_pareto]
    kinds = (("other ways", others), ("on the Pareto front", front))
    curves = [_marks(name, marked) for name, marked in kinds if marked]
    return CurveChart(
        id=f"plan-pareto-{key}",
        title=f"{title[:1].upper()}{title[1:]} against time per sample",
        x_title="time per sample",
        y_title=title,
        curves=tuple(curves),
        x_unit=Unit.TIME,
        y_unit=unit,
        x_log=True,
        y_log=True,
        caption="Left and low is better.",
    )


def _marks(name: str, points: Sequence[tuple[float, float]]) -> Curve:
    """Marks that no line joins; of equal times the next larger ones, as a curve's x rises."""
    xs: list[float] = []
    for x, _ in points:
        xs.append(math.nextafter(xs[-1], math.inf) if xs and x <= xs[-1] else x)
    return Curve(label=name, x=tuple(xs), y=tuple(y for _, y in points), kind="points")


def _verified(trials: Sequence[Trial]) -> Iterator[Section]:
    if not trials:
        return
    table = Table(
        id="plan-verified-table",
        title="Computed and measured steps",
        columns=(
            Column(key="way", title="Way", primary=True),
            Column(key="batch", title="Batch", unit=Unit.COUNT, primary=True),
            Column(key="step", title="Computed", unit=Unit.TIME, primary=True),
            Column(key="measured", title="Measured", unit=Unit.TIME, primary=True, hint="median step"),
            Column(key="ratio", title="Measured / computed", unit=Unit.FACTOR, primary=True),
            Column(key="problem", title="Problem"),
        ),
        rows=tuple(
            (
                label(trial.plan.candidate),
                trial.plan.candidate.batch,
                trial.plan.step_s * 1e9,
                None if trial.measured_step_s is None else trial.measured_step_s * 1e9,
                trial.measured_to_computed,
                visible(trial.problem, 200) or None,
            )
            for trial in trials
        ),
        cards=True,
        caption="Trained on the machine of the plan, with all ranks on it; computed for that machine.",
    )
    yield Section(id="verified", title="Verified on this machine", blocks=(table.trimmed(),))


def _not_possible(page: PlanPage) -> Iterator[Section]:
    if not page.excluded:
        return
    table = Table(
        id="plan-excluded-table",
        title="What does not fit, or cannot be",
        columns=(
            Column(key="way", title="Way", primary=True),
            Column(key="ranks", title="Ranks", unit=Unit.COUNT),
            Column(key="batch", title="Batch", unit=Unit.COUNT, primary=True),
            Column(key="memory", title="Memory", unit=Unit.BYTES, primary=True),
            Column(key="reason", title="Reason", primary=True),
        ),
        rows=tuple(
            (
                option.name,
                option.num_ranks,
                option.batch,
                None if option.memory is None else option.memory.peak,
                "above the limit of memory" if option.why is Unfit.MEMORY else visible(option.reason, 300),
            )
            for option in page.excluded
        ),
        cards=True,
        print_rows=20,
    )
    yield Section(id="excluded", title="Not possible", blocks=(table,))
