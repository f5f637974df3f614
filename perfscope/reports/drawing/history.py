"""A figure over the sessions of a history, its levels, where they changed; below it each session's step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfscope.reports.drawing.patterns import pattern
from perfscope.reports.drawing.picture import (
    Box,
    Json,
    LegendEntry,
    Panel,
    Picture,
    grid,
    lay_out,
    swatch,
    x_axis,
    y_axis,
)
from perfscope.reports.drawing.shapes import Line, Marker, Path, Point, Rect, Shape, Text
from perfscope.reports.gate_history import layout
from perfscope.reports.gate_history.chart import HistoryChart, RunPoint
from perfscope.reports.values import Unit, format_value

WORDS, POINTS, SMALL, BETWEEN, COLUMNS = 36.0, 250.0, 96.0, 24.0, 150.0  # pixels
AXIS = 36.0
MANY = 120  # sessions, with more of which marks are small and columns carry no hatch
SAMPLE = 22.0


@lay_out.register
def _history(chart: HistoryChart) -> Picture:
    boxes = tuple(_boxes(chart))
    summary = f"{chart.y_title}; below: {chart.parts_title}" if chart.parts else chart.y_title
    last = boxes[-1]
    return Picture(
        id=chart.id,
        title=chart.title,
        caption=layout.full_caption(chart),
        look="curves history",
        legend=() if chart.small else tuple(_legend(chart)),
        panels=(
            Panel(
                plot="hs-plot",
                boxes=boxes,
                height=last.top + (last.height or 0),
                summary=words(chart),
                cursor=True,
            ),
        ),
        axis=() if chart.small else x_axis(layout.x_ticks(chart), height=AXIS),
        axis_height=AXIS,
        x_title="" if chart.small else "Session, oldest first",
        y_title="" if chart.small else summary,
        hook="curves",
        keys="Left and right arrow step through it.",
        data=lambda: history_payload(chart),
        sheets=("curves.css", "history.css"),
    )


def _legend(chart: HistoryChart) -> Iterator[LegendEntry]:
    def spot(look: str, size: float) -> tuple[Shape, ...]:
        return (Marker(x=SAMPLE / 2, y=6, kind="circle", size=size, look=look),)

    yield LegendEntry(title="Session", sample=spot("hs-run", 3.6), width=SAMPLE)
    if layout.dots(chart):
        yield LegendEntry(title="Single run", sample=spot("hs-one", 1.8), width=SAMPLE)
    if layout.has_doubtful(chart):
        yield LegendEntry(title="Disturbed", sample=spot("hs-run doubtful", 3.4), width=SAMPLE)
    if chart.levels:
        line = Line(x1=0, y1=6, x2=SAMPLE, y2=6, look="hs-level")
        yield LegendEntry(title="Level (median)", sample=(line,), width=SAMPLE)
    for key, title in layout.shown_parts(chart):
        yield swatch(key, title)


def _boxes(chart: HistoryChart) -> Iterator[Box]:
    """Words on the changes, points, columns: one below the other."""
    rows = layout.label_rows(chart)
    rules = layout.rules(chart)
    if rows:
        break_shapes = [
            shape for rule in rules if rule.row is not None for shape in _told(rule, rule.row, rows)
        ]
        yield Box(shapes=tuple(break_shapes), height=WORDS * rows, ground=False)
    up, height = layout.y_ticks(chart), SMALL if chart.small else POINTS
    lines = [_rule(rule, rule.x, 0) for rule in rules]
    shapes = (*grid(up), _line(chart), *lines, *_levels(chart), *_marks(chart))
    yield Box(shapes=shapes, axis=y_axis(up), top=WORDS * rows, height=height)
    if chart.parts:
        below = WORDS * rows + height + BETWEEN
        columns = (*_columns(chart), *lines)
        yield Box(shapes=columns, axis=y_axis(layout.part_ticks(chart)), top=below, height=COLUMNS)


def _rule(rule: layout.Rule, x: float, top: float) -> Line:
    return Line(x1=x, y1=top, x2=x, y2=100, look=f"hs-rule {_direction(rule)}")


def _direction(rule: layout.Rule) -> str:
    return "worse" if rule.mark.is_worse else "better"


def _told(rule: layout.Rule, row: int, rows: int) -> Iterator[Shape]:
    top = 100 * row / rows
    yield _rule(rule, rule.x, top)
    anchor, dx = ("end", -6.0) if rule.left else ("start", 6.0)
    change, look = f"{rule.mark.arrow} {rule.mark.text}", f"hs-change {_direction(rule)}"
    yield Text(x=rule.x, y=top, dx=dx, dy=12, text=change, look=look, anchor=anchor)
    yield Text(x=rule.x, y=top, dx=dx, dy=27, text=rule.mark.label, look="hs-commit", anchor=anchor)


def _line(chart: HistoryChart) -> Path:
    """Through the points; it ends and begins anew where a value is missing."""
    box = layout.frame(chart)
    runs: list[list[Point]] = [[]]
    for point in chart.points:
        if math.isfinite(point.value):
            runs[-1].append((box.x(point.number), 100 - box.y(point.value)))
        elif runs[-1]:
            runs.append([])
    return Path(runs=[run for run in runs if run], look="hs-line")


def _levels(chart: HistoryChart) -> Iterator[Shape]:
    box = layout.frame(chart)
    for level in chart.levels:
        left, right, y = box.x(level.first - 0.5), box.x(level.last + 0.5), 100 - box.y(level.value)
        for look in ("hs-halo", "hs-level"):
            yield Line(x1=left, y1=y, x2=right, y2=y, look=look)


def _marks(chart: HistoryChart) -> Iterator[Shape]:
    for dot in layout.dots(chart):
        look = f"hs-one{' doubtful' if dot.doubtful else ''}"
        yield Marker(x=dot.x, y=100 - dot.y, kind="circle", size=1.6, look=look)
    size = 2.4 if chart.small or len(chart.points) > MANY else 3.6
    for spot in layout.spots(chart):
        kind, radius = ("triangle", 4.0) if spot.above else ("circle", size)
        look = f"hs-run{' doubtful' if spot.point.doubtful else ''}"
        yield Marker(x=spot.x, y=100 - spot.y, kind=kind, size=radius, look=look)


def _columns(chart: HistoryChart) -> Iterator[Shape]:
    hatched = len(chart.points) <= MANY
    for piece in layout.pieces(chart):
        yield Rect(
            x=piece.x,
            y=100 - piece.bottom - piece.height,
            width=piece.width,
            height=piece.height,
            look=f"f-{piece.key}",
            pattern=pattern(piece.key) if hatched else "",
        )


def words(chart: HistoryChart) -> str:
    """The chart for who cannot see it."""
    finite = [point for point in chart.points if math.isfinite(point.value)]
    if not finite:
        return f"{chart.title}: no session has it"
    facts = [
        f"{chart.title}, {len(finite)} sessions, {format_value(chart.unit, finite[0].value)} in the first, "
        f"{format_value(chart.unit, finite[-1].value)} in the last"
    ]
    facts += [f"{mark.text} from session {mark.number} ({mark.label}) on" for mark in chart.breaks]
    return "; ".join(facts)


def history_payload(chart: HistoryChart) -> Json:
    """JSON-ready data for curves.js: places in percent, and what is beside the pointer there."""
    box = layout.frame(chart)
    x = [round(box.x(point.number), 2) for point in chart.points]
    at = [" · ".join(filter(None, (f"{point.number:,}", point.label, point.date))) for point in chart.points]

    def curve(label: str, chosen: list[int], texts: list[str]) -> Json:
        return {"label": label, "x": [x[n] for n in chosen], "at": [at[n] for n in chosen], "text": texts}

    points = list(enumerate(chart.points))
    finite = [n for n, point in points if math.isfinite(point.value)]
    curves = [curve(chart.y_title, finite, [_value_words(chart, chart.points[n]) for n in finite])]
    for number, part in enumerate(chart.parts):
        has = [n for n, point in points if point.parts and point.parts[number] > 0]
        if has:
            texts = [format_value(Unit.TIME, chart.points[n].parts[number]) for n in has]
            curves.append(curve(part.title, has, texts))
    return {"x_title": "Session", "curves": curves}


def _value_words(chart: HistoryChart, point: RunPoint) -> str:
    text = format_value(chart.unit, point.value)
    parts = []
    counted = [run for run in point.runs if run.doubtful == point.doubtful]
    if len(counted) > 1:
        parts.append(f"median of {len(counted):,} runs")
    if point.doubtful:
        parts.append("disturbed")
    return f"{text} ({', '.join(parts)})" if parts else text
