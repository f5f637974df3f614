"""Section "How it scales": speedup and efficiency, the POP tree by number of ranks, what grew."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from perfscope import units
from perfscope.analysis.study.results import (
    WEAK,
    Interval,
    PopTree,
    ScalingFit,
    ScalingPoint,
    ScalingSeries,
    StudyAnalysis,
)
from perfscope.messages.efficiency import TITLES
from perfscope.messages.lists import counted
from perfscope.reports.curve_layout import WIDEST_INTERVAL
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Block,
    Column,
    Curve,
    CurveChart,
    FactList,
    Note,
    Section,
    Table,
    Unit,
    Value,
    format_value,
)
from perfscope.reports.study.formatting import (
    LONGEST,
    MARK,
    TYPICAL,
    compositions,
    efficiency_tone,
    interval_text,
    ratio_tone,
)
from perfscope.vocabulary.efficiency import ACCEPTABLE, PopFactor

LOG_SPAN = 8.0  # largest over smallest N: beyond it the axis of ranks is logarithmic
INDENT = "\u2003"


def scaling_sections(study: StudyAnalysis) -> list[Section]:
    series = study.scaling.series if study.scaling else ()
    several = len(series) > 1
    return [
        _section(line, f"-{number}" if several else "", study.headline)
        for number, line in enumerate(series, 1)
    ]


def _section(series: ScalingSeries, suffix: str, headline: str) -> Section:
    blocks: list[Block | None] = []
    if series.refused:
        blocks.append(Note(text=visible(series.refused, LONGEST), tone="refuse"))
    if series.points:
        blocks += [
            _speedup_chart(series, suffix),
            _efficiency_chart(series, suffix),
            _points_table(series, suffix),
            *_pop(series, suffix),
            _composition(series, suffix),
            *_grew(series, suffix),
            _fits_table(series, suffix),
        ]
    blocks.append(_facts(series, suffix))
    title = "How it scales"
    return Section(
        id=f"study-scaling{suffix}",
        tables="every",
        title=f"{title}: {visible(series.name, 120)}" if suffix and series.name else title,
        lead=visible(series.sentence, LONGEST) if series.sentence != headline else "",
        blocks=tuple(block for block in blocks if block is not None),
    )


def _facts(series: ScalingSeries, suffix: str) -> FactList:
    mode = f"{series.mode} scaling" if series.mode else "not known"
    reference, reason = visible(series.reference, 120) or "none", series.reference_reason
    if series.reference_world_size:
        count = series.reference_world_size
        reference += f" ({counted(count, 'rank')})"
    return FactList(
        id=f"study-scaling-facts{suffix}",
        title="What was compared with what",
        pairs=(
            ("Mode", visible(series.mode_reason, LONGEST) or mode),
            ("Reference", f"{reference}: {visible(reason, LONGEST)}" if reason else reference),
        ),
    )


def _edges(
    points: Sequence[ScalingPoint], interval: Callable[[ScalingPoint], Interval | None], value: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Lower and upper edges, nan where there is no interval; ((), ()) where no point has one.

    The reference is 1 by definition: its edge is itself, so that the band starts there.
    """
    intervals = [interval(point) for point in points]
    if not any(intervals):
        return (), ()
    reference_values = [getattr(point, value) if point.is_reference else math.nan for point in points]
    low = tuple(
        interval_.low if interval_ else at for interval_, at in zip(intervals, reference_values, strict=True)
    )
    return low, tuple(
        interval_.high if interval_ else at for interval_, at in zip(intervals, reference_values, strict=True)
    )


def _axis(series: ScalingSeries, curves: Sequence[Curve]) -> tuple[bool, tuple[float, ...]]:
    """(logarithmic, ticks): at the numbers of ranks measured, and where curves end."""
    measured = {float(point.world_size) for point in series.points}
    ends = {curve.x[-1] for curve in curves if curve.x}
    span = max(measured | ends) / max(min(measured), 1.0)
    return span > LOG_SPAN, tuple(sorted(measured | ends))


def _speedup_chart(series: ScalingSeries, suffix: str) -> CurveChart:
    points = series.points
    fits = [fit for fit in series.fits if fit.curve and not fit.refused]
    largest = float(points[-1].world_size)
    low, high = _edges(points, lambda point: point.speedup_interval, "speedup")
    base = points[0].ideal_speedup / points[0].world_size
    # Points where the others have theirs: the pointer then tells all of one place.
    sizes = {float(point.world_size) for point in points}
    line = tuple(sorted(sizes | {float(curve_point.world_size) for fit in fits for curve_point in fit.curve}))
    curves = [
        Curve(
            label="measured",
            x=tuple(float(point.world_size) for point in points),
            y=tuple(point.speedup for point in points),
            low=low,
            high=high,
        ),
        Curve(label="ideal", x=line, y=tuple(base * x for x in line), kind="ideal"),
        *(_fitted(fit, largest) for fit in fits),
    ]
    log, marks = _axis(series, curves)
    caption = [_band_words(points, high, "speedup")] if low else [_no_interval(points)]
    if any(fit.curve[-1].extrapolated for fit in fits):
        caption.append("Dashed: beyond the largest number of ranks measured, as the law has it.")
    return CurveChart(
        id=f"study-speedup{suffix}",
        title="Speedup",
        x_title="ranks",
        y_title=f"throughput over that of {points_reference(series)}",
        curves=tuple(curves),
        y_unit=Unit.FACTOR,
        x_log=log,
        y_log=log,
        x_marks=marks,
        caption=" ".join(filter(None, caption)),
    )


def points_reference(series: ScalingSeries) -> str:
    count = series.reference_world_size
    return counted(count, "rank") if count else "the reference"


def _fitted(fit: ScalingFit, largest: float) -> Curve:
    finite = [point for point in fit.curve if math.isfinite(point.speedup)]
    has_band = any(point.low is not None for point in finite)
    return Curve(
        label=visible(fit.title, 60),
        x=tuple(float(point.world_size) for point in finite),
        y=tuple(point.speedup for point in finite),
        low=tuple(math.nan if point.low is None else point.low for point in finite) if has_band else (),
        high=tuple(math.nan if point.high is None else point.high for point in finite) if has_band else (),
        kind="fit",
        dashed_from=largest,
    )


def _band_words(points: Sequence[ScalingPoint], high: Sequence[float], value: str) -> str:
    text = "The band is the 95 % interval of the median over repeats"
    top = WIDEST_INTERVAL * max(getattr(point, value) for point in points)
    if any(edge > top for edge in high):
        text += "; it leaves the chart where it is wider than all that was measured"
    return f"{text}."


def _no_interval(points: Sequence[ScalingPoint]) -> str:
    reasons = dict.fromkeys(p.no_interval for p in points if p.no_interval and not p.is_reference)
    return f"No interval: {visible('; '.join(reasons), LONGEST)}." if reasons else ""


def _efficiency_chart(series: ScalingSeries, suffix: str) -> CurveChart:
    points = series.points
    x = tuple(float(point.world_size) for point in points)
    low, high = _edges(points, lambda point: point.efficiency_interval, "efficiency")
    curves = (
        Curve(label="measured", x=x, y=tuple(p.efficiency for p in points), low=low, high=high),
        Curve(label="ideal", x=(x[0], x[-1]), y=(1.0, 1.0), kind="ideal"),
        Curve(label="acceptable (80 %)", x=(x[0], x[-1]), y=(ACCEPTABLE, ACCEPTABLE), kind="level"),
    )
    log, marks = _axis(series, curves)
    weak = series.mode == WEAK
    return CurveChart(
        id=f"study-efficiency{suffix}",
        title="Scaling efficiency",
        x_title="ranks",
        y_title="throughput per rank, of the reference's" if weak else "speedup over the ideal one",
        curves=curves,
        y_unit=Unit.RATIO,
        x_log=log,
        x_marks=marks,
    )


def _points_table(series: ScalingSeries, suffix: str) -> Table:
    caption = "Karp–Flatt: the part that does not scale, as if it were serial. "
    caption += "Rising with the ranks it is overhead, level it is a serial part."
    has = any(point.karp_flatt is not None for point in series.points)
    return Table(
        id=f"study-scaling-table{suffix}",
        title="By number of ranks",
        columns=(
            Column(key="ranks", title="Ranks", unit=Unit.COUNT, primary=True),
            Column(key="runs", title="Runs", unit=Unit.COUNT),
            Column(key="rate", title="Samples/s", unit=Unit.SAMPLES, primary=True),
            Column(key="rate_interval", title="95 % interval"),
            Column(key="step", title="Typical step", unit=Unit.TIME, primary=True),
            Column(key="speedup", title="Speedup", unit=Unit.FACTOR, primary=True),
            Column(key="speedup_interval", title="Its interval"),
            Column(key="ideal", title="Ideal", unit=Unit.FACTOR, primary=True),
            Column(key="efficiency", title="Efficiency", unit=Unit.RATIO, primary=True),
            Column(key="efficiency_interval", title="Its interval"),
            Column(key="karp", title="Karp–Flatt", unit=Unit.RATIO, primary=has),
        ),
        rows=tuple(
            (
                point.world_size,
                len(point.runs),
                point.samples_per_s,
                interval_text(Unit.SAMPLES, point.samples_per_s_interval),
                point.step_ns,
                point.speedup,
                interval_text(Unit.FACTOR, point.speedup_interval),
                point.ideal_speedup,
                point.efficiency,
                interval_text(Unit.RATIO, point.efficiency_interval),
                point.karp_flatt,
            )
            for point in series.points
        ),
        heat=tuple(("",) * 8 + (_tone(series, point.efficiency), "", "") for point in series.points),
        caption=f"{TYPICAL} {caption}" if has else TYPICAL,
    ).trimmed()


def _tone(series: ScalingSeries, efficiency: Value) -> str:
    """The heat of an efficiency; none where the series says nothing."""
    return "" if series.cannot_tell is not None else efficiency_tone(efficiency)


def _pop(series: ScalingSeries, suffix: str) -> Iterator[Block]:
    if series.pop is None:
        if series.pop_missing:
            yield Note(text=f"No efficiency tree: {visible(series.pop_missing, LONGEST)}.", tone="caution")
        return
    yield _pop_table(series.pop, series, suffix)


def _pop_table(tree: PopTree, series: ScalingSeries, suffix: str) -> Table:
    order = (PopFactor.GLOBAL, *PopFactor)
    pop_rows = [row for row in tree.rows if any(value is not None for value in row.values)]
    pop_rows.sort(key=lambda row: order.index(row.factor))
    rows: list[tuple[Value, ...]] = [
        (INDENT * row.depth + TITLES[row.factor], *row.values) for row in pop_rows
    ]
    reasons = _pop_reasons(tree)
    caption = "Each factor is the product of those indented below it. "
    caption += f"{MARK} marks 80 % and more, which counts as acceptable"
    caption += f"; {units.MISSING} is not known, never 0." if reasons else "."
    caption += "".join(f" {visible(reason, 300)}." for reason in reasons)
    caption += _beside(tree, series)
    return Table(
        id=f"study-pop-table{suffix}",
        title="Where efficiency is lost, by number of ranks",
        columns=(
            Column(key="factor", title="Factor", primary=True),
            *(
                Column(
                    key=f"n{count}",
                    title=counted(count, "rank"),
                    unit=Unit.RATIO,
                    primary=True,
                )
                for count in tree.world_sizes
            ),
        ),
        rows=tuple(rows),
        heat=tuple(("", *(_tone(series, value) for value in row.values)) for row in pop_rows),
        heat_mark=MARK,
        caption=caption,
    )


def _beside(tree: PopTree, series: ScalingSeries) -> str:
    """How these figures go with those of the throughput, and what one rank has to do with them."""
    rows = {row.factor: row.values for row in tree.rows}
    last, point = rows.get(PopFactor.GLOBAL, (None,))[-1], series.points[-1]
    text = ""
    if last is not None and point.world_size == tree.world_sizes[-1]:
        text += (
            f" Global efficiency ({units.format_ratio(last)} on {point.world_size:,}) is of the traced steps "
            "and counts what the reference itself loses; the efficiency above "
            f"({units.format_ratio(point.efficiency)}) is of the throughput, over that of the reference."
        )
    if tree.world_sizes[0] == 1 and rows.get(PopFactor.PARALLEL, (None,))[0] is not None:
        text += (
            " One rank shares nothing and sends nothing: what it lacks of 100 % is time outside computation "
            "and optimizer (input, idle)."
        )
    return text


def _pop_reasons(tree: PopTree) -> list[str]:
    """``Serialization, transfer at 1: no window was traced``, once for each reason and set of ranks."""
    by_reason: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for row in tree.rows:
        gaps: dict[str, list[int]] = {}
        for count, value, reason in zip(tree.world_sizes, row.values, row.reasons, strict=True):
            if value is None and reason:
                gaps.setdefault(reason, []).append(count)
        for reason, counts in gaps.items():
            title = TITLES[row.factor]
            by_reason.setdefault((reason, tuple(counts)), []).append(title)
    reasons = []
    for (reason, at), titles in by_reason.items():
        ranks = "" if at == tree.world_sizes else f" at {', '.join(f'{count:,}' for count in at)}"
        names = ", ".join([titles[0], *(title.lower() for title in titles[1:])])
        reasons.append(f"{names[0].upper()}{names[1:]}{ranks}: {reason}")
    return reasons


def _composition(series: ScalingSeries, suffix: str) -> Block | None:
    labelled = [(counted(point.world_size, "rank"), point.composition) for point in series.points]
    return compositions(
        f"study-scaling-composition{suffix}",
        "Where the step goes, by number of ranks",
        labelled,
        "Mean over ranks and traced steps.",
    )


def _grew(series: ScalingSeries, suffix: str) -> Iterator[Block]:
    if not any(growth.before_ns or growth.after_ns for growth in series.what_grew):
        if series.what_grew_missing:
            yield Note(text=f"What grew is not known: {visible(series.what_grew_missing, LONGEST)}.")
        return
    last = series.points[-1].world_size
    rows: list[tuple[Value, ...]] = [
        (
            visible(growth.title.capitalize(), 80),
            growth.before_ns,
            growth.expected_ns,
            growth.after_ns,
            growth.excess_ns,
            growth.excess_share,
            visible(growth.sentence, LONGEST),
        )
        for growth in series.what_grew
        if growth.before_ns or growth.after_ns
    ]
    yield Table(
        id=f"study-grew-table{suffix}",
        title=f"What grew from {points_reference(series)} to {last:,}",
        columns=(
            Column(key="part", title="Part of the step", primary=True),
            Column(key="before", title="Before", unit=Unit.TIME, primary=True),
            Column(key="expected", title="Ideal", unit=Unit.TIME, hint="what ideal scaling would leave"),
            Column(key="after", title=f"At {last:,}", unit=Unit.TIME, primary=True),
            Column(key="excess", title="Over the ideal", unit=Unit.TIME, signed=True, primary=True),
            Column(key="share", title="Of the step", unit=Unit.RATIO, signed=True, primary=True),
            Column(key="sentence", title="In words"),
        ),
        rows=tuple(rows),
        heat=tuple(
            ("", "", "", "", *((ratio_tone(_share_ratio(row[5]), less_is_good=True),) * 2), "")
            for row in rows
        ),
        caption="Times of the mean traced step, mean over ranks. Over the ideal: what the part costs.",
        cards=True,
    ).trimmed()


def _share_ratio(share: Value) -> float | None:
    """An excess' share of the step as a ratio for its tone: 20 % of the step equal twice the time."""
    return max(1 + 5 * share, 0.2) if isinstance(share, (int, float)) else None


def _fits_table(series: ScalingSeries, suffix: str) -> Table | None:
    if not series.fits:
        return None
    return Table(
        id=f"study-fits-table{suffix}",
        terminal_form="sentences",
        title="Laws fitted to these points",
        columns=(
            Column(key="law", title="Law", primary=True),
            Column(key="formula", title="Formula", unit=Unit.CODE),
            Column(key="parameters", title="Parameters, 95 % interval", primary=True),
            Column(key="error", title="Error (SMAPE)", unit=Unit.RATIO, primary=True),
            Column(key="sentence", title="Conclusion", primary=True),
        ),
        rows=tuple(
            (
                visible(fit.title, 80),
                visible(fit.formula, 120),
                "; ".join(_parameter(*p) for p in _parameters(fit)) or None,
                fit.error_ratio,
                visible(f"Not fitted: {fit.refused}" if fit.refused else fit.sentence, LONGEST),
            )
            for fit in series.fits
        ),
        cards=True,
    ).trimmed()


def _parameters(fit: ScalingFit) -> list[tuple[str, float, float | None, float | None]]:
    return [
        (f"{parameter.name}, {parameter.meaning}", parameter.value, parameter.low, parameter.high)
        for parameter in fit.parameters
    ]


def _parameter(name: str, value: float, low: float | None, high: float | None) -> str:
    text = f"{visible(name, 80)}: {_short(value)}"
    return text if low is None or high is None else f"{text} ({_short(low)} to {_short(high)})"


def _short(value: float) -> str:
    return format_value(Unit.TEXT, f"{value:.3g}")
