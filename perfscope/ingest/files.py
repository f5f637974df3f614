"""Which traces a run holds, and where what is made of them goes. Light: no numpy, no pyarrow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfscope.ingest.summary import INGEST_VERSION, IngestSummary, from_json
from perfscope.rundir import layout
from perfscope.rundir.attempts import chosen_attempts

_WINDOW = re.compile(r"^(\d+)\.json(\.gz)?$")


@dataclass(frozen=True, slots=True)
class WindowFile:
    """A trace to ingest and where its results go."""

    run_dir: Path
    source: Path
    rank: int
    window: int

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
        windows: dict[int, Path] = {}
        for path in sorted((rank_dir / layout.WINDOWS).glob("*.json*"), reverse=True):
            match = _WINDOW.match(path.name)
            if match:
                windows[int(match[1])] = path
        for window in sorted(windows):
            yield WindowFile(run_dir, windows[window], rank, window)


def fresh_summary(file: WindowFile) -> IngestSummary | None:
    """The summary of an earlier ingest of this very file by this version; None if there is none."""
    try:
        document = json.loads(file.summary.read_bytes())
        stat = file.source.stat()
        source = {"path": file.relative_source, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        if document["ingest_version"] != INGEST_VERSION or document["source"] != source:
            return None
        return from_json(document) if file.table.exists() else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None  # not there, damaged, or of another version: ingest again
