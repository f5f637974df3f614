"""Where things go in counter charts and rooflines, worked out once for screen and paper. No drawing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from msgspec import Struct

from perfscope.reports.display import path_end
from perfscope.reports.geometry import Tick, nice_step
from perfscope.reports.model import PREFIXED, CounterChart, CounterLine, RooflineChart, Unit, format_value
from perfscope.units import BINARY_UNITS, DECIMAL_PREFIXES, TIME_UNITS

# Colors of the palette for the lines of a chart.
LINE_COLORS = ("compute", "exposed_comm", "optimizer", "copy", "input_wait", "host", "forward", "backward")
MOST_BANDS = 4  # beyond so many lines their bands would only blur one another
ROOF_AIR = 90.0  # percent of the height that the roof may reach: its name stands above it
PEAK_ROOM = 1.7  # a peak higher than this times the largest value is stated, not drawn
FLOATING = frozenset({Unit.FREQUENCY, Unit.TEMPERATURE})  # axes that need not start at 0
# Width of a letter of the roofs' names, percent of the plot: on paper and wide screens, on a phone.
LETTER, SMALL_LETTER = 0.95, 2.8
Rectangle = tuple[float, float, float, float]
_SUFFIX = {**PREFIXED, Unit.RATE: "B/s"}


def _scale(unit: Unit, high: float) -> tuple[float, str]:
    """What a value axis up to `high` counts in, and its name."""
    if unit is Unit.RATIO:
        return 0.01, "%"
    if unit is Unit.BYTES:
        return next(((s, n) for s, n in BINARY_UNITS if high >= s), (1, "B"))
    if unit is Unit.TIME:
        return next(((s, n) for s, n in TIME_UNITS if high >= s), (1.0, "ns"))
    if unit is Unit.TEMPERATURE:
        return 1.0, "°C"
    size, prefix = next(((s, p) for s, p in DECIMAL_PREFIXES if high >= s), (1.0, ""))
    return size, f"{prefix}{_SUFFIX.get(unit, '')}"


def value_ticks(unit: Unit, low: float, high: float, count: int) -> tuple[Tick, ...]:
    """Round values between `low` and `high`, all in one unit; positions in percent."""
    if high <= low:
        return ()
    size, name = _scale(unit, high)
    step = nice_step((high - low) / size, count)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / size / step - 1e-9), math.floor(high / size / step + 1e-9)
    return tuple(
        Tick(
            position=100 * (number * step * size - low) / (high - low),
            text=f"{number * step:,.{decimals}f} {name}".rstrip() if number else "0",
        )
        for number in range(first, last + 1)
    )


class CounterFrame(Struct, frozen=True, kw_only=True):
    """The value range of one counter chart, and which peaks are drawn in it (others are stated)."""

    unit: Unit
    low: float
    high: float
    peaks: tuple[float, ...]


def counter_frame(chart: CounterChart) -> CounterFrame:
    """From 0 (clocks and temperatures may start higher) to the largest value, or to a peak that is near."""
    means = [value for line in chart.lines for value in line.mean if math.isfinite(value)]
    highs = sorted(value for line in chart.lines for value in line.high if math.isfinite(value))
    top = max(max(means, default=0.0), highs[int(0.98 * (len(highs) - 1))] if highs else 0.0) or 1.0
    peaks = tuple(sorted({line.peak for line in chart.lines if line.peak and line.peak <= PEAK_ROOM * top}))
    top = 1.05 * max((top, *peaks))
    low = 0.0
    if chart.unit in FLOATING and means and min(means) > 0.6 * top:
        step = nice_step(top - min(means), 3)
        low = math.floor(min(means) / step - 0.2) * step
    return CounterFrame(unit=chart.unit, low=max(low, 0.0), high=top, peaks=peaks)


def line_runs(line: CounterLine) -> list[list[int]]:
    """Indexes of the points between gaps."""
    runs: list[list[int]] = [[]]
    for index, value in enumerate(line.mean):
        if math.isfinite(value):
            runs[-1].append(index)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _far_peak(line: CounterLine, frame: CounterFrame) -> str:
    """The peak of a line where it lies above the axis."""
    if not line.peak or line.peak <= frame.high:
        return ""
    source = f" ({line.peak_source})" if line.peak_source else ""
    return f"at most {format_value(frame.unit, line.peak)}{source}"


def _doubt(line: CounterLine) -> str:
    return "" if line.quality in ("exact", "") else line.quality


def chart_note(chart: CounterChart, frame: CounterFrame) -> str:
    """What holds for every line of a chart, said once: a peak above the axis, a doubt."""
    return ", ".join(filter(None, _shared(chart, frame)))


def _shared(chart: CounterChart, frame: CounterFrame) -> tuple[str, str]:
    """The peak above the axis and the doubt that all lines have; "" where they have not the same."""
    peaks, doubts = {_far_peak(line, frame) for line in chart.lines}, {_doubt(line) for line in chart.lines}
    return peaks.pop() if len(peaks) == 1 else "", doubts.pop() if len(doubts) == 1 else ""


def line_note(chart: CounterChart, line: CounterLine, frame: CounterFrame) -> str:
    """Beside a line's name: its mean, and what of peak and doubts is its own; or the line's own note."""
    if line.note:
        return line.note
    finite = [value for value in line.mean if math.isfinite(value)]
    parts = [f"mean {format_value(frame.unit, sum(finite) / len(finite))}"] if finite else []
    shared_peak, shared_doubt = _shared(chart, frame)
    parts += ["" if shared_peak else _far_peak(line, frame), "" if shared_doubt else _doubt(line)]
    return ", ".join(filter(None, parts))


class RoofFrame(Struct, frozen=True, kw_only=True):
    """Ranges of a roofline; positions are percent of the plot, from the left and from the bottom."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, intensity: float) -> float:
        return 100 * math.log(intensity / self.x_low) / math.log(self.x_high / self.x_low)

    def y(self, rate: float) -> float:
        return 100 * math.log(rate / self.y_low) / math.log(self.y_high / self.y_low)


def roof_frame(chart: RooflineChart) -> RoofFrame:
    """Ranges that hold every point, the ridge and some air."""
    ridge = chart.peak_flops_per_s / chart.bandwidth_bytes_per_s
    across = [point.intensity for point in chart.points] + [ridge]
    up = [point.flops_per_s for point in chart.points] + [chart.peak_flops_per_s]
    y_low, y_high = _round_down(min(up) / 2.0), _round_up(max(up) * 1.7)
    while math.log(chart.peak_flops_per_s / y_low) > ROOF_AIR / 100 * math.log(y_high / y_low):
        y_high = _round_up(y_high * 1.01)
    return RoofFrame(
        x_low=_round_down(min(across) / 2.2),
        x_high=_round_up(max(across) * 4.0),
        y_low=y_low,
        y_high=y_high,
    )


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= value * (1 + 1e-9))


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))


def log_ticks(unit: Unit, low: float, high: float) -> tuple[Tick, ...]:
    """Powers of ten; 2 and 5 times them too where there are few."""
    decades = math.log10(high / low)
    factors = (1,) if decades > 3.2 else (1, 3) if decades > 2.2 else (1, 2, 5)
    ticks = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for factor in factors:
            value = factor * 10.0**power
            if low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
                percent = 100 * math.log(value / low) / math.log(high / low)
                ticks.append(Tick(position=percent, text=_log_text(unit, value)))
    return tuple(ticks)


def _log_text(unit: Unit, value: float) -> str:
    if unit is Unit.NUMBER:
        return f"{value:g}" if value < 1e4 else f"{value:,.0f}"
    if unit is Unit.TIME:
        size, name = next(((s, n) for s, n in TIME_UNITS if value >= s * (1 - 1e-9)), (1.0, "ns"))
        return f"{value / size:g} {name}"
    size, prefix = next(((s, p) for s, p in DECIMAL_PREFIXES if value >= s * (1 - 1e-9)), (1.0, ""))
    return f"{value / size:g} {prefix}{_SUFFIX.get(unit, '')}".rstrip()


def roof_line(chart: RooflineChart, frame: RoofFrame) -> list[tuple[float, float]]:
    """Corners of the roof in percent: memory's slope, the ridge, the flat peak."""
    bandwidth, peak = chart.bandwidth_bytes_per_s, chart.peak_flops_per_s
    start = max(frame.x_low, frame.y_low / bandwidth)
    return [
        (frame.x(start), frame.y(start * bandwidth)),
        (frame.x(peak / bandwidth), frame.y(peak)),
        (100.0, frame.y(peak)),
    ]


def radius(chart: RooflineChart, time_ns: int) -> float:
    """Of a point, in pixels: the area follows the time per step."""
    longest = max((point.time_ns for point in chart.points), default=0)
    return max(12.0 * math.sqrt(time_ns / longest), 3.0) if longest > 0 else 5.0


class PointLabel(Struct, frozen=True, kw_only=True):
    """A name beside a point: percent of the plot, then pixels right and up, and the text's anchor."""

    x: float
    y: float
    right: float
    up: float
    anchor: str  # start, middle, end
    text: str


def roof_labels(
    chart: RooflineChart, width: float, height: float, *, most: int, letters: int = 24, letter: float = 6.6
) -> list[PointLabel]:
    """Names for the longest points where they touch neither a point, nor the roof, nor another name.

    `width` and `height` are the plot's, in pixels; a name that finds no room is left to the pointer. The two
    passes of a layer share a name where they are close.
    """
    frame = roof_frame(chart)
    spots = [
        (frame.x(p.intensity) * width / 100, frame.y(p.flops_per_s) * height / 100) for p in chart.points
    ]
    sizes = [radius(chart, p.time_ns) for p in chart.points]
    taken = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(spots, sizes, strict=True)]
    corners = [(x * width / 100, y * height / 100) for x, y in roof_line(chart, frame)]
    taken += _along(corners) + _word_boxes(chart, width, height, letter * 1.15)
    labels: list[PointLabel] = []
    named: list[tuple[str, float, float]] = []
    for index, point in enumerate(chart.points):
        x, y = spots[index]
        twin = any(name == point.label and abs(x - u) + abs(y - v) < 90 for name, u, v in named)
        if len(labels) >= most or twin:
            continue
        text = path_end(point.label, letters)
        position = _free_place((x, y), sizes[index], len(text) * letter, (width, height), taken)
        if position is not None:
            right, up, anchor, box = position
            taken.append(box)
            named.append((point.label, x, y))
            at = {"x": 100 * x / width, "y": 100 * y / height, "right": right, "up": up}
            labels.append(PointLabel(**at, anchor=anchor, text=text))
    return labels


def _free_place(
    spot: tuple[float, float],
    size: float,
    length: float,
    plot: tuple[float, float],
    taken: Sequence[Rectangle],
) -> tuple[float, float, str, Rectangle] | None:
    """(pixels right, pixels up, anchor, box) of the first place around a point that is free."""
    (x, y), r = spot, size + 5
    point = (x - size, y - size, x + size, y + size)
    for anchor, right, up, left in (
        ("start", r, -4.0, 0.0),
        ("end", -r, -4.0, -length),
        ("middle", 0.0, -r - 10, -length / 2),
        ("middle", 0.0, r + 1, -length / 2),
        ("start", r, -r - 8, 0.0),
        ("end", -r, -r - 8, -length),
        ("end", -r, r - 1, -length),
        ("middle", 0.0, -r - 24, -length / 2),
    ):
        box = (x + right + left - 2, y + up - 3, x + right + left + length + 2, y + up + 11)
        inside = box[0] >= 2 and box[2] <= plot[0] - 2 and box[1] >= 2 and box[3] <= plot[1] - 2
        if inside and not any(_touch(box, other) for other in taken if other != point):
            return right, up, anchor, box
    return None


class RoofWords(Struct, frozen=True, kw_only=True):
    """Where the roofs' own names end, in percent: left of a place on the roof, where nothing can be."""

    peak: tuple[float, float]
    memory: tuple[float, float]
    below: bool = False  # memory's name starts right of its place, under the roof


def roof_words(chart: RooflineChart, letter: float = LETTER) -> RoofWords:
    """Places for the two names that no point covers: the ridge or the far end, and along the slope.

    Points lie above the roof where a working set fits the cache, so the usual places may be taken. `letter`:
    a letter's width in percent. Left of a slope that starts near the axis there is no room for words.
    """
    frame = roof_frame(chart)
    corners = roof_line(chart, frame)
    spots = [(frame.x(p.intensity), frame.y(p.flops_per_s)) for p in chart.points]

    def free(end: tuple[float, float], letters: int) -> bool:
        width = letter * letters
        return end[0] > width and not any(
            end[0] - width - 2 < x < end[0] and -3 < y - end[1] < 6 for x, y in spots
        )

    (x0, y0), (x1, y1), (x2, y2) = corners
    ridge = x1 > 42 and free((x1, y1), len(chart.peak_text))
    along = [(x0 + (x1 - x0) * part, y0 + (y1 - y0) * part) for part in (0.67, 0.5, 0.8, 0.35)]
    peak = (x1, y1) if ridge else (x2, y2)
    width = letter * len(chart.bandwidth_text)
    roomy = [at for at in along if at[0] > width]
    memory = next((at for at in along if free(at, len(chart.bandwidth_text))), None)
    if memory is not None or roomy:
        return RoofWords(peak=peak, memory=memory or roomy[0])
    under = [at for at in along if at[0] + width + 4 < 100] or [(x0, y0)]

    def crowd(at: tuple[float, float]) -> int:
        return sum(at[0] < x < at[0] + width + 4 and -9 < y - at[1] < 2 for x, y in spots)

    return RoofWords(peak=peak, memory=min(under, key=crowd), below=True)


def _word_boxes(chart: RooflineChart, width: float, height: float, letter: float) -> list[Rectangle]:
    roof = roof_words(chart, 100 * letter / width)
    boxes = []
    for (x, y), text in ((roof.peak, chart.peak_text), (roof.memory, chart.bandwidth_text)):
        right, up = x * width / 100 - 4, y * height / 100
        boxes.append((right - len(text) * letter - 10, up - 4, right, up + 20))
    if roof.below:
        left, down = roof.memory[0] * width / 100 + 8, roof.memory[1] * height / 100
        boxes[1] = (left, down - 20, left + len(chart.bandwidth_text) * letter + 6, down + 4)
    return boxes


def _along(corners: list[tuple[float, float]]) -> list[Rectangle]:
    """Small squares on the roof, so that names keep off it."""
    squares = []
    for (x0, y0), (x1, y1) in itertools.pairwise(corners):
        steps = max(int(max(abs(x1 - x0), abs(y1 - y0)) / 6), 1)
        for step in range(steps + 1):
            x, y = x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps
            squares.append((x - 2, y - 2, x + 2, y + 2))
    return squares


def _touch(first: Rectangle, other: Rectangle) -> bool:
    return first[0] < other[2] and other[0] < first[2] and first[1] < other[3] and other[1] < first[3]
