"""The table `loading`: what the workers of data loaders did, missing where they left no record."""

from __future__ import annotations

from pathlib import Path

import pyarrow.csv as pcsv

from perfscope.api.run import Run
from tests.support.loaded_run import MS, loaded_run


def test_each_worker_of_each_rank_has_its_batches_bytes_and_waits(tmp_path: Path) -> None:
    run = Run(loaded_run(tmp_path / "run", slow=2).read())
    rows = run.table("loading").to_pylist()
    assert [(row["rank"], row["worker"]) for row in rows] == [(rank, n) for rank in (0, 1) for n in range(3)]
    first, slow = rows[0], rows[2]
    assert (first["num_batches"], first["batch_mean_ns"], slow["batch_mean_ns"]) == (5, 20 * MS, 60 * MS)
    assert (first["cpu_ratio"], first["runqueue_ratio"], first["asleep_ratio"]) == (0.75, 0.05, 0.2)
    assert (first["read_bytes"], first["storage_read_bytes"]) == (1 << 20, 1 << 19)
    # Batches 0, 3, 6 and 9; the last two had been finished when the training asked.
    assert (first["num_asked"], first["wait_ns"], first["late_wait_ns"]) == (4, 8 * MS, 4 * MS)
    assert first["queue_depth_batches"] == 0 and rows[1]["queue_depth_batches"] == 1


def test_a_rank_whose_workers_left_no_record_has_a_row_without_figures(tmp_path: Path) -> None:
    run = loaded_run(tmp_path / "run", ranks=(0,))
    for file in (tmp_path / "run/hosts/node0/workers").iterdir():
        file.unlink()
    [row] = Run(run.read()).table("loading").to_pylist()
    assert (row["rank"], row["num_workers"], row["prefetch"]) == (0, 3, 2)
    figures = set(row) - {"rank", "num_workers", "prefetch"}
    assert {name for name in figures if row[name] is not None} == set()


def test_the_table_can_be_exported(tmp_path: Path) -> None:
    run = Run(loaded_run(tmp_path / "run").read())
    assert run.export("csv", tmp_path / "loading.csv", table="loading") == 6
    assert pcsv.read_csv(tmp_path / "loading.csv")["wait_ns"].to_pylist()[0] == 8 * MS
