"""A history chart for a terminal: a row of blocks, and below it where the level changed."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfscope.reports.gate_history import layout
from perfscope.reports.gate_history.chart import HistoryChart
from perfscope.reports.terminal import Style, cells, fit
from perfscope.reports.values import format_value

SPARKS = "▁▂▃▄▅▆▇█"
MOST_COLUMNS = 72


def history_lines(chart: HistoryChart, width: int, style: Style) -> Iterator[str]:
    """The medians of the sessions in each column; a gap where none was measured. No small charts."""
    finite = [point for point in chart.points if math.isfinite(point.value)]
    if chart.small or not finite:
        return
    box = layout.frame(chart)
    columns = min(MOST_COLUMNS, width - 4, box.last - box.first + 1)
    bins: list[list[float]] = [[] for _ in range(columns)]
    for point in finite:
        bins[_column(box, point.number, columns)].append(box.y(point.value))
    last = len(SPARKS) - 1
    drawn = (
        SPARKS[min(max(round(last * sorted(values)[len(values) // 2] / 100), 0), last)] if values else " "
        for values in bins
    )
    yield f"  {''.join(drawn)}"
    if chart.breaks:
        marks = [" "] * columns
        for mark in chart.breaks:
            marks[_column(box, mark.number, columns)] = mark.arrow
        yield f"  {''.join(marks)}".rstrip()
    first, end = finite[0], finite[-1]
    ends = [f"session {session.number} {format_value(chart.unit, session.value)}" for session in (first, end)]
    yield style.quiet(fit(f"  {chart.y_title}: {ends[0]} → {ends[1]}", width))
    levels = " → ".join(format_value(chart.unit, level.value) for level in chart.levels)
    if len(chart.levels) > 1 and cells(levels) < width - 12:
        yield style.quiet(f"  Levels: {levels}")


def _column(box: layout.HistoryFrame, number: int, columns: int) -> int:
    return min(int(box.x(number) / 100 * columns), columns - 1)
