"""Steps of two runs on one axis of time: both begin at 0, the ranks of one run above those of the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.timeline_extract import LaneExtract, StepMark, TimelineExtract, WindowExtract

MOST_RANKS = 3  # of each run
MOST_PAIRS = 4
SPAN_BUDGET = 30_000  # of each run
_PER_SPAN = (
    *("start_ns", "dur_ns", "name", "layer", "kind", "phase", "depth", "step", "count", "flops", "bytes"),
    *("axis", "group", "reason"),
)
_TEXTS = ("name", "layer", "axis", "group", "reason")  # columns that index TimelineExtract.strings


class StepSide(Struct, frozen=True, kw_only=True):
    """The step of one run that is drawn: from the first rank's start to the last rank's end."""

    window: int
    step: int
    dur_ns: int


class TimelinePair(Struct, frozen=True, kw_only=True, eq=False):
    """What is drawn of two runs.

    Attributes:
        extract: a window for each pair of steps, numbered from 0; times count from the steps' start. The
            step of both runs has the pair's number, so that the same work can be found in both.
        ranks: number of a rank in `extract` -> (0 before or 1 after, number of the rank in its run).
        steps: of each pair, before and after; the typical ones first.
        num_ranks: of each run that were traced.
    """

    extract: TimelineExtract
    ranks: dict[int, tuple[int, int]]
    steps: tuple[tuple[StepSide, StepSide], ...]


def representative_ranks(analysis: RunAnalysis) -> tuple[int, ...]:
    """Of the ranks with traced steps those that compute longest, shortest, and the median; of few all."""
    compute = {
        rank.rank: rank.breakdown_ns.compute for rank in analysis.ranks if rank.breakdown_ns is not None
    }
    ranks = sorted(compute, key=lambda rank: (compute[rank], rank))
    if len(ranks) <= MOST_RANKS:
        return tuple(sorted(ranks))
    return tuple(sorted({ranks[0], ranks[len(ranks) // 2], ranks[-1]}))


def pair_timelines(before: TimelineExtract, after: TimelineExtract) -> TimelinePair | None:
    """Both runs on one axis; None: one of them has no traced step with spans."""
    steps = _pairs(_steps(before), _steps(after))
    if not steps:
        return None
    strings = tuple(dict.fromkeys((*before.strings, *after.strings)))
    number_of = {text: number for number, text in enumerate(strings)}
    shift = 1 + max(lane.rank for window in before.windows for lane in window.lanes)
    sides = [
        _Side(extract, run * shift, np.array([number_of[text] for text in extract.strings], np.int32))
        for run, extract in enumerate((before, after))
    ]
    windows = tuple(_window(sides, pair, number) for number, pair in enumerate(steps))
    ranks = {
        lane.rank: (int(lane.rank >= shift), lane.rank % shift) for window in windows for lane in window.lanes
    }
    drawn = sum(len(lane.start_ns) for window in windows for lane in window.lanes)
    extract = replace(
        before,
        windows=windows,
        strings=strings,
        span_budget=before.span_budget + after.span_budget,
        num_recorded=sum(int(lane.count.sum()) for window in windows for lane in window.lanes),
        num_drawn=drawn,
        num_left_out=0,
        resolution_ns=max(before.resolution_ns, after.resolution_ns),
    )
    return TimelinePair(extract=extract, ranks=ranks, steps=steps)


class _Side(NamedTuple):
    """One of the runs: `offset` is added to its ranks, `number_of` gives its strings' new numbers."""

    extract: TimelineExtract
    offset: int
    number_of: NDArray[np.int32]


def _steps(extract: TimelineExtract) -> list[StepSide]:
    """In order; only those in which spans are drawn."""
    sides = []
    for window in extract.windows:
        drawn = set().union(*(set(lane.step.tolist()) for lane in window.lanes))
        for step in sorted({mark.step for mark in window.steps} & drawn):
            marks = [mark for mark in window.steps if mark.step == step]
            start = min(mark.start_ns for mark in marks)
            end = max(mark.start_ns + mark.dur_ns for mark in marks)
            sides.append(StepSide(window=window.window, step=step, dur_ns=end - start))
    return sides


def _pairs(before: list[StepSide], after: list[StepSide]) -> tuple[tuple[StepSide, StepSide], ...]:
    """The steps with the median durations, then the others in the order in which they were taken."""
    if not before or not after:
        return ()
    typical = (_typical(before), _typical(after))
    others = [
        pair
        for pair in zip(before, after, strict=False)
        if pair[0] is not typical[0] and pair[1] is not typical[1]
    ]
    return (typical, *others[: MOST_PAIRS - 1])


def _typical(steps: list[StepSide]) -> StepSide:
    return sorted(steps, key=lambda side: side.dur_ns)[(len(steps) - 1) // 2]


def _window(sides: list[_Side], pair: tuple[StepSide, StepSide], number: int) -> WindowExtract:
    lanes: list[LaneExtract] = []
    marks: list[StepMark] = []
    for side, step in zip(sides, pair, strict=True):
        window = next(window for window in side.extract.windows if window.window == step.window)
        marks_of_step = [mark for mark in window.steps if mark.step == step.step]
        origin = min(mark.start_ns for mark in marks_of_step)
        marks += [
            replace(mark, rank=mark.rank + side.offset, step=number, start_ns=mark.start_ns - origin)
            for mark in marks_of_step
        ]
        lanes += [_cut(lane, side, step.step, number, origin) for lane in window.lanes]
    lanes = [lane for lane in lanes if len(lane.start_ns)]
    ends = [int((lane.start_ns + lane.dur_ns).max()) for lane in lanes]
    return WindowExtract(
        window=number,
        start_ns=0,
        dur_ns=max(*ends, *(step.dur_ns for step in pair)),
        steps=tuple(marks),
        lanes=tuple(lanes),
        ranks_left_out=(),
    )


def _cut(lane: LaneExtract, side: _Side, step: int, number: int, origin: int) -> LaneExtract:
    """The lane's spans of one step; what begins before the first rank's step is cut there."""
    kept = np.flatnonzero((lane.step == step) & (lane.start_ns + lane.dur_ns > origin))
    columns = {name: column[kept] for name in _PER_SPAN if (column := getattr(lane, name)) is not None}
    for name in _TEXTS:
        if name in columns and len(side.number_of):
            texts = columns[name]
            columns[name] = np.where(texts < 0, -1, side.number_of[texts]).astype(np.int32)
    end = columns["start_ns"] + columns["dur_ns"] - origin
    start = np.maximum(columns["start_ns"] - origin, 0)
    columns |= {"start_ns": start, "dur_ns": end - start, "step": np.full(len(kept), number, np.int32)}
    return replace(lane, rank=lane.rank + side.offset, **columns)
