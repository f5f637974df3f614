"""What became of every input file: ingest's counts, and what the reader had to drop."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analysis.results import FileProvenance
from perfscope.analysis.source import Document, DroppedInput


def provenance(summaries: Sequence[Document], notes: Sequence[DroppedInput]) -> tuple[FileProvenance, ...]:
    """One entry per trace file, then one per file of which something could not be read."""
    return (*(_of_trace(summary) for summary in summaries), *(_of_note(note) for note in notes))


def _of_trace(summary: Document) -> FileProvenance:
    source = summary.get("source")
    path = source.get("path") if isinstance(source, dict) else summary.get("path")
    unclassified = summary.get("unclassified")
    notes = summary.get("notes")
    return FileProvenance(
        path=str(path),
        rank=_count(summary, "rank"),
        window=_count(summary, "window"),
        events_read=_count(summary, "events_read"),
        events_kept=_count(summary, "events_kept"),
        events_cut=_count(summary, "events_cut"),
        events_dropped=_count(summary, "events_dropped"),
        events_skipped=_count(summary, "events_skipped"),
        unclassified=tuple(
            (str(name), int(count))
            for name, count in (unclassified if isinstance(unclassified, list) else [])
        ),
        salvaged=bool(summary.get("salvaged")),
        notes=tuple(str(note) for note in notes) if isinstance(notes, list) else (),
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


def _count(summary: Document, name: str) -> int:
    value = summary.get(name)
    return value if isinstance(value, int) else 0
