"""Prediction against really running it: fitted on 2 ranks, held out at 4. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "predict.py"


@pytest.mark.slow
@pytest.mark.torch
def test_the_benchmark_fits_on_two_ranks_and_compares_with_four() -> None:
    pytest.importorskip("torch")
    options = [
        "--schemes",
        "dp.ddp",
        "--plain",
        "--repeats",
        "1",
        "--steps",
        "20",
        "--batch",
        "256",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *options], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (row,) = result["rows"]
    assert row["scheme"] == "dp.ddp"
    assert row["low_ns"] <= row["predicted_ns"] <= row["high_ns"]
    # a loaded machine may be far off; an order of magnitude is a mistake of ours
    assert 0.2 < row["predicted_ns"] / row["measured_ns"] < 5
    assert result["links"][0]["num_calls"] > 0
