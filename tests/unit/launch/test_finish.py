"""Finishing a run: packing windows, counting ranks, saying why some are missing."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from perfscope.launch.attachment import explain, num_attached, packages, read_ranks, verdict
from perfscope.launch.finish import compress_windows
from perfscope.launch.git_state import read_git_state
from perfscope.launch.plan import LaunchPlan
from perfscope.launch.process import Ending
from perfscope.rundir.layout import host_name

PLAN = LaunchPlan(launcher="torchrun", argv=("torchrun",), name="x")
WELL = Ending(0, None)


def add_rank(run_dir: Path, rank: int, **manifest: object) -> Path:
    directory = run_dir / "ranks" / str(rank)
    (directory / "windows").mkdir(parents=True)
    base = {"rank": rank, "host": host_name(), "pid": 2**22 + 1, "world_size": 4, "finished": True}
    (directory / "rank.json").write_text(json.dumps({**base, **manifest}))
    return directory


def pack(run_dir: Path, *, stop: bool = False, limit_s: float = 10.0) -> list[str]:
    return compress_windows(read_ranks(run_dir), stop=lambda: stop, limit_s=limit_s)


def test_windows_are_packed_without_loss_and_the_raw_files_go(tmp_path: Path) -> None:
    raw = os.urandom(3 << 20) + b"x" * (1 << 20)
    for rank in range(4):
        (add_rank(tmp_path, rank) / "windows" / "0.json").write_bytes(raw)
    assert pack(tmp_path) == []
    for rank in range(4):
        (packed,) = (tmp_path / "ranks" / str(rank) / "windows").iterdir()
        assert packed.name == "0.json.gz"
        assert gzip.decompress(packed.read_bytes()) == raw


def test_windows_being_written_are_left_alone(tmp_path: Path) -> None:
    directory = add_rank(tmp_path, 0, finished=False, pid=os.getpid())
    (directory / "windows" / "0.json").write_text("{}")
    (directory / "windows" / "1.json").write_text("{")
    (directory / "windows.jsonl").write_text('{"window":0,"file":"windows/0.json"}\n{"window":1,"fi')
    assert pack(tmp_path) == []
    assert sorted(path.name for path in (directory / "windows").iterdir()) == ["0.json.gz", "1.json"]


def test_windows_of_a_killed_rank_are_packed_and_those_of_another_host_are_not(tmp_path: Path) -> None:
    killed = add_rank(tmp_path, 0, finished=False)
    elsewhere = add_rank(tmp_path, 1, finished=False, host="some-other-host")
    for directory in (killed, elsewhere):
        (directory / "windows" / "0.json").write_text("{")
    assert pack(tmp_path) == []
    assert (killed / "windows" / "0.json.gz").exists()
    assert (elsewhere / "windows" / "0.json").exists()


@pytest.mark.parametrize("hurry", [{"stop": True}, {"limit_s": -1.0}])
def test_stopping_early_leaves_raw_windows_and_no_half_files(tmp_path: Path, hurry: dict[str, float]) -> None:
    directory = add_rank(tmp_path, 0)
    (directory / "windows" / "0.json").write_text("{}")
    problems = compress_windows(
        read_ranks(tmp_path), stop=lambda: "stop" in hurry, limit_s=hurry.get("limit_s", 10)
    )
    assert problems == ["1 of 1 windows stay uncompressed: no time left"]
    assert [path.name for path in (directory / "windows").iterdir()] == ["0.json"]


def test_ranks_without_a_readable_record_do_not_count(tmp_path: Path) -> None:
    add_rank(tmp_path, 10)
    add_rank(tmp_path, 9)
    for name, text in [("1", "{"), ("2", "[]"), ("3", '{"rank": "x"}'), ("4", "{}")]:
        (tmp_path / "ranks" / name).mkdir()
        (tmp_path / "ranks" / name / "rank.json").write_text(text)
    assert [one.rank for one in read_ranks(tmp_path)] == [9, 10]
    assert read_ranks(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("attached", "expected", "text"),
    [
        (4, 4, "attached 4 of expected 4 ranks"),
        (0, 1, "attached 0 of expected 1 rank"),
        (0, None, "attached 0 ranks"),
        (1, None, "attached 1 rank"),
    ],
)
def test_verdict(attached: int, expected: int | None, text: str) -> None:
    assert verdict(attached, expected) == text


def test_complete_run_needs_no_explanation(tmp_path: Path) -> None:
    for rank in range(4):
        add_rank(tmp_path, rank)
    assert explain(tmp_path, read_ranks(tmp_path), 4, PLAN, WELL) == []


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    add_rank(tmp_path, 0)
    add_rank(tmp_path, 3)
    (note,) = explain(tmp_path, read_ranks(tmp_path), 4, PLAN, WELL)
    assert "no record of ranks 1, 2:" in note


def test_a_restarted_rank_counts_once_and_is_told(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / "ranks" / f"{rank}.1").mkdir(parents=True)
        manifest = (add_rank(tmp_path, rank) / "rank.json").read_text()
        (tmp_path / "ranks" / f"{rank}.1" / "rank.json").write_text(manifest)
    ranks = read_ranks(tmp_path)
    assert len(ranks) == 4  # every directory's windows are packed
    assert num_attached(ranks) == 2
    (note,) = explain(tmp_path, ranks, 2, PLAN, WELL)
    assert note.startswith("ranks 0, 1 were restarted 1 time")
    missing, _ = explain(tmp_path, ranks, 4, PLAN, WELL)
    assert "no record of ranks 2, 3:" in missing


def test_a_launcher_that_starts_a_part_of_the_world_misses_nothing(tmp_path: Path) -> None:
    add_rank(tmp_path, 2)
    add_rank(tmp_path, 3)
    assert explain(tmp_path, read_ranks(tmp_path), 2, PLAN, WELL) == []


def test_no_rank_is_explained_by_what_is_known(tmp_path: Path) -> None:
    isolated = LaunchPlan(launcher="python", argv=("python",), name="x", unreachable="because")
    assert explain(tmp_path, [], None, isolated, WELL) == ["because"]
    assert "optimizer step" in explain(tmp_path, [], None, PLAN, WELL)[0]
    assert "exit code 3" in explain(tmp_path, [], None, PLAN, Ending(3, None))[1]
    assert "signal 9" in explain(tmp_path, [], None, PLAN, Ending(137, 9))[1]


def test_srun_that_started_nothing_is_explained_in_one_line(tmp_path: Path) -> None:
    srun = LaunchPlan(launcher="srun", argv=("srun",), name="x")
    (note,) = explain(tmp_path, [], 4, srun, Ending(1, None))
    assert note.startswith("no task trained: srun ended with exit code 1; its own lines above say why")
    (note,) = explain(tmp_path, [], 4, srun, Ending(130, 2))
    assert "srun was ended by signal 2" in note
    assert "optimizer step" in explain(tmp_path, [], 4, srun, WELL)[0]


def test_trouble_of_the_probe_is_told(tmp_path: Path) -> None:
    directory = add_rank(tmp_path, 0, finished=False, pid=os.getpid())
    (directory / "errors.jsonl").write_text(
        '{"where":"step","disabled":true}\n{"where":"step","disabled":true}\n{"where":"x","disabled":false}\n{"wh'
    )
    (tmp_path / "boot-errors.txt").write_text("pid 1: OSError: x\npid 2: ...\n")
    notes = explain(tmp_path, read_ranks(tmp_path), 1, PLAN, WELL)
    assert any("rank 0 still running" in note for note in notes)
    assert any("pid 1: OSError: x" in note for note in notes)
    assert "rank 0: the probe switched off step after errors" in notes


def test_packages_come_from_the_ranks(tmp_path: Path) -> None:
    add_rank(tmp_path, 0, python="3.11.7", framework={"name": "torch", "version": "2.13.0"})
    add_rank(tmp_path, 1, framework=None)
    assert packages(read_ranks(tmp_path)) == {"python": "3.11.7", "torch": "2.13.0"}


def test_git_state(tmp_path: Path) -> None:
    import shutil
    import subprocess

    if shutil.which("git") is None:
        pytest.skip("no git on this machine")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GIT_CEILING_DIRECTORIES": str(tmp_path.parent),
    }

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
        answer = subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        return answer.stdout.strip()

    assert read_git_state(tmp_path, environment) is None
    git("init", "-q")
    assert read_git_state(tmp_path, environment) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "x")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("1")
    assert read_git_state(tmp_path, environment) == {"commit": commit, "dirty": False}
    (tmp_path / "a").write_text("2")
    assert read_git_state(tmp_path, environment) == {"commit": commit, "dirty": True}
    assert read_git_state(tmp_path, {**environment, "PATH": "/nonexistent"}) is None
