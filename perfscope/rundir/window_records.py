"""Lines of errors.jsonl, and what ingest says of each traced window (derived/ingest), typed."""

from __future__ import annotations

from msgspec import field

from perfscope.rundir.execution_records import ExecutionRecord
from perfscope.rundir.flight_records import FlightDump
from perfscope.rundir.inspector_records import InspectorRecord
from perfscope.rundir.typed import Count, PartialRow, Record, WholeLists
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.steps import StepSource


class ProbeError(Record, frozen=True):
    """An error that a probe caught; `disabled`: the probe ended with it."""

    where: str = ""
    error: str = ""
    disabled: bool = False


class TraceFile(Record, frozen=True):
    """The trace that was ingested; `path` is relative to the run; the calls and counters beside it."""

    path: str = ""
    calls: dict[str, object] | None = None
    counters: dict[str, object] | None = None
    execution: dict[str, object] | None = None


class LaneRow(PartialRow, frozen=True):
    """A host thread (device -1) or a stream; `role` is main, backend, autograd, worker or stream."""

    device: int = -1
    lane: int = -1
    role: str = ""
    label: str = ""


class GroupRow(PartialRow, frozen=True):
    """A process group: `pg_name` as the framework's trace lists it, `name` as rank.json does."""

    pg_name: str | int | None = None
    name: str | int | None = None
    pg_desc: str = ""
    ranks: tuple[int, ...] | None = None


class CountedLayers(WholeLists, frozen=True):
    """Counters of a window's training thread: N.counters.json, summed over its complete steps.

    Attributes:
        columns: counters (vocabulary.layer_counters).
        rows: (phase, layer, values of `columns`), layer "" for none; together they are the steps.
        software_source: "perf_event_open" or "getrusage".
        user_only: hardware counters leave out what the kernel did for the thread.
        refused: counter -> why it is missing, and the kernel's word for it.
        ended: why readings ended before the window did; None: they did not.
        problem: why the file cannot be read, in words.
    """

    num_steps: Count = 0
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, str, tuple[Count, ...]], ...] = ()
    software_source: str = ""
    user_only: bool = False
    refused: dict[str, tuple[Cause, str]] = field(default_factory=dict)
    ended: tuple[Cause, str] | None = None
    problem: str = ""


HOST_DEVICE = -1


class AllocatorCurve(WholeLists, frozen=True):
    """What a framework's allocator held on one device while a window was traced, in bytes.

    Attributes:
        device: number of the device; HOST_DEVICE: memory of the host, counted from the trace's start.
        num_events: allocations and frees in the trace; at most some hundreds of them are points of the curve.
        t_ns: of the points, in the trace's clock.
        allocated: in tensors, after the event.
        reserved: taken from the device by the allocator, tensors included; (): it keeps nothing back.
        peak_ns: when most was allocated.
        peak_reserved: most that was reserved, at any time of the trace; None: as `reserved`.
        peak_thread: that allocated at the peak; -1: not known.
    """

    device: int = HOST_DEVICE
    num_events: Count = 0
    t_ns: tuple[int, ...] = ()
    allocated: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()
    peak_ns: int = 0
    peak_allocated: int = 0
    peak_reserved: int | None = None
    peak_thread: int = -1


class WindowSummary(Record, frozen=True):
    """One window of one rank; see ingest.summary.IngestSummary, which is written there.

    Attributes:
        events_kept: None where the file does not say.
        steps: (step, start_ns, end_ns) in the trace's clock.
        counters: None: none were read.
        flight: None: no dump of a flight recorder.
        inspector: None: no record of NCCL Inspector.
        execution: None: no execution trace of PyTorch.
        allocations: by device; (): the trace has no allocator events.
        table: seal of the timeline's file (rundir/seal.py); None: there is none.
    """

    rank: int
    window: int
    source: TraceFile = TraceFile()
    events_read: Count = 0
    events_kept: Count | None = None
    events_cut: Count = 0
    events_dropped: Count = 0
    events_skipped: Count = 0
    unclassified: tuple[tuple[str, int], ...] = ()
    salvaged: bool = False
    notes: tuple[str, ...] = ()
    lanes: tuple[LaneRow, ...] = ()
    steps: tuple[tuple[int, int, int], ...] = ()
    step_source: str = ""
    groups: tuple[GroupRow, ...] = ()
    has_device: bool = False
    host: str = ""
    lacks_device: bool = False
    ends_early: bool = False
    steps_cut: Count = 0
    trains: bool | None = None
    runs_ahead: bool = False
    counters: CountedLayers | None = None
    flight: FlightDump | None = None
    inspector: InspectorRecord | None = None
    execution: ExecutionRecord | None = None
    allocations: tuple[AllocatorCurve, ...] = ()
    table: dict[str, object] | None = None

    @property
    def has_no_steps(self) -> bool:
        """Whether the file says nothing of steps and of how long their parts took: calls, or structure."""
        is_structure = self.execution is not None and not self.lanes
        return is_structure or self.flight is not None or self.inspector is not None

    @property
    def is_marked(self) -> bool:
        """Whether its steps are those of marks in the trace, not the whole file as one."""
        return self.step_source != StepSource.WHOLE_FILE
