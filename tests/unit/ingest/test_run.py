"""A run's windows: which are ingested, which are fresh, what happens to those of no use."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfscope.engines.opening import open_executor
from perfscope.errors import RunDirectoryError
from perfscope.ingest.run import ingest_run
from perfscope.ingest.summary import INGEST_VERSION, IngestSummary, from_json
from perfscope.rundir.documents import read_document
from perfscope.rundir.links import view_of
from perfscope.rundir.schema import TIMELINE
from tests.support.ingest_traces import GLOO, document, span


def window(run: Path, rank: int, number: int, data: bytes, *, suffix: str = ".json") -> Path:
    path = run / "ranks" / str(rank) / "windows" / f"{number}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def derived(run: Path, rank: int, number: int) -> tuple[Path, Path]:
    name = f"rank-{rank:05d}-window-{number:03d}"
    return run / "derived" / "timeline" / f"{name}.parquet", run / "derived" / "ingest" / f"{name}.json"


ONE = document([span("aten::mm", 1, 2)])
TWO = document([span("aten::mm", 1, 2), span("aten::add", 5, 2)])


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_window_gets_a_table_and_a_summary(tmp_path: Path, jobs: int) -> None:
    window(tmp_path, 0, 0, ONE)
    window(tmp_path, 0, 1, TWO)
    window(tmp_path, 10, 0, gzip.compress(TWO), suffix=".json.gz")
    calls: list[tuple[int, int]] = []
    with open_executor(jobs=jobs) as executor:
        summaries = ingest_run(
            tmp_path, executor=executor, progress=lambda done, total: calls.append((done, total))
        )
    assert [(s.rank, s.window, s.events_kept) for s in summaries] == [(0, 0, 1), (0, 1, 2), (10, 0, 2)]
    assert calls == [(0, 3), (1, 3), (2, 3), (3, 3)]
    for summary in summaries:
        table, text = derived(tmp_path, summary.rank, summary.window)
        assert from_json(read_document(text)) == summary
        found = pq.ParquetFile(table)
        assert found.schema_arrow.equals(TIMELINE)
        assert found.metadata.num_rows == summary.events_kept
    leftovers = [p.name for p in (tmp_path / "derived").rglob("*") if p.name.startswith(".")]
    assert leftovers == []


def test_a_fresh_window_is_not_read_again_and_a_changed_one_is(tmp_path: Path) -> None:
    source = window(tmp_path, 0, 0, ONE)
    window(tmp_path, 1, 0, ONE)
    first = ingest_run(tmp_path)
    calls: list[tuple[int, int]] = []
    assert ingest_run(tmp_path, progress=lambda *call: calls.append(call)) == first
    assert calls == []
    source.write_bytes(TWO)
    ingest_run(tmp_path, progress=lambda *call: calls.append(call))
    assert calls == [(0, 1), (1, 1)]


def test_another_version_a_lost_table_or_a_damaged_summary_is_ingested_again(tmp_path: Path) -> None:
    window(tmp_path, 0, 0, ONE)
    ingest_run(tmp_path)
    table, text = derived(tmp_path, 0, 0)

    def rerun() -> int:
        calls: list[tuple[int, int]] = []
        ingest_run(tmp_path, progress=lambda *call: calls.append(call))
        return len(calls)

    assert rerun() == 0
    table.unlink()
    assert rerun() == 2
    text.write_text(text.read_text().replace(f'"ingest_version": {INGEST_VERSION}', '"ingest_version": 0'))
    assert rerun() == 2
    text.write_text("{")
    assert rerun() == 2
    assert rerun() == 0


def test_the_window_that_launch_is_compressing_counts_once(tmp_path: Path) -> None:
    window(tmp_path, 0, 0, TWO)
    window(tmp_path, 0, 0, gzip.compress(TWO)[:20], suffix=".json.gz")  # interrupted
    (summary,) = ingest_run(tmp_path)
    assert (summary.path, summary.events_kept) == ("ranks/0/windows/0.json", 2)
    (tmp_path / "ranks" / "0" / "windows" / "0.json").unlink()
    window(tmp_path, 0, 0, gzip.compress(TWO), suffix=".json.gz")
    (summary,) = ingest_run(tmp_path)
    assert (summary.path, summary.events_kept) == ("ranks/0/windows/0.json.gz", 2)


def test_a_file_of_no_use_does_not_stop_the_others(tmp_path: Path) -> None:
    window(tmp_path, 0, 0, b"")
    window(tmp_path, 1, 0, TWO)
    (tmp_path / "ranks" / "notes").mkdir()
    empty, good = ingest_run(tmp_path)
    assert (empty.events_kept, empty.salvaged, empty.notes) == (0, True, ("the file is empty",))
    assert pq.ParquetFile(derived(tmp_path, 0, 0)[0]).metadata.num_rows == 0
    assert good.events_kept == 2


def test_a_fault_of_our_own_in_one_file_is_noted_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfscope.ingest import window as module

    window(tmp_path, 0, 0, TWO)

    def broken(file: object, source: object) -> IngestSummary:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(module, "ingest_events", broken)
    (summary,) = ingest_run(tmp_path)
    assert summary.notes == ("internal error, please report it: ZeroDivisionError: oops",)


def test_a_run_without_windows_is_left_alone(tmp_path: Path) -> None:
    assert ingest_run(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_run_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    window(tmp_path, 0, 0, ONE)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RunDirectoryError, match="cannot write"):
            ingest_run(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_derived_that_is_a_file_is_one_clear_error(tmp_path: Path) -> None:
    window(tmp_path, 0, 0, ONE)
    (tmp_path / "derived").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot write"):
        ingest_run(tmp_path)


def test_a_run_that_cannot_be_written_to_is_ingested_through_a_view_of_links(tmp_path: Path) -> None:
    shutil.copytree(GLOO, tmp_path / "real" / "ranks" / "0" / "windows")
    windows = tmp_path / "real" / "ranks" / "0" / "windows"
    (windows / "rank0.json.gz").rename(windows / "0.json.gz")
    stand_in = tmp_path / "stand-in"
    stand_in.mkdir()
    view_of(tmp_path / "real", stand_in)
    (summary,) = ingest_run(stand_in)
    assert summary.events_kept > 100
    assert not (tmp_path / "real" / "derived").exists()


def test_importing_its_functions_loads_nothing_heavy() -> None:
    modules = "perfscope.ingest.run, perfscope.ingest.importing"
    heavy = "('numpy', 'pyarrow')"  # they read the settings of `lean_process` when they are imported
    code = f"import sys, {modules}; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


class OutOfMemory(ThreadPoolExecutor):
    """Every call that is for rank 1 fails."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def call() -> Any:
            if args[0].rank == 1:
                raise MemoryError("no room")
            return fn(*args, **kwargs)

        return super().submit(call)


def test_a_trace_whose_task_keeps_failing_has_a_note_and_is_tried_again_next_time(tmp_path: Path) -> None:
    window(tmp_path, 0, 0, ONE)
    window(tmp_path, 1, 0, TWO)
    with OutOfMemory(1) as executor:
        good, failed = ingest_run(tmp_path, executor=executor)
    assert (good.events_kept, failed.events_kept) == (1, 0)
    assert failed.notes == ("its task failed 3 times: MemoryError: no room",)
    assert ingest_run(tmp_path)[1].events_kept == 2
