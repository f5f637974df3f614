"""Curves with a figure on either axis."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from perfscope.reports import curve_layout as places
from perfscope.reports.curves import Curve, CurveChart
from perfscope.reports.drawing.picture import (
    Box,
    Json,
    LegendEntry,
    Panel,
    Picture,
    grid,
    lay_out,
    x_axis,
    y_axis,
)
from perfscope.reports.drawing.shapes import Line, Marker, Path, Point, Shape, Text
from perfscope.reports.values import format_value

MARK = 3.6  # pixels
POINT_MARK = 6.0  # of a curve of one point
SAMPLE = 30.0
LETTER = 0.95  # percent of the plot's width that a letter of a point's name takes, on a page of 800 pixels
_SPACE = 0.9, 2.2  # percent of the plot around a mark, and around the line of its name
_Box = tuple[float, float, float, float]  # left, right, top, bottom


@lay_out.register
def _curves(chart: CurveChart) -> Picture:
    curves, up = places.slots(chart), places.y_ticks(chart)
    shapes = list(grid(up))
    for curve, slot in curves:
        around = [[*low, *reversed(high)] for low, high in places.band(chart, curve) if len(low) > 1]
        if around:
            shapes.append(Path(runs=_down(around), look=f"cv-band {_color(slot)}", closed=True))
    shapes += [path for curve, slot in curves for path in _lines(chart, curve, slot)]
    for curve, slot in curves:
        for x, y in places.marks(chart, curve):
            shapes += _mark(curve, slot, x, 100 - y)
    shapes += _names(chart, [curve for curve, _ in curves])
    summary = "; ".join(curve_words(chart, curve) for curve, _ in curves)
    panel = Panel(
        plot="cv-plot",
        boxes=(Box(shapes=tuple(shapes), axis=y_axis(up)),),
        height=260,
        summary=f"{chart.title}. {summary}",
        cursor=True,
    )
    return Picture(
        id=chart.id,
        title=chart.title,
        caption=chart.caption,
        look="curves",
        legend=tuple(_entry(curve, slot) for curve, slot in curves),
        panels=(panel,),
        axis=x_axis(places.x_ticks(chart), thin=not chart.x_marks),
        x_title=chart.x_title,
        y_title=chart.y_title,
        hook="curves",
        keys="Left and right arrow step through it.",
        data=lambda: curves_payload(chart),
        sheets=("curves.css",),
    )


def _color(slot: int | None) -> str:
    return "cn" if slot is None else f"c{slot}"


def _down(runs: Sequence[Sequence[Point]]) -> list[list[Point]]:
    return [[(x, 100 - y) for x, y in run] for run in runs]


def _lines(chart: CurveChart, curve: Curve, slot: int | None) -> Iterator[Path]:
    """Its solid pieces, then those beyond the measured range."""
    if curve.kind == "points":
        return
    for beyond in (False, True):
        runs = [points for points, dashed in places.strokes(chart, curve) if dashed == beyond]
        if runs:
            yield Path(
                runs=_down(runs), look=f"cv-line {curve.kind}{' beyond' if beyond else ''} {_color(slot)}"
            )


def _mark(curve: Curve, slot: int | None, x: float, y: float) -> list[Shape]:
    if slot is None:
        return []
    kind, hollow = places.shape(slot)
    look = f"cv-mark{' hollow' if hollow or curve.kind == 'fit' else ''} {_color(slot)}"
    size = POINT_MARK if len(curve.x) == 1 else MARK
    return [Marker(x=x, y=y, kind=kind, size=size, look=look)]


def _names(chart: CurveChart, curves: Sequence[Curve]) -> Iterator[Text]:
    """Labels beside points, where every curve has one point only. Without room they are in the legend."""
    if any(len(curve.x) != 1 for curve in curves):
        return
    points = [(curve.label, x, 100 - y) for curve in curves for x, y in places.marks(chart, curve)]
    taken = [(x - _SPACE[0], x + _SPACE[0], y - _SPACE[1], y + _SPACE[1]) for _, x, y in points]
    for label, x, y in points:
        width = len(label) * LETTER
        for anchor, dy in itertools.product(("start", "end"), (0.0, -1.0, 1.0)):
            begin = x + _SPACE[0] if anchor == "start" else x - _SPACE[0] - width
            middle = y + dy * 2 * _SPACE[1]
            room = (begin, begin + width, middle - _SPACE[1], middle + _SPACE[1])
            fits = room[0] >= 0 and room[1] <= 100 and room[2] >= 0 and room[3] <= 100
            if fits and not any(_overlap(room, other) for other in taken):
                taken.append(room)
                dx = 10.0 if anchor == "start" else -10.0
                yield Text(x=x, y=middle, text=label, look="cv-name", anchor=anchor, dx=dx, dy=4.0)
                break


def _overlap(box: _Box, other: _Box) -> bool:
    return box[0] < other[1] and other[0] < box[1] and box[2] < other[3] and other[2] < box[3]


def _entry(curve: Curve, slot: int | None) -> LegendEntry:
    if len(curve.x) == 1 or curve.kind == "points":
        return LegendEntry(title=curve.label, sample=tuple(_mark(curve, slot, 7, 6)), width=14.0)
    line = Line(x1=0, y1=6, x2=SAMPLE, y2=6, look=f"cv-line {curve.kind} {_color(slot)}")
    return LegendEntry(title=curve.label, sample=(line, *_mark(curve, slot, SAMPLE / 2, 6)), width=SAMPLE)


def curve_words(chart: CurveChart, curve: Curve) -> str:
    """The curve's ends, for who cannot see it."""
    if not curve.x:
        return curve.label
    ends = [
        f"{format_value(chart.y_unit, curve.y[at])} at {format_value(chart.x_unit, curve.x[at])}"
        for at in (0, -1)
    ]
    return f"{curve.label}: {ends[0]}, {ends[1]}"


def curves_payload(chart: CurveChart) -> Json:
    """JSON-ready data for curves.js: per curve the points' places in percent, and their texts."""
    box = places.frame(chart)
    return {
        "x_title": chart.x_title,
        "curves": [
            {
                "label": curve.label,
                "x": [round(box.x(value), 2) for value in curve.x],
                "at": [format_value(chart.x_unit, value) for value in curve.x],
                "text": [_point_words(chart, curve, number) for number in range(len(curve.x))],
            }
            for curve in chart.curves
        ],
    }


def _point_words(chart: CurveChart, curve: Curve, number: int) -> str:
    text = format_value(chart.y_unit, curve.y[number])
    if not curve.low or not curve.high or not curve.high[number] > curve.low[number]:
        return text
    low, high = (format_value(chart.y_unit, side[number]) for side in (curve.low, curve.high))
    return f"{text} ({low} to {high})"
