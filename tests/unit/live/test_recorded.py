"""Ranks of another host that hang, as `perfscope top` shows them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.cli.top import command
from perfscope.live.recorded import with_recorded
from perfscope.rundir import layout
from perfscope.rundir.hangs import HangingRank, HangRecord
from tests.unit.analysis.test_live import Growing

LOOKED = HangingRank(rank=1, host="other-host", steps=40)
SEEN = HangingRank(rank=1, host="other-host", steps=40, call="all_reduce", file="train.py", line=17)


def test_a_place_of_the_same_hang_is_taken_and_one_of_an_earlier_hang_is_not() -> None:
    past = HangRecord(hang=0, resumed_unix_ns=5, ranks=(SEEN,))
    before = HangRecord(hang=1, ranks=(HangingRank(rank=1, host="other-host", steps=12, file="load.py"),))
    now = HangRecord(hang=2, ranks=(SEEN,))
    assert with_recorded([LOOKED], lambda host: (past, before)) == [LOOKED]
    assert with_recorded([LOOKED], lambda host: (past, before, now)) == [SEEN]


def test_each_host_is_asked_once_and_this_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    asked: list[str] = []

    def hangs_of(host: str) -> tuple[HangRecord, ...]:
        asked.append(host)
        return ()

    ranks = [LOOKED, HangingRank(rank=2, host="other-host"), HangingRank(rank=3, host="here")]
    assert with_recorded(ranks, hangs_of) == ranks
    assert asked == ["other-host"]


def test_top_names_the_collective_in_which_a_rank_of_another_host_stands(tmp_path: Path) -> None:
    growing, now = Growing(tmp_path / "run"), time.time()
    growing.steps(0, [10_000_000] * 20, now - 1000)
    growing.steps(1, [10_000_000] * 20, now - 1000)
    folder = growing.path / layout.HOSTS / "node0"
    folder.mkdir(parents=True, exist_ok=True)
    rank = {"rank": 1, "host": "node0", "steps": 20, "source": "py-spy", "call": "all_reduce"}
    place = {"file": "train.py", "line": 17, "function": "average"}
    line = {"hang": 0, "noticed_unix_ns": int(now * 1e9), "ranks": [{**rank, **place}]}
    (folder / layout.HANGS_JSONL).write_text(json.dumps(line) + "\n")
    result = CliRunner().invoke(command, [str(growing.path), "--once", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert {rank["rank"]: rank["host"] for rank in document["ranks"] if rank["hangs"]} == {
        0: "node0",
        1: "node0",
    }
    assert document["standing"] == {"1": "in all_reduce, called from train.py:17 (average)"}
