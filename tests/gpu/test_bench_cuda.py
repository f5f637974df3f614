"""`perfscope bench` on one GPU: schemes on one rank over NCCL, 16 bits, compiled blocks, a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.rundir.reader import RunReader

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("train_bench.py")
ROOT = Path(__file__).parents[2]
ONE_GPU = {"CUDA_VISIBLE_DEVICES": "0"}


@pytest.fixture(scope="module")
def trained(cuda: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "cuda"],
        env={**os.environ, **ONE_GPU, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        timeout=240,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_ranks_meet_over_nccl_and_weights_are_on_the_gpu(trained: dict[str, Any]) -> None:
    assert trained["backend"] == "nccl"
    assert {entry["device"] for entry in trained["runs"].values()} == {"cuda"}


def test_weights_in_float64_are_those_of_the_cpu(trained: dict[str, Any]) -> None:
    exact = {name: entry["difference"] for name, entry in trained["runs"].items() if "difference" in entry}
    assert {name.split()[0] for name in exact} >= {"serial", "dp.ddp", "dp.packed", "dp.fsdp", "mesh"}
    assert all(value < 1e-9 for value in exact.values()), exact


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_learn(trained: dict[str, Any], dtype: str) -> None:
    for scheme in ("serial", "dp.ddp"):
        entry = trained["runs"][f"{scheme} {dtype}"]
        assert entry["held_out_loss"] < entry["losses"][0]
        assert ("loss_scale" in entry["details"]) == (dtype == "float16")


def test_compiled_blocks_learn_as_eager_ones(trained: dict[str, Any]) -> None:
    compiled, eager = (trained["runs"][f"serial {kind}"] for kind in ("compiled", "bfloat16"))
    assert compiled["details"]["compile_s"] > 0
    assert compiled["losses"][-1] == pytest.approx(eager["losses"][-1], rel=0.05)


def test_a_recorded_run_has_the_device_time_of_each_compiled_block(cuda: Any, tmp_path: Path) -> None:
    options = ("--model", "gpt-nano", "--input", "32", "--classes", "32", "--batch", "8", "--steps", "30")
    how = ("--dtype", "bfloat16", "--compile", "default", "--device", "cuda", "--ranks", "1")
    recording = ("--ceilings", "off", "--overhead", "100%", "-o", str(tmp_path / "run"))
    subprocess.run(
        [sys.executable, "-m", "perfscope", "bench", "run", "dp.ddp", *options, *how, *recording],
        env={**os.environ, **ONE_GPU},
        check=True,
        timeout=200,
    )
    ingest_run(RunReader(tmp_path / "run").path)
    analysis = analyze_run(RunReader(tmp_path / "run"))
    (rank,) = analysis.ranks
    assert rank.device_ns is not None and rank.device_ns.compute > 0
    blocks = {layer.layer: layer for layer in analysis.layers if layer.module_type == "TransformerBlock"}
    assert len(blocks) >= 2
    assert all(layer.forward_ns > 0 and layer.backward_ns > 0 for layer in blocks.values())


def test_a_framework_trains_on_the_gpu_as_on_the_cpu(tmp_path: Path, cuda: Any) -> None:
    losses = {}
    for device in ("cpu", "cuda"):
        words = [*("--model", "lenet"), *("--steps", "20"), "--device", device, "-o", str(tmp_path / device)]
        done = subprocess.run(
            [sys.executable, "-m", "perfscope", "bench", "run", "--framework", "torch", *words],
            env={**os.environ, **ONE_GPU, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        record = json.loads((tmp_path / device / "ranks" / "0" / "bench.json").read_text())
        losses[device] = record["losses"]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=0.02)  # TF32 and other orders of sums
