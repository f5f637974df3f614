"""Which traces a run holds, and where what is made of them goes. Light: no numpy, no pyarrow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from perfscope.ingest.summary import INGEST_VERSION, IngestSummary, from_json
from perfscope.rundir import layout
from perfscope.rundir.attempts import chosen_attempts
from perfscope.rundir.documents import read_document, seal_of_file

_WINDOW = re.compile(r"^(\d+)((?:\.[a-z]+)+?)(\.gz)?$")
_SUFFIXES = (*layout.TRACE_FORMATS, layout.CALLS)  # a framework's own trace before calls
_READ = frozenset((*_SUFFIXES, layout.COUNTERS))


class WindowFile(Struct, frozen=True):
    """A trace to ingest and where its results go.

    Attributes:
        suffix: how its name ends, one of layout.TRACE_FORMATS or layout.CALLS.
        calls: the calls that the probe timed itself, beside the trace or (the same as `source`) alone.
        counters: of the training thread, per layer.
        execution: PyTorch's execution trace, beside the trace or (the same as `source`) alone.
    """

    run_dir: Path
    source: Path
    rank: int
    window: int
    suffix: str = layout.KINETO
    calls: Path | None = None
    counters: Path | None = None
    execution: Path | None = None

    @property
    def table(self) -> Path:
        return self.run_dir / layout.DERIVED / layout.TIMELINE / f"{self._name}.parquet"

    @property
    def summary(self) -> Path:
        return self.run_dir / layout.DERIVED / layout.INGEST / f"{self._name}.json"

    @property
    def _name(self) -> str:
        return f"rank-{self.rank:05d}-window-{self.window:03d}"

    @property
    def relative_source(self) -> str:
        return self.source.relative_to(self.run_dir).as_posix()


def window_files(run_dir: Path) -> Iterator[WindowFile]:
    """Every trace of a run, by rank and window. Of N.json and N.json.gz (gzip was interrupted) N.json."""
    for rank, rank_dir in chosen_attempts(run_dir).items():
        windows: dict[int, dict[str, Path]] = {}
        for path in sorted((rank_dir / layout.WINDOWS).glob("*.*"), reverse=True):
            match = _WINDOW.match(path.name)
            if match and match[2] in _READ and path.is_file():  # a pipe would never end
                windows.setdefault(int(match[1]), {})[match[2]] = path
        for window in sorted(windows):
            files = windows[window]
            suffix = next((suffix_ for suffix_ in _SUFFIXES if suffix_ in files), None)
            if suffix is None:
                continue  # counters whose trace is gone: what was traced is known of no step
            beside = [files.get(each) for each in (layout.CALLS, layout.COUNTERS, layout.EXECUTION)]
            yield WindowFile(run_dir, files[suffix], rank, window, suffix, *beside)


def source_of(file: WindowFile) -> dict[str, Any]:
    """What a summary says of the files it was made of: another size or time, and they are ingested again.

    Raises:
        OSError: they are not there.
    """
    stat = file.source.stat()
    source: dict[str, Any] = {
        "path": file.relative_source,
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
    }
    beside = {"calls": file.calls, "counters": file.counters, "execution": file.execution}
    for name, path in beside.items():
        if path is not None and path != file.source:
            stat = path.stat()
            source[name] = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    return source


def fresh_summary(file: WindowFile) -> IngestSummary | None:
    """The summary of an earlier ingest of this very file by this version; None if there is none."""
    try:
        document = read_document(file.summary)
        if document["ingest_version"] != INGEST_VERSION or document["source"] != source_of(file):
            return None
        summary = from_json(document)
        return summary if summary.table == seal_of_file(file.table) else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None  # not there, damaged, or of another version: ingest again
