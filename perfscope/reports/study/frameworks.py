"""Sections of a comparison by framework: one per model, the losses' agreement before any speed."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analysis.study.results import FrameworkStudy, StudyAnalysis
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Block,
    Column,
    IntervalBar,
    IntervalBars,
    KeyFigure,
    Note,
    Section,
    Table,
    Unit,
    Value,
    format_value,
)
from perfscope.reports.study.losses import loss_charts
from perfscope.reports.study.words import LONGEST, TYPICAL, compositions, interval_text, times

NO_KERNEL = "No kernel"
_NO_KERNEL_HINT = "share of the traced step with no operator, communication, copy or data wait on its threads"


def framework_sections(study: StudyAnalysis) -> list[Section]:
    several = len(study.frameworks) > 1
    return [
        _section(study, one, f"-{number}" if several else "")
        for number, one in enumerate(study.frameworks, 1)
    ]


def framework_figures(study: StudyAnalysis) -> Iterator[KeyFigure]:
    """The fastest framework that learns as the reference does, per model, on the fewest ranks."""
    for number, one in enumerate(study.frameworks[:3]):
        size = one.world_sizes[0] if one.world_sizes else 0
        known = [(row.speed(size) or 0.0, row) for row in one.rows if row.agrees(size) and row.speed(size)]
        if len(known) < 2:
            continue
        known.sort(key=lambda pair: -pair[0])
        (best, row), (second, other) = known[:2]
        yield KeyFigure(
            id=f"fastest-{number}",
            title=f"Fastest, {visible(one.title, 40)}",
            value=visible(row.name, 40),
            note=f"{format_value(Unit.SAMPLES, best)} samples/s on {_ranks(size)}, "
            f"{times(best / second)} as many as {visible(other.name, 40)}",
        )


def _section(study: StudyAnalysis, one: FrameworkStudy, suffix: str) -> Section:
    points = [(row, point) for row in one.rows for point in row.points]
    blocks: list[Block | None] = [
        *([Note(text=visible(one.headline, LONGEST))] if one.headline != study.headline else []),
        *_remarks(one),
        _parity(one, suffix),
        _speeds(one, suffix),
        _table(one, suffix),
        compositions(
            f"study-framework-composition{suffix}",
            "Where the step goes",
            ((f"{row.name}, {_ranks(point.world_size)}", point.composition) for row, point in points),
            "Mean over ranks and traced steps. What frameworks show of themselves differs: see “missing”.",
        ),
        *loss_charts(
            study,
            [(f"{row.name}, {_ranks(point.world_size)}", point.runs) for row, point in points],
            f"-framework{suffix}",
        ),
    ]
    return Section(
        id=f"study-frameworks{suffix}",
        title=f"Frameworks side by side: {visible(one.title, 160)}",
        lead="The same model, initial weights and data in each; speeds count only where the losses agree.",
        blocks=tuple(block for block in blocks if block is not None),
    )


def _remarks(one: FrameworkStudy) -> Iterator[Note]:
    for row in one.rows:
        if row.remark:
            yield Note(text=f"{visible(row.name, 60)}: {visible(row.remark, LONGEST)}.")


def _ranks(size: int) -> str:
    return f"{size:,} rank{'s' if size != 1 else ''}"


def _parity(one: FrameworkStudy, suffix: str) -> Table | None:
    rows: list[tuple[Value, ...]] = [
        (
            visible(row.name, 60),
            size,
            _relative(found.first_difference),
            _relative(found.max_difference),
            _relative(found.tolerance),
            found.num_steps,
            found.verdict,
            visible(found.reason, LONGEST) or None,
        )
        for row in one.rows
        for size, found in sorted(row.parity.items())
    ]
    if not rows:
        return None
    return Table(
        id=f"study-parity{suffix}",
        title=f"Do the losses agree with those of {visible(one.reference, 60)}?",
        columns=(
            Column(key="name", title="Framework", primary=True),
            Column(key="ranks", title="Ranks", unit=Unit.COUNT, primary=True),
            Column(key="first", title="At the first step", hint="relative, before any update"),
            Column(
                key="difference",
                title="Largest difference",
                hint="relative, over the steps compared",
                primary=True,
            ),
            Column(key="tolerance", title="Tolerance"),
            Column(key="steps", title="Steps", unit=Unit.COUNT),
            Column(key="verdict", title="Verdict", primary=True),
            Column(key="reason", title="Why not"),
        ),
        rows=tuple(rows),
    ).trimmed()


def _relative(value: float | None) -> str | None:
    return None if value is None else f"{value:.1e}"


def _speeds(one: FrameworkStudy, suffix: str) -> IntervalBars | None:
    points = [(row, point) for row in one.rows for point in row.points if point.samples_per_s is not None]
    if not points:
        return None
    some = any(point.samples_per_s_interval for _, point in points)
    caption = (
        "The line across a bar's end is the 95 % interval of the median over repeats."
        if some
        else "No framework has repeats enough for an interval: how far these figures scatter is not known."
    )
    best = {
        size: max((row.speed(size) or 0.0 for row in one.rows if row.agrees(size)), default=0.0)
        for size in one.world_sizes
    }
    return IntervalBars(
        id=f"study-framework-speed{suffix}",
        title="Throughput, median over repeats",
        axis_title="samples per second",
        unit=Unit.SAMPLES,
        bars=tuple(
            IntervalBar(
                label=visible(f"{row.name}, {_ranks(point.world_size)}", 80),
                value=point.samples_per_s,
                low=point.samples_per_s_interval.low if point.samples_per_s_interval else None,
                high=point.samples_per_s_interval.high if point.samples_per_s_interval else None,
                note="" if row.agrees(point.world_size) else "losses do not agree, or are not known",
                leading=row.agrees(point.world_size) and point.samples_per_s == best[point.world_size],
            )
            for row, point in points
        ),
        caption=caption,
    )


def _table(one: FrameworkStudy, suffix: str) -> Table:
    rows: list[tuple[Value, ...]] = []
    for row in one.rows:
        for point in row.points:
            reference = next((other for other in one.rows if other.is_reference), None)
            base = reference.speed(point.world_size) if reference else None
            may = row.agrees(point.world_size) and base and point.samples_per_s
            rows.append(
                (
                    visible(f"{row.name} {row.version}".strip(), 60),
                    point.world_size,
                    point.samples_per_s,
                    interval_text(Unit.SAMPLES, point.samples_per_s_interval),
                    point.samples_per_s / base if may and base and point.samples_per_s else None,
                    point.step_ns,
                    point.speedup,
                    point.efficiency,
                    point.no_kernel_share,
                    point.composition.share("exposed_comm") if point.composition else None,
                    point.peak_memory_bytes,
                )
            )
    return Table(
        id=f"study-frameworks-table{suffix}",
        title="Speed, scaling and memory",
        columns=(
            Column(key="name", title="Framework", primary=True),
            Column(key="ranks", title="Ranks", unit=Unit.COUNT, primary=True),
            Column(key="rate", title="Samples/s", unit=Unit.SAMPLES, primary=True),
            Column(key="interval", title="95 % interval"),
            Column(key="ratio", title=f"Over {visible(one.reference, 40)}", unit=Unit.FACTOR, primary=True),
            Column(key="step", title="Typical step", unit=Unit.TIME),
            Column(key="speedup", title="Speedup", unit=Unit.FACTOR, hint="over its own fewest ranks"),
            Column(key="efficiency", title="Efficiency", unit=Unit.RATIO, hint="speedup over the ideal"),
            Column(key="no_kernel", title=NO_KERNEL, unit=Unit.RATIO, hint=_NO_KERNEL_HINT, primary=True),
            Column(key="exposed", title="Exposed comm.", unit=Unit.RATIO, hint="of the traced step"),
            Column(key="memory", title="Memory", unit=Unit.BYTES, hint="peak of all ranks together"),
        ),
        rows=tuple(rows),
        caption=TYPICAL,
    ).trimmed()
