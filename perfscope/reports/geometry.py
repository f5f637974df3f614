"""Where things go in a chart, worked out once for every renderer: ticks, segments, ranges. No drawing."""

from __future__ import annotations

import math

from msgspec import Struct

from perfscope import units
from perfscope.reports.model import Bar, ChartPart, LineChart, StackedBars, Unit, format_value

LABEL_SHARE = 6.5  # percent of the axis a segment must span to carry its figure
CLIP = 1.5  # the value axis ends here times the 98th percentile; single outliers must not flatten the rest


class Tick(Struct, frozen=True, kw_only=True):
    position: float  # percent of the axis
    text: str
    below: str = ""  # a second line


class Segment(Struct, frozen=True, kw_only=True):
    """One colored piece: `start` and `width` in percent of the axis, `share` of its own bar in percent."""

    part: ChartPart
    value: float
    start: float
    width: float
    share: float
    label: str

    @property
    def middle(self) -> float:
        return self.start + self.width / 2


def nice_step(span: float, count: int) -> float:
    """A step of 1, 2 or 5 times a power of ten that cuts `span` into about `count` pieces."""
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)


def time_ticks(low: float, high: float, count: int) -> tuple[Tick, ...]:
    """Round times between `low` and `high` ns, all in the unit that suits `high`, positions in percent."""
    if high <= low:
        return ()
    step = max(nice_step(high - low, count), 1.0)
    first = math.ceil(low / step - 1e-9)
    values = [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]
    return tuple(
        Tick(position=100 * (value - low) / (high - low), text=_tick_text(value, high, step))
        for value in values
    )


def _tick_text(value: float, high: float, step: float) -> str:
    """`value` in the unit of `high`, with as many decimals as `step` needs: ticks share one unit."""
    if value == 0:
        return "0"
    size, unit = next(((s, u) for s, u in units.TIME_UNITS if high >= s), (1, "ns"))
    decimals = max(0, -math.floor(math.log10(step / size) + 1e-9))
    return f"{value / size:,.{decimals}f} {unit}"


def bar_text(chart: StackedBars, value: float) -> str:
    """A value of the chart as a person reads it."""
    return units.format_ratio(value, 0) if chart.unit is Unit.RATIO else format_value(chart.unit, value)


def bar_end(chart: StackedBars, bar: Bar) -> str:
    """What follows a bar."""
    return bar.end or bar_text(chart, bar.total)


def bar_ticks(chart: StackedBars, count: int) -> tuple[Tick, ...]:
    """Of the bars' common axis, which starts at 0."""
    if chart.unit is not Unit.RATIO:
        return time_ticks(0, chart.longest, count)
    step = 0.25
    last = math.floor(chart.longest / step + 1e-9)
    return tuple(
        Tick(
            position=100 * number * step / chart.longest,
            text=units.format_ratio(number * step, 0) if number else "0",
        )
        for number in range(last + 1)
        if chart.longest > 0
    )


def bar_segments(chart: StackedBars, bar: Bar) -> tuple[Segment, ...]:
    """The pieces of one bar, without empty ones. The axis runs from 0 to the longest bar."""
    longest = chart.longest
    if longest <= 0:
        return ()
    segments, start = [], 0.0
    for part, value in zip(chart.parts, bar.values, strict=True):
        if value > 0:
            width = 100 * value / longest
            segments.append(
                Segment(
                    part=part,
                    value=value,
                    start=100 * start / longest,
                    width=width,
                    share=100 * value / bar.total,
                    label=bar_text(chart, value) if width >= LABEL_SHARE else "",
                )
            )
            start += value
    return tuple(segments)


def used_parts(chart: StackedBars) -> tuple[ChartPart, ...]:
    """Parts that some bar has, for the legend."""
    return tuple(part for i, part in enumerate(chart.parts) if any(bar.values[i] > 0 for bar in chart.bars))


class SeriesFrame(Struct, frozen=True, kw_only=True):
    """The ranges a Series is drawn in: x from 0 to `x_max`, y from `low` to `high` ns."""

    x_max: int
    low: float
    high: float
    num_above: int  # points cut at the top
    peak: int  # the largest value of all


def series_frame(series: LineChart) -> SeriesFrame:
    """Ranges that show the bulk: outliers beyond CLIP times the 98th percentile leave at the top."""
    values = sorted(value for line in series.lines for value in (*line.high, *line.low))
    peak, bulk = values[-1], values[int(0.98 * (len(values) - 1))]
    top = peak if peak <= CLIP * bulk else bulk * 1.08
    bottom = values[0] * 0.985
    step = nice_step(max(top - bottom, 1), 5)
    low = max(math.floor(bottom / step) * step, 0.0)
    high = math.ceil(top / step) * step
    return SeriesFrame(
        x_max=max(max(line.x) for line in series.lines) or 1,
        low=low,
        high=max(high, low + 1),
        num_above=sum(value > high for line in series.lines for value in line.high),
        peak=peak,
    )


def clip_note(frame: SeriesFrame) -> str:
    """Says what lies above the axis, or ''."""
    if not frame.num_above:
        return ""
    points = "1 point is" if frame.num_above == 1 else f"{frame.num_above:,} points are"
    return f"{points} above the axis, the highest at {units.format_ns(frame.peak)}."


def count_ticks(high: int, count: int) -> tuple[Tick, ...]:
    """Whole numbers from 0 to `high`."""
    step = max(int(nice_step(max(high, 1), count)), 1)
    return tuple(
        Tick(position=100 * value / max(high, 1), text=units.format_count(value))
        for value in range(0, high + 1, step)
    )
