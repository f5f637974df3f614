"""Step times: one panel a rank, one scale for all."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.reports import geometry
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
from perfscope.reports.drawing.shapes import Path, Point, Rect, Shape
from perfscope.reports.model import ChartLine, LineChart


@lay_out.register
def _series(chart: LineChart) -> Picture:
    frame = geometry.series_frame(chart)
    return Picture(
        id=chart.id,
        title=chart.title,
        caption=" ".join(filter(None, (chart.caption, geometry.clip_note(frame)))),
        look="series compact" if chart.compact else "series",
        legend=_legend(chart),
        panels=tuple(_panel(chart, frame, line) for line in chart.lines),
        axis=x_axis(geometry.count_ticks(frame.x_max, 8), marks=False),
        x_title=chart.x_title,
        hook="series",
        keys="Left and right arrow step through it."
        + (" Enter shows a step in the timeline." if chart.steps else ""),
        data=lambda: _data(chart, frame.x_max),
    )


def _legend(chart: LineChart) -> tuple[LegendEntry, ...]:
    line = Path(runs=([(0, 6), (14, 6)],), look="line")
    entries = [LegendEntry(title=chart.lines[0].label, sample=(line,))] if chart.compact else []
    if chart.band:
        entries.append(LegendEntry(title=chart.band, sample=(Rect(x=0, width=14, height=12, look="band"),)))
    if chart.shaded:
        shade = Rect(x=3, width=8, height=12, look="ct-window")
        entries.append(LegendEntry(title="traced" if chart.compact else "traced window", sample=(shade,)))
    return tuple(entries)


def _shades(chart: LineChart, x_max: int) -> list[Shape]:
    """Half a step before the first to half a step after the last step of each window.

    Steps beyond the last point of a thinned line are part of it.
    """
    shapes: list[Shape] = []
    for first, last in chart.shaded:
        start, end = max(min(first, x_max) - 0.5, 0.0), min(last + 0.5, float(x_max))
        if end > start:
            x, width = 100 * start / x_max, 100 * (end - start) / x_max
            shapes.append(Rect(x=x, width=width, height=100, look="ct-window"))
    return shapes


def _panel(chart: LineChart, frame: geometry.SeriesFrame, line: ChartLine) -> Panel:
    def points(values: Sequence[int]) -> list[Point]:
        return [
            (100 * x / frame.x_max, 100 * (1 - (y - frame.low) / (frame.high - frame.low)))
            for x, y in zip(line.x, values, strict=True)
        ]

    ticks = geometry.time_ticks(frame.low, frame.high, 2)
    shapes: list[Shape] = [*grid(ticks), *_shades(chart, frame.x_max)]
    if line.low != line.y or line.high != line.y:
        around = [*points(line.high), *reversed(points(line.low))]
        shapes.append(Path(runs=(around,), look="band", closed=True))
    shapes.append(Path(runs=(points(line.y),), look="line"))
    return Panel(
        plot="series-plot",
        boxes=(Box(shapes=tuple(shapes), axis=y_axis(ticks, 10)),),
        height=44,
        label="" if chart.compact else line.label,
        summary=f"{chart.title}, {line.label}; quantiles in the table below",
        cursor=True,
    )


def _data(chart: LineChart, x_max: int) -> Json:
    lines = [{"label": line.label, "x": line.x, "y": line.y} for line in chart.lines]
    return {
        "x_title": chart.x_title,
        "x_max": x_max,
        "lines": lines,
        "steps": chart.steps,
        "slowest": chart.slowest,
    }
