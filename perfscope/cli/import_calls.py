"""Files of NCCL Inspector into a run that perfscope recorded: every collective, beside the traced ones."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from msgspec import Struct, to_builtins

from perfscope.analysis.inspector import communicators_of
from perfscope.errors import RunDirectoryError, TraceError
from perfscope.ingest.formats.registry import format_of_file
from perfscope.ingest.importing import import_traces, trace_files
from perfscope.rundir import layout
from perfscope.rundir.inspector_records import ImportedCalls
from perfscope.rundir.reader import RunReader
from perfscope.rundir.writer import write_json

INSPECTOR = "inspector"
_BESIDE_NS = 60 * 10**9  # as for scrapes: clocks of hosts, and lines that are written late


class AddedCalls(Struct, frozen=True, kw_only=True):
    """What became of the files; `num_calls` is over all communicators. `left_out`: (file, why)."""

    num_ranks: int
    num_communicators: int
    num_calls: int
    left_out: tuple[tuple[Path, str], ...]


def are_records(paths: Sequence[Path]) -> bool:
    """Whether the first of the paths, or of the traces in it, is of NCCL Inspector."""
    try:
        return format_of_file(trace_files(paths[:1])[0]).name == INSPECTOR
    except TraceError:
        return False


def add_records(run_dir: Path, paths: Sequence[Path]) -> AddedCalls:
    """Add the calls to the run; those of an earlier import are replaced.

    Raises:
        TraceError: a file is none of NCCL Inspector, or they are not of this run.
        RunDirectoryError: `run_dir` is no run, or cannot be written.
    """
    reader = RunReader(run_dir)
    if any(summary.inspector is not None for summary in reader.summaries()):
        raise TraceError(
            f"{run_dir} is itself made of files of NCCL Inspector; import these together with them"
        )
    with tempfile.TemporaryDirectory(prefix="perfscope-calls-") as folder:
        imported = import_traces(paths, Path(folder, "run"), for_now=True)
        if other := [str(trace.path) for trace in imported.traces if trace.format != INSPECTOR]:
            raise TraceError(f"{other[0]}: no file of NCCL Inspector: import one kind after the other")
        calls = RunReader(imported.run_dir)
        _refuse_another_run(reader, calls)
        communicators = communicators_of(calls)
        ranks = calls.ranks
    added_calls = ImportedCalls(
        files=tuple(sorted({trace.path.name for trace in imported.traces})), communicators=communicators
    )
    write_json(run_dir / layout.INSPECTOR_JSON, to_builtins(added_calls))
    return AddedCalls(
        num_ranks=len(ranks),
        num_communicators=len({entry.group for entry in communicators}),
        num_calls=sum(entry.num_calls for entry in communicators),
        left_out=imported.rejected,
    )


def _refuse_another_run(reader: RunReader, calls: RunReader) -> None:
    start, end = reader.run.start_unix_ns, reader.run.end_unix_ns
    if start is None or end is None:
        raise RunDirectoryError(
            f"{reader.path}: the run does not say when it began and ended; is it running?"
        )
    if missing := sorted(set(calls.ranks) - set(reader.ranks)):
        raise TraceError(
            f"the files are not of this run: they have a rank {missing[0]}, the run has ranks "
            f"{_numbers(reader.ranks)}"
        )
    starts = [column.to_numpy() for column in _starts(calls)]
    first, last = min(int(column.min()) for column in starts), max(int(column.max()) for column in starts)
    if last < start - _BESIDE_NS or first > end + _BESIDE_NS:
        raise TraceError("the files are not of this run: their calls are of another time")


def _starts(calls: RunReader) -> list[pa.ChunkedArray]:
    tables = [calls.timeline(summary.rank, summary.window, ("start_ns",)) for summary in calls.summaries()]
    return [table.column("start_ns") for table in tables if table.num_rows]


def _numbers(ranks: Sequence[int]) -> str:
    if not ranks:
        return "none"
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
