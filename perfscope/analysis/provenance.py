"""What became of every input file: ingest's counts, and what the reader had to drop."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analysis.results import FileProvenance
from perfscope.analysis.source import DroppedInput
from perfscope.rundir.window_records import WindowSummary


def provenance(
    summaries: Sequence[WindowSummary], notes: Sequence[DroppedInput]
) -> tuple[FileProvenance, ...]:
    """One entry per trace file, then one per file of which something could not be read."""
    return (*(_of_trace(summary) for summary in summaries), *(_of_note(note) for note in notes))


def _of_trace(summary: WindowSummary) -> FileProvenance:
    return FileProvenance(
        path=summary.source.path,
        rank=summary.rank,
        window=summary.window,
        events_read=summary.events_read,
        events_kept=summary.events_kept or 0,
        events_cut=summary.events_cut,
        events_dropped=summary.events_dropped,
        events_skipped=summary.events_skipped,
        unclassified=summary.unclassified,
        salvaged=summary.salvaged,
        notes=summary.notes,
        ends_early=summary.ends_early,
        steps_cut=summary.steps_cut,
    )


def _of_note(note: DroppedInput) -> FileProvenance:
    parts = note.path.split("/")
    name = parts[1].partition(".")[0] if len(parts) > 1 and parts[0] == "ranks" else ""
    rank = int(name) if name.isdigit() else -1
    return FileProvenance(
        path=note.path,
        rank=rank,
        window=-1,
        events_read=0,
        events_kept=0,
        events_cut=0,
        events_dropped=note.num_dropped,
        events_skipped=0,
        unclassified=(),
        salvaged=note.num_dropped > 0,
        notes=(note.reason,),
    )
