"""Where things go in curve charts and interval bars, for screen and paper alike. No drawing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from msgspec import Struct

from perfscope.reports.chart_layout import LINE_COLORS, value_ticks
from perfscope.reports.curves import Curve, CurveChart, IntervalBar, IntervalBars
from perfscope.reports.geometry import Tick
from perfscope.reports.values import Unit, format_value

# A mark for each color, so that no two curves differ by color alone; from the fifth on they are hollow.
SHAPES = ("circle", "square", "triangle", "diamond")
MOST_CURVES = len(LINE_COLORS)
MOST_MARKS = 14  # on one curve; with more points only some carry one
HEADROOM = 1.06
WIDEST_INTERVAL = 1.3  # times the largest figure: no interval makes the value axis longer
NEUTRAL = ("ideal", "level")  # lines to compare with

Point = tuple[float, float]


class PlotFrame(Struct, frozen=True, kw_only=True):
    """The ranges of a curve chart; `x`, `y` turn values into percent of the plot, from left and bottom."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    x_log: bool
    y_log: bool

    def x(self, value: float) -> float:
        return _share(value, self.x_low, self.x_high, log=self.x_log)

    def y(self, value: float) -> float:
        return _share(value, self.y_low, self.y_high, log=self.y_log)


def _share(value: float, low: float, high: float, *, log: bool) -> float:
    if log:
        return 100 * math.log(max(value, low / 100) / low) / math.log(high / low)
    return 100 * (value - low) / (high - low)


def frame(chart: CurveChart) -> PlotFrame:
    """Ranges that hold every point, and intervals as far as they do not dwarf the points."""
    x = [value for curve in chart.curves for value in curve.x]
    drawn = [curve for curve in chart.curves if curve.kind != "fit"]
    y = [value for curve in chart.curves for value in curve.y if math.isfinite(value)]
    # An interval from two repeats can be wider than all that was measured: it leaves at the edge, then.
    room = WIDEST_INTERVAL * max(map(abs, y), default=1.0)
    edges = [value for curve in drawn for value in (*curve.low, *curve.high) if math.isfinite(value)]
    lowest = min(y, default=0.0)
    y += [min(max(value, lowest / 2 if chart.y_log else -room), room) for value in edges]
    bottom, top = _y_range(y, chart)
    x_low, x_high = (min(x), max(x)) if x else (0.0, 1.0)
    if chart.x_log:
        x_low, x_high = _log_range(x_low, x_high)
    else:
        x_low = min(x_low, 0.0)
        x_high += 0.02 * (x_high - x_low) or 1.0
    return PlotFrame(
        x_low=x_low, x_high=x_high, y_low=bottom, y_high=top, x_log=chart.x_log, y_log=chart.y_log
    )


def _y_range(values: Sequence[float], chart: CurveChart) -> tuple[float, float]:
    if chart.y_log:
        above = [value for value in values if value > 0] or [1.0]
        return _log_range(min(above), max(above))
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = (high - low) or abs(high) or 1.0
    bottom = min(low, 0.0) if chart.y_zero else low - (HEADROOM - 1) * room
    return bottom, high + (HEADROOM - 1) * (high - bottom or room)


def _log_range(low: float, high: float) -> tuple[float, float]:
    if low <= 0:  # nothing to be seen on such an axis
        low, high = 0.1, max(high, 1.0)
    margin = (high / low) ** 0.04 if high > low else 1.5
    return low / margin, high * margin


def x_ticks(chart: CurveChart, count: int = 8) -> tuple[Tick, ...]:
    box = frame(chart)
    if not chart.x_marks:
        return value_ticks(chart.x_unit, box.x_low, box.x_high, count)
    ticks: list[Tick] = []
    for value in sorted(chart.x_marks):
        position = box.x(value)
        if 0 <= position <= 100 and (not ticks or position - ticks[-1].position > 3.5):
            ticks.append(Tick(position=position, text=format_value(chart.x_unit, value)))
    return tuple(ticks)


def y_ticks(chart: CurveChart, count: int = 5) -> tuple[Tick, ...]:
    box = frame(chart)
    if not chart.y_log:
        return value_ticks(chart.y_unit, box.y_low, box.y_high, count)
    values = log_marks(box.y_low, box.y_high)
    return tuple(Tick(position=box.y(value), text=_round_text(chart.y_unit, value)) for value in values)


def _round_text(unit: Unit, value: float) -> str:
    """A tick's figure; of plain figures without decimals that say nothing."""
    return f"{value:,g}" if unit in (Unit.FACTOR, Unit.NUMBER) else format_value(unit, value)


def log_marks(low: float, high: float) -> tuple[float, ...]:
    """1, 2 and 5 times powers of ten from `low` to `high`; powers alone over more than three of them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    marks = (factor * 10.0**power for power, factor in itertools.product(range(first, last + 1), factors))
    return tuple(mark for mark in marks if low <= mark <= high)


def slots(chart: CurveChart) -> list[tuple[Curve, int | None]]:
    """Each curve with its color; ideal lines have none."""
    slots_found: list[tuple[Curve, int | None]] = []
    number = 0
    for curve in chart.curves:
        neutral = curve.kind in NEUTRAL
        slots_found.append((curve, None if neutral else number % MOST_CURVES))
        number += not neutral
    return slots_found


def shape(slot: int) -> tuple[str, bool]:
    """(name, hollow) of the slot's mark."""
    return SHAPES[slot % len(SHAPES)], slot >= len(SHAPES)


def _places(box: PlotFrame, x: Sequence[float], y: Sequence[float]) -> list[list[Point]]:
    """Points in percent, in runs between gaps."""
    runs: list[list[Point]] = [[]]
    for across, up in zip(x, y, strict=True):
        is_drawable = (across > 0 or not box.x_log) and (up > 0 or not box.y_log)
        if math.isfinite(up) and math.isfinite(across) and is_drawable:
            runs[-1].append((box.x(across), box.y(up)))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def strokes(chart: CurveChart, curve: Curve) -> list[tuple[list[Point], bool]]:
    """(points in percent, dashed) of the curve's pieces, cut where the measured range ends."""
    box = frame(chart)
    runs = _places(box, curve.x, curve.y)
    if curve.dashed_from is None:
        return [(run, False) for run in runs]
    edge = box.x(curve.dashed_from)
    pieces: list[tuple[list[Point], bool]] = []
    for run in runs:
        solid = [point for point in run if point[0] <= edge + 1e-9]
        beyond = [point for point in run if point[0] > edge + 1e-9]
        if solid and beyond:
            beyond.insert(0, _between(solid[-1], beyond[0], edge))
            solid.append(beyond[0])
        pieces += [(points, dashed) for points, dashed in ((solid, False), (beyond, True)) if points]
    return pieces


def _between(first: Point, other: Point, x: float) -> Point:
    share = (x - first[0]) / (other[0] - first[0]) if other[0] > first[0] else 0.0
    return x, first[1] + share * (other[1] - first[1])


def band(chart: CurveChart, curve: Curve) -> list[tuple[list[Point], list[Point]]]:
    """(lower edge, upper edge) in percent of each stretch that has an interval."""
    if not curve.low or not curve.high:
        return []
    box = frame(chart)
    pieces: list[tuple[list[Point], list[Point]]] = [([], [])]
    for across, low, high in zip(curve.x, curve.low, curve.high, strict=True):
        if math.isfinite(low) and math.isfinite(high):
            pieces[-1][0].append((box.x(across), box.y(low)))
            pieces[-1][1].append((box.x(across), box.y(high)))
        elif pieces[-1][0]:
            pieces.append(([], []))
    return [piece for piece in pieces if piece[0]]


def marks(chart: CurveChart, curve: Curve) -> list[Point]:
    """Where the curve carries its mark: on its points, a few of them where they are many, or at its end."""
    points = [point for run in _places(frame(chart), curve.x, curve.y) for point in run]
    if curve.kind in NEUTRAL or not points:
        return []
    if curve.kind == "fit":
        return points[-1:]
    if curve.kind == "points" or len(points) <= MOST_MARKS:
        return points
    step = (len(points) - 1) / (MOST_MARKS // 2)
    return [points[round(number * step)] for number in range(MOST_MARKS // 2 + 1)]


class BarPlace(Struct, frozen=True, kw_only=True):
    """Percent of the axis; None: nothing to draw."""

    end: float | None
    low: float | None
    high: float | None
    text: str


def bar_top(chart: IntervalBars) -> float:
    """Where the common axis ends; it starts at 0."""
    values = [v for bar in chart.bars for v in (bar.value, bar.high) if v is not None and math.isfinite(v)]
    return max(values, default=0.0) * 1.02 or 1.0


def bar_place(chart: IntervalBars, bar: IntervalBar) -> BarPlace:
    top = bar_top(chart)

    def share(value: float | None) -> float | None:
        return None if value is None or not math.isfinite(value) else 100 * max(value, 0.0) / top

    low, high = share(bar.low), share(bar.high)
    has_interval = low is not None and high is not None and high > low
    return BarPlace(
        end=share(bar.value),
        low=low if has_interval else None,
        high=high if has_interval else None,
        text=bar_words(chart.unit, bar),
    )


def bar_words(unit: Unit, bar: IntervalBar) -> str:
    """``60.5 (58.9 to 61.2)``; an en dash where the value is not known."""
    text = format_value(unit, bar.value)
    if bar.value is None or bar.low is None or bar.high is None or bar.high <= bar.low:
        return text
    return f"{text} ({format_value(unit, bar.low)} to {format_value(unit, bar.high)})"


def interval_ticks(chart: IntervalBars, count: int = 6) -> tuple[Tick, ...]:
    return value_ticks(chart.unit, 0.0, bar_top(chart), count)
