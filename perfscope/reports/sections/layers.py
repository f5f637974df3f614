"""Section "Layers": what each module of the network costs in a mean step."""

from __future__ import annotations

from collections.abc import Mapping

from perfscope import units
from perfscope.analysis.results import LayerResult, RunAnalysis
from perfscope.messages.missing import cause_text
from perfscope.reports.display import path_end, visible
from perfscope.reports.document import per_second
from perfscope.reports.model import (
    Bar,
    Block,
    ChartPart,
    Column,
    Note,
    Section,
    StackedBars,
    Table,
    Unit,
    Value,
)
from perfscope.reports.sections.layer_counters import counters_table
from perfscope.reports.sections.layer_map import layer_map
from perfscope.reports.sections.layer_names import layer_names
from perfscope.reports.sections.roofline import drawable
from perfscope.reports.sections.steps import mean_shares, scope_of
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.workload import Workload

MOST_BARS = 20
ABOVE_ALL = 1.02  # of the step; less is rounding
LAYER_PARTS = (
    ChartPart.of_step("forward"),
    ChartPart.of_step("backward"),
    ChartPart.of_step("exposed_comm"),
)
FLOP_RATE = Column(key="flop_rate", title="FLOP/s", unit=Unit.FLOP_RATE, modeled=True)
BYTE_RATE = Column(key="byte_rate", title="Bytes/s", unit=Unit.RATE, modeled=True)
ROOT_NAME = "(whole model)"


def layer_total_ns(layer: LayerResult) -> int:
    return layer.forward_ns + layer.backward_ns + (layer.exposed_comm_ns or 0)


def layer_name(layer: LayerResult) -> str:
    return visible(layer.layer) or ROOT_NAME


def _told(layer: LayerResult, names: Mapping[str, str]) -> str:
    return visible(names.get(layer.layer, layer.layer)) or ROOT_NAME


def layers_section(analysis: RunAnalysis) -> Section:
    if not analysis.layers:
        reason = "No layer was traced; see “Not collected”."
        return Section(id="layers", title="Layers", blocks=(Note(text=reason, tone="caution"),))
    names = layer_names(analysis.layers)
    by_time = sorted(analysis.layers, key=lambda layer: (-layer_total_ns(layer), layer.order))
    drawn = sorted(by_time[:MOST_BARS], key=lambda layer: layer.order)
    several = f"The {MOST_BARS} longest of {len(by_time):,}, in order of first execution."
    tied = any(layer.exposed_comm_ns is not None for layer in by_time)
    parts = _parts(analysis, tied=tied)
    blocks: list[Block] = [
        StackedBars(
            id="layers-chart",
            title="Time per step of each layer",
            parts=parts,
            bars=tuple(_bar(layer, names, parts) for layer in drawn),
            caption=several if len(by_time) > MOST_BARS else "In order of first execution.",
        ),
        *layer_map(analysis, drawn, ROOT_NAME),
        _table(analysis, by_time, primary_type=bool(names)),
    ]
    if counters := counters_table(analysis, by_time, names, ROOT_NAME):
        blocks.append(counters)
    if _communicates(analysis) and (note := _why_untied(analysis, tied=tied)):
        blocks.append(Note(text=note))
    step = mean_shares(analysis)
    if step is not None and sum(layer_total_ns(layer) for layer in by_time) > ABOVE_ALL * step[0]:
        blocks.append(
            Note(
                text="Layers run concurrently here, on several devices or threads: their shares add up to "
                "more than the step."
            )
        )
    return Section(id="layers", title="Layers", lead=_lead(by_time, names), blocks=tuple(blocks))


def _communicates(analysis: RunAnalysis) -> bool:
    return bool(analysis.collectives) or any(rank.comm_ns for rank in analysis.ranks)


def _why_untied(analysis: RunAnalysis, *, tied: bool) -> str:
    """What of the exposed communication belongs to no layer; "" where all of it does."""
    why = "; ".join(cause_text(entry) for entry in analysis.missing if entry.figure is Figure.LAYER_COMM)
    if tied:
        return f"Part of the exposed communication is attributed to no layer: {why}." if why else ""
    return (
        "Exposed communication cannot be attributed to layers: "
        f"{why or 'the trace does not say whose tensors a collective carries'}."
    )


def _lead(by_time: list[LayerResult], names: Mapping[str, str]) -> str:
    total = sum(layer_total_ns(layer) for layer in by_time)
    if total <= 0:
        return ""
    top = by_time[:3]
    share = sum(layer_total_ns(layer) for layer in top) / total
    names_of = ", ".join(path_end(_told(layer, names), 44) for layer in top)
    if len(by_time) <= 3:
        return f"Mean per step and rank over {len(by_time)} layers."
    return (
        f"Three of {len(by_time):,} layers take {units.format_ratio(share, 0)} of all layer time: {names_of}."
    )


def _parts(analysis: RunAnalysis, *, tied: bool) -> tuple[ChartPart, ...]:
    """Inference has no backward pass; `tied`: layers have communication."""
    left_out = {"backward": analysis.workload is Workload.INFERENCE, "exposed_comm": not tied}
    return tuple(part for part in LAYER_PARTS if not left_out.get(part.key))


def _bar(layer: LayerResult, names: Mapping[str, str], parts: tuple[ChartPart, ...]) -> Bar:
    return Bar(
        label=_told(layer, names),
        values=tuple(getattr(layer, f"{part.key}_ns") or 0 for part in parts),
        note=visible(layer.module_type or ""),
    )


def _table(analysis: RunAnalysis, by_time: list[LayerResult], *, primary_type: bool) -> Table:
    scope = scope_of(analysis)
    shares = mean_shares(analysis)
    step_ns, ratio = shares[0] if shares else None, analysis.traced_ratio or 1.0
    tied = any(layer.exposed_comm_ns is not None for layer in by_time)
    rates = not drawable(analysis)  # else they are beside the ceilings, and this table fits a page
    columns = (
        Column(key="layer", title="Layer", unit=Unit.CODE, primary=True),
        Column(key="type", title="Type", primary=primary_type),
        Column(key="calls", title="Calls", unit=Unit.NUMBER, hint="forward calls per step"),
        Column(key="forward", title="Forward", unit=Unit.TIME, bar="forward", primary=True),
        Column(key="backward", title="Backward", unit=Unit.TIME, bar="backward", primary=True),
        Column(
            key="exposed_comm",
            title="Exposed comm.",
            unit=Unit.TIME,
            bar="exposed_comm",
            primary=tied,
            hint="communication of this layer's tensors not overlapped with compute",
        ),
        Column(
            key="share",
            title=f"Of {scope.short}",
            unit=Unit.RATIO,
            primary=True,
            hint=f"forward + backward{' + exposed communication' if tied else ''}, "
            f"as a share of the {scope.full}",
        ),
        Column(key="flops", title="FLOPs", unit=Unit.FLOPS, modeled=True),
        Column(key="bytes", title="Bytes", unit=Unit.BYTES, modeled=True),
        *((FLOP_RATE, BYTE_RATE) if rates else ()),
    )

    def shown(column: Column) -> bool:
        return column.key != "backward" or analysis.workload is not Workload.INFERENCE

    modeled = "FLOPs and bytes are modeled from tensor shapes (forward + backward), not measured"
    return Table(
        id="layers-table",
        terminal_rows=8,
        title="Layers, mean per step and rank",
        columns=tuple(filter(shown, columns)),
        rows=tuple(
            tuple(
                cell
                for column, cell in zip(columns, _row(layer, step_ns, ratio), strict=False)
                if shown(column)
            )
            for layer in by_time
        ),
        caption=f"{modeled}; the rates divide them by measured time."
        if rates
        else f"{modeled}; see Roofline for rates.",
    )


def _row(layer: LayerResult, step_ns: int | None, traced_ratio: float) -> tuple[Value, ...]:
    """`traced_ratio`: of the time in which the layer's work was done to the time that is shown."""
    busy_ns = round((layer.forward_ns + layer.backward_ns) * traced_ratio)
    return (
        layer_name(layer),
        visible(layer.module_type or ""),
        layer.calls,
        layer.forward_ns,
        layer.backward_ns,
        layer.exposed_comm_ns,
        layer_total_ns(layer) / step_ns if step_ns else None,
        layer.flops,
        layer.bytes,
        per_second(layer.flops, busy_ns),
        per_second(layer.bytes, busy_ns),
    )
