"""A window whose trace is held in memory, or calls beside a trace: to a timeline and summary."""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.errors import TraceError
from perfscope.ingest.files import WindowFile, source_of
from perfscope.ingest.formats.calls import merge_calls, read_calls
from perfscope.ingest.formats.trace import FrameworkTrace, write_table
from perfscope.ingest.summary import IngestSummary


def ingest_framework_trace(file: WindowFile, trace: FrameworkTrace) -> IngestSummary:
    """Write the timeline of a trace that is held in memory.

    Raises:
        OSError: the timeline cannot be written.
    """
    write_table(trace.table(file.rank, file.window), file.table)
    return _summary(file, trace)


def add_calls(file: WindowFile, summary: IngestSummary) -> IngestSummary:
    """The window's calls merged into the timeline of its trace; the summary with them.

    Raises:
        OSError: the timeline cannot be written.
    """
    if file.calls is None or file.calls == file.source:
        return summary
    try:
        calls = read_calls(file.calls)
    except TraceError as error:
        return replace(summary, notes=(*summary.notes, str(error)), salvaged=True)
    calls.steps = []
    _join_main(calls, summary)
    added = merge_calls(file.table, calls, list(summary.steps))
    recorded = {(lane.device, lane.lane) for lane in summary.lanes}
    lanes = [lane for lane in calls.lanes if (lane.device, lane.lane) not in recorded]
    names = {group.get("name", group.get("pg_name")) for group in summary.groups}
    return replace(
        summary,
        events_read=summary.events_read + calls.num_read,
        events_kept=summary.events_kept + added,
        events_dropped=summary.events_dropped + calls.num_dropped,
        notes=(*summary.notes, *calls.notes),
        lanes=(*summary.lanes, *lanes),
        groups=(*summary.groups, *(group for group in calls.groups if group.get("name") not in names)),
    )


def _join_main(calls: FrameworkTrace, summary: IngestSummary) -> None:
    """Put calls of the main thread on the lane of the trace that is the main thread, whatever its number.

    XPlane numbers threads as it likes, the probe by the operating system's ids.
    """
    main = [lane for lane in summary.lanes if lane.role == "main"]
    if len(main) == 1:
        calls.lanes = [main[0] if lane.role == "main" else lane for lane in calls.lanes]


def _summary(file: WindowFile, trace: FrameworkTrace) -> IngestSummary:
    notes = list(trace.notes)
    if len(trace) and not trace.steps:
        notes.append("no step marks: the whole file counts as one step")
    return IngestSummary(
        source=source_of(file),
        rank=file.rank,
        window=file.window,
        path=file.relative_source,
        events_read=max(trace.num_read, len(trace) + trace.num_dropped),
        events_kept=len(trace),
        events_cut=0,
        events_dropped=trace.num_dropped,
        events_skipped=max(0, trace.num_read - len(trace) - trace.num_dropped),
        unclassified=(),
        salvaged=trace.num_dropped > 0,
        notes=tuple(notes),
        lanes=tuple(trace.lanes),
        steps=tuple(trace.spans_of_steps()),
        step_source=trace.step_source,
        groups=tuple(trace.groups),
        world_size=trace.world_size,
        backend=trace.backend,
        has_device=any(lane.device >= 0 for lane in trace.lanes),
        device_name=trace.device_name,
        host=None,
    )
