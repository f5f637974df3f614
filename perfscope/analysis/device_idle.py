"""What the host was in while a rank's devices were idle.

Each instant of idle time counts once, for the first activity of `HostActivity` that a thread was in; among
threads the main one comes first, and in a thread the innermost span. So the parts add up to the idle time
exactly, and overlapping calls of several threads are not counted twice.

Besides, idle time follows a call that waited until the device had nothing left to do: the host prepares the
next kernels while nothing is queued, which it would otherwise have done ahead of the device.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.intervals import Int64, Intervals, distinct, one_of
from perfscope.analysis.results import DeviceIdle
from perfscope.analysis.spans import (
    ANNOTATION,
    COMM,
    COMPUTE,
    HOST,
    INPUT,
    PYTHON,
    RUNTIME,
    Mask,
    Spans,
    words,
)
from perfscope.rundir import layout
from perfscope.vocabulary.host_activity import BLOCKING, LAUNCHING, RUNTIME_CALLS, WAITING, HostActivity

MOST_NAMES = 20  # of one activity; what is left of it has no name
_WAITED_NS = 10_000  # that a call must have lasted when the device ran dry, for it to have waited for that
_STEP_MARKS = (layout.MARK_STEP, layout.PROFILER_STEP)  # ranges around a whole step


class _Source(NamedTuple):
    """Spans of one activity, in order of precedence."""

    activity: HostActivity
    chosen: Mask


class _Part(Struct):
    """Of one activity and name, over windows."""

    ns: int = 0
    queue_empty_ns: int = 0  # of it, while nothing that was launched waited to begin
    after_ns: int = 0  # idle after the calls, which had waited until nothing was queued
    calls: int = 0
    operators: dict[str, int] = {}  # that the calls were made in -> ns
    ranges: dict[str, int] = {}  # likewise, ranges that the program or a library marks
    layers: dict[str, int] = {}


class DeviceIdleRecord:
    """Idle time of one rank's devices, window by window."""

    def __init__(self) -> None:
        self._parts: dict[tuple[HostActivity, str], _Part] = defaultdict(_Part)
        self._knows_queue = True

    def add_window(
        self, table: pa.Table, spans: Spans, selected: Mask, main: Sequence[int], queued: Intervals | None
    ) -> None:
        """Attributes the gaps between the selected device events.

        Args:
            table: name and layer of schema.TIMELINE, beside what `spans` was made of.
            spans: the same rows.
            selected: shape (n,), device events, as for `breakdown.device_breakdown`.
            main: lanes of the main thread.
            queued: when something that was launched had not begun (`kernels.streams.queued`); None: unknown.
        """
        busy = spans.union(selected)
        idle = np.stack((busy[:-1, 1], busy[1:, 0]), axis=1) if len(busy) else iv.empty()
        if not len(idle):
            return
        if queued is None:
            self._knows_queue, queued = False, idle  # so that none of it counts as idle with nothing queued
        name, names = words(table, "name")
        sources = _sources(spans, name, names, main)
        self._count_after(sources, spans, name, names, iv.subtract(idle, queued))
        for source in sources:
            idle = self._take(source, table, spans, name, names, idle, main, queued)
        if left := iv.length(idle):
            part = self._parts[HostActivity.UNTRACED, ""]
            part.ns += left
            part.queue_empty_ns += iv.length(iv.subtract(idle, queued))

    def _count_after(
        self,
        sources: Sequence[_Source],
        spans: Spans,
        name: NDArray[np.int32],
        names: Sequence[str],
        empty: Intervals,
    ) -> None:
        """Idle time with an empty queue from the end of each call that waited for it to become empty."""
        launching = distinct(
            spans.lane[np.logical_or.reduce([one.chosen for one in sources if one.activity in LAUNCHING])]
        )
        for source in sources:
            if source.activity not in WAITING or not len(empty):
                continue
            rows = np.flatnonzero(source.chosen & np.isin(spans.lane, launching))
            gap = np.searchsorted(empty[:, 0], spans.end[rows], side="right") - 1
            ran_dry, until = empty[np.maximum(gap, 0)].T
            waited = (gap >= 0) & (ran_dry - spans.start[rows] >= _WAITED_NS) & (until > spans.end[rows])
            rows, until = rows[waited], until[waited]
            _, first = np.unique(gap[waited], return_index=True)  # threads that waited for the same
            after = until[first] - spans.end[rows[first]]
            for part, ns in self._sums(source.activity, name[rows[first]], after, names):
                part.after_ns += ns

    def _take(
        self,
        source: _Source,
        table: pa.Table,
        spans: Spans,
        name: NDArray[np.int32],
        names: Sequence[str],
        idle: Intervals,
        main: Sequence[int],
        queued: Intervals,
    ) -> Intervals:
        """Counts what spans of one activity cover of the idle time; what they leave."""
        rows = np.flatnonzero(source.chosen & _touches(spans, idle))
        lanes = distinct(spans.lane[rows])
        for lane in sorted(lanes.tolist(), key=lambda lane: (lane not in main, lane)):
            row, start, end = _innermost(spans, rows[spans.lane[rows] == lane])
            ns = iv.covered_before(idle, end) - iv.covered_before(idle, start)
            empty = iv.subtract(idle, queued)
            alone = iv.covered_before(empty, end) - iv.covered_before(empty, start)
            row, alone, ns = row[ns > 0], alone[ns > 0], ns[ns > 0]
            self._count(source.activity, row, ns, alone, name, names)
            if source.activity in BLOCKING:
                self._locate(source.activity, row, ns, table, spans, name, names)
            idle = iv.subtract(idle, iv.union(start, end))
        return idle

    def _count(
        self,
        activity: HostActivity,
        row: NDArray[np.int64],
        ns: Int64,
        alone: Int64,
        name: NDArray[np.int32],
        names: Sequence[str],
    ) -> None:
        calls = distinct(row)
        for part, total in self._sums(activity, name[row], ns, names):
            part.ns += total
        for part, total in self._sums(activity, name[row], alone, names):
            part.queue_empty_ns += total
        for part, total in self._sums(activity, name[calls], np.ones_like(calls), names):
            part.calls += total

    def _sums(
        self, activity: HostActivity, codes: NDArray[np.int32], values: Int64, names: Sequence[str]
    ) -> Iterator[tuple[_Part, int]]:
        """The part of each name, and the sum of its values. `codes`: of a name per value, -1 = none."""
        sums = np.bincount(codes + 1, values, len(names) + 1).astype(np.int64)
        for code in np.flatnonzero(sums).tolist():
            yield self._parts[activity, names[code - 1] if code else ""], int(sums[code])

    def _locate(
        self,
        activity: HostActivity,
        row: NDArray[np.int64],
        ns: Int64,
        table: pa.Table,
        spans: Spans,
        name: NDArray[np.int32],
        names: Sequence[str],
    ) -> None:
        """Notes in which operators, ranges and layers blocking calls were made."""
        layer, layers = words(table, "layer")
        is_operator = (spans.device < 0) & one_of(spans.kind, (COMPUTE, HOST))
        is_range = (spans.device < 0) & (spans.kind == ANNOTATION) & (layer < 0) & (name >= 0)
        ranges = distinct(name[is_range])
        steps = [code for code in ranges.tolist() if names[code].startswith(_STEP_MARKS)]
        is_range &= ~np.isin(name, steps)
        for what, chosen in (("operators", is_operator), ("ranges", is_range)):
            around = _enclosing(spans, chosen, row)
            for at in np.flatnonzero(around >= 0).tolist():
                totals = getattr(self._part(activity, row[at], name, names), what)
                _add(totals, names[name[around[at]]], int(ns[at]))
        for at in np.flatnonzero(layer[row] >= 0).tolist():
            _add(self._part(activity, row[at], name, names).layers, layers[layer[row[at]]], int(ns[at]))

    def _part(self, activity: HostActivity, row: int, name: NDArray[np.int32], names: Sequence[str]) -> _Part:
        return self._parts[activity, names[name[row]] if name[row] >= 0 else ""]

    def results(self) -> tuple[DeviceIdle, ...]:
        """The longest first; they add up to the idle time of the devices."""
        of_activity: dict[HostActivity, list[tuple[str, _Part]]] = defaultdict(list)
        for (activity, name), part in self._parts.items():
            of_activity[activity].append((name, part))
        results = [entry for activity, parts in of_activity.items() for entry in _named(activity, parts)]
        if not self._knows_queue:
            results = [replace(entry, queue_empty_ns=None, after_ns=None) for entry in results]
        return tuple(sorted(results, key=lambda entry: (-entry.ns, entry.kind, entry.name or "")))


def _named(activity: HostActivity, parts: list[tuple[str, _Part]]) -> Iterable[DeviceIdle]:
    """The names with most time; the others together have none."""
    parts.sort(key=lambda entry: (-entry[1].ns, entry[0]))
    for name, part in parts[:MOST_NAMES]:
        yield DeviceIdle(
            kind=activity,
            name=name or None,
            ns=part.ns,
            queue_empty_ns=part.queue_empty_ns,
            after_ns=part.after_ns,
            calls=part.calls,
            operator=_longest(part.operators),
            range=_longest(part.ranges),
            layer=_longest(part.layers),
        )
    if remaining := parts[MOST_NAMES:]:
        sums = {
            what: sum(getattr(part, what) for _, part in remaining)
            for what in ("ns", "queue_empty_ns", "after_ns", "calls")
        }
        yield DeviceIdle(kind=activity, name=None, **sums)


def _add(totals: dict[str, int], key: str, ns: int) -> None:
    totals[key] = totals.get(key, 0) + ns


def _longest(totals: dict[str, int]) -> str | None:
    """The key with most time, where that is more than half of all."""
    if not totals:
        return None
    best = max(totals, key=lambda key: totals[key])
    return best if 2 * totals[best] > sum(totals.values()) else None


def _sources(
    spans: Spans, name: NDArray[np.int32], names: Sequence[str], main: Sequence[int]
) -> list[_Source]:
    on_host = spans.device < 0
    calls = on_host & (spans.kind == RUNTIME)
    activities = [activity_of_call(text) for text in names]
    sources = []
    for activity in dict.fromkeys(activity for _, activity in RUNTIME_CALLS):
        alike = np.array([*(of_name is activity for of_name in activities), False])[name]
        sources.append(_Source(activity, calls & alike))
    of_main = np.isin(spans.lane, main) if len(main) else on_host
    sources.append(_Source(HostActivity.OPERATOR, on_host & one_of(spans.kind, (COMPUTE, HOST))))
    sources.append(_Source(HostActivity.COLLECTIVE, on_host & (spans.kind == COMM)))
    sources.append(_Source(HostActivity.DATA_LOADING, on_host & of_main & (spans.kind == INPUT)))
    sources.append(_Source(HostActivity.PYTHON, on_host & (spans.kind == PYTHON)))
    return sources


def activity_of_call(name: str) -> HostActivity | None:
    """What a runtime call does, by its name; None: neither blocks nor puts work on a device."""
    return next((activity for pattern, activity in RUNTIME_CALLS if re.search(pattern, name)), None)


def _touches(spans: Spans, intervals: Intervals) -> Mask:
    if not len(intervals):
        return np.zeros(len(spans.start), dtype=bool)
    following = np.searchsorted(intervals[:, 1], spans.start, side="right")
    begin = np.append(intervals[:, 0], np.iinfo(np.int64).max)[following]
    result: Mask = begin < spans.end
    return result


def _innermost(spans: Spans, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Int64, Int64]:
    """Pieces of one thread's time, each with the row of its innermost span: rows, starts, ends."""
    rows = rows[np.lexsort((-spans.end[rows], spans.start[rows]))]
    start, end = spans.start[rows], spans.end[rows]
    if (start[1:] >= end[:-1]).all():
        return rows, start, end
    lasts = end > start
    rows, start, end = rows[lasts], start[lasts], end[lasts]
    around = _parents(start, end)
    if around is None:
        return _innermost_of_any(rows, start, end)
    moments = distinct(np.concatenate((start, end)))
    state = np.full(len(moments), -1, dtype=np.int64)  # the innermost span from each moment to the next
    # Of several assignments to one place the last counts: of spans that end together the outermost, which is
    # listed first; of those that begin together the innermost; and what begins before what is around it.
    state[np.searchsorted(moments, end[::-1])] = around[::-1]
    state[np.searchsorted(moments, start)] = np.arange(len(rows))
    busy = np.flatnonzero(state >= 0)  # never the last: by then all have ended
    return rows[state[busy]], moments[busy], moments[busy + 1]


def _parents(start: Int64, end: Int64) -> NDArray[np.int64] | None:
    """For each span the smallest one around it, -1 = none; None where spans overlap without being nested.

    Args:
        start, end: of one thread, in order of start, the longest first; end > start.
    """
    index = np.arange(len(start))
    depth = index - np.searchsorted(np.sort(end), start, side="right")
    by_depth = np.lexsort((index, depth))
    key = depth * len(start) + index
    place = np.searchsorted(key[by_depth], key - len(start)) - 1
    around = np.where(depth > 0, by_depth[np.maximum(place, 0)], -1)
    is_nested = (around < 0) | (end <= end[around])
    return around if is_nested.all() else None


def _innermost_of_any(
    rows: NDArray[np.int64], start: Int64, end: Int64
) -> tuple[NDArray[np.int64], Int64, Int64]:
    """As `_innermost`, of spans that overlap in any way."""
    pieces: list[tuple[int, int, int]] = []
    opened: list[tuple[int, int]] = []  # row, end
    now = 0
    for row, begin, stop in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        now = _close(opened, pieces, now, begin)
        if opened and begin > now:
            pieces.append((opened[-1][0], now, begin))
        now = begin
        opened.append((row, stop))
    _close(opened, pieces, now, np.iinfo(np.int64).max)
    row_of, starts, ends = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return row_of, starts, ends


def _close(opened: list[tuple[int, int]], pieces: list[tuple[int, int, int]], now: int, until: int) -> int:
    """Ends the spans that end by `until`; the time up to which pieces are known."""
    while opened and opened[-1][1] <= until:
        row, end = opened.pop()
        if end > now:
            pieces.append((row, now, end))
            now = end
    return now


def _enclosing(spans: Spans, chosen: Mask, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The innermost chosen span around each row, in its thread; -1 = none. Shape (len(rows),)."""
    result = np.full(len(rows), -1, dtype=np.int64)
    for lane in distinct(spans.lane[rows]).tolist():
        at = np.flatnonzero(spans.lane[rows] == lane)
        of_lane = np.flatnonzero(chosen & (spans.lane == lane))
        if not len(of_lane):
            continue
        row, start, end = _innermost(spans, of_lane)
        index = np.searchsorted(start, spans.start[rows[at]], side="right") - 1
        inside = (index >= 0) & (spans.start[rows[at]] < end[np.maximum(index, 0)])
        result[at] = np.where(inside, row[np.maximum(index, 0)], -1)
    return result
