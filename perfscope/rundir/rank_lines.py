"""Files of lines that a rank and its workers append to, beside its steps; and what was read from storage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from perfscope.rundir import layout
from perfscope.rundir.documents import Document
from perfscope.rundir.inspector_records import CommunicatorCalls, ImportedCalls
from perfscope.rundir.loader_records import Loading, WorkerRows, read_loading, read_worker
from perfscope.rundir.phase_records import PhaseTimes, read_phases
from perfscope.rundir.records import RankRecord
from perfscope.rundir.storage_records import DarshanRecord

_T = TypeVar("_T", bound=msgspec.Struct)
_TORN = "lines that cannot be read (the last is torn by a kill)"


class _Run(Protocol):
    path: Path
    rank_records: Mapping[int, RankRecord]

    def rank_folder(self, rank: int) -> Path: ...
    def _seal(self, rank: int, name: str) -> object: ...
    def _line_bytes(self, path: Path, sealed: object) -> bytes | None: ...
    def _note(self, path: Path, num_dropped: int, reason: str) -> None: ...
    def _document(self, path: Path, sealed: object = None) -> Document | None: ...
    def _record(self, kind: type[_T], path: Path, document: Document | None) -> _T | None: ...


class RankLines:
    """Part of RunReader."""

    def file_io(self: _Run) -> DarshanRecord | None:
        """Darshan's sums that were imported; None where none were."""
        path = self.path / layout.DARSHAN_JSON
        return self._record(DarshanRecord, path, self._document(path))

    def imported_communicators(self: _Run) -> tuple[CommunicatorCalls, ...]:
        """Those of NCCL Inspector's files that were imported into the run; () where none were."""
        path = self.path / layout.INSPECTOR_JSON
        record = self._record(ImportedCalls, path, self._document(path))
        return () if record is None else record.communicators

    def phases(self: _Run, rank: int) -> PhaseTimes | None:
        """Phases by name of the rank; None where it has marked none."""
        path = self.rank_folder(rank) / layout.PHASES_JSONL
        data = self._line_bytes(path, self._seal(rank, layout.PHASES_JSONL))
        times = None if data is None else read_phases(data)
        if times is not None and times.num_bad:
            self._note(path, times.num_bad, "phases that cannot be read (the last is torn by a kill)")
        return times

    def loading(self: _Run, rank: int) -> Loading | None:
        """Batches of the rank's data loaders with workers; None where it has none."""
        path = self.rank_folder(rank) / layout.LOADING_JSONL
        data = self._line_bytes(path, self._seal(rank, layout.LOADING_JSONL))
        if data is None:
            return None
        record = self.rank_records[rank]
        host = (record.host or "").replace("/", "_")
        folder = self.path / layout.HOSTS / host / layout.WORKERS
        workers: dict[int, WorkerRows] = {}
        for file in sorted(folder.glob(f"{record.pid}-*.jsonl")) if host else ():
            lines = self._line_bytes(file, None)
            worker, num_bad = read_worker(lines) if lines is not None else (None, 0)
            if worker is not None:
                workers[worker.pid] = worker
            if num_bad:
                self._note(file, num_bad, _TORN)
        loading = read_loading(data, workers)
        if loading.num_bad:
            self._note(path, loading.num_bad, _TORN)
        return loading
