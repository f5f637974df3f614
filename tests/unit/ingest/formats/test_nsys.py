"""Nsight Systems: what becomes of each table, of several processes in one file, and of files with gaps."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfscope.errors import TraceError
from perfscope.ingest.importing import ImportResult, import_traces
from tests.support.ingest_traces import Ingested, Json
from tests.support.nsys_database import (
    EPOCH_NS,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    RUNTIME,
    Database,
    global_tid,
    training,
)

PID = 4000


def database(*, steps: int = 3) -> Database:
    found = Database()
    found.session()
    training(found, PID, steps=steps)
    return found


def imported(path: Path, run: Path) -> ImportResult:
    return import_traces([path], run)


def ingest(tmp_path: Path, found: Database, *, without: tuple[str, ...] = ()) -> Ingested:
    """The one rank of a database."""
    result = imported(found.write(tmp_path / "report.sqlite", without=without), tmp_path / "run")
    (summary,) = result.summaries
    assert summary.events_read == summary.events_kept + summary.events_skipped + summary.events_dropped
    table = pq.ParquetFile(tmp_path / "run/derived/timeline/rank-00000-window-000.parquet").read()
    assert table.num_rows == summary.events_kept
    return Ingested(summary, table.to_pylist())


def column(rows: list[Json], name: str) -> list[object]:
    return [row[name] for row in rows]


def test_steps_lanes_and_clock(tmp_path: Path) -> None:
    found = ingest(tmp_path, database())
    summary = found.summary
    assert (summary.step_source, summary.has_device, summary.salvaged) == ("NVTX", True, False)
    assert [step for step, *_ in summary.steps] == [0, 1, 2]
    assert summary.steps[0][1] == EPOCH_NS + 100_000
    assert (summary.host, summary.device_name) == ("gpu-node", "NVIDIA H100 80GB HBM3")
    assert summary.notes == ()
    roles = {(lane.device, lane.lane): lane.role for lane in summary.lanes}
    assert roles == {
        (-1, PID): "main", (-1, PID + 1): "autograd", (0, 7): "stream", (0, 20): "stream"
    }  # fmt: skip


def test_kernels_have_the_phase_and_layer_of_the_ranges_they_were_launched_in(tmp_path: Path) -> None:
    found = ingest(tmp_path, database())
    forward = found.named("gemm<float>")
    assert column(forward, "layer") == ["stem", "head"] * 3
    assert set(column(forward, "phase")) == {"forward"} and set(column(forward, "kind")) == {"compute"}
    assert column(forward, "step") == [0, 0, 1, 1, 2, 2]
    backward = found.named("gemm_tn<float>")
    assert column(backward, "layer") == ["head", "stem"] * 3
    assert set(column(backward, "phase")) == {"backward"}
    assert set(column(found.named("multi_tensor_apply"), "phase")) == {"optimizer"}
    operators = [row for row in found.named("aten::linear") if row["device"] < 0]
    assert column(operators, "layer") == ["stem", "head"] * 3
    assert set(column(found.named("load batch"), "kind")) == {"input"}


def test_collectives_have_the_size_that_nccl_noted(tmp_path: Path) -> None:
    found = ingest(tmp_path, database())
    kernels = [row for row in found.rows if row["name"].startswith("ncclDevKernel")]
    assert len(kernels) == 3
    for kernel in kernels:
        assert (kernel["kind"], kernel["collective"], kernel["in_bytes"]) == ("comm", "all_reduce", 1 << 20)
        assert kernel["launch_ns"] is not None


def test_copies_have_their_bytes(tmp_path: Path) -> None:
    found = ingest(tmp_path, database())
    assert column(found.named("Memcpy HtoD"), "bytes_read") == [4096] * 3
    assert column(found.named("Memset"), "bytes_written") == [256] * 3
    assert set(column(found.named("Memcpy HtoD"), "kind")) == {"copy"}


def test_processes_of_one_file_are_ranks_in_the_order_of_their_gpus(tmp_path: Path) -> None:
    found = Database()
    found.session()
    found.nvtx(1000, "launcher", 0, 5000)  # no rank: it has no work on a device
    training(found, 3000, device=0)
    training(found, 2000, device=0)
    for pid, gpu in ((3000, 0), (2000, 1)):  # CUDA_VISIBLE_DEVICES: each sees one GPU, as device 0
        found.add("TARGET_INFO_CUDA_DEVICE", pid=pid, cudaId=0, gpuId=gpu)
    result = imported(found.write(tmp_path / "node.sqlite"), tmp_path / "run")
    assert [(t.rank, t.process, t.rank_source) for t in result.traces] == [
        (0, 3000, "order"),
        (1, 2000, "order"),
    ]
    assert [summary.events_kept for summary in result.summaries] == [result.summaries[0].events_kept] * 2
    for rank, pid in ((0, 3000), (1, 2000)):
        with closing(sqlite3.connect(tmp_path / f"run/ranks/{rank}/windows/0.nsys.sqlite")) as copy:
            tids = copy.execute("SELECT DISTINCT globalTid >> 24 FROM NVTX_EVENTS").fetchall()
        assert tids == [(global_tid(pid, 0) >> 24,)]


def test_files_of_several_nodes_follow_each_other(tmp_path: Path) -> None:
    for node in ("a", "b"):
        found = Database()
        found.session()
        training(found, 3000, device=0)
        training(found, 3001, device=1)
        found.write(tmp_path / f"node-{node}.sqlite")
    result = import_traces([tmp_path], tmp_path / "run")
    assert [(trace.path.name, trace.rank, trace.process) for trace in result.traces] == [
        ("node-a.sqlite", 0, 3000),
        ("node-a.sqlite", 1, 3001),
        ("node-b.sqlite", 2, 3000),
        ("node-b.sqlite", 3, 3001),
    ]


def test_mpi_ranks_and_file_names_claim_ranks(tmp_path: Path) -> None:
    found = database()
    assert imported(found.write(tmp_path / "report_rank5.sqlite"), tmp_path / "named").traces[0].rank == 5
    found.add("MPI_RANKS", globalTid=global_tid(PID, PID), rank=7)
    (trace,) = imported(found.write(tmp_path / "other_rank5.sqlite"), tmp_path / "mpi").traces
    assert (trace.rank, trace.rank_source, trace.format) == (7, "MPI_RANKS", "nsys")


def test_nothing_of_the_environment_enters_the_run(tmp_path: Path) -> None:
    path = database().write(tmp_path / "report.sqlite")
    assert b"hunter2" in path.read_bytes()
    imported(path, tmp_path / "run")
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or b"hunter2" not in file.read_bytes(), file


def test_steps_without_numbers_are_counted(tmp_path: Path) -> None:
    found = Database()
    for start in (2100, 100, 1100):
        found.nvtx(PID, "train_step", start, start + 900)
        found.kernel(PID, "gemm", start + 10, start + 20, start + 100)
    summary = ingest(tmp_path, found).summary
    assert [(step, start) for step, start, _ in summary.steps] == [
        (0, 100_000),
        (1, 1_100_000),
        (2, 2_100_000),
    ]
    assert any("TARGET_INFO_SESSION_START_TIME" in note for note in summary.notes)


def test_cuda_graphs_are_named_and_noted(tmp_path: Path) -> None:
    found = database(steps=1)
    launch = found.call(PID, 800, "cudaGraphLaunch_v10000")
    found.on_device(GRAPH, PID, 810, 900, correlationId=launch, graphId=3)
    result = ingest(tmp_path, found)
    assert (result.one("CUDA graph 3")["kind"], result.one("CUDA graph 3")["dur_ns"]) == ("compute", 90_000)
    assert any("--cuda-graph-trace=graph" in note for note in result.summary.notes)


@pytest.mark.parametrize(
    ("table", "note"),
    [
        (KERNEL, "no table CUPTI_ACTIVITY_KIND_KERNEL: no kernels were recorded"),
        (RUNTIME, "no table CUPTI_ACTIVITY_KIND_RUNTIME: device work cannot be tied to the host"),
        ("NVTX_EVENTS", "no table NVTX_EVENTS: no steps, layers and phases"),
        ("TARGET_INFO_SESSION_START_TIME", "no table TARGET_INFO_SESSION_START_TIME: times count from"),
    ],
)
def test_a_table_that_is_missing_is_a_note(tmp_path: Path, table: str, note: str) -> None:
    summary = ingest(tmp_path, database(), without=(table,)).summary
    assert any(text.startswith(note) for text in summary.notes)
    assert summary.events_kept > 0 and not summary.salvaged


def test_missing_copies_need_no_note(tmp_path: Path) -> None:
    assert ingest(tmp_path, database(), without=(MEMCPY, MEMSET)).summary.notes == ()


@pytest.mark.parametrize(("version", "noted"), [("2.7.3", False), ("3.24.14", False), ("4.0.0", True)])
def test_a_schema_that_is_not_known_is_named(tmp_path: Path, version: str, noted: bool) -> None:
    found = Database()
    found.session(version)
    training(found, PID)
    notes = ingest(tmp_path, found).summary.notes
    assert notes == (
        (f"schema version {version} is not known (known: 2 and 3): tables and columns may have changed",)
        if noted
        else ()
    )


def test_a_column_that_is_missing_leaves_its_table_out(tmp_path: Path) -> None:
    path = database().write(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"ALTER TABLE {MEMCPY} DROP COLUMN streamId")
        connection.commit()
    (summary,) = imported(path, tmp_path / "run").summaries
    assert summary.notes == (f"{MEMCPY} was left out: no column streamId (schema version 3.15.1)",)


def test_rows_without_usable_times_are_dropped_and_counted(tmp_path: Path) -> None:
    found = database(steps=1)
    found.nvtx(PID, "still open", 500, None)
    found.nvtx(PID, "backwards", 500, 400)
    found.on_device(KERNEL, PID, 10, 20, demangledName=10**6)
    result = ingest(tmp_path, found)
    assert (result.summary.events_dropped, result.summary.salvaged) == (2, True)
    assert result.summary.unclassified == (("", 1),)


def test_processes_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    found = database()
    training(found, PID + 100, device=1)
    path = found.write(tmp_path / "report.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"ALTER TABLE {MEMSET} DROP COLUMN globalPid")
        connection.commit()
    with pytest.raises(TraceError, match="has no column globalPid"):
        imported(path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("r.nsys-rep", b"\x01\x02", "export it first \\(nsys export --type sqlite"),
        ("r.qdrep", b"\x01\x02", "export it first"),
        ("r.sqlite", b"SQLite format 3\0" + bytes(100), "cannot be read as a database"),
        ("r.sqlite", gzip.compress(b"SQLite format 3\0" + bytes(100), mtime=0), "unpack it first"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=reason):
        imported(tmp_path / name, tmp_path / "run")


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
        # A view could run anything: only tables are read.
        connection.execute(
            f"CREATE VIEW {KERNEL} AS SELECT 1 AS start, 2 AS end, 0 AS deviceId, 0 AS streamId"
        )
        connection.commit()
    with pytest.raises(TraceError, match="no CUDA or NVTX events"):
        imported(tmp_path / "x.sqlite", tmp_path / "run")


def test_a_database_cut_off_is_no_crash(tmp_path: Path) -> None:
    data = database(steps=200).write(tmp_path / "whole.sqlite").read_bytes()
    for number, share in enumerate((0.3, 0.6, 0.95)):
        path = tmp_path / f"cut-{'abc'[number]}.sqlite"
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(TraceError):
            imported(path, tmp_path / f"run{number}")


def test_names_in_the_schema_may_be_damaged(tmp_path: Path) -> None:
    path = database().write(tmp_path / "report.sqlite")
    path.write_bytes(path.read_bytes().replace(b"TABLE META_DATA_EXPORT", b"\xcfABLE META_DATA_EXPORT", 1))
    with pytest.raises(TraceError, match="its schema is damaged"):
        imported(path, tmp_path / "run")


def test_a_run_is_read_again_as_it_was_imported(tmp_path: Path) -> None:
    result = imported(database().write(tmp_path / "resnet.sqlite"), tmp_path / "run")
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert (run["name"], run["sources"][0]["stored"]) == ("resnet", "ranks/0/windows/0.nsys.sqlite")
    assert result.summaries[0].path == "ranks/0/windows/0.nsys.sqlite"
