"""One rank's steps as a line of consecutive segments, each spent on one thing (the parts of METRICS §1).

The same split as `breakdown.step_totals`, kept in order: replay, waits and critical path are drawn from it.
The line is of the rank's own clock; what compute it is (layer and phase) is beside each segment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.breakdown import Activity, bounds_of
from perfscope.analysis.intervals import Int64, Intervals, distinct
from perfscope.analysis.spans import COMPUTE, Mask, Spans, StepSpan, whole_numbers, words
from perfscope.analysis.windows import Windows, in_order

# What a segment is spent on.
LINE_PARTS = ("compute", "optimizer", "exposed_comm", "copy", "input_wait", "idle")
LINE_COMPUTE, LINE_OPTIMIZER, LINE_EXPOSED, LINE_COPY, LINE_INPUT, LINE_IDLE = range(len(LINE_PARTS))
NO_LAYER = -1


class MainLine(Struct, frozen=True, kw_only=True, eq=False):
    """One rank and window; arrays of shape (segments,), in time order. Segments of one step touch."""

    rank: int
    window: int
    host: str
    start: Int64  # ns, the trace's own clock
    end: Int64
    part: NDArray[np.int8]  # index into LINE_PARTS
    # Index into LineRecord.layers, in 16 bits where all fit; NO_LAYER = not known, or not computing.
    layer: NDArray[np.int16] | NDArray[np.int32]
    phase: NDArray[np.int8]  # index into schema.PHASES; -1 = none
    step: NDArray[np.int32] | NDArray[np.int64]  # number of the training step; int32 where all fit
    steps: tuple[StepSpan, ...]
    has_device: bool
    kernel_launch: Int64  # devices: launches of what computes, sorted; else shape (0,)
    kernel_end: Int64  # latest end of whatever was launched until then

    @property
    def duration(self) -> Int64:
        """Shape (segments,), ns."""
        result: Int64 = self.end - self.start
        return result

    def ready(self, launch: Int64) -> Int64:
        """When the device could begin what the host launched then: behind the work launched before it.

        Args:
            launch: shape (n,), host time.
        """
        if not len(self.kernel_launch):
            return launch
        index = np.searchsorted(self.kernel_launch, launch, side="left") - 1
        behind = np.where(index >= 0, self.kernel_end[np.maximum(index, 0)], launch)
        result: Int64 = np.maximum(launch, behind)
        return result

    def total(self, part: int) -> int:
        """Time of all segments of a part, ns."""
        return int(self.duration[self.part == part].sum())


class LineRecord(Struct):
    """Every rank's lines so far, and the layers' names that their codes stand for."""

    lines: dict[int, dict[int, MainLine]] = {}  # window -> rank -> line
    codes: dict[str, int] = {}

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(self.codes)

    def add(
        self, windows: Windows, spans: Spans, act: Activity, steps: Sequence[tuple[StepSpan, ...]]
    ) -> None:
        """Takes in windows.

        Args:
            windows: layer, name, launch_ns of schema.TIMELINE, beside what `spans` was made of.
            spans: the same rows.
            act: what they were spent on.
            steps: analyzed steps of each window on the line, in order; touching or apart.
        """
        if any(steps):
            for line in _lines(windows, spans, act, steps, self.codes):
                self.lines.setdefault(line.window, {})[line.rank] = line

    def merge(self, later: LineRecord) -> None:
        """Takes in the lines of later ranks."""
        codes = [self.codes.setdefault(name, len(self.codes)) for name in later.codes]
        is_same = codes == list(range(len(codes)))
        lookup = np.array([*codes, NO_LAYER], dtype=_type_of_codes(self.codes))
        for window, lines in later.lines.items():
            of_window = self.lines.setdefault(window, {})
            for rank, line in lines.items():
                of_window[rank] = line if is_same else replace(line, layer=lookup[line.layer])


def _lines(
    windows: Windows,
    spans: Spans,
    act: Activity,
    steps: Sequence[tuple[StepSpan, ...]],
    codes: dict[str, int],
) -> Iterator[MainLine]:
    within = bounds_of(steps)
    begins = np.array([step.start_ns for of_window in steps for step in of_window], dtype=np.int64)
    ordered = [
        (LINE_PARTS.index(name), iv.intersect(intervals, within)) for name, intervals in act.by_precedence()
    ]
    works = _works(spans, windows.window_of_row)
    cuts = [within.ravel(), begins, *(intervals.ravel() for _, intervals in ordered)]
    cuts += [np.concatenate((spans.start[rows], spans.end[rows])) for rows in works]
    edges = distinct(np.concatenate(cuts))
    edges = edges[(edges >= within[0, 0]) & (edges <= within[-1, 1])]
    keep = _inside(within, edges[:-1])
    start, end = edges[:-1][keep], edges[1:][keep]
    del cuts, edges, keep  # of long windows these are large
    part = np.full(len(start), LINE_IDLE, dtype=np.int8)
    for what, intervals in reversed(ordered):
        part[_inside(intervals, start)] = what
    layer, phase = _labels(windows, spans, works, start, codes)
    working = (part == LINE_COMPUTE) | (part == LINE_OPTIMIZER)
    layer[~working], phase[~working] = NO_LAYER, -1
    index = np.searchsorted(begins, start, side="right") - 1
    step = np.array([span.step for of_window in steps for span in of_window], dtype=np.int64)[index]
    first = np.ones(len(start), dtype=bool)
    if len(start):
        same = (part[1:] == part[:-1]) & (layer[1:] == layer[:-1]) & (phase[1:] == phase[:-1])
        first[1:] = ~(same & (step[1:] == step[:-1]) & (start[1:] == end[:-1]))
    at = np.flatnonzero(first)
    last = np.append(at[1:] - 1, len(start) - 1) if len(at) else at
    launch, reach = _kernels(windows.table, spans)
    window = windows.line.of(start[at])
    shift = windows.line.shift[window]
    start, end = start[at] - shift, end[last] - shift
    step = _short(windows.own_steps(step[at], window), steps)
    part, layer, phases = part[at], layer[at].astype(_type_of_codes(codes)), phase[at].astype(np.int8)
    bounds = np.searchsorted(window, np.arange(len(steps) + 1)).tolist()
    has_device = bool((spans.device >= 0).any())
    for facts, of_window, index, (begin, stop) in zip(
        windows.facts, steps, range(len(steps)), pairwise(bounds), strict=True
    ):
        yield MainLine(
            rank=facts.rank,
            window=facts.window,
            host=facts.host,
            start=start[begin:stop],
            end=end[begin:stop],
            part=part[begin:stop],
            layer=layer[begin:stop],
            phase=phases[begin:stop],
            step=step[begin:stop],
            steps=windows.unmoved(of_window, index),
            has_device=has_device,
            kernel_launch=launch,
            kernel_end=reach,
        )


def _type_of_codes(codes: Mapping[str, int]) -> type[np.int16] | type[np.int32]:
    """16 bits where all codes fit: half of the memory."""
    return np.int16 if len(codes) <= np.iinfo(np.int16).max else np.int32


def _short(numbers: Int64, steps: Sequence[Sequence[StepSpan]]) -> NDArray[np.int32] | Int64:
    """Numbers of these steps in 32 bits where all fit: half of the memory."""
    fits = all(step.step <= np.iinfo(np.int32).max for of_window in steps for step in of_window)
    return numbers.astype(np.int32) if fits else numbers


def _works(spans: Spans, window: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Rows of the outermost operators (kernels), in order and not overlapping: of the busiest lane of each
    window, of the next one, and so on.
    """
    device = spans.device >= 0
    side = device if (device & (spans.kind == COMPUTE)).any() else ~device
    rows = np.flatnonzero(side & (spans.kind == COMPUTE))
    lanes, lane_of = iv.distinct_pairs(spans.device[rows], spans.lane[rows])
    order = np.lexsort((-spans.end[rows], spans.start[rows], lane_of))
    rows, ends = rows[order], np.cumsum(np.bincount(lane_of, minlength=len(lanes)))
    of_windows: dict[int, list[NDArray[np.int64]]] = defaultdict(list)
    for lane_rows in np.split(rows, ends[:-1]) if len(rows) else ():
        reach = np.maximum.accumulate(spans.end[lane_rows])
        outer = np.ones(len(lane_rows), dtype=bool)
        outer[1:] = spans.start[lane_rows[1:]] >= reach[:-1]
        of_windows[int(window[lane_rows[0]])].append(lane_rows[outer])
    of_lanes = [sorted(works, key=len, reverse=True) for _, works in sorted(of_windows.items())]
    most = max(map(len, of_lanes), default=0)
    return [
        np.concatenate([works[level] for works in of_lanes if len(works) > level]) for level in range(most)
    ]


def _labels(
    windows: Windows,
    spans: Spans,
    works: Sequence[NDArray[np.int64]],
    points: Int64,
    codes: dict[str, int],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Layer and phase of the operator that runs from each point on, of the busiest lane that runs one."""
    code, names = words(windows.table, "layer")
    labeled = np.flatnonzero(code >= 0)
    for number in in_order(code[labeled], labeled, len(names)):
        codes.setdefault(names[number], len(codes))
    layer_codes = np.array([*(codes.get(name, NO_LAYER) for name in names), NO_LAYER], dtype=np.int32)[code]
    layer = np.full(len(points), NO_LAYER, dtype=np.int32)
    phase = np.full(len(points), -1, dtype=np.int32)
    free = np.ones(len(points), dtype=bool)
    for rows in works:
        index = np.searchsorted(spans.start[rows], points, side="right") - 1
        row = rows[np.maximum(index, 0)]
        covers = free & (index >= 0) & (spans.end[row] > points)
        layer[covers], phase[covers] = layer_codes[row[covers]], spans.phase[row[covers]]
        free &= ~covers
    return layer, phase


def _inside(intervals: Intervals, points: Int64) -> Mask:
    """Whether each point is in one of the intervals. Shape like `points`."""
    if not len(intervals):
        return np.zeros(len(points), dtype=bool)
    index = np.searchsorted(intervals[:, 0], points, side="right") - 1
    result: Mask = (index >= 0) & (intervals[np.maximum(index, 0), 1] > points)
    return result


def _kernels(table: pa.Table, spans: Spans) -> tuple[Int64, Int64]:
    """Launches of the devices' computing spans, sorted, and the latest end so far."""
    rows = np.flatnonzero((spans.device >= 0) & (spans.kind == COMPUTE))
    launch = whole_numbers(table, "launch_ns")[rows]
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    order = np.argsort(launch, kind="stable")
    reach: Int64 = np.maximum.accumulate(spans.end[rows[order]]) if len(rows) else launch
    return launch[order], reach
