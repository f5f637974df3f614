"""Walks each step's critical path backwards, from rank to rank and from stream to stream.

Where a rank had waited for a call, the path is the call's transfer and then whatever the rank that entered
last did before it asked for the call; else it is what the rank itself did before. Ranks whose work runs on a
device are walked span by span (see device.py), the others along their main line. Time never grows on the way
back, and no call or span is taken twice: the walk ends whatever the clocks say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.critical.calls import CallIndex
from perfscope.analysis.critical.device import BACK_TO_BACK_NS, DEVICE_COLUMNS, DeviceIndex
from perfscope.analysis.critical.results import CriticalPath, PathSegment
from perfscope.analysis.intervals import Int64
from perfscope.analysis.mainline import (
    LINE_COMPUTE,
    LINE_COPY,
    LINE_EXPOSED,
    LINE_IDLE,
    LINE_INPUT,
    LINE_OPTIMIZER,
    LineRecord,
    MainLine,
)
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import COMM, COPY, INPUT, OPTIMIZER_PHASE, SpanTable
from perfscope.errors import RunDirectoryError
from perfscope.messages import critical_path as messages
from perfscope.messages import critical_path as reasons
from perfscope.rundir.schema import PHASES
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

_LINE_KINDS = {
    LINE_COMPUTE: "compute",
    LINE_OPTIMIZER: "optimizer",
    LINE_COPY: "copy",
    LINE_INPUT: "input",
    LINE_IDLE: "idle",
}
MAIN_LINE = -1  # lane of what is not listed by thread
# A call that ends so soon in a gap of the main line may have ended there by chance.
CHANCE_NS = 50_000
MOST_DEVICES = 16  # ranks' device timelines kept at a time
_MOST_MOVES = 1_000_000


class _Line(Struct, frozen=True, kw_only=True, eq=False):
    """A rank's main line on the reference host's clock."""

    host: str
    has_device: bool
    start: Int64
    end: Int64
    part: NDArray[np.int8]
    layer: NDArray[np.int16] | NDArray[np.int32]
    phase: NDArray[np.int8]


class _Labels(Struct, frozen=True, kw_only=True):
    """What a segment is, apart from when."""

    kind: str
    layer: str | None = None
    phase: str | None = None
    name: str = ""
    device: int = -1
    lane: int = MAIN_LINE
    collective: str | None = None
    group: str | None = None
    late_rank: int | None = None
    hosts: tuple[str, ...] = ()
    uncertain: bool = False


def analyze_critical(
    lines: LineRecord, matches: Sequence[JudgedCalls], clocks: ClockFit, source: RunSource | None = None
) -> tuple[tuple[CriticalPath, ...], tuple[Missing, ...]]:
    """The critical path of every traced step.

    Args:
        lines: every rank's main lines.
        matches: calls matched across ranks (CommAnalysis.matches).
        clocks: how the hosts' clocks stand to each other.
        source: where the timelines of ranks with a device are read from, one at a time, as the path meets
            them; None: these are walked along their main lines, too.

    Returns:
        One path per window and step, in that order; and what is not known, with the reason.
    """
    paths: list[CriticalPath] = []
    missing: list[Missing] = []
    for window, members in sorted(lines.lines.items()):
        of_window = _Window(window, members, lines.layers, matches, clocks, source)
        steps = sorted({step.step for line in of_window.members.values() for step in line.steps})
        for step in steps:
            path = _Walk(of_window, step).path()
            if path is not None:
                paths.append(path)
        missing.extend(of_window.missing())
    return tuple(paths), tuple(dict.fromkeys(missing))


class _Window:
    """What the walks through one window share."""

    def __init__(
        self,
        window: int,
        members: Mapping[int, MainLine],
        layers: tuple[str, ...],
        matches: Sequence[JudgedCalls],
        clocks: ClockFit,
        source: RunSource | None,
    ) -> None:
        linked = {rank: line for rank, line in members.items() if clocks.is_linked(rank, line.host)}
        self.window, self.layers, self.clocks, self.source = window, layers, clocks, source
        self.members = linked or dict(members)
        self.alone = tuple(sorted(set(members) - set(self.members)))
        self.hosts = {rank: line.host for rank, line in members.items()}
        self.calls = CallIndex(matches, window, clocks, self.hosts)
        self.unmatched: dict[int, int] = defaultdict(int)  # rank -> ns of the paths
        self.unknown: set[str] = set()
        self._lines: dict[int, _Line] = {}
        self._devices: dict[int, DeviceIndex | None] = {}
        self._segments: dict[tuple[int, _Labels], PathSegment] = {}
        self.begins, self.ends = self._steps()

    def line(self, rank: int) -> _Line:
        if rank not in self._lines:
            member = self.members[rank]
            self._lines[rank] = _Line(
                host=member.host,
                has_device=member.has_device,
                start=self.clocks.to_reference(member.host, member.start),
                end=self.clocks.to_reference(member.host, member.end),
                part=member.part,
                layer=member.layer,
                phase=member.phase,
            )
        return self._lines[rank]

    def device(self, rank: int) -> DeviceIndex | None:
        """The rank's device timeline, read unless it is at hand; None: it has none, or cannot be read."""
        member = self.members[rank]
        if not member.has_device or self.source is None:
            return None
        if rank in self._devices:
            self._devices[rank] = self._devices.pop(rank)  # most recent last
            return self._devices[rank]
        if len(self._devices) >= MOST_DEVICES:
            del self._devices[next(iter(self._devices))]
        index: DeviceIndex | None = None
        try:
            table = SpanTable(self.source.timeline_columns(rank, self.window, DEVICE_COLUMNS))
            marks = np.array([[step.start_ns, step.end_ns] for step in member.steps], dtype=np.int64).ravel()
            index = DeviceIndex(table, member.host, self.clocks, marks)
        except RunDirectoryError as error:
            self.unknown.add(messages.not_read_again(rank, error))
        if index is not None and not len(index.start):
            index = None
        self._devices[rank] = index
        return index

    def segment(self, rank: int, start: int, end: int, labels: _Labels, reason: str) -> PathSegment:
        """Copied from one that is alike: most differ in their times alone, and making one takes 1 µs."""
        like = self._segments.get((rank, labels))
        if like is None:
            like = self._segments[rank, labels] = PathSegment(
                rank=rank,
                host=self.hosts[rank],
                start_ns=start,
                end_ns=end,
                reason=reason,
                **structs.asdict(labels),
            )
        return structs.replace(like, start_ns=start, end_ns=end, reason=reason)

    def missing(self) -> list[Missing]:
        """What the walks met that is not known."""
        missing = [
            missing_figure(Figure.CRITICAL_PATH, Cause.UNREADABLE, window=self.window, reason=reason)
            for reason in sorted(self.unknown)
        ]
        for figure, cause, ranks in (
            (Figure.CRITICAL_PATH_LATE_RANK, Cause.CALLS_UNMATCHED, sorted(self.unmatched)),
            (Figure.CRITICAL_PATH_RANKS, Cause.CLOCKS_UNLINKED, self.alone),
        ):
            if ranks:
                missing.append(missing_figure(figure, cause, ranks=ranks, window=self.window))
        return missing

    def _steps(self) -> tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]]:
        """Step -> rank -> its begin and its end."""
        begins: dict[int, dict[int, int]] = defaultdict(dict)
        ends: dict[int, dict[int, int]] = defaultdict(dict)
        for rank, line in self.members.items():
            marks = np.array([[mark.start_ns, mark.end_ns] for mark in line.steps], dtype=np.int64)
            moved = self.clocks.to_reference(line.host, marks)
            for mark, (start, end) in zip(line.steps, moved.tolist(), strict=True):
                begins[mark.step][rank], ends[mark.step][rank] = start, end
        return begins, ends


class _Walk:
    """One step, from its end to its begin."""

    def __init__(self, window: _Window, step: int) -> None:
        self.window, self.step = window, step
        self.begins, ends = window.begins[step], window.ends[step]
        self.last = max(ends, key=lambda rank: (ends[rank], -rank))
        self.end = ends[self.last]
        self.rank, self.time = self.last, self.end
        self.reason = reasons.END_OF_STEP
        # (rank, start, end, labels, reason), last first
        self.found: list[tuple[int, int, int, _Labels, str]] = []
        self.used_calls: dict[int, set[int]] = defaultdict(set)
        self.used_spans: dict[int, set[int]] = defaultdict(set)
        self.call = -1  # of the rank: the path goes through it next
        self.span = -1  # of the rank's device: likewise
        self.complete = True
        self.done = False

    def path(self) -> CriticalPath | None:
        """None where the step has no duration on the clock that ranks share."""
        self._set_out()
        for _ in range(_MOST_MOVES):
            if self.done or self.time <= self._floor():
                break
            self._move()
        else:
            self._stop(messages.NO_END)
        segments = self._segments()
        if not segments:
            return None
        return CriticalPath(
            window=self.window.window,
            step=self.step,
            begin_ns=segments[0].start_ns,
            end_ns=self.end,
            segments=segments,
            ranks=tuple(sorted(self.begins)),
            complete=self.complete,
        )

    def _floor(self) -> int:
        """Where the step begins on the rank the path is on."""
        return self.begins.get(self.rank, self.time)

    def _stop(self, why: str) -> None:
        self.done, self.complete = True, False
        self.window.unknown.add(f"step {self.step}: {why}")

    def _add(self, start: int, labels: _Labels) -> None:
        """A segment from `start` to where the walk is; the walk is then at `start`."""
        start = max(start, self._floor())
        if start >= self.time:
            return
        self.found.append((self.rank, start, self.time, labels, self.reason))
        self.time, self.reason = start, reasons.PROGRAM_ORDER

    def _set_out(self) -> None:
        """On the device where it is busy or has work queued, else on the host that gives it none."""
        device = self.window.device(self.rank)
        if device is None:
            return
        self.span = device.covering(self.time)
        if self.span < 0 and device.has_queued(self.time):
            self.span = device.before(self.time, set())
            if self.span >= 0:
                self._add(int(device.end[self.span]), _Labels(kind="idle"))
                self.reason = reasons.STREAM_ORDER

    def _move(self) -> None:
        device = self.window.device(self.rank)
        if self.call >= 0:
            self._through_call()
        elif device is None:
            self._along_line()
        elif self.span >= 0:
            self._through_span(device)
        else:
            self._along_host(device)

    # Ranks without a device

    def _along_line(self) -> None:
        line = self.window.line(self.rank)
        index = int(line.start.searchsorted(self.time, side="left")) - 1
        if index < 0:
            self._add(self._floor(), _Labels(kind="idle"))
            self.done = True
            return
        if line.end[index] < self.time:  # between two steps that do not touch
            self._add(int(line.end[index]), _Labels(kind="idle"))
            return
        start, part = int(line.start[index]), int(line.part[index])
        if part == LINE_EXPOSED:
            self._along_communication(start)
            return
        layer, phase = int(line.layer[index]), int(line.phase[index])
        self._add(
            start,
            _Labels(
                kind=_LINE_KINDS[part],
                layer=self.window.layers[layer] if layer >= 0 else None,
                phase=PHASES[phase] if phase >= 0 else None,
            ),
        )

    def _along_communication(self, start: int) -> None:
        """The main line computed nothing while communication ran: for which call did it wait?"""
        calls = self.window.calls.of(self.rank)
        start = max(start, self._floor())
        call = calls.latest_exit(start, self.time, self.used_calls[self.rank])
        if call >= 0:
            leave, asked = int(calls.exit[call]), int(calls.launch[call])
            if leave - start >= CHANCE_NS or asked >= start - CHANCE_NS:
                self._add(leave, _Labels(kind="host"))
                self.call = call
                self.reason = reasons.TRANSFER if self.found else self.reason
                return
        if call >= 0 or calls.any_within(start, self.time):
            self._add(start, _Labels(kind="host"))
            return
        self.window.unmatched[self.rank] += self.time - start
        self._add(start, _Labels(kind="comm"))

    # Calls

    def _through_call(self) -> None:
        """Over the transfer to the rank that entered last."""
        window = self.window
        calls, call = window.calls.of(self.rank), self.call
        self.call = self.span = -1
        self.used_calls[self.rank].add(call)
        match, column = int(calls.match[call]), int(calls.column[call])
        late, key = int(calls.late_rank[call]), window.calls.matches[match].key
        uncertain = bool(calls.uncertain[call]) and late != self.rank
        device, enter, lane = window.device(self.rank), int(calls.enter[call]), int(calls.lane[call])
        span = device.at(enter, lane) if device is not None else -1
        self._add(
            int(calls.last_entry[call]),
            _Labels(
                kind="transfer",
                lane=lane,
                device=int(device.device[span]) if device is not None and span >= 0 else -1,
                collective=key.collective,
                group=key.group,
                late_rank=late,
                hosts=window.calls.hosts_of(match),
                uncertain=uncertain,
            ),
        )
        if self.time <= self._floor():
            return
        if late not in self.begins:
            self._stop(messages.step_not_traced(late))
            return
        self.rank, self.reason = late, reasons.waited_for(late)
        if self.time <= self._floor():
            return
        late_calls = window.calls.of(late)
        self._before_call(late_calls.find(match, column))

    def _before_call(self, call: int) -> None:
        """What the rank that entered last did before it entered."""
        calls, used = self.window.calls.of(self.rank), self.used_calls[self.rank]
        used.add(call)
        device = self.window.device(self.rank)
        if device is not None:
            span = device.at(int(calls.enter[call]), int(calls.lane[call]))
            if span >= 0:
                self.used_spans[self.rank].add(span)
                self._before_span(device, span)
            return
        asked, lane = min(int(calls.launch[call]), self.time), int(calls.lane[call])
        before = calls.latest_exit(asked, self.time, used, lane)
        key = self.window.calls.matches[calls.match[call]].key
        labels = _Labels(kind="launch", lane=lane, name=key.collective)
        if before >= 0:
            self._add(int(calls.exit[before]), labels)
            self.reason, self.call = reasons.QUEUED, before
        else:
            self._add(asked, labels)

    # Ranks with a device

    def _through_span(self, device: DeviceIndex) -> None:
        span, self.span = self.span, -1
        self.used_spans[self.rank].add(span)
        layer, name = device.words(span)
        start, phase, kind = int(device.start[span]), int(device.phase[span]), "compute"
        if device.kind[span] == COMM:
            call = self.window.calls.of(self.rank).entered_at(start, int(device.lane[span]))
            if call >= 0 and call not in self.used_calls[self.rank]:
                self.call = call
                return
            self.window.unmatched[self.rank] += max(self.time - start, 0)
            kind = "comm"
        elif device.kind[span] == COPY:
            kind = "copy"
        elif phase == OPTIMIZER_PHASE:
            kind = "optimizer"
        labels = _Labels(
            kind=kind,
            layer=layer,
            phase=PHASES[phase] if phase >= 0 else None,
            name=name,
            device=int(device.device[span]),
            lane=int(device.lane[span]),
        )
        self._add(start, labels)
        self._before_span(device, span)

    def _before_span(self, device: DeviceIndex, span: int) -> None:
        """Why the span began when it did: its launch, its stream, or another stream."""
        used, now = self.used_spans[self.rank], self.time
        gap = _Labels(kind="idle", device=int(device.device[span]), lane=int(device.lane[span]))
        previous = device.before_on_stream(span, now)
        while previous in used:
            previous = device.before_on_stream(previous, now)
        ended = int(device.end[previous]) if previous >= 0 else -1
        other = -1
        if previous < 0 or now - ended > BACK_TO_BACK_NS:
            other = device.before_elsewhere(span, now, used)
            if other >= 0 and int(device.end[other]) <= ended:
                other = -1
        ready = max(ended, int(device.end[other]) if other >= 0 else -1)
        asked = min(int(device.launch[span]), now)
        if asked >= 0 and asked >= ready:
            self.reason = reasons.LAUNCHED_LATE
            self._add(asked, structs.replace(gap, kind="launch", name=device.words(span)[1]))
            self.reason = reasons.LAUNCHED_LATE
            return
        self.span = other if other >= 0 else previous
        reason = reasons.EVENT_WAIT if other >= 0 else reasons.STREAM_ORDER
        if self.span < 0:  # the first of its stream, and its launch is not in the trace
            self.span, reason = device.before(now, used), reasons.PROGRAM_ORDER
        if self.span < 0:
            self._add(self._floor(), gap)
            return
        self.reason = reason
        self._add(int(device.end[self.span]), gap)
        self.reason = reason

    def _along_host(self, device: DeviceIndex) -> None:
        """The device had nothing to do: what did the host do, since when was it free to?"""
        span = device.release(self.time, self.used_spans[self.rank])
        free = int(device.end[span]) if span >= 0 else self._floor()
        for piece in device.host_pieces(max(free, self._floor()), self.time):
            layer, name, phase = device.host_words(piece.row) if piece.row >= 0 else (None, "", -1)
            labels = _Labels(
                kind="input" if piece.kind == INPUT else "host",
                layer=layer,
                phase=PHASES[phase] if phase >= 0 else None,
                name=name,
            )
            self._add(piece.start, labels)
        if span >= 0 and self.time > self._floor():
            self.span, self.reason = span, reasons.DEVICE_DONE

    def _segments(self) -> tuple[PathSegment, ...]:
        """In time order; neighbors that are alike become one."""
        merged: list[tuple[int, int, int, _Labels, str]] = []
        for rank, start, end, labels, reason in self.found:
            if merged and merged[-1][0] == rank and merged[-1][3] == labels and labels.kind != "transfer":
                merged[-1] = (rank, start, merged[-1][2], labels, merged[-1][4])
            else:
                merged.append((rank, start, end, labels, reason))
        return tuple(self.window.segment(*of_one) for of_one in reversed(merged))
