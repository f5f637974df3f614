"""What `list`, `top` and `plan` print in terminals of 80 and of 120 columns, kept whole.

Update after a wanted change:  PERFSCOPE_UPDATE_GOLDEN=1 python -m pytest THIS_FILE
and read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.analysis.live import LiveHost, LiveRank, LiveRun
from perfscope.cli.main import cli
from perfscope.reports.live import render_live
from perfscope.reports.terminal import cells
from tests.support.site_runs import write_run

GOLDEN = Path(__file__).parents[2] / "golden" / "terminal"
ACTUAL = Path(__file__).parents[2] / "golden" / "actual"
NOW = 1_790_000_000.0
MS = 1_000_000
WIDTHS = pytest.mark.parametrize("width", [80, 120])


def check(name: str, width: int, actual: str) -> None:
    path = GOLDEN / f"{name}-{width}.txt"
    if os.environ.get("PERFSCOPE_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual, encoding="utf-8")
    assert max(cells(line) for line in actual.splitlines()) <= width
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if actual != expected:
        ACTUAL.mkdir(parents=True, exist_ok=True)
        (ACTUAL / f"terminal-{path.name}").write_text(actual, encoding="utf-8")
        pytest.fail(f"{path} differs from {ACTUAL / f'terminal-{path.name}'}; see this file's docstring")


def printed(width: int, *arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments, env={"COLUMNS": str(width)}, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@WIDTHS
def test_list(tmp_path: Path, width: int) -> None:
    for day, name in enumerate(
        ("baseline", "bucket-cap-100", "a-long-name-of-a-run-with-its-date-2026-11-28")
    ):
        run = write_run(tmp_path, name, day=day, step_ns=4e7 * (day + 1))
        headline = (
            "Rank 3 is the straggler: the others wait 21.4 % of the median step (8.56 ms of 40.0 ms) for it."
        )
        if day == 1:
            run.write("derived/verdict.json", {"headline": headline, "samples_per_s": 2_412.0})
    write_run(tmp_path, "no-verdict", day=9).path.joinpath("derived/verdict.json").unlink()
    check("list", width, printed(width, "list", str(tmp_path)))


def rank_of(rank: int, steps: int, step_ms: float, *, hangs: bool = False) -> LiveRank:
    return LiveRank(
        rank=rank,
        host=f"node{rank // 2}",
        pid=1000 + rank,
        steps=steps,
        step_ns=round(step_ms * MS),
        trend=0.31 if rank == 1 else 0.02,
        samples_per_s=32 / step_ms * 1000,
        age_s=95.0 if hangs else 1.0,
        finished=False,
        hangs=hangs,
        silent_s=95.0 if hangs else 1.0,
    )


def live_run() -> LiveRun:
    """Four ranks on two hosts: rank 1 is slow, rank 3 hangs."""
    ranks = (rank_of(0, 812, 40), rank_of(1, 812, 52), rank_of(2, 812, 41), rank_of(3, 811, 40, hangs=True))
    hosts = [
        LiveHost(
            host=f"node{number}",
            cpus_busy=7.5 + number,
            others_cpus=1.9 * number,
            memory_bytes=48 << 30,
            memory_total_bytes=251 << 30,
            received_bytes_per_s=1.1e9,
            sent_bytes_per_s=1.2e9,
            throttled_ratio=0.12 * number,
            pressure_ratio=0.31,
            gpu_busy_ratio={"0": 0.93, "1": 0.12},
            gpu_memory_bytes={"0": 61 << 30, "1": 12 << 30},
        )
        for number in range(2)
    ]
    return LiveRun(
        name="train_cnn",
        path="/scratch/runs/train_cnn",
        started_unix_ns=int((NOW - 95) * 1e9),
        expected=4,
        is_open=True,
        step_ns=52 * MS,
        ranks=ranks,
        hosts=tuple(hosts),
        samples_per_s=2_462.0,
    )


@WIDTHS
def test_top(width: int) -> None:
    standing = {3: "all_reduce on group 0, call 4,871 (loss.backward at train.py:88)"}
    check("top", width, render_live(live_run(), standing, width=width, most=3, now_s=NOW))


@WIDTHS
def test_plan(width: int) -> None:
    machine = ("--flops", "1T", "--batch", "8")
    check("plan", width, printed(width, "plan", "--model", "gpt-nano", "--cluster", "2x2@1gbit", *machine))
