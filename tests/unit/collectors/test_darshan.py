"""Logs of Darshan into a run: real logs of the package darshan, and logs of single processes."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perfscope.analysis.file_io import file_io_of
from perfscope.collectors.darshan import importing
from perfscope.collectors.darshan.importing import import_logs
from perfscope.errors import PerfscopeError, RunDirectoryError, TraceError
from perfscope.reports.model import Table
from perfscope.reports.sections.file_io import file_io_blocks, file_io_lead
from perfscope.rundir.reader import RunReader
from tests.support.mutations import mutated
from tests.support.trace_samples import Sample

SECOND = 10**9
APP = "pq_app_readAB_writeC_id71326*"
APP_START = 1_596_152_058
needs_darshan = pytest.mark.skipif(find_spec("darshan") is None, reason="darshan is not installed")


def run_of(folder: Path, num_ranks: int, *, start: int = APP_START, pids: int = 100) -> Path:
    """A run of 10 s on host n1; rank r is process `pids` + r, its loader's worker 0 process 1000 + r."""
    run = folder / "run"
    for rank in range(num_ranks):
        (run / "ranks" / str(rank)).mkdir(parents=True)
        record = {"schema_version": 1, "rank": rank, "host": "n1", "pid": pids + rank}
        (run / "ranks" / str(rank) / "rank.json").write_text(json.dumps(record))
        (run / "ranks" / str(rank) / "loading.jsonl").write_text(
            json.dumps({"iterator": 0, "workers": [1000 + rank], "prefetch": 2, "batch_size": 4})
            + "\n"
            + json.dumps({"asks": [[0, 1, 2 * SECOND, 0, 0, 0], [0, 3 * SECOND, 5 * SECOND, 1, 0, 0]]})
            + "\n"
        )
        workers = run / "hosts" / "n1" / "workers"
        workers.mkdir(parents=True, exist_ok=True)
        (workers / f"{pids + rank}-{1000 + rank}.jsonl").write_text(
            json.dumps({"worker": 0, "pid": 1000 + rank, "rows": [[0, 1, 0, SECOND, 5, 0, 1]]}) + "\n"
        )
    manifest = {
        "schema_version": 1,
        "start_unix_ns": start * SECOND,
        "end_unix_ns": (start + 10) * SECOND,
        "expected_ranks": num_ranks,
    }
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def packaged(name: str) -> Path:
    import darshan

    return min(Path(darshan.__file__).parent.rglob(f"{name}.darshan"))


def log_of_process(monkeypatch: pytest.MonkeyPatch, start: int = APP_START, **sums: Any) -> None:
    """Every log that is read is of one process with one file."""
    row = {
        **dict.fromkeys(("num_reads", "num_writes", "read_bytes", "written_bytes"), 0),
        **dict.fromkeys(("read_s", "write_s", "meta_s"), 0.0),
        **sums,
        "rank": 0,
    }
    log = {
        "num_ranks": 1,
        "start_s": start,
        "end_s": start + 2,
        "rows": [{**row, "module": "POSIX", "num_files": 1}],
        "slowest": [{**row, "name": "/data/shard-0.tar"}],
    }
    monkeypatch.setattr(importing, "_read", lambda path: log)
    monkeypatch.setattr(importing, "find_spec", lambda name: object())


@needs_darshan
def test_each_rank_of_a_log_of_mpi_has_its_own_calls_and_shared_files_are_apart(tmp_path: Path) -> None:
    run = run_of(tmp_path, 4)
    added = import_logs(run, [packaged(APP)])
    record = RunReader(run).file_io()
    assert record is not None and added.num_ranks == 4 and added.num_workers == 0
    posix = [row for row in record.rows if row.module == "POSIX"]
    # The program reads ten blocks of 500 bytes on each rank, and writes one file together.
    assert [(row.rank, row.num_reads, row.read_bytes) for row in posix if row.rank is not None] == [
        (rank, 10, 5000) for rank in (0, 1, 2, 3)
    ]
    assert all(row.read_ns > 0 for row in posix if row.rank is not None)
    (shared,) = [row for row in posix if row.rank is None]
    assert shared.num_writes == 1 and shared.written_bytes == 40 and shared.read_bytes == 0
    assert added.read_bytes == 20_000
    assert {Path(file.name).name for file in record.slowest} >= {"A", "B"}


@needs_darshan
def test_a_log_of_another_job_changes_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, 2)
    with pytest.raises(TraceError, match="it has 4 ranks, the run 2"):
        import_logs(run, [packaged(APP)])
    run = run_of(tmp_path / "later", 4, start=APP_START + 3600)
    with pytest.raises(TraceError, match="of another time than the run"):
        import_logs(run, [packaged(APP)])
    assert RunReader(run).file_io() is None


@needs_darshan
@pytest.mark.parametrize("size", [0, 3000, 11000])
def test_a_damaged_log_is_one_line(tmp_path: Path, size: int) -> None:
    run = run_of(tmp_path, 4)
    torn = tmp_path / "torn.darshan"
    torn.write_bytes(packaged("sample").read_bytes()[:size] if size else b"hello\n")
    with pytest.raises(TraceError) as caught:
        import_logs(run, [torn])
    assert str(caught.value).startswith(f"{torn}: no log of Darshan, or damaged: ")
    assert len(str(caught.value).splitlines()) == 1


@needs_darshan
def test_a_log_damaged_at_random_is_one_line_or_imported(tmp_path: Path) -> None:
    """Darshan's C library may end its process; that is not this one."""
    original = Sample("log.darshan", packaged(APP).read_bytes())
    for seed in range(24):
        folder = tmp_path / str(seed)
        run = run_of(folder, 4)
        log = folder / "log.darshan"
        log.write_bytes(mutated(original, Random(seed), packed=False))
        try:
            import_logs(run, [log])
        except PerfscopeError as error:
            assert len(str(error).splitlines()) == 1
            assert RunReader(run).file_io() is None
        else:
            assert RunReader(run).file_io() is not None


def test_a_log_of_one_process_is_of_the_rank_or_worker_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, 2)
    log_of_process(monkeypatch, num_reads=3, read_bytes=12 << 20, read_s=2.0, meta_s=0.5)
    logs = [tmp_path / f"me_python_id1-{pid}_7-31-56.darshan" for pid in (101, 1001, 77)]
    added = import_logs(run, logs)
    assert (added.num_ranks, added.num_workers) == (1, 1)
    assert [(path, reason.split(" is ")[0]) for path, reason in added.left_out] == [
        (logs[2], "its process 77")
    ]
    reader = RunReader(run)
    record = reader.file_io()
    assert record is not None
    assert [(row.rank, row.worker, row.read_ns) for row in record.rows] == [
        (1, None, 2 * SECOND),
        (1, 0, 2 * SECOND),
    ]


def test_the_report_puts_the_reads_of_workers_beside_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfscope.analysis.loading.record import rank_loading

    run = run_of(tmp_path, 1)
    log_of_process(monkeypatch, num_reads=3, read_bytes=12 << 20, read_s=2.0, meta_s=0.5)
    import_logs(run, [tmp_path / "me_python_id1-1000_7-31-56.darshan"])
    reader = RunReader(run)
    loading = reader.loading(0)
    assert loading is not None
    of_rank = rank_loading(0, loading, 1, 2)
    assert of_rank is not None
    file_io = file_io_of(reader, [of_rank])
    assert file_io is not None
    (reads,) = file_io.input
    assert (reads.wait_ns, reads.read_ns, reads.meta_ns) == (7 * SECOND, 2 * SECOND, SECOND // 2)
    assert "rank 0 waits 7.00 s for its data loader" in file_io_lead(file_io)
    assert "2.00 s in reads (1.50 MiB per sample)" in file_io_lead(file_io)
    sums, slowest = file_io_blocks(file_io)
    assert isinstance(sums, Table) and isinstance(slowest, Table)
    assert sums.rows[0][0] == "rank 0, loader worker 0" and slowest.rows[0][0] == "/data/shard-0.tar"


def test_what_cannot_be_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, 1)
    log_of_process(monkeypatch)
    with pytest.raises(TraceError, match=r"process 5 is neither a rank nor a loader worker"):
        import_logs(run, [tmp_path / "me_python_id1-5_7-31-56.darshan"])
    monkeypatch.setattr(importing, "find_spec", lambda name: None)
    with pytest.raises(PerfscopeError, match=r"pip install 'perfscope-hpc\[darshan\]'"):
        import_logs(run, [tmp_path / "x.darshan"])
    with pytest.raises(RunDirectoryError):
        import_logs(tmp_path / "nothing", [tmp_path / "x.darshan"])
    shutil.rmtree(run)
