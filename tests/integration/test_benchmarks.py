"""The benchmarks still run. What they measure is for people to read: no test asserts on time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.torch
def test_overhead_benchmark_compares_perfscope_with_the_plain_training() -> None:
    pytest.importorskip("torch")
    command = [
        str(BENCHMARKS / "overhead.py"),
        "--pairs",
        "2",
        "--steps",
        "20",
        "--only",
        "perfscope",
        "--json",
    ]
    process = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=280, check=True
    )
    results = json.loads(process.stdout)
    for kind in ("resnet", "small"):
        assert set(results[kind]) == {"plain", "A/A", "perfscope"}
        assert results[kind]["perfscope"]["p10_ratio"] > 0


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_gate_benchmark_draws_verdicts_from_runs_that_it_really_made(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(BENCHMARKS / "gate.py"), "--folder", str(tmp_path), "--json"]
    counts = ["--base", "11", "--steps", "60", "--planted", "0", "--verdicts", "0", "--resamples", "20"]
    process = subprocess.run([*command, *counts], capture_output=True, text=True, timeout=850, check=False)
    if "is the machine alone?" in process.stderr:
        pytest.skip(process.stderr.splitlines()[-1])
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    assert document["runs"]["nothing"]["step_p10_ns"] > 0
    tally = document["resampled"]["nothing"]
    assert tally["verdicts"] == 20
    assert 0 <= tally["regressions"] <= 20 and set(tally["peers"]) >= {"asv", "pyperf"}


def test_replay_benchmark_runs_every_rank_and_call_of_both_jobs() -> None:
    command = [sys.executable, str(BENCHMARKS / "replay.py"), "--ranks", "16", "--calls", "50", "--json"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    everyone, mesh = json.loads(process.stdout)["rows"]
    assert (everyone["calls"], mesh["calls"]) == (50, 50 * 4)
    assert everyone["events"] == mesh["events"] == 16 * 51
    for row in (everyone, mesh):
        assert 0 < row["transfer_efficiency"] < 1


@pytest.mark.slow
def test_report_cost_benchmark_times_every_format(tmp_path: Path) -> None:
    from tests.support.synthetic_run import SyntheticRun, span

    run = SyntheticRun(tmp_path / "run", world_size=1)
    run.rank(0)
    run.window(0, [span(0, 1_000_000, "compute")], [(0, 0, 1_000_000)])
    command = [str(BENCHMARKS / "report_cost.py"), str(tmp_path / "run"), "--repeats", "2", "--json"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds = json.loads(done.stdout)
    assert len(seconds) == 2
    for figures in seconds.values():
        assert len(figures) == 5 and all(len(values) == 2 and min(values) > 0 for values in figures.values())
