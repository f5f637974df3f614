"""Curves and bars with intervals for a terminal: a row of blocks each, the figures beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfscope.reports import curve_layout as places
from perfscope.reports.curves import Curve, CurveChart, IntervalBars
from perfscope.reports.terminal import Style, cells, fit, pad, wrapped
from perfscope.reports.values import format_value

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_COLUMNS = 32
LONGEST_NAME = 30


def curve_lines(chart: CurveChart, width: int, style: Style) -> Iterator[str]:
    """What was measured, one curve a row: its course over the common axis, and both its ends."""
    curves = [curve for curve in chart.curves if curve.kind == "data" and curve.x]
    if not curves:
        return
    names = min(max(cells(curve.label) for curve in curves), LONGEST_NAME)
    box = places.frame(chart)
    # Few points need few columns: none is drawn twice.
    columns = max(min(SPARK_COLUMNS, max(len(curve.x) for curve in curves)), 2)
    for curve in curves:
        ends = " → ".join(dict.fromkeys(_end(chart, curve, at) for at in (0, -1)))  # one point: once
        sparks = _course(box, curve, columns)
        yield fit_line(f"  {pad(fit(curve.label, names), names)}  {sparks}  {ends}", width)
    yield from (style.quiet(line) for line in wrapped(f"{chart.y_title} by {chart.x_title}.", width))


def fit_line(line: str, width: int) -> str:
    """`line` in at most `width` columns; its beginning is kept."""
    return line if cells(line) <= width else f"{line[: width - 1].rstrip()}…"


def _end(chart: CurveChart, curve: Curve, at: int) -> str:
    x = format_value(chart.x_unit, curve.x[at])
    return f"{format_value(chart.y_unit, curve.y[at])} at {x}"


def _course(box: places.PlotFrame, curve: Curve, columns: int) -> str:
    """The mean of the points in each column, from the axis' foot to its top; blanks where there are none."""
    bins: list[list[float]] = [[] for _ in range(columns)]
    for x, y in zip(curve.x, curve.y, strict=True):
        if math.isfinite(y):
            column = min(max(int(box.x(x) / 100 * columns), 0), columns - 1)
            bins[column].append(box.y(y))
    last = len(SPARKS) - 1
    return "".join(
        SPARKS[min(max(round(last * sum(heights) / len(heights) / 100), 0), last)] if heights else " "
        for heights in bins
    )


def interval_lines(chart: IntervalBars, width: int, style: Style) -> Iterator[str]:
    names = min(max(cells(bar.label) for bar in chart.bars), LONGEST_NAME)
    texts = [places.bar_words(chart.unit, bar) for bar in chart.bars]
    ends = max(cells(text) for text in texts)
    room = max(width - names - ends - 6, 8)
    for bar, text in zip(chart.bars, texts, strict=True):
        location = places.bar_place(chart, bar)
        drawn = "" if location.end is None else "█" * max(round(room * location.end / 100), 1)
        name = pad(fit(bar.label, names), names)
        painted = style.part("compute" if bar.leading else "idle", drawn) + " " * (room - cells(drawn))
        yield f"  {style.bold(name) if bar.leading else name}  {painted}  {pad(text, ends, right=True)}"
