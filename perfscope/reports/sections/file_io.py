"""What a run read from and wrote to files by Darshan's logs: blocks of the section "Input"."""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.file_io import FileIo, InputReads
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.model import Block, Column, Table, Unit
from perfscope.rundir.storage_records import FileSums, SlowFile

_LONGEST = 90


def file_io_blocks(file_io: FileIo) -> tuple[Block, ...]:
    """Sums by process, and the slowest files."""
    return (_sums(file_io), *((_slowest(file_io),) if file_io.slowest else ()))


def file_io_lead(file_io: FileIo) -> str:
    """How much was read and written, and of the rank that waits longest, how long its workers read."""
    alone = [row for row in file_io.rows if not row.is_beneath_too]
    read, written = (sum(getattr(row, name) for row in alone) for name in ("read_bytes", "written_bytes"))
    text = (
        f"By {counted(len(file_io.logs), 'log')} of Darshan, {units.format_bytes(read)} were read from files "
        f"and {units.format_bytes(written)} written."
    )
    if not file_io.input:
        return text
    return f"{text} {_beside_wait(max(file_io.input, key=lambda entry: entry.wait_ns))}"


def _beside_wait(reads: InputReads) -> str:
    per = f" ({units.format_bytes(reads.read_bytes / reads.samples)} per sample)" if reads.samples else ""
    return (
        f"In the run, rank {reads.rank} waits {units.format_ns(reads.wait_ns)} for its data loader, whose "
        f"workers together spend {units.format_ns(reads.read_ns)} in reads{per} and "
        f"{units.format_ns(reads.meta_ns)} in opening, closing and seeking."
    )


def _process(rank: int | None, worker: int | None) -> str:
    if rank is None:
        return "files that ranks share"
    return f"rank {rank}" if worker is None else f"rank {rank}, loader worker {worker}"


def _sums(file_io: FileIo) -> Table:
    return Table(
        id="file-io",
        title="File I/O by process (Darshan)",
        columns=(
            Column(key="process", title="Process", primary=True),
            Column(key="module", title="Interface"),
            Column(key="files", title="Files", unit=Unit.COUNT),
            Column(key="reads", title="Reads", unit=Unit.COUNT),
            Column(key="read", title="Read", unit=Unit.BYTES, primary=True),
            Column(key="read_time", title="In reads", unit=Unit.TIME, primary=True),
            Column(key="rate", title="While reading", unit=Unit.RATE, hint="bytes read / time in reads"),
            Column(key="meta_time", title="Open, close, seek, stat", unit=Unit.TIME, primary=True),
            Column(key="writes", title="Writes", unit=Unit.COUNT),
            Column(key="written", title="Written", unit=Unit.BYTES),
            Column(key="write_time", title="In writes", unit=Unit.TIME),
        ),
        rows=tuple(_row(row) for row in sorted(file_io.rows, key=_time_of, reverse=True)),
        caption="Times are summed over calls, and of files that ranks share, over ranks. MPI-IO is counted "
        "once more in the interface beneath it.",
        terminal_rows=8,
    )


def _time_of(row: FileSums | SlowFile) -> int:
    return row.read_ns + row.write_ns + row.meta_ns


def _row(row: FileSums) -> tuple[str | int | float | None, ...]:
    return (
        _process(row.rank, row.worker),
        visible(row.module, 20),
        row.num_files,
        row.num_reads,
        row.read_bytes,
        row.read_ns,
        row.read_bytes / row.read_ns * 1e9 if row.read_ns else None,
        row.meta_ns,
        row.num_writes,
        row.written_bytes,
        row.write_ns,
    )


def _slowest(file_io: FileIo) -> Table:
    return Table(
        id="file-io-slowest",
        title="Files with most time in their calls",
        columns=(
            Column(key="file", title="File", primary=True),
            Column(key="process", title="Process"),
            Column(key="read", title="Read", unit=Unit.BYTES),
            Column(key="read_time", title="In reads", unit=Unit.TIME, primary=True),
            Column(key="meta_time", title="Open, close, seek, stat", unit=Unit.TIME, primary=True),
            Column(key="written", title="Written", unit=Unit.BYTES),
            Column(key="write_time", title="In writes", unit=Unit.TIME, primary=True),
        ),
        rows=tuple(
            (
                visible(file.name, _LONGEST),
                _process(file.rank, file.worker),
                file.read_bytes,
                file.read_ns,
                file.meta_ns,
                file.written_bytes,
                file.write_ns,
            )
            for file in file_io.slowest
        ),
        terminal_rows=5,
    )
