"""Rows in the order of the file go in, rows in the order of time come out, with bounded memory.

A trace lists its events by thread and stream, not by time. So rows are gathered into sorted runs;
once these outgrow a few MiB they go to a temporary file. Reading merges the runs: a slice of time
holds all rows of all kinds that start in it, and no more rows than fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Rows = npt.NDArray[Any]

# Kinds of rows, each with its own columns. All times in ns, all other numbers as in the tables of `names`.
HOST = np.dtype(
    [
        ("start", "<i8"),
        ("dur", "<i8"),
        ("sequence", "<i8"),  # autograd sequence number; -1 none
        ("name", "<i4"),
        ("forward_thread", "<i4"),  # >0: backward of an operator run by that thread
        ("detail", "<i4"),  # cost or collective of this call; -1 none
        ("lane", "<i4"),
    ]
)
LAUNCH = np.dtype(
    [
        ("start", "<i8"),
        ("dur", "<i8"),
        ("correlation", "<i8"),
        ("name", "<i4"),  # of the call: a host word
        ("lane", "<i4"),
    ]
)
DEVICE = np.dtype(
    [
        ("start", "<i8"),
        ("dur", "<i8"),
        ("correlation", "<i8"),  # -1 none
        ("bytes", "<i8"),  # moved by a copy; -1 unknown
        ("name", "<i4"),
        ("detail", "<i4"),  # collective of this kernel; -1 none
        ("config", "<i4"),  # how it was launched; -1 unknown
        ("lane", "<i4"),
    ]
)
KINDS = (HOST, LAUNCH, DEVICE)

_IN_MEMORY_BYTES = 2 << 20
_BLOCK_ROWS = 1 << 14  # rows of all runs together that are loaded at a time
_MIN_BLOCK_ROWS = 256


class _Run(Struct):
    number: int  # runs are numbered as the file gave them
    kind: int
    first_start: int
    num_rows: int
    rows: Rows | None  # in memory, or
    offset: int  # in the file


class Spill:
    """Collects sorted runs of rows and yields them merged by start time.

    Args:
        directory: where the temporary file goes; it has no name and vanishes with the process.
    """

    def __init__(self, directory: Path, *, memory_bytes: int = _IN_MEMORY_BYTES) -> None:
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._held = 0
        self._runs: list[_Run] = []
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, kind: int, rows: Rows) -> None:
        """Take rows of `KINDS[kind]`, in any order; among equal starts the longest comes first."""
        if not len(rows):
            return
        rows = _by_time(rows)
        run = _Run(len(self._runs), kind, int(rows["start"][0]), len(rows), rows, 0)
        self._runs.append(run)
        self._held += rows.nbytes
        if self._held > self._memory_bytes:
            for held in self._runs:
                self._write(held)
            self._held = 0

    def _write(self, run: _Run) -> None:
        if run.rows is None:
            return
        if self._file is None:
            self._file = TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115 - closed in __exit__
        run.offset = self._file.seek(0, 2)
        run.rows.tofile(self._file)
        run.rows = None

    def slices(self, *, block_rows: int = _BLOCK_ROWS) -> Iterator[tuple[int, list[Rows]]]:
        """Yields (until, rows per kind): the rows that start at or before `until` and after the last."""
        waiting = sorted(self._runs, key=lambda run: run.first_start, reverse=True)
        active: list[_Cursor] = []
        while waiting or active:
            if not active:
                active.append(_Cursor(waiting.pop(), self._file))
            until = self._load(active, waiting, block_rows)
            taken: list[list[Rows]] = [[] for _ in KINDS]
            # In the order of the file: of two spans with the same times the first listed encloses the other.
            for cursor in sorted(active, key=lambda cursor: cursor.run.number):
                taken[cursor.run.kind].append(cursor.take(until))
            active = [cursor for cursor in active if not cursor.done]
            yield until, [_merged(rows, kind) for rows, kind in zip(taken, KINDS, strict=True)]

    def _load(self, active: list[_Cursor], waiting: list[_Run], block_rows: int) -> int:
        """Fill every cursor whose run may have rows in the next slice; where that slice ends."""
        while True:
            block = max(_MIN_BLOCK_ROWS, block_rows // len(active))
            until = min(cursor.fill(block) for cursor in active)
            if not waiting or waiting[-1].first_start > until:
                return until
            active.append(_Cursor(waiting.pop(), self._file))


class _Cursor:
    """A place in a run, with the next rows loaded."""

    def __init__(self, run: _Run, file: IO[bytes] | None) -> None:
        self.run = run
        self._file = file
        self._next = 0  # first row that is not loaded
        self._loaded: Rows = np.zeros(0, KINDS[run.kind])

    @property
    def done(self) -> bool:
        return not len(self._loaded) and self._next == self.run.num_rows

    def fill(self, block: int) -> int:
        """Have about a block of rows loaded; the time up to which all rows are loaded."""
        while self._next < self.run.num_rows and (
            # Rows beyond the block may share its last start, so a slice ends before that one.
            len(self._loaded) <= block // 2 or self._loaded["start"][0] == self._loaded["start"][-1]
        ):
            count = min(block, self.run.num_rows - self._next)
            more = self._read(count)
            self._loaded = np.concatenate([self._loaded, more]) if len(self._loaded) else more
            self._next += count
        if self._next == self.run.num_rows:
            return int(np.iinfo(np.int64).max)
        return int(self._loaded["start"][-1]) - 1

    def _read(self, count: int) -> Rows:
        dtype = KINDS[self.run.kind]
        if self.run.rows is not None:
            return self.run.rows[self._next : self._next + count]
        assert self._file is not None
        self._file.seek(self.run.offset + self._next * dtype.itemsize)
        buffer = bytearray(count * dtype.itemsize)
        read, view = 0, memoryview(buffer)
        while read < len(buffer):
            got = self._file.readinto(view[read:])  # type: ignore[attr-defined]
            if not got:
                raise OSError("the temporary file of the ingest is shorter than what was written")
            read += got
        return np.frombuffer(buffer, dtype)

    def take(self, until: int) -> Rows:
        """The loaded rows that start at or before `until`."""
        count = int(np.searchsorted(self._loaded["start"], until, side="right"))
        rows, self._loaded = self._loaded[:count], self._loaded[count:]
        return rows


def _merged(parts: list[Rows], dtype: np.dtype[Any]) -> Rows:
    parts = [part for part in parts if len(part)]
    if not parts:
        return np.zeros(0, dtype)
    return parts[0] if len(parts) == 1 else _by_time(np.concatenate(parts))


def _by_time(rows: Rows) -> Rows:
    """Rows by start; a span that encloses another one from the same start comes before it."""
    starts = np.ascontiguousarray(rows["start"])
    order = np.argsort(starts, kind="stable")
    if "dur" in (rows.dtype.names or ()):
        sorted_starts = starts[order]
        same = np.flatnonzero(sorted_starts[1:] == sorted_starts[:-1])
        durations = rows["dur"][order]
        if len(same) and (durations[same] < durations[same + 1]).any():
            order = np.lexsort((-rows["dur"], starts))
    return rows[order]
