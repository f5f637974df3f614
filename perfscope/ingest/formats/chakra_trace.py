"""Chakra execution traces: a timeline where they have times, and the structure in any case."""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import Any

from msgspec.structs import replace

from perfscope.errors import TraceError
from perfscope.ingest.collectives import Collective
from perfscope.ingest.files import WindowFile, source_of
from perfscope.ingest.formats.chakra_nodes import (
    COLLECTIVE,
    COMPUTE,
    LOAD,
    METADATA,
    RECEIVE,
    SEND,
    STORE,
    ChakraFile,
    ChakraNode,
)
from perfscope.ingest.formats.execution_graph import GROUPS, group_of
from perfscope.ingest.formats.trace import FrameworkTrace, write_table
from perfscope.ingest.summary import IngestSummary
from perfscope.rundir.execution_records import ExecutionRecord, TracedCollective, TracedOperator
from perfscope.rundir.schema import KINDS, PHASES
from perfscope.vocabulary.steps import CHAKRA_STEP

_COLLECTIVES = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all"),
    *("reduce_scatter", "reduce_scatter", "barrier"),
)
_KIND_OF = {
    LOAD: "copy",
    STORE: "copy",
    COMPUTE: "compute",
    SEND: "comm",
    RECEIVE: "comm",
    COLLECTIVE: "comm",
}
_LATEST_US, _MOST_ROWS, _MOST_NAME = 1 << 50, 200, 200
_UNTIMED = (
    "the file has no start times or no durations: steps, their parts and bandwidths are missing. A Chakra "
    "trace that was made from a recorded one has both"
)


def ingest_chakra(file: WindowFile) -> IngestSummary:
    """Write the timeline of a rank's trace and say what its nodes are.

    Raises:
        TraceError: it holds no node that can be read.
        OSError: the timeline cannot be written.
    """
    source = ChakraFile(file.source)
    reading = _Reading()
    for node in source:
        reading.add(node)
    if not reading.nodes:
        raise TraceError(f"{file.source}: a Chakra execution trace without nodes")
    trace = reading.trace if reading.is_timed else FrameworkTrace()
    steps_cut = reading.leave_out_last() if source.ends_early else 0
    write_table(trace.table(file.rank, file.window), file.table)
    notes = [] if reading.is_timed else [_UNTIMED]
    if source.ends_early:
        notes.append("the file is cut off; the nodes before are used" + ", whole steps only" * steps_cut)
    if reading.is_timed and not trace.steps and not steps_cut:
        notes.append("no step marks: the whole file counts as one step")
    return IngestSummary(
        source=source_of(file),
        rank=file.rank,
        window=file.window,
        path=file.relative_source,
        events_read=source.num_read,
        events_kept=len(trace) or len(reading.nodes),
        events_cut=0,
        events_dropped=source.num_dropped,
        events_skipped=max(0, source.num_read - source.num_dropped - (len(trace) or len(reading.nodes))),
        unclassified=(),
        salvaged=source.num_dropped > 0 or source.ends_early,
        notes=tuple(notes),
        lanes=tuple(trace.lanes),
        steps=tuple(trace.spans_of_steps()) if len(trace) and not (steps_cut and not trace.steps) else (),
        steps_cut=steps_cut,
        ends_early=source.ends_early,
        step_source=trace.step_source,
        groups=tuple(reading.groups),
        world_size=reading.world_size,
        backend=None,
        has_device=any(lane.device >= 0 for lane in trace.lanes),
        device_name=None,
        host=None,
        execution=replace(reading.record(), schema=source.version),
    )


class _Reading:
    """All nodes of a file."""

    def __init__(self) -> None:
        self.nodes: dict[int, list[int]] = {}  # id -> what it needs
        self.names: dict[int, str] = {}
        self.groups: list[dict[str, Any]] = []
        self.trace = FrameworkTrace()
        self._lanes: dict[tuple[int, int], int] = {}
        self._calls: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._unsized: set[tuple[str, str]] = set()
        self._starts: set[int] = set()
        self._num_timed = 0
        self._spans: dict[int, tuple[int, int]] = {}  # of steps
        self._marked: set[int] = set()  # steps whose span the file states
        self._last_step = -1  # of the last node with times

    def add(self, node: ChakraNode) -> None:
        """The next node."""
        self.nodes[node.id] = node.needs
        self.names[node.id] = node.name[:_MOST_NAME]
        if node.name == GROUPS:
            self.groups += _groups(node)
            return
        collective = _collective(node)
        if collective is not None and collective.name:
            self._count(collective)
        duration = node.number("duration_ns")
        duration = node.duration_us * 1000 if duration is None else duration
        if not (0 <= node.start_us < _LATEST_US and 0 <= duration < _LATEST_US * 1000):
            return
        if node.name == CHAKRA_STEP and node.type == METADATA:
            self._mark(node, node.start_us * 1000, duration)
            return
        if node.type not in _KIND_OF and not (node.type == METADATA and duration):
            return
        self._starts.add(node.start_us)
        self._num_timed += duration > 0
        self._span(node, node.start_us * 1000, duration, collective)

    @property
    def is_timed(self) -> bool:
        """Whether nodes have durations and start at different times."""
        return self._num_timed > 0 and (len(self._starts) > 1 or len(self.trace) == 1)

    @property
    def world_size(self) -> int | None:
        """By the largest group that is listed."""
        return (
            max((group.get("pg_size") or len(group.get("ranks", ())) for group in self.groups), default=0)
            or None
        )

    def record(self) -> ExecutionRecord:
        """The structure."""
        chain = _longest_chain(self.nodes)
        names = Counter(self.names[number] for number in chain)
        calls = Counter(self.names.values())
        return ExecutionRecord(
            num_nodes=len(self.nodes),
            num_operators=len(self.nodes),
            num_dependencies=sum(need in self.nodes for needs in self.nodes.values() for need in set(needs)),
            chain=len(chain),
            chain_names=tuple(names.most_common(5)),
            operators=tuple(
                TracedOperator(name=name, calls=num) for name, num in calls.most_common(_MOST_ROWS)
            ),
            num_left_out=max(0, len(calls) - _MOST_ROWS),
            collectives=tuple(
                TracedCollective(
                    name=key[0],
                    group=key[1],
                    calls=num,
                    bytes=None if key in self._unsized else min(self._bytes[key], 1 << 61),
                )
                for key, num in self._calls.most_common(_MOST_ROWS)
            ),
        )

    def _count(self, collective: Collective) -> None:
        key = (collective.name or "", collective.group or "")
        self._calls[key] += 1
        self._bytes[key] += collective.in_bytes or 0
        if collective.in_bytes is None:
            self._unsized.add(key)

    def _span(self, node: ChakraNode, start: int, duration: int, collective: Collective | None) -> None:
        kind, phase, step = node.text("kind"), node.text("phase"), node.number("step")
        self.trace.add(
            self._lane(node),
            start,
            duration,
            kind if kind in KINDS else _KIND_OF.get(node.type, "comm"),
            node.name[:_MOST_NAME] or "?",
            phase=phase if phase in PHASES else "other",
            layer=node.text("layer") or None,
            collective=collective,
            flops=max(-1, node.number("num_ops") or -1),
        )
        if step is None or not 0 <= step < 1 << 31:
            return
        self._last_step = step
        if step not in self._marked:
            first, last = self._spans.get(step, (start, start))
            self._spans[step] = (min(first, start), max(last, start + duration))
            self.trace.steps = [(number, *span) for number, span in self._spans.items()]

    def _mark(self, node: ChakraNode, start: int, duration: int) -> None:
        step = node.number("step")
        if step is not None and 0 <= step < 1 << 31 and duration:
            self._marked.add(step)
            self._spans[step] = (start, start + duration)
            self.trace.steps = [(number, *span) for number, span in self._spans.items()]

    def leave_out_last(self) -> int:
        """The step of the last node of a file that is cut off is not whole; how many steps that are."""
        if self._last_step not in self._spans:
            return 0
        del self._spans[self._last_step]
        self.trace.steps = [(number, *span) for number, span in self._spans.items()]
        return 1

    def _lane(self, node: ChakraNode) -> int:
        device, lane = node.number("device"), node.number("lane")
        if device is None or not -1 <= device < 1 << 15:
            device = -1 if node.number("is_cpu_op") != 0 else 0
        if lane is None:
            lane = node.number("stream") if device >= 0 else node.number("tid")
        key = (device, lane or 0)
        if key not in self._lanes:
            is_main = device < 0 and not any(other < 0 for other, _ in self._lanes)
            role = "stream" if device >= 0 else "main" if is_main else "worker"
            self._lanes[key] = self.trace.lane(key[1], role, f"{role} {key[1]}", device)
        return self._lanes[key]


def _collective(node: ChakraNode) -> Collective | None:
    if _KIND_OF.get(node.type) != "comm":
        return None
    name: str | None = {SEND: "send", RECEIVE: "recv"}.get(node.type)
    kind = node.number("comm_type")
    if node.type == COLLECTIVE and kind is not None and 0 <= kind < len(_COLLECTIVES):
        name = _COLLECTIVES[kind]
    size, peer = node.number("comm_size"), node.number("comm_dst" if node.type == SEND else "comm_src")
    is_peer = peer is not None and 0 <= peer < 1 << 24 and node.type != COLLECTIVE
    return Collective(
        name=name,
        group=node.text("pg_name")[:_MOST_NAME] or None,
        in_bytes=size if size is not None and size >= 0 else None,
        peer=peer if is_peer else None,
    )


def _groups(node: ChakraNode) -> list[dict[str, Any]]:
    try:
        listed = [entry for text in json.loads(node.inputs) for entry in json.loads(text)]
    except (ValueError, TypeError, RecursionError):
        return []
    return [
        group_of(entry)
        for entry in listed
        if isinstance(entry, dict) and isinstance(entry.get("pg_name"), str | int)
    ]


def _longest_chain(needs: dict[int, list[int]]) -> list[int]:
    """Nodes of the longest chain, latest first; those in a circle of dependencies are left out."""
    open_needs = {number: len({need for need in before if need in needs}) for number, before in needs.items()}
    followers: dict[int, list[int]] = {}
    for number, before in needs.items():
        for need in {need for need in before if need in needs}:
            followers.setdefault(need, []).append(number)
    length = {number: 1 for number, count in open_needs.items() if not count}
    came_from: dict[int, int] = {}
    ready = deque(length)
    while ready:
        number = ready.popleft()
        for follower in followers.get(number, ()):
            if length[number] + 1 > length.get(follower, 0):
                length[follower], came_from[follower] = length[number] + 1, number
            open_needs[follower] -= 1
            if not open_needs[follower]:
                ready.append(follower)
    finished = [number for number in length if not open_needs[number]]
    chain = [max(finished, key=lambda number: (length[number], -number))] if finished else []
    while chain and chain[-1] in came_from:
        chain.append(came_from[chain[-1]])
    return chain
