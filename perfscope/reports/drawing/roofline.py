"""Rooflines: layers below what computation and memory allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from perfscope import units
from perfscope.reports import chart_layout
from perfscope.reports.drawing.picture import Box, LegendEntry, Panel, Picture, grid, lay_out, x_axis, y_axis
from perfscope.reports.drawing.shapes import Line, Marker, Shape, ShapeGroup, Text
from perfscope.reports.model import RooflineChart, RoofPoint, Unit

# class -> (pixels that the plot is taken to be wide and high, labels at most, letters of each, width of a
# letter of the roofs' names in percent). Paper is as wide as the first.
SIZES = {
    "rf-wide": (690, 360, 9, 26, chart_layout.LETTER),
    "rf-small": (270, 300, 4, 16, chart_layout.SMALL_LETTER),
}


@lay_out.register
def _roofline(chart: RooflineChart) -> Picture:
    frame = chart_layout.roof_frame(chart)
    across = chart_layout.log_ticks(Unit.NUMBER, frame.x_low, frame.x_high)
    up = chart_layout.log_ticks(Unit.FLOP_RATE, frame.y_low, frame.y_high)
    columns = (Line(x1=tick.position, y1=0, x2=tick.position, y2=100, look="grid") for tick in across)
    shapes = (*grid(up), *columns, *_roof(chart, frame), *_points(chart, frame), *_labels(chart))
    samples = (("forward", "circle", 5.0, 6.0), ("backward", "triangle", 5.0, 7.5))
    return Picture(
        id=chart.id,
        title=chart.title,
        caption=chart.caption,
        look="roofline",
        legend=tuple(
            LegendEntry(title=phase, sample=(Marker(x=7, y=y, kind=kind, size=size, look=f"rf-{phase}"),))
            for phase, kind, size, y in samples
        ),
        panels=(
            Panel(
                plot="rf-plot",
                boxes=(Box(shapes=shapes, axis=y_axis(up, 0)),),
                height=SIZES["rf-wide"][1],
                summary=f"{chart.title}; figures in the table below",
            ),
        ),
        axis=x_axis(across, thin=False),
        x_title="arithmetic intensity, FLOP per byte (modeled)",
        hook="roofline",
        keys="Left and right arrow step through the layers.",
    )


def _roof(chart: RooflineChart, frame: chart_layout.RoofFrame) -> Iterator[Shape]:
    corners = chart_layout.roof_line(chart, frame)
    x, y = corners[1]
    yield Line(x1=x, y1=100 - y, x2=x, y2=100, look="rf-ridge")
    for a, b in itertools.pairwise(corners):
        yield Line(x1=a[0], y1=100 - a[1], x2=b[0], y2=100 - b[1], look="rf-roof")
    for kind, (_, _, _, _, letter) in SIZES.items():
        labels, look = chart_layout.roof_words(chart, letter), f"rf-labels {kind}"
        (x, y), (u, v) = labels.peak, labels.memory
        yield Text(x=x, y=100 - y, dx=-6, dy=-6, text=chart.peak_text, look=look, anchor="end")
        right, down, anchor = (8, 14, "start") if labels.below else (-10, -2, "end")
        yield Text(x=u, y=100 - v, dx=right, dy=down, text=chart.bandwidth_text, look=look, anchor=anchor)


def _points(chart: RooflineChart, frame: chart_layout.RoofFrame) -> Iterator[Shape]:
    for point in chart.points:
        mark = Marker(
            x=frame.x(point.intensity),
            y=100 - frame.y(point.flops_per_s),
            kind="triangle" if point.phase == "backward" else "circle",
            size=chart_layout.radius(chart, point.time_ns),
            look=f"rf-{'backward' if point.phase == 'backward' else 'forward'}",
        )
        yield ShapeGroup(shapes=(mark,), look="rf-point", data=_figures(point))


def _figures(point: RoofPoint) -> tuple[tuple[str, str], ...]:
    return (
        ("label", point.label),
        ("phase", point.phase),
        ("time", units.format_ns(point.time_ns)),
        ("rate", units.format_si(point.flops_per_s, "FLOP/s")),
        ("intensity", f"{point.intensity:.3g}"),
        ("fraction", units.format_ratio(point.fraction)),
        ("bound", point.bound),
    )


def _labels(chart: RooflineChart) -> Iterator[Shape]:
    for kind, (width, height, most, letters, _) in SIZES.items():
        for label in chart_layout.roof_labels(chart, width, height, most=most, letters=letters):
            yield Text(
                x=label.x,
                y=100 - label.y,
                dx=label.right,
                dy=-label.up,
                text=label.text,
                look=f"rf-label {kind}",
                anchor=label.anchor,
            )
