"""The whole run on the first screen: step times in order, and the maps of ranks by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.analysis.results import RunAnalysis
from perfscope.messages.missing import cause_text
from perfscope.reports.distributions import HeatMap
from perfscope.reports.model import ChartLine, LineChart, Note
from perfscope.reports.sections.step_map import step_map, wait_map
from perfscope.reports.sections.steps import point_steps, step_table, step_title, traced_stretches
from perfscope.vocabulary.figures import Figure

MOST_POINTS = 200


def trend_charts(analysis: RunAnalysis) -> tuple[LineChart | HeatMap | Note, ...]:
    """Step times over the run, then the maps of ranks; a note where a chart has no data."""
    series = {rank: times for rank, times in sorted(analysis.step_series.items()) if len(times)}
    longest = max(map(len, series.values()), default=0)
    if longest < 2:
        why = "one step was recorded" if longest else "no step was recorded"
        return (Note(text=f"No chart of step times over the run: {why}."),)
    if len(series) == 1:
        return (_times(analysis, series),)
    steps = step_map(analysis) or (Note(text="No map of ranks by step: step times hardly differ."),)
    return (_times(analysis, series), *steps, *_waits(analysis))


def _waits(analysis: RunAnalysis) -> tuple[HeatMap | Note, ...]:
    charts = wait_map(analysis)
    if charts:
        return charts
    why = "all ranks wait alike" if analysis.step_waits else "no call was matched across ranks"
    gaps = (cause_text(gap) for gap in analysis.missing if gap.figure is Figure.WAITS)
    return (Note(text=f"No map of waiting by rank and step: {next(gaps, why).rstrip('.')}."),)


def _times(analysis: RunAnalysis, series: Mapping[int, Sequence[int]]) -> LineChart:
    """Of each step the median rank, in a band from the fastest to the slowest."""
    table = step_table(list(series.values()))
    width = -(-table.shape[1] // MOST_POINTS)
    chunks = [table[:, start : start + width] for start in range(0, table.shape[1], width)]
    thinned = f"Each point covers up to {width} steps." if width > 1 else ""
    several = len(series) > 1
    ranks = list(series)
    slowest = (ranks[int(np.unravel_index(np.nanargmax(chunk), chunk.shape)[0])] for chunk in chunks)
    return LineChart(
        id="trend-steps",
        title="Step times over the run",
        x_title=step_title(analysis),
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
        band="all ranks" if several else "all steps" if width > 1 else "",
        compact=True,
        steps=point_steps(analysis, width),
        slowest=tuple(slowest) if several else (),
    )
