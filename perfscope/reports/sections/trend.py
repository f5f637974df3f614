"""The whole run on the first screen: step times in order, and the map of ranks by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analysis.results import RunAnalysis
from perfscope.reports.distributions import HeatMap
from perfscope.reports.model import ChartLine, LineChart, Note
from perfscope.reports.sections.step_map import step_map
from perfscope.reports.sections.steps import step_table, traced_stretches

MOST_POINTS = 200


def trend_charts(analysis: RunAnalysis) -> tuple[LineChart | HeatMap | Note, ...]:
    """Step times over the run, then the map of ranks; a note where a chart has no data."""
    series = [durations for _, durations in sorted(analysis.step_series.items()) if len(durations)]
    longest = max(map(len, series), default=0)
    if longest < 2:
        why = "one step was recorded" if longest else "no step was recorded"
        return (Note(text=f"No chart of step times over the run: {why}."),)
    charts = step_map(analysis)
    if len(series) > 1 and not charts:
        return (_times(analysis, series), Note(text="No map of ranks by step: step times hardly differ."))
    return (_times(analysis, series), *charts)


def _times(analysis: RunAnalysis, series: Sequence[Sequence[int]]) -> LineChart:
    """Of each step the median rank, in a band from the fastest to the slowest."""
    table = step_table(series)
    width = -(-table.shape[1] // MOST_POINTS)
    chunks = [table[:, start : start + width] for start in range(0, table.shape[1], width)]
    thinned = f"Each point covers up to {width} steps." if width > 1 else ""
    several = len(series) > 1
    return LineChart(
        id="trend-steps",
        title="Step times over the run",
        x_title="step",
        lines=(
            ChartLine(
                label="median rank" if several else "step time",
                x=tuple(range(0, table.shape[1], width)),
                y=tuple(int(np.nanmedian(chunk)) for chunk in chunks),
                low=tuple(int(np.nanmin(chunk)) for chunk in chunks),
                high=tuple(int(np.nanmax(chunk)) for chunk in chunks),
            ),
        ),
        caption=thinned,
        shaded=traced_stretches(analysis),
        band="fastest to slowest" if several or width > 1 else "",
        compact=True,
    )
