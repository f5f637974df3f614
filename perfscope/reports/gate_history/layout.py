"""Where things go in a history chart, for screen and paper alike, in percent. No drawing."""

from __future__ import annotations

import math

from msgspec import Struct

from perfscope.messages.lists import first_of
from perfscope.reports.chart_layout import value_ticks
from perfscope.reports.gate_history.chart import Break, HistoryChart, RunPoint
from perfscope.reports.geometry import Tick
from perfscope.reports.values import Unit, format_value

ROOM = 0.08  # of the values' range, free above and below them
NARROWEST_RANGE = 0.06  # of the largest value: noise of a thousandth must not look like mountains
FAR = 0.35  # a point so far above the highest level (as a share of it) leaves at the top
LABEL_WIDTH = 20.0  # percent of the width that the words of a break may need (on a telephone)
LABEL_ROWS = 4
MOST_TICKS = 7
GAP = 0.16  # of a column's width, between columns
MOST_GAPS = 90  # with more columns they touch
SPREAD = 0.6  # of a column's width, over which a session's single runs lie


class HistoryFrame(Struct, frozen=True, kw_only=True):
    """`first` to `last`: sessions' numbers; `low`, `high`: of the points; `top`: of the columns, from 0."""

    first: int
    last: int
    low: float
    high: float
    top: float

    def x(self, number: float) -> float:
        """The middle of session `number`."""
        return 100 * (number - self.first + 0.5) / (self.last - self.first + 1)

    def y(self, value: float) -> float:
        """From the bottom; what lies beyond stays at the edge."""
        return min(max(100 * (value - self.low) / (self.high - self.low), 0.0), 100.0)


def frame(chart: HistoryChart) -> HistoryFrame:
    values = [point.value for point in chart.points if math.isfinite(point.value)]
    values += [run.value for point in chart.points for run in point.runs if math.isfinite(run.value)]
    levels = [level.value for level in chart.levels]
    highest = max(levels, default=max(values, default=1.0))
    inside = [value for value in values if value <= highest * (1 + FAR) or highest <= 0] + levels
    low, high = (min(inside), max(inside)) if inside else (0.0, 1.0)
    range_ = max(high - low, NARROWEST_RANGE * abs(high)) or 1.0
    middle = (low + high) / 2
    bottom = middle - range_ * (0.5 + ROOM)
    return HistoryFrame(
        first=chart.points[0].number if chart.points else 1,
        last=chart.points[-1].number if chart.points else 1,
        low=max(bottom, 0.0) if low >= 0 else bottom,
        high=middle + range_ * (0.5 + ROOM),
        top=1.04 * _tallest([math.fsum(point.parts) for point in chart.points]) or 1.0,
    )


def _tallest(totals: list[float]) -> float:
    """Of the columns, but for single ones that tower above the others: those leave at the top."""
    ordered = sorted(total for total in totals if total > 0)
    if not ordered:
        return 0.0
    return min(ordered[-1], (1 + FAR) * ordered[int(0.95 * (len(ordered) - 1))])


class Spot(Struct, frozen=True, kw_only=True):
    """Where a session's mark is. `above`: its value lies above the axis."""

    point: RunPoint
    x: float
    y: float
    above: bool


def spots(chart: HistoryChart) -> list[Spot]:
    box = frame(chart)
    return [
        Spot(point=point, x=box.x(point.number), y=box.y(point.value), above=point.value > box.high)
        for point in chart.points
        if math.isfinite(point.value)
    ]


class Dot(Struct, frozen=True, kw_only=True):
    """Where the small mark of a single run is; one beyond the axis lies at its edge."""

    x: float
    y: float
    doubtful: bool


def dots(chart: HistoryChart) -> list[Dot]:
    """The single runs of each session beside its mark, oldest left."""
    box = frame(chart)
    return [
        Dot(
            x=box.x(point.number + SPREAD * ((index + 0.5) / len(point.runs) - 0.5)),
            y=box.y(run.value),
            doubtful=run.doubtful,
        )
        for point in chart.points
        for index, run in enumerate(point.runs)
        if math.isfinite(run.value)
    ]


class Rule(Struct, frozen=True, kw_only=True):
    """Where a break's line stands, and in which of LABEL_ROWS rows its words, left or right of it.

    `row` None: there is no room for words, the line begins at the points.
    """

    mark: Break
    x: float
    row: int | None
    left: bool

    @property
    def span(self) -> tuple[float, float]:
        """From where to where its words go."""
        return (self.x - LABEL_WIDTH, self.x) if self.left else (self.x, self.x + LABEL_WIDTH)


def rules(chart: HistoryChart) -> list[Rule]:
    """One per break, in their order; words go right of their line where that leaves most of them room."""
    box = frame(chart)
    marks = [(mark, box.x(mark.number - 0.5)) for mark in chart.breaks]
    right = _placed([(mark, x, x > 100 - LABEL_WIDTH) for mark, x in marks])
    left = _placed([(mark, x, x >= LABEL_WIDTH) for mark, x in reversed(marks)])[::-1]
    return max(right, left, key=lambda placed_rules: sum(rule.row is not None for rule in placed_rules))


def _placed(marks: list[tuple[Break, float, bool]]) -> list[Rule]:
    """Each (break, place, words left of it) in the first row where it clashes with none before it."""
    placed: list[Rule] = []
    for mark, x, left in marks:
        rows = (Rule(mark=mark, x=x, row=row, left=left) for row in range(LABEL_ROWS))
        free = (candidate for candidate in rows if not any(_clash(candidate, other) for other in placed))
        placed.append(next(free, Rule(mark=mark, x=x, row=None, left=left)))
    return placed


def _clash(first: Rule, other: Rule) -> bool:
    """Whether words would cover words, or a line, which goes down from its words, would cross the other's."""
    if first.row is None or other.row is None:
        return False
    (begin, end), (start, stop) = first.span, other.span
    if first.row == other.row and begin < stop and start < end:
        return True
    return (start < first.x < stop and first.row <= other.row) or (
        begin < other.x < end and other.row <= first.row
    )


def label_rows(chart: HistoryChart) -> int:
    """Rows of words above the points; 0 without any."""
    return (
        0 if chart.small else max((rule.row + 1 for rule in rules(chart) if rule.row is not None), default=0)
    )


class ColumnPart(Struct, frozen=True, kw_only=True):
    """One part of one column; `bottom`, `height` of the columns' own axis."""

    key: str
    x: float
    width: float
    bottom: float
    height: float


def pieces(chart: HistoryChart) -> list[ColumnPart]:
    box = frame(chart)
    count = box.last - box.first + 1
    gap = GAP if count <= MOST_GAPS else 0.0
    width = 100 / count * (1 - gap)
    pieces_found = []
    for point in chart.points:
        done = 0.0
        for part, value in zip(chart.parts, point.parts, strict=False):
            if value > 0 and done < box.top:
                pieces_found.append(
                    ColumnPart(
                        key=part.key,
                        x=box.x(point.number) - width / 2,
                        width=width,
                        bottom=100 * done / box.top,
                        height=100 * min(value, box.top - done) / box.top,
                    )
                )
                done += value
    return pieces_found


def shown_parts(chart: HistoryChart) -> list[tuple[str, str]]:
    """(key, title) of parts that some session has, for the legend."""
    return [
        (part.key, part.title)
        for number, part in enumerate(chart.parts)
        if any(point.parts and point.parts[number] > 0 for point in chart.points)
    ]


def y_ticks(chart: HistoryChart) -> tuple[Tick, ...]:
    box = frame(chart)
    return value_ticks(chart.unit, box.low, box.high, 3 if chart.small else 5)


def part_ticks(chart: HistoryChart) -> tuple[Tick, ...]:
    return value_ticks(Unit.TIME, 0.0, frame(chart).top, 3)


def x_ticks(chart: HistoryChart) -> list[Tick]:
    """Sessions that get their number and date below the axis."""
    if not chart.points:
        return []
    box, count = frame(chart), min(MOST_TICKS, len(chart.points))
    last = len(chart.points) - 1
    chosen = sorted({round(number * last / max(count - 1, 1)) for number in range(count)})
    points = [chart.points[index] for index in chosen]
    return [
        Tick(position=box.x(point.number), text=f"{point.number:,}", below=point.date) for point in points
    ]


def has_doubtful(chart: HistoryChart) -> bool:
    return any(
        (point.doubtful and math.isfinite(point.value)) or any(run.doubtful for run in point.runs)
        for point in chart.points
    )


def full_caption(chart: HistoryChart) -> str:
    """The caption, and what lies above the axis."""
    return " ".join(filter(None, (chart.caption, above_note(chart))))


def above_note(chart: HistoryChart) -> str:
    """Says what lies above the axis, or ''."""
    high = [spot.point for spot in spots(chart) if spot.above]
    if not high:
        return ""
    points_text = first_of(
        (f"session {point.number} at {format_value(chart.unit, point.value)}" for point in high), 4
    )
    return f"Above the axis: {points_text}."
