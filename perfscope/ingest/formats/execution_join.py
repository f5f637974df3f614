"""An execution trace beside the Kineto trace of the same steps, or alone.

A node's `rf_id` is the event's "Record function id", which counts calls in one process. So a node belongs to
an event of the same process, id and name. Kineto's times stay as they are; what it lacks (shapes and data
types without `record_shapes`, process groups) is taken from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from perfscope.errors import TraceError
from perfscope.ingest.events import Event, ReadCounts
from perfscope.ingest.files import WindowFile, source_of
from perfscope.ingest.formats.execution_graph import ExecutionGraph, Timed
from perfscope.ingest.formats.execution_nodes import ExecutionFile, Node, kineto_inputs
from perfscope.ingest.formats.trace import FrameworkTrace, write_table
from perfscope.ingest.metadata import Metadata
from perfscope.ingest.summary import IngestSummary
from perfscope.ingest.window import EventSource
from perfscope.vocabulary.steps import StepSource

_LONGEST_US = 1e13
_ALONE = (
    "an execution trace has no times: steps, their parts, kernels and bandwidths are missing. Import the "
    "Kineto trace of the same steps with it"
)
_COMMUNICATION = {  # attribute of a node -> field of Kineto's arguments
    "collective_name": "collective",
    "in_msg_nelems": "in_elements",
    "out_msg_nelems": "out_elements",
    "pg_size": "group_size",
    "dtype": "dtype",
    "pg_name": "group",
}


class _Call(Struct):
    """What a node can tell a Kineto event: arguments by field."""

    name: str
    inputs: dict[str, Raw]
    communication: dict[str, Raw]


class ExecutionBeside:
    """The events of a Kineto trace with what an execution trace knows of them (an EventSource).

    Raises:
        TraceError: the execution trace cannot be read.
    """

    def __init__(self, source: EventSource, file: ExecutionFile) -> None:
        self.counts: ReadCounts = source.counts
        self._source, self._file = source, file
        self._graph = ExecutionGraph(file)
        self._calls: dict[int, _Call] = {}
        self._host_ns: dict[int, int] = {}
        self._num_filled = 0
        for node in file:
            self._graph.add(node)
            number = node.number("rf_id")
            if number is not None and number > 0:
                self._calls[number] = _call(node)

    def __iter__(self) -> Iterator[list[Event]]:
        for events in self._source:
            for event in events:
                if bytes(event.args.record_function):
                    self._join(event)
            yield events

    def metadata(self) -> Metadata:
        """What the Kineto trace says about itself; where it lists no groups, those of the execution trace."""
        metadata = self._source.metadata()
        if not metadata.groups:
            metadata.groups = self._graph.groups
        return metadata

    def joined(self, summary: IngestSummary) -> IngestSummary:
        """The summary of the Kineto trace, after its events, with that of the execution trace."""
        record = self._graph.record(Timed(self._host_ns, self._num_filled))
        notes = [*summary.notes, *_damage(self._file)]
        if not record.is_joined:
            notes.append(
                f"the execution trace is of another process (pid {self._file.pid}) than the Kineto trace, "
                "or of other steps: nothing of it is joined"
            )
        return replace(summary, execution=record, notes=tuple(notes))

    def _join(self, event: Event) -> None:
        number = _number(event.args.record_function)
        call = self._calls.get(number)
        if call is None or call.name != event.name or event.pid != self._file.pid:
            return
        duration = _duration(event.dur)
        if duration is None:
            return
        self._host_ns[number] = duration
        lacking: dict[str, Any] = {}
        if not bytes(event.args.dims) and call.inputs:
            lacking |= call.inputs
            self._num_filled += 1
        if call.communication:
            lacking |= {
                name: value
                for name, value in call.communication.items()
                if not bytes(getattr(event.args, name))
            }
        if lacking:
            event.args = replace(event.args, **lacking)


def ingest_alone(file: WindowFile) -> IngestSummary:
    """The structure of an execution trace; the timeline is empty.

    Raises:
        TraceError: it cannot be read, or has no node.
        OSError: the timeline cannot be written.
    """
    nodes = ExecutionFile(file.source)
    graph = ExecutionGraph(nodes)
    for node in nodes:
        graph.add(node)
    record = graph.record(Timed())
    if not record.operators:
        raise TraceError(f"{file.source}: an execution trace without operators")
    write_table(FrameworkTrace().table(file.rank, file.window, []), file.table)
    return IngestSummary(
        source=source_of(file),
        rank=file.rank,
        window=file.window,
        path=file.relative_source,
        events_read=nodes.num_read,
        events_kept=record.num_nodes,
        events_cut=0,
        events_dropped=nodes.num_dropped,
        events_skipped=0,
        unclassified=(),
        salvaged=nodes.num_dropped > 0 or nodes.ends_early,
        notes=(*_damage(nodes), _ALONE),
        lanes=(),
        steps=(),
        step_source=StepSource.WHOLE_FILE,
        groups=tuple(graph.groups),
        world_size=_world_size(graph),
        backend=None,
        has_device=False,
        device_name=None,
        host=None,
        execution=record,
    )


def _damage(file: ExecutionFile) -> list[str]:
    notes = []
    if file.ends_early:
        notes.append(
            f"the execution trace is cut off after {file.num_read:,} nodes, which are used; the observer's "
            "unregister_callback() writes the end"
        )
    if file.num_dropped:
        notes.append(f"{file.num_dropped:,} nodes of the execution trace cannot be read")
    return notes


def _world_size(graph: ExecutionGraph) -> int | None:
    sizes = [group.get("pg_size") for group in graph.groups if group.get("pg_desc") == "default_pg"]
    return next((size for size in sizes if size is not None), None)


def _call(node: Node) -> _Call:
    inputs = {}
    if node.inputs.types:
        names = ("dims", "types", "concrete")
        inputs = {
            name: Raw(msgspec.json.encode(values))
            for name, values in zip(names, kineto_inputs(node.inputs), strict=True)
        }
    communication = {
        field: Raw(bytes(entry.value))
        for entry in node.attrs
        if (field := _COMMUNICATION.get(entry.name)) is not None and _is_told(entry.value)
    }
    return _Call(node.name, inputs, communication)


def _is_told(value: Raw) -> bool:
    return bytes(value) not in (b"", b'""', b"-1", b"null")


def _number(raw: Raw) -> int:
    try:
        return int(bytes(raw).strip(b'"'))
    except ValueError:
        return 0


def _duration(raw: Raw) -> int | None:
    """Nanoseconds of a duration in microseconds."""
    try:
        micros = float(bytes(raw).strip(b'"'))
    except ValueError:
        return None
    return round(micros * 1000) if 0 <= micros < _LONGEST_US else None
