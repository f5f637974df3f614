"""Chart "Distribution of step times", of section "Step times"."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.results import RunAnalysis
from perfscope.messages.lists import counted
from perfscope.reports.distributions import Histogram, HistogramPart

FEWEST = 10  # steps; a histogram of fewer says no more than their list
MOST_BINS = 40
LOG_FROM = 10.0  # longest / shortest time from which on the axis is logarithmic

Times = NDArray[np.int64]


def step_histogram(analysis: RunAnalysis) -> tuple[Histogram, ...]:
    """Steps of all ranks by duration, traced ones apart; () where too few are known."""
    untraced, traced, num_left_out = _times_of_steps(analysis)
    kinds = {"Untraced steps": untraced, "Traced steps": traced}
    kinds = {label: times[times > 0] for label, times in kinds.items()}
    kinds = {label: times for label, times in kinds.items() if len(times)}
    every = np.concatenate(list(kinds.values())) if kinds else np.zeros(0, np.int64)
    if len(every) < FEWEST or every.min() == every.max():
        return ()
    log = bool(every.max() > LOG_FROM * every.min())
    edges = _edges(every, log=log)
    scope = "Steps of all ranks." if len(analysis.step_series) > 1 else ""
    left_out = f"Without {counted(num_left_out, 'warm-up step')}." if num_left_out else ""
    return (
        Histogram(
            id="steps-histogram",
            title="Distribution of step times",
            x_title="step time, logarithmic" if log else "step time",
            edges=tuple(edges.tolist()),
            parts=tuple(_part(label, times, edges) for label, times in kinds.items()),
            log=log,
            caption=" ".join(filter(None, (scope, left_out))),
        ),
    )


def _times_of_steps(analysis: RunAnalysis) -> tuple[Times, Times, int]:
    """Untraced and traced steps in ns, and how many belong to neither because they are warm-up."""
    untraced, traced, num_left_out = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for rank, marks in analysis.step_marks.items():
        times = np.asarray(analysis.step_series[rank], np.int64)
        is_traced, is_counted = (np.frombuffer(of, bool) for of in (marks.traced, marks.counted))
        traced.append(times[is_traced])
        untraced.append(times[is_counted & ~is_traced])
        num_left_out += int((~is_counted & ~is_traced).sum())
    return np.concatenate(untraced), np.concatenate(traced), num_left_out


def _edges(times: Times, *, log: bool) -> NDArray[np.float64]:
    """Edges of bins of equal width by the rule of Freedman and Diaconis, MOST_BINS at most."""
    values = np.log(times) if log else times.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    quarter, three_quarters = np.percentile(values, (25, 75))
    width = 2 * float(three_quarters - quarter) / len(values) ** (1 / 3)
    wanted = math.ceil((high - low) / width) if width > 0 else MOST_BINS
    edges: NDArray[np.float64] = np.linspace(low, high, min(max(wanted, 5), MOST_BINS) + 1)
    if log:
        edges = np.exp(edges)
    edges[0], edges[-1] = times.min(), times.max()  # rounding must not leave a step out
    return edges


def _part(label: str, times: Times, edges: NDArray[np.float64]) -> HistogramPart:
    median, p95 = np.percentile(times, (50, 95))
    return HistogramPart(
        label=label,
        counts=tuple(np.histogram(times, edges)[0].tolist()),
        median=round(float(median)),
        p95=round(float(p95)),
    )
