"""What a traced window says of every call, against what the scheme made: group, bytes, number and peer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfscope.ingest.run import ingest_run
from perfscope.rundir.reader import RunReader
from tests.runners.test_bench_cli import SMALL, bench

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SEEN_AS = {"reduce_scatter": "all_reduce"}  # gloo's
Calls = Counter[tuple[str, tuple[int, ...], int]]  # (collective, ranks of the group, S)


def predicted(scheme: dict[str, Any], rank: int, num_steps: int) -> Calls:
    """Calls of so many steps, by the scheme's formulas; a test of every scheme holds its ledger to them."""
    groups = {one["axis"]: tuple(one["ranks"]) for one in scheme["groups"] if rank in one["ranks"]}
    groups["world"] = tuple(range(scheme["num_ranks"]))
    found: Calls = Counter()
    for row in scheme["predicted"]["calls_of_rank"][str(rank)]:
        name = SEEN_AS.get(row["collective"], row["collective"])
        found[name, groups[row["axis"]], row["bytes"]] += row["count"] * num_steps // row["every"]
    return found


def ledger(record: dict[str, Any], scheme: dict[str, Any], rank: int, num_steps: int) -> Calls:
    """Calls of so many steps, as the rank counted them."""
    groups = {one["axis"]: tuple(one["ranks"]) for one in scheme["groups"] if rank in one["ranks"]}
    groups["world"] = tuple(range(scheme["num_ranks"]))
    found: Calls = Counter()
    for row in record["calls"]:
        each, rest = divmod(row["count"], scheme["steps"])
        assert not rest
        name = SEEN_AS.get(row["collective"], row["collective"])
        found[name, groups[row["axis"]], row["bytes"]] += each * num_steps
    return found


def traced(run: Path, rank: int) -> tuple[int, list[dict[str, Any]]]:
    """Number of steps of a rank's window, and its communication rows, with `members` by rank.json."""
    meta = json.loads((run / "ranks" / str(rank) / "rank.json").read_text())
    members = {one["name"]: tuple(one["ranks"]) for one in meta["groups"]}
    (path,) = (run / "derived" / "timeline").glob(f"rank-{rank:05d}-*.parquet")
    rows = pq.ParquetFile(path).read().to_pylist()
    calls = [row | {"members": members[row["group"]]} for row in rows if row["kind"] == "comm"]
    return len({row["step"] for row in rows if row["step"] >= 0}), calls


def payload(row: dict[str, Any]) -> int:
    return int(row["out_bytes"] if row["collective"] == "all_gather" else row["in_bytes"])


def check(folder: Path, scheme_name: str, mesh: str, *, by_library: bool = False) -> list[dict[str, Any]]:
    done = bench(
        *("run", scheme_name, "--model", "smallcnn", "--mesh", mesh, "--steps", "6", "--windows", "1"),
        *("--overhead", "1", *SMALL, "-o", "run"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    run = folder / "run"
    ingest_run(run)
    scheme: Any = RunReader(run).run.document["scheme"]
    every = []
    for rank in range(scheme["num_ranks"]):
        num_steps, calls = traced(run, rank)
        assert num_steps == 2
        seen = Counter((row["collective"], row["members"], payload(row)) for row in calls)
        made = Counter({key: number for key, number in seen.items() if key[0] != "recv"})
        assert made == predicted(scheme, rank, num_steps)
        if not by_library:
            record = json.loads((run / "ranks" / str(rank) / "bench.json").read_text())
            assert made == ledger(record, scheme, rank, num_steps)
        assert all(row["peer"] in row["members"] for row in calls if row["collective"] in ("send", "recv"))
        every += [row | {"rank": rank} for row in calls]
    assert not list(run.glob("ranks/*/errors.jsonl"))
    sent = Counter(
        (row["rank"], row["peer"], row["in_bytes"]) for row in every if row["collective"] == "send"
    )
    got = Counter((row["peer"], row["rank"], row["in_bytes"]) for row in every if row["collective"] == "recv")
    assert sent == got
    return every


@pytest.mark.slow
def test_pipelines_side_by_side(tmp_path: Path) -> None:
    """Stages talk along one group and average their gradients on another; torch's pipelining sends."""
    calls = check(tmp_path, "hy.pp_dp", "2,1,2", by_library=True)
    assert {row["collective"] for row in calls} == {"send", "recv", "all_reduce"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "by_library"),
    [
        ("hy.filter_dp", False),
        ("hy.channel_dp", False),
        ("hy.fctp_dp", False),
        ("hy.numa_replica", False),
        ("dp.hsdp", True),
    ],
)
def test_groups_beside_each_other(tmp_path: Path, scheme: str, by_library: bool) -> None:
    check(tmp_path, scheme, "2,2", by_library=by_library)
