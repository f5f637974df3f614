"""What a run read from and wrote to files by Darshan's logs, beside its waiting for input."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.analysis.loading.results import RankLoading
from perfscope.analysis.source import RunSource
from perfscope.rundir.storage_records import FileSums, SlowFile


class InputReads(Struct, frozen=True, kw_only=True):
    """A rank's waiting for its data loader, beside the file I/O of the loader's workers; all of the run.

    Attributes:
        wait_ns: of the training thread.
        read_ns: in reads, meta_ns: in opening, closing, seeking and stat, summed over the workers.
        samples: that the loader gave; None: not known.
    """

    rank: int
    wait_ns: int
    read_ns: int
    meta_ns: int
    read_bytes: int
    samples: int | None


class FileIo(Struct, frozen=True, kw_only=True):
    """Sums by process and module, and the files with most time in their calls.

    Attributes:
        logs: files that were imported.
        input: of ranks whose loader's workers have logs.
    """

    logs: tuple[str, ...]
    rows: tuple[FileSums, ...]
    slowest: tuple[SlowFile, ...]
    input: tuple[InputReads, ...]


def file_io_of(source: RunSource, loading: Sequence[RankLoading]) -> FileIo | None:
    """None where no log was imported."""
    record = source.file_io()
    if record is None or not record.rows:
        return None
    reads = [_input(of_rank, record.rows) for of_rank in loading]
    return FileIo(
        logs=record.logs,
        rows=record.rows,
        slowest=record.slowest,
        input=tuple(entry for entry in reads if entry is not None),
    )


def _input(loading: RankLoading, rows: Sequence[FileSums]) -> InputReads | None:
    of_workers = [
        row for row in rows if row.rank == loading.rank and row.worker is not None and not row.is_beneath_too
    ]
    if not of_workers:
        return None
    return InputReads(
        rank=loading.rank,
        wait_ns=loading.wait_ns * (loading.num_asks - loading.num_passes) + loading.start_ns,
        read_ns=sum(row.read_ns for row in of_workers),
        meta_ns=sum(row.meta_ns for row in of_workers),
        read_bytes=sum(row.read_bytes for row in of_workers),
        samples=loading.samples,
    )
