"""Darshan's logs into a run: each process of a log is found among the run's ranks and loader workers.

A log of several processes (MPI) has ranks of its own, which are the run's where there are as many. A log of
one process (DARSHAN_ENABLE_NONMPI=1) has the process's number in its name: that of a rank, or of a worker.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from perfscope.collectors.ceilings.child import ChildResult, run_child
from perfscope.errors import PerfscopeError, RunDirectoryError, TraceError
from perfscope.rundir import layout
from perfscope.rundir.reader import RunReader
from perfscope.rundir.storage_records import DarshanRecord, FileSums, SlowFile
from perfscope.rundir.writer import write_json

_SUMS = Path(__file__).with_name("sums.py")
_LIMIT_S, _MEMORY_BYTES = 120.0, 8 << 30
_BESIDE_S = 2  # Darshan's times are whole seconds
_PID = re.compile(r"_id\d+-(\d+)_")  # <user>_<program>_id<job>-<pid>_<month>-<day>-...
_SHARED = -1  # rank of a file whose record Darshan has summed over all ranks
_MOST_FILES = 20


class _Process(Struct, frozen=True):
    rank: int | None
    worker: int | None = None


class ImportedLogs(Struct, frozen=True, kw_only=True):
    """What became of the logs.

    Attributes:
        num_ranks: of the run, that have something; num_workers: of their loaders.
        read_bytes, written_bytes: by POSIX and STDIO.
        left_out: (log, why) of those that are not of this run.
    """

    num_ranks: int
    num_workers: int
    read_bytes: int
    written_bytes: int
    left_out: tuple[tuple[Path, str], ...]


def import_logs(run_dir: Path, paths: Sequence[Path]) -> ImportedLogs:
    """Add the logs to the run; those of an earlier import are replaced.

    Raises:
        TraceError: a log cannot be read, or none is of this run.
        RunDirectoryError: `run_dir` is no run, or cannot be written.
        PerfscopeError: the package darshan is not installed.
    """
    reader = RunReader(run_dir)
    if find_spec("darshan") is None:
        raise PerfscopeError("darshan is not installed: pip install 'perfscope-hpc[darshan]'")
    rows: list[FileSums] = []
    slowest: list[SlowFile] = []
    used: list[str] = []
    left_out: list[tuple[Path, str]] = []
    processes = _processes(reader)
    for path in paths:
        log = _read(path)
        by_log_rank = _processes_of(reader, log, path, processes)
        if isinstance(by_log_rank, str):
            left_out.append((path, by_log_rank))
            continue
        used.append(path.name)
        rows += [msgspec.convert(_placed(row, by_log_rank), FileSums) for row in log["rows"]]
        slowest += [msgspec.convert(_placed(row, by_log_rank), SlowFile) for row in log["slowest"]]
    if not used:
        raise TraceError(f"no log is of this run: {left_out[0][0]}: {left_out[0][1]}")
    slowest.sort(key=lambda file: -(file.read_ns + file.write_ns + file.meta_ns))
    record = DarshanRecord(logs=tuple(used), rows=tuple(rows), slowest=tuple(slowest[:_MOST_FILES]))
    write_json(run_dir / layout.DARSHAN_JSON, msgspec.to_builtins(record))
    alone = [row for row in rows if not row.is_beneath_too]
    return ImportedLogs(
        num_ranks=len({row.rank for row in rows if row.rank is not None and row.worker is None}),
        num_workers=len({(row.rank, row.worker) for row in rows if row.worker is not None}),
        read_bytes=sum(row.read_bytes for row in alone),
        written_bytes=sum(row.written_bytes for row in alone),
        left_out=tuple(left_out),
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    plan: Mapping[str, Any] = {"path": str(path), "memory_bytes": _MEMORY_BYTES}
    answer = run_child(sys.executable, _SUMS, plan, {}, time.monotonic() + _LIMIT_S)
    if answer.failure or len(answer.lines) != 1:
        raise TraceError(f"{path}: no log of Darshan, or damaged: {_why(answer)}")
    return answer.lines[0]


def _why(answer: ChildResult) -> str:
    return answer.failure.removeprefix("RuntimeError: ") or "it has no sums"


def _processes(reader: RunReader) -> dict[int, _Process | None]:
    """By process number; None: several of the run, on different hosts, have it."""
    by_pid: dict[int, _Process | None] = {}

    def add(pid: int | None, process: _Process) -> None:
        if pid is not None:
            by_pid[pid] = None if pid in by_pid else process

    for rank in reader.ranks:
        add(reader.rank_records[rank].pid, _Process(rank))
        loading = reader.loading(rank)
        for pid, worker in {} if loading is None else loading.workers.items():
            add(pid, _Process(rank, worker.worker))
    return by_pid


def _processes_of(
    reader: RunReader, log: Mapping[str, Any], path: Path, processes: Mapping[int, _Process | None]
) -> dict[int, _Process] | str:
    """The log's ranks as processes of the run; or why it is not of the run."""
    start, end = reader.run.start_unix_ns, reader.run.end_unix_ns
    if start is None or end is None:
        raise RunDirectoryError(
            f"{reader.path}: the run does not say when it began and ended; is it running?"
        )
    if log["end_s"] + _BESIDE_S < start / 1e9 or log["start_s"] - _BESIDE_S > end / 1e9:
        return "it is of another time than the run"
    if log["num_ranks"] > 1:
        if log["num_ranks"] != len(reader.ranks):
            return f"it has {log['num_ranks']:,} ranks, the run {len(reader.ranks):,}"
        return {_SHARED: _Process(None), **{number: _Process(number) for number in range(log["num_ranks"])}}
    match = _PID.search(path.name)
    process = processes.get(int(match[1])) if match else None
    if process is None and not match and len(reader.ranks) == 1:
        process = _Process(reader.ranks[0])
    if process is None:
        return (
            f"its process {match[1]} is neither a rank nor a loader worker of the run"
            if match
            else "its name does not have the process number, as Darshan writes it (..._id<job>-<process>_...)"
        )
    return {_SHARED: process, 0: process}


def _placed(row: Mapping[str, Any], by_log_rank: Mapping[int, _Process]) -> dict[str, Any]:
    process = by_log_rank[row["rank"]]
    times = {f"{name}_ns": round(row[f"{name}_s"] * 1e9) for name in ("read", "write", "meta")}
    return {**row, **times, "rank": process.rank, "worker": process.worker}
