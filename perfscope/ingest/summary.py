"""What one ingested window says of itself. Light: no numpy, no pyarrow."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, convert, to_builtins

from perfscope.rundir.execution_records import ExecutionRecord
from perfscope.rundir.flight_records import FlightDump
from perfscope.rundir.inspector_records import InspectorRecord
from perfscope.rundir.window_records import AllocatorCurve, CountedLayers

# Written into every summary. Raise it when the same trace would give another table.
INGEST_VERSION = 15
# A note of a file that is no valid JSON and was read whole all the same.
MENDED = "characters that JSON does not allow were read all the same"


class Lane(Struct, frozen=True, kw_only=True):
    """A host thread (device -1) or a device stream."""

    device: int
    lane: int
    role: str  # main, backend, autograd, worker, stream
    label: str


class IngestSummary(Struct, frozen=True, kw_only=True):
    """One window of one rank: derived/ingest/rank-R-window-W.json.

    events_read = events_kept + events_skipped + events_dropped; an event is one object of the trace's list:

    - kept: became a row of the timeline (a begin/end pair becomes one row: its `E` counts as skipped);
    - dropped: unreadable, or without a usable time, or a begin without an end;
    - skipped: readable and of no use there: flow arrows, metadata, short Python frames, runtime calls that
      neither block nor put work on a device, operators inside operators.

    events_cut are among the kept: device work launched before the first step, or before the trace began.
    """

    source: dict[str, Any]  # path (relative to the run), size, mtime_ns
    rank: int
    window: int
    path: str
    events_read: int
    events_kept: int
    events_cut: int
    events_dropped: int
    events_skipped: int
    unclassified: tuple[tuple[str, int], ...]
    salvaged: bool
    notes: tuple[str, ...]
    lanes: tuple[Lane, ...]
    steps: tuple[tuple[int, int, int], ...]  # step, start_ns, end_ns
    step_source: str
    groups: tuple[dict[str, Any], ...]
    world_size: int | None
    backend: str | None
    has_device: bool
    device_name: str | None
    host: str | None
    lacks_device: bool = False  # the host launched work on a device, of which the file has none
    ends_early: bool = False  # events at the end of the file are lost
    steps_cut: int = 0  # steps that are not whole for that reason; they are not among `steps`
    trains: bool | None = None  # it has a backward pass or an optimizer; None: it has no operators
    runs_ahead: bool = False  # the host does, of its device, on which `steps` are therefore
    counters: CountedLayers | None = None  # None: none were read
    flight: FlightDump | None = None  # None: no dump of a flight recorder
    inspector: InspectorRecord | None = None  # None: no record of NCCL Inspector
    execution: ExecutionRecord | None = None  # None: no execution trace of PyTorch
    allocations: tuple[AllocatorCurve, ...] = ()  # by device; (): the trace has no allocator events
    table: dict[str, Any] | None = None  # seal of the timeline's file (rundir/seal.py); None: there is none
    ingest_version: int = INGEST_VERSION

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        document: dict[str, Any] = to_builtins(self)
        return document


def from_json(document: dict[str, Any]) -> IngestSummary:
    """The inverse of `to_json`.

    Raises:
        TypeError, KeyError, ValueError: it was not written by this version.
    """
    values = dict(document)
    values["lanes"] = tuple(Lane(**lane) for lane in values["lanes"])
    values["steps"] = tuple((step[0], step[1], step[2]) for step in values["steps"])
    values["unclassified"] = tuple((item[0], item[1]) for item in values["unclassified"])
    values["notes"] = tuple(values["notes"])
    values["groups"] = tuple(values["groups"])
    values["counters"] = convert(values.get("counters"), CountedLayers | None)
    values["allocations"] = convert(values.get("allocations", ()), tuple[AllocatorCurve, ...])
    values["flight"] = convert(values.get("flight"), FlightDump | None)
    values["inspector"] = convert(values.get("inspector"), InspectorRecord | None)
    values["execution"] = convert(values.get("execution"), ExecutionRecord | None)
    return IngestSummary(**values)
