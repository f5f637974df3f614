"""One rank's device spans and host operators, and what each device span had to wait for.

A span begins when the one before it on its stream has ended, the host has launched it, and what its stream
was made to wait for on other streams is done. The trace names the first two. An event wait is read from a
span that begins shortly after one of another stream ended; a host that waits for its device from a stretch
without any operator that ends when the device has nothing left to do, or has copied something back, and from
a runtime call that blocks in which that happens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.device_idle import activity_of_call
from perfscope.analysis.intervals import Int64, distinct, distinct_pairs, one_of
from perfscope.analysis.spans import (
    COMM,
    COMPUTE,
    COPY,
    HOST,
    INPUT,
    OPTIMIZER,
    RUNTIME,
    Spans,
    SpanTable,
    Table,
    spans_of,
    whole_numbers,
    words,
)
from perfscope.vocabulary.host_activity import BLOCKING

DEVICE_COLUMNS = ("start_ns", "dur_ns", "device", "lane", "kind", "phase", "layer", "name", "launch_ns")
BACK_TO_BACK_NS = 5_000  # two spans of one stream nearer than this: stream order explains the second
SHORTLY_NS = 30_000  # METRICS §1: a gap of a stream that long is not a mere gap between kernels
QUIET_NS = 20_000  # a host that shows no operator for so long may be waiting
WAKE_NS = 100_000  # a host that waited goes on within this time


class HostPiece(Struct, frozen=True, kw_only=True):
    """What the host did; reference host's clock."""

    start: int
    end: int
    kind: int  # index into schema.KINDS; -1 = between operators
    row: int  # of the tables; -1 = none


class DeviceIndex:
    """Spans of one rank and window that walks go through. Times on the reference host's clock.

    Args:
        table: DEVICE_COLUMNS of schema.TIMELINE.
        host: of the rank.
        clocks: how the hosts' clocks stand to each other.
        marks: when steps begin and end, on the rank's own clock: the host is awake then.
    """

    def __init__(self, table: Table, host: str, clocks: ClockFit, marks: Int64) -> None:
        spans = spans_of(table)
        layer, self.layers = words(table, "layer")
        name, self.names = words(table, "name")
        self._host = _HostLine(spans, layer, name, clocks, host)
        waits = _blocking_calls(spans, name, self.names)
        rows = np.flatnonzero((spans.device >= 0) & one_of(spans.kind, (COMPUTE, COMM, COPY)))
        rows = rows[np.lexsort((spans.lane[rows], spans.start[rows]))]
        launch = whole_numbers(table, "launch_ns")[rows]
        self.start: Int64 = clocks.to_reference(host, spans.start[rows])
        self.end: Int64 = np.maximum(clocks.to_reference(host, spans.end[rows]), self.start)
        has_launch = launch >= 0
        self.launch: Int64 = np.where(has_launch, clocks.to_reference(host, launch), -1)
        self.device, self.lane = spans.device[rows], spans.lane[rows]
        self.kind, self.phase = spans.kind[rows], spans.phase[rows]
        self.layer, self.name = layer[rows], name[rows]
        del spans, rows, launch
        if isinstance(table, SpanTable):
            table.forget()
        self._by_end = np.argsort(self.end, kind="stable")
        self._ends = self.end[self._by_end]
        self._reach: Int64 = np.maximum.accumulate(self.end) if len(self.end) else self.end
        asked = np.flatnonzero(has_launch)
        asked = asked[np.argsort(self.launch[asked], kind="stable")]
        self._launched = self.launch[asked]
        self._last_start = np.maximum.accumulate(self.start[asked]) if len(asked) else self._launched
        self._stream = distinct_pairs(self.device, self.lane)[1]
        self._previous = _previous(self._stream)
        self._release, self._released_by = self._releases(
            clocks.to_reference(host, marks), clocks.to_reference(host, waits)
        )

    def covering(self, time: int) -> int:
        """The span that runs at a time, the last to begin of several; -1: the device has nothing to do."""
        index = int(self.start.searchsorted(time, side="left")) - 1
        while index >= 0 and self._reach[index] >= time:
            if self.end[index] >= time:
                return index
            index -= 1
        return -1

    def has_queued(self, time: int) -> bool:
        """Whether something is launched by then that begins only later."""
        index = int(self._launched.searchsorted(time, side="right")) - 1
        return index >= 0 and int(self._last_start[index]) >= time

    def before_on_stream(self, span: int, time: int) -> int:
        """The span before it on its stream that ended by then; -1: none."""
        index = int(self._previous[span])
        while index >= 0 and self.end[index] > time:
            index = int(self._previous[index])
        return index

    def before_elsewhere(self, span: int, time: int, used: set[int]) -> int:
        """The span of another stream that ended last, shortly before the time; -1: none."""
        index = int(self._ends.searchsorted(time, side="right")) - 1
        while index >= 0 and self._ends[index] > time - SHORTLY_NS:
            other = int(self._by_end[index])
            if self._stream[other] != self._stream[span] and other not in used:
                return other
            index -= 1
        return -1

    def before(self, time: int, used: set[int]) -> int:
        """The span of any stream that ended last by then; -1: none."""
        index = int(self._ends.searchsorted(time, side="right")) - 1
        while index >= 0 and int(self._by_end[index]) in used:
            index -= 1
        return int(self._by_end[index]) if index >= 0 else -1

    def release(self, time: int, used: set[int]) -> int:
        """The span whose end last let the host go on by then; -1: none."""
        index = int(self._release.searchsorted(time, side="right")) - 1
        while index >= 0 and int(self._released_by[index]) in used:
            index -= 1
        return int(self._released_by[index]) if index >= 0 else -1

    def at(self, start: int, lane: int) -> int:
        """The communication span that begins then on a stream; -1: none."""
        left, right = self.start.searchsorted((start, start + 1))
        for index in range(int(left), int(right)):
            if self.lane[index] == lane and self.kind[index] == COMM:
                return index
        return -1

    def host_pieces(self, start: int, end: int) -> Sequence[HostPiece]:
        """What the host did between two times, last first; the pieces touch."""
        return self._host.pieces(start, end)

    def words(self, span: int) -> tuple[str | None, str]:
        """Layer and name of a span."""
        layer = int(self.layer[span])
        return (self.layers[layer] if layer >= 0 else None), self.names[self.name[span]]

    def host_words(self, row: int) -> tuple[str | None, str, int]:
        """Layer, name and phase of a host piece's row."""
        layer, name = int(self._host.layer[row]), int(self._host.name[row])
        words_of = (self.layers[layer] if layer >= 0 else None), (self.names[name] if name >= 0 else "")
        return (*words_of, int(self._host.phase[row]))

    def _releases(self, marks: Int64, waits: Int64) -> tuple[Int64, Int64]:
        """When the host was let go on, sorted, and the spans that ended then.

        `waits`: runtime calls that block, shape (n, 2).
        """
        edges = distinct(np.concatenate((self._host.edges, self.launch[self.launch >= 0], marks)))
        if not len(edges) or not len(self.start):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        after = np.searchsorted(edges, self.end, side="left")
        inside = (after > 0) & (after < len(edges))
        last, following = edges[np.maximum(after - 1, 0)], edges[np.minimum(after, len(edges) - 1)]
        quiet = inside & (self.end - last >= QUIET_NS) & (following - self.end <= WAKE_NS)
        # Nothing left to do: whatever was launched until then has ended.
        by_launch = np.argsort(self.launch, kind="stable")
        reach = np.maximum.accumulate(self.end[by_launch])
        index = np.searchsorted(self.launch[by_launch], self.end, side="right") - 1
        drained = reach[np.maximum(index, 0)] <= self.end
        copied = np.array(["DtoH" in name for name in self.names], dtype=bool)[self.name]
        let_go = drained | ((self.kind == COPY) & copied)
        released = np.flatnonzero((quiet | self._last_within(waits)) & let_go)
        released = released[np.argsort(self.end[released], kind="stable")]
        return self.end[released], released

    def _last_within(self, waits: Int64) -> NDArray[np.bool_]:
        """Which spans are the last to end within one of the calls. Shape (spans,)."""
        result = np.zeros(len(self.end), dtype=bool)
        last = np.searchsorted(self._ends, waits[:, 1], side="right") - 1
        within = (last >= 0) & (self._ends[np.maximum(last, 0)] > waits[:, 0])
        result[self._by_end[last[within]]] = True
        return result


def _blocking_calls(spans: Spans, name: NDArray[np.int32], names: Sequence[str]) -> Int64:
    """Start and end of the host's runtime calls that wait for the device, shape (n, 2)."""
    rows = np.flatnonzero((spans.device < 0) & (spans.kind == RUNTIME) & (name >= 0))
    codes, of_row = np.unique(name[rows], return_inverse=True)
    blocks = np.array([activity_of_call(names[code]) in BLOCKING for code in codes.tolist()], dtype=bool)
    rows = rows[blocks[of_row]] if len(rows) else rows
    rows = rows[spans.end[rows] - spans.start[rows] >= QUIET_NS]
    return np.stack((spans.start[rows], spans.end[rows]), axis=1)


def _previous(stream: NDArray[np.intp]) -> Int64:
    """For each span, in order of start, the one before it on its stream; -1 = none."""
    result = np.full(len(stream), -1, dtype=np.int64)
    order = np.argsort(stream, kind="stable")
    same = stream[order][1:] == stream[order][:-1]
    result[order[1:][same]] = order[:-1][same]
    return result


def _outermost(group: NDArray[np.intp], start: Int64, end: Int64) -> list[NDArray[np.intp]]:
    """Of each group those that are in no other of it: disjoint, in order of start."""
    order = np.lexsort((-end, start, group))
    bounds = np.flatnonzero(np.diff(group[order])) + 1
    return [rows[_disjoint(start[rows], end[rows])] for rows in np.split(order, bounds) if len(rows)]


def _disjoint(start: Int64, end: Int64) -> NDArray[np.bool_]:
    """Which spans begin when those kept before them have ended. In order of start, the longest first."""
    kept = np.ones(len(start), dtype=bool)
    reach = np.maximum.accumulate(end)
    kept[1:] = start[1:] >= reach[:-1]
    last = np.maximum.accumulate(np.where(kept, np.arange(len(start)), 0))
    if (end <= end[last]).all():  # those left out end within the one before: calls of calls
        return kept
    now = int(start[0])
    for index, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        kept[index] = index == 0 or begin >= now
        if kept[index]:
            now = stop
    return kept


class _HostLine:
    """The host's outermost operators as consecutive pieces, of whichever thread runs one."""

    def __init__(
        self,
        spans: Spans,
        layer: NDArray[np.int32],
        name: NDArray[np.int32],
        clocks: ClockFit,
        host: str,
    ) -> None:
        self.layer, self.name, self.phase = layer, name, spans.phase
        is_work = (spans.device < 0) & one_of(spans.kind, (HOST, COMPUTE, COMM, COPY, INPUT, OPTIMIZER))
        rows = np.flatnonzero(is_work)
        start = clocks.to_reference(host, spans.start[rows])
        end = clocks.to_reference(host, spans.end[rows])
        # An optimizer's mark spans its whole step: its edges say nothing of when the host is busy.
        operators = spans.kind[rows] != OPTIMIZER
        self.edges = distinct(np.concatenate((start[operators], end[operators])))
        # The strongest is written first: input before all, operators before the optimizer's mark.
        strength = np.where(spans.kind[rows] == INPUT, 2, np.where(operators, 1, 0))
        groups = _outermost(distinct_pairs(spans.lane[rows], strength)[1], start, end)
        outer = np.concatenate(groups) if groups else np.empty(0, np.intp)
        cuts = distinct(np.concatenate((start[outer], end[outer])))
        # Longer ones before shorter ones of the same strength.
        order = outer[np.lexsort((start[outer] - end[outer], -strength[outer]))]
        place = np.empty(len(rows), dtype=np.int64)
        place[order] = np.arange(len(order))
        first = np.full(max(len(cuts) - 1, 0), len(order), dtype=np.int64)
        for of_group in groups:
            at = of_group[np.maximum(start[of_group].searchsorted(cuts[:-1], side="right") - 1, 0)]
            covered = (start[at] <= cuts[:-1]) & (cuts[:-1] < end[at])
            first[covered] = np.minimum(first[covered], place[at[covered]])
        row: Int64 = np.append(rows[order], -1)[first]
        self.start, self.end = cuts[:-1], cuts[1:]
        self.row = row
        self.kind = np.where(row >= 0, spans.kind[np.maximum(row, 0)], -1) if len(row) else row

    def pieces(self, start: int, end: int) -> list[HostPiece]:
        if end <= start:
            return []
        if not len(self.start):
            return [HostPiece(start=start, end=end, kind=-1, row=-1)]
        pieces: list[HostPiece] = []
        first, last = int(self.start[0]), int(self.end[-1])
        if end > last:
            pieces.append(HostPiece(start=max(last, start), end=end, kind=-1, row=-1))
        index = int(self.start.searchsorted(min(end, last), side="left")) - 1
        while index >= 0 and self.end[index] > start:
            pieces.append(
                HostPiece(
                    start=max(int(self.start[index]), start),
                    end=min(int(self.end[index]), end),
                    kind=int(self.kind[index]),
                    row=int(self.row[index]),
                )
            )
            index -= 1
        if start < first:
            pieces.append(HostPiece(start=start, end=min(first, end), kind=-1, row=-1))
        return pieces
