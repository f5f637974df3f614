"""One really planted cause, trained, recorded and reported: the benchmark's own way through."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "planted.py"


@pytest.mark.slow
@pytest.mark.torch
def test_a_loader_that_is_really_slow_is_named_first(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [str(BENCHMARK), "--causes", "input_bound", "--repeats", "1", "--json", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=280, check=True)
    document = json.loads(done.stdout)
    (row,) = document["causes"]["input_bound"]["runs"]
    assert row["hit"] or row["overshadowed"], row["title"]  # load from outside may be the larger cause
    assert row["predicted_ns"] is not None and row["predicted_ns"] < row["step_ns"]


def test_what_cannot_be_planted_here_is_said_in_one_line() -> None:
    for cause, why in (("numa_remote", "two NUMA nodes"), ("nonsense", "choose from straggler")):
        done = subprocess.run(
            [sys.executable, str(BENCHMARK), "--causes", cause], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1 and done.stdout == ""
        assert cause in done.stderr and why in done.stderr and len(done.stderr.splitlines()) == 1
