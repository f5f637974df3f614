"""Histograms: one panel a kind, one axis of time for all, median and p95 marked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msgspec.structs import replace

from perfscope import units
from perfscope.messages.lists import counted
from perfscope.reports import chart_layout, geometry
from perfscope.reports.distributions import Histogram, HistogramPart
from perfscope.reports.drawing.picture import Box, Panel, Picture, grid, lay_out, x_axis, y_axis
from perfscope.reports.drawing.shapes import Line, Rect, Shape, Text
from perfscope.reports.values import Unit

HEIGHT = 84.0  # pixels of a panel
TALLEST = 70.0  # percent that the highest bar takes; the words of the marks stand above it
LEAST = 2.5  # percent; a single step among many must be seen
WORDS_LEFT = 70.0  # percent; a mark right of it has its words on the left
NEAR = 22.0  # percent; words of marks that are nearer stand one below the other


@lay_out.register
def _histogram(chart: Histogram) -> Picture:
    low, high = chart.edges[0], chart.edges[-1]
    ticks = chart_layout.log_ticks(Unit.TIME, low, high) if chart.log else geometry.time_ticks(low, high, 8)
    return Picture(
        id=chart.id,
        title=chart.title,
        caption=chart.caption,
        look="histogram",
        panels=tuple(_panel(chart, part) for part in chart.parts),
        axis=x_axis(ticks),
        x_title=chart.x_title,
        hook="chart",
        keys="Arrow keys step through the bars.",
    )


def _panel(chart: Histogram, part: HistogramPart) -> Panel:
    most, total = max(part.counts), sum(part.counts)
    ticks = tuple(replace(t, position=t.position * TALLEST / 100) for t in geometry.count_ticks(most, 3))
    bars = _bars(chart, part, most, total)
    return Panel(
        plot="hg-plot",
        boxes=(
            Box(shapes=(*grid(ticks), *bars, *_marks(chart, part)), axis=y_axis(ticks, 10), height=HEIGHT),
        ),
        height=HEIGHT,
        title=part.label,
        note=counted(total, "step"),
        data=(("label", part.label), ("total", counted(total, "step")), ("whole", "in all")),
        summary=f"{part.label}: {counted(total, 'step')}, median {units.format_ns(part.median)}, "
        f"p95 {units.format_ns(part.p95)}",
    )


def _bars(chart: Histogram, part: HistogramPart, most: int, total: int) -> Iterator[Shape]:
    for (start, end), count in zip(itertools.pairwise(chart.edges), part.counts, strict=True):
        if count:
            left, height = chart.x(start), max(TALLEST * count / most, LEAST)
            span = f"{units.format_ns(start)} to {units.format_ns(end)}"
            yield Rect(
                x=left,
                y=100 - height,
                width=chart.x(end) - left,
                height=height,
                look="seg hg-bar",
                data=(
                    ("part", span),
                    ("value", counted(count, "step")),
                    ("share", f"{100 * count / total:.1f} %"),
                ),
            )


def _marks(chart: Histogram, part: HistogramPart) -> Iterator[Shape]:
    median, p95 = chart.x(part.median), chart.x(part.p95)
    below = 13.0 if p95 - median < NEAR else 0.0
    for at, look, text, down in (
        (median, "hg-median", f"median {units.format_ns(part.median)}", 0.0),
        (p95, "hg-p95", f"p95 {units.format_ns(part.p95)}", below),
    ):
        yield Line(x1=at, y1=0, x2=at, y2=100, look=look)
        side = (-4.0, "end") if at > WORDS_LEFT else (4.0, "start")
        yield Text(x=at, y=0, dx=side[0], dy=11 + down, text=text, look="hg-words", anchor=side[1])
