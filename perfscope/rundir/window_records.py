"""Lines of errors.jsonl, and what ingest says of each traced window (derived/ingest), typed."""

from __future__ import annotations

from perfscope.rundir.typed import Count, PartialRow, Record
from perfscope.vocabulary.steps import StepSource


class ProbeError(Record, frozen=True):
    """An error that a probe caught; `disabled`: the probe ended with it."""

    where: str = ""
    error: str = ""
    disabled: bool = False


class TraceFile(Record, frozen=True):
    """The trace that was ingested; `path` is relative to the run, `calls` are the calls beside it."""

    path: str = ""
    calls: dict[str, object] | None = None


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


class WindowSummary(Record, frozen=True):
    """One window of one rank; see ingest.summary.IngestSummary, which is written there.

    Attributes:
        events_kept: None where the file does not say.
        steps: (step, start_ns, end_ns) in the trace's clock.
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
    table: dict[str, object] | None = None

    @property
    def is_marked(self) -> bool:
        """Whether its steps are those of marks in the trace, not the whole file as one."""
        return self.step_source != StepSource.WHOLE_FILE
