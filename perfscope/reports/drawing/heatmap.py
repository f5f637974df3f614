"""Maps by color: one path a color, so that thousands of cells stay small."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from perfscope.reports.distributions import HeatMap
from perfscope.reports.drawing.picture import (
    Box,
    Json,
    LegendEntry,
    Panel,
    Picture,
    lay_out,
    x_axis,
    y_axis,
)
from perfscope.reports.drawing.shapes import Cells, Rect, Shape
from perfscope.reports.geometry import Tick

ROW, LEAST_HEIGHT, MOST_HEIGHT = 18.0, 40.0, 360.0  # pixels
COMPACT_HEIGHT = 72.0
LINE = 14.0  # pixels that a row's label needs
MOST_LABELS, FEW_LABELS = 8, 5  # of columns


@lay_out.register
def _heat_map(chart: HeatMap) -> Picture:
    num_rows, num_columns = len(chart.y_labels), len(chart.x_labels)
    most = COMPACT_HEIGHT if chart.compact else MOST_HEIGHT
    height = min(max(ROW * num_rows, LEAST_HEIGHT), most)
    rows = _every(chart.y_labels, int(height // LINE))
    shapes: list[Shape] = [
        Cells(
            columns=num_columns, rows=num_rows, runs=tuple(_runs(chart.cells, level)), look=f"q-{entry.key}"
        )
        for level, entry in enumerate(chart.levels)
    ]
    box = Box(
        shapes=tuple(shapes),
        axis=y_axis([Tick(position=100 - t.position, text=t.text) for t in rows], 0),
        height=height,
    )
    return Picture(
        id=chart.id,
        title=chart.title,
        caption=chart.caption,
        look="heatmap",
        legend=_scale(chart) if chart.compact else tuple(_entry(e.key, e.title) for e in chart.levels),
        panels=(Panel(plot="hm-plot", boxes=(box,), height=height, summary=chart.title),),
        axis=x_axis(_every(chart.x_labels, FEW_LABELS if chart.compact else MOST_LABELS)),
        x_title=chart.x_title,
        y_title="" if chart.compact else chart.y_title,
        hook="heat" if chart.leads_to else "",
        keys="Arrow keys step through the cells, Enter shows one in the timeline." if chart.leads_to else "",
        data=(lambda: _data(chart)) if chart.leads_to else None,
    )


def _data(chart: HeatMap) -> Json:
    """`cells`: a text a row, a digit a cell, "." where no value is known."""
    return {
        "to": chart.leads_to,
        "x_title": chart.x_title,
        "x": chart.x_names,
        "y_title": chart.y_title,
        "y": chart.y_names,
        "levels": [level.title for level in chart.levels],
        "cells": ["".join("." if level is None else str(level) for level in row) for row in chart.cells],
    }


def _entry(key: str, title: str) -> LegendEntry:
    return LegendEntry(title=title, sample=(Rect(x=0, width=14, height=12, look=f"q-{key}"),))


def _scale(chart: HeatMap) -> tuple[LegendEntry, ...]:
    """All colors in one entry, with the values at both ends."""
    looks = [f"q-{entry.key}" for entry in chart.levels]
    sample = tuple(Rect(x=14.0 * at, width=14, height=12, look=look) for at, look in enumerate(looks))
    low, high = chart.levels[0].title, chart.levels[-1].title
    ends = f"{low.replace('below', '<')} … {high.replace('from', '≥')}"
    return (LegendEntry(title=ends, sample=sample, width=14.0 * len(looks)),)


def _every(labels: Sequence[str], most: int) -> list[Tick]:
    """`most` labels at equal distances, each at the middle of its row or column."""
    step = -(-len(labels) // max(most, 1))
    return [
        Tick(position=100 * (index + 0.5) / len(labels), text=labels[index])
        for index in range(0, len(labels), step)
    ]


def _runs(cells: Sequence[Sequence[int | None]], level: int) -> Iterator[tuple[int, int, int]]:
    """(column, row, length) of what has this level."""
    for row, values in enumerate(cells):
        column = 0
        for value, group in itertools.groupby(values):
            length = len(list(group))
            if value == level:
                yield column, row, length
            column += length
