"""Sections of a comparison by framework: one per model, the losses' agreement before any speed."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analysis.study.framework_results import FrameworkPoint, FrameworkRow
from perfscope.analysis.study.framework_verdict import agreement_of, fastest, in_doubt, level_with
from perfscope.analysis.study.parity import (
    EARLY_STEPS,
    EARLY_TOLERANCE,
    PARITY_STEPS,
    TOLERANCE,
    Parity,
)
from perfscope.analysis.study.results import FrameworkStudy, StudyAnalysis
from perfscope.messages.study import ranks
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Block,
    Column,
    Curve,
    CurveChart,
    FactList,
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
from perfscope.reports.study.formatting import (
    LONGEST,
    TYPICAL,
    compositions,
    efficiency_tone,
    times,
)
from perfscope.reports.study.losses import loss_charts
from perfscope.reports.values import TITLED

NO_KERNEL = "No kernel"
_NO_KERNEL_HINT = "share of the traced step with no operator, communication, copy or data wait on its threads"
_CURVES_FROM = 3  # numbers of ranks: of two the table says it all
_TOLD = 3  # models, in the verdict and its figures
_SLOWED = 1.3  # traced over typical step: from there on it is stated


def framework_sections(study: StudyAnalysis) -> list[Section]:
    """One per model."""
    several = len(study.frameworks) > 1
    return [
        _section(study, of_model, f"-{number}" if several else "")
        for number, of_model in enumerate(study.frameworks, 1)
    ]


def framework_figures(study: StudyAnalysis) -> Iterator[KeyFigure]:
    """The fastest framework that learns as the reference does, per model, on the fewest ranks."""
    for number, of_model in enumerate(study.frameworks[:_TOLD]):
        size = of_model.world_sizes[0] if of_model.world_sizes else 0
        comparable = fastest(of_model.rows, size)
        if len(comparable) < 2:
            continue
        best, other = comparable[0].speed(size) or 0.0, comparable[1].speed(size) or 1.0
        level = comparable[1] in level_with(comparable[0], comparable[1:], size)
        yield KeyFigure(
            id=f"fastest-{number}",
            title=f"Fastest, {visible(of_model.title, 40)}",
            value=visible(comparable[0].name, 40),
            note=f"{format_value(Unit.SAMPLES, best)} samples/s on {ranks(size)}, "
            f"{times(best / other)} as many as {visible(comparable[1].name, 40)}"
            + (", which counts as level" if level else "")
            + (", in runs that were disturbed" if in_doubt(comparable, size) else ""),
        )


def framework_sentences(study: StudyAnalysis) -> Iterator[str]:
    """For the verdict: what the losses say, then of each model who is how fast."""
    if study.frameworks:
        rows = [row for of_model in study.frameworks for row in of_model.rows]
        yield agreement_of(rows, study.frameworks[0].reference)
    for of_model in study.frameworks[:_TOLD]:
        yield f"With {of_model.headline}"


def _section(study: StudyAnalysis, of_model: FrameworkStudy, suffix: str) -> Section:
    points = [(row, point) for row in of_model.rows for point in row.points]
    lead = "The same model, initial weights and samples in each; speeds count only where the losses agree."
    blocks: list[Block | None] = [
        *_remarks(of_model),
        Note(text=visible(of_model.agreement, LONGEST)) if of_model.agreement else None,
        _parity(of_model, suffix),
        Note(text=visible(of_model.headline, LONGEST)),
        _speeds(of_model, suffix),
        _table(of_model, suffix),
        Note(text=visible(of_model.scaling, LONGEST)) if of_model.scaling else None,
        _scaling(of_model, suffix),
        compositions(
            f"study-framework-composition{suffix}",
            "Where the traced step goes",
            ((_label(row, point), point.composition) for row, point in points),
            "Mean over ranks and traced steps.",
        ),
        _overheads(of_model, suffix),
        _ways(of_model, suffix),
        *loss_charts(
            study,
            [(f"{row.name}, {ranks(point.world_size)}", point.runs) for row, point in points],
            f"-framework{suffix}",
        ),
    ]
    return Section(
        id=f"study-frameworks{suffix}",
        tables="every",
        title=f"Frameworks side by side: {visible(of_model.title, 160)}",
        lead=f"{lead} {visible(of_model.trained, LONGEST)}.".rstrip(" .") + ".",
        blocks=tuple(block for block in blocks if block is not None),
    )


def _remarks(of_model: FrameworkStudy) -> Iterator[Note]:
    for row in of_model.rows:
        if row.remark:
            yield Note(text=f"{visible(row.name, 60)} is {visible(row.remark, LONGEST)}.")


def _name(row: FrameworkRow) -> str:
    return f"{row.name} (retired)" if row.remark else row.name


def _label(row: FrameworkRow, point: FrameworkPoint) -> str:
    return visible(f"{_name(row)}, {ranks(point.world_size)}", 80)


def _ways(of_model: FrameworkStudy, suffix: str) -> FactList | None:
    """How each trains: frameworks differ most in that."""
    pairs = tuple(
        (visible(f"{row.name} {row.version}".strip(), 60), visible(f"{row.how}.", LONGEST))
        for row in of_model.rows
        if row.how
    )
    return (
        FactList(id=f"study-framework-ways{suffix}", title="How each trains", pairs=pairs) if pairs else None
    )


def _parity(of_model: FrameworkStudy, suffix: str) -> Table | None:
    rows: list[tuple[Value, ...]] = [
        (
            visible(_name(row), 60),
            size,
            _relative(agreement.first_difference),
            _relative(agreement.early_difference),
            _relative(agreement.max_difference),
            agreement.num_steps,
            agreement.verdict,
            visible(agreement.reason or _parted(agreement), LONGEST) or None,
        )
        for row in of_model.rows
        for size, agreement in sorted(row.parity.items())
    ]
    if not rows:
        return None
    return Table(
        id=f"study-parity{suffix}",
        title=f"Do the losses agree with those of {visible(of_model.reference, 60)}?",
        columns=(
            Column(key="name", title="Framework", primary=True),
            Column(key="ranks", title="Ranks", unit=Unit.COUNT, primary=True),
            Column(key="first", title="First step", hint="before any update"),
            Column(
                key="early",
                title=f"First {EARLY_STEPS}",
                hint=f"largest of the first {EARLY_STEPS} steps; {EARLY_TOLERANCE:.0e} is allowed",
                primary=True,
            ),
            Column(key="difference", title="All", hint=f"largest; {TOLERANCE:g} is allowed", primary=True),
            Column(key="steps", title="Steps", unit=Unit.COUNT, hint="compared"),
            Column(key="verdict", title="Verdict", primary=True),
            Column(key="reason", title="Remark"),
        ),
        rows=tuple(rows),
        caption="Relative differences of the loss over all ranks from that of "
        f"{visible(of_model.reference, 60)} on as many; of several repeats the worst. "
        f"{EARLY_TOLERANCE:.0e} is allowed over the first {EARLY_STEPS} steps, {TOLERANCE:g} over the "
        f"first {PARITY_STEPS}: later rounding alone may part curves.",
    ).trimmed()


def _parted(agreement: Parity) -> str:
    if agreement.parted_at is None:
        return ""
    return (
        f"more than {agreement.early_tolerance:.0e} apart from step {agreement.parted_at} on, "
        "as rounding can make it"
    )


def _relative(value: float | None) -> str | None:
    return None if value is None else f"{value:.1e}" if value else "0"


def _speeds(of_model: FrameworkStudy, suffix: str) -> IntervalBars | None:
    points = [
        (row, point) for row in of_model.rows for point in row.points if point.samples_per_s is not None
    ]
    if not points:
        return None
    has_repeats = any(len(point.speeds) > 1 for _, point in points)
    caption = (
        "The line across a bar's end goes from the slowest to the fastest repeat. The fastest on each number "
        "of ranks is in color."
        if has_repeats
        else "One run of each: their variance is not known."
    )
    best = {
        size: max((row.speed(size) or 0.0 for row in of_model.rows if row.agrees(size)), default=0.0)
        for size in of_model.world_sizes
    }
    return IntervalBars(
        id=f"study-framework-speed{suffix}",
        title="Throughput, median over repeats",
        axis_title=TITLED[Unit.SAMPLES],
        unit=Unit.SAMPLES,
        bars=tuple(
            IntervalBar(
                label=_label(row, point),
                value=point.samples_per_s,
                low=point.speeds[0] if len(point.speeds) > 1 else None,
                high=point.speeds[-1] if len(point.speeds) > 1 else None,
                note="" if row.agrees(point.world_size) else "losses do not agree, or are not known",
                leading=row.agrees(point.world_size) and point.samples_per_s == best[point.world_size],
            )
            for row, point in points
        ),
        caption=caption,
    )


def _table(of_model: FrameworkStudy, suffix: str) -> Table:
    rows: list[tuple[Value, ...]] = []
    heat: list[tuple[str, ...]] = []
    reference = next((row for row in of_model.rows if row.is_reference), None)
    for row in of_model.rows:
        for point in row.points:
            base = reference.speed(point.world_size) if reference else None
            may = row.agrees(point.world_size) and base and point.samples_per_s
            spread = f"{point.speeds[0]:,.0f} to {point.speeds[-1]:,.0f}" if len(point.speeds) > 1 else None
            first = row.points[0].world_size == point.world_size
            rows.append(
                (
                    visible(f"{_name(row)} {row.version}".strip(), 60),
                    point.world_size,
                    point.samples_per_s,
                    spread,
                    point.samples_per_s / base if may and base and point.samples_per_s else None,
                    point.step_ns,
                    None if first else point.speedup,
                    None if first else point.efficiency,
                    point.peak_memory_bytes,
                )
            )
            heat.append(("",) * 7 + ("" if first else efficiency_tone(point.efficiency), ""))
    return Table(
        id=f"study-frameworks-table{suffix}",
        title="Speed, scaling and memory",
        columns=(
            Column(key="name", title="Framework", primary=True),
            Column(key="ranks", title="Ranks", unit=Unit.COUNT, primary=True),
            Column(key="rate", title="Samples/s", unit=Unit.SAMPLES, hint="median of repeats", primary=True),
            Column(key="spread", title="Repeats", hint="samples/s of the slowest and the fastest"),
            Column(
                key="ratio", title=f"Over {visible(of_model.reference, 40)}", unit=Unit.FACTOR, primary=True
            ),
            Column(key="step", title="Typical step", unit=Unit.TIME),
            Column(key="speedup", title="Speedup", unit=Unit.FACTOR, hint="over its own fewest ranks"),
            Column(key="efficiency", title="Efficiency", unit=Unit.RATIO, hint="speedup over the ideal"),
            Column(
                key="memory",
                title="Memory",
                unit=Unit.BYTES,
                hint="peak of all ranks together; servers and launchers are not in it",
            ),
        ),
        rows=tuple(rows),
        heat=tuple(heat),
        caption=TYPICAL,
    )


def _scaling(of_model: FrameworkStudy, suffix: str) -> CurveChart | None:
    curves = [
        Curve(
            label=visible(_name(row), 60),
            x=tuple(float(point.world_size) for point in row.points),
            y=tuple(point.speedup if point.speedup is not None else float("nan") for point in row.points),
        )
        for row in of_model.rows
        if len(row.points) > 1
    ]
    sizes = tuple(float(size) for size in of_model.world_sizes)
    if not curves or len(sizes) < _CURVES_FROM:
        return None
    ideal = Curve(label="ideal", x=sizes, y=tuple(size / sizes[0] for size in sizes), kind="ideal")
    return CurveChart(
        id=f"study-framework-scaling{suffix}",
        title="Speedup over the framework's own fewest ranks",
        x_title="ranks",
        y_title="speedup",
        curves=(*curves, ideal),
        y_unit=Unit.FACTOR,
        x_marks=sizes,
    )


def _overheads(of_model: FrameworkStudy, suffix: str) -> Table | None:
    """What of the traced step runs no kernel, and how far the traced step is from the typical one."""
    points = [(row, point) for row in of_model.rows for point in row.points if point.composition is not None]
    if not points:
        return None
    slowed = any((point.traced_ratio or 1.0) > _SLOWED for _, point in points)
    caption = (
        " Tracing, and that the traced steps are among the first, makes some of them much longer than the "
        "typical one: read “no kernel” as an upper bound there."
    )
    return Table(
        id=f"study-framework-overhead{suffix}",
        title="What the framework itself takes",
        columns=(
            Column(key="name", title="Framework", primary=True),
            Column(key="ranks", title="Ranks", unit=Unit.COUNT, primary=True),
            Column(key="no_kernel", title=NO_KERNEL, unit=Unit.RATIO, hint=_NO_KERNEL_HINT, primary=True),
            Column(key="time", title="That is", unit=Unit.TIME, hint="of the traced step", primary=True),
            Column(key="exposed", title="Exposed comm.", unit=Unit.RATIO, hint="of the traced step"),
            Column(key="traced", title="Traced step", unit=Unit.TIME),
            Column(key="over", title="Over the typical", unit=Unit.FACTOR, hint="traced over typical step"),
        ),
        rows=tuple(
            (
                visible(_name(row), 60),
                point.world_size,
                point.no_kernel_share,
                point.composition.idle if point.composition else None,
                point.composition.share("exposed_comm") if point.composition else None,
                point.composition.step if point.composition else None,
                point.traced_ratio,
            )
            for row, point in points
        ),
        caption="“No kernel” is time in which no operator, communication, copy or wait for data was traced "
        "on the threads that train: the framework's own work, and idling." + (caption if slowed else ""),
    )
