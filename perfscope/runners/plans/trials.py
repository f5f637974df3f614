"""Candidates trained for a few steps on this machine, and the command that trains one."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from perfscope.runners.config import BenchConfig

_STEPS = 16
_LIMIT_S = 600


def measured_step(config: BenchConfig, cluster: str | None) -> tuple[float | None, str]:
    """Trains a candidate.

    Args:
        config: of it.
        cluster: to emulate; None: plain processes.

    Returns:
        Seconds of the median step, or None; and a line about what went wrong or disturbed it, or "".
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "perfscope", "bench", "run", config.scheme, "--json"),
            *("-o", str(Path(folder) / "run"), "--ceilings", "off", "--no-trace"),
            *bench_options(config),
            *("--steps", str(_STEPS), "--lr", "1e-3"),
            *(("--cluster", cluster) if cluster else ()),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return None, f"it took more than {_LIMIT_S} s"
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return None, lines[-1] if lines else f"it ended with status {done.returncode}"
    figures = json.loads(done.stdout)["figures"]
    median = figures.get("step_median_ns")
    problem = "other processes used this machine meanwhile" if figures.get("disturbed") else ""
    return (median * 1e-9, problem) if median else (None, "it recorded no steps")


def command_of(config: BenchConfig) -> str:
    """The command that trains a candidate; the number of steps is its default."""
    return shlex.join(("perfscope", "bench", "run", config.scheme, *bench_options(config)))


def bench_options(config: BenchConfig) -> list[str]:
    """Options of `perfscope bench run` for a candidate."""
    given: dict[str, Any] = {
        "--model": config.model,
        "--input": "x".join(map(str, config.input_shape)),
        "--classes": config.num_classes,
        "--batch": config.batch,
        "--dtype": config.dtype,
        "--optimizer": config.optimizer,
        "--ranks": config.num_ranks,
        "--mesh": config.mesh,
        "--microbatches": config.num_microbatches,
        "--pipeline": config.pipeline if config.pipeline != "1f1b" else None,
        "--bucket-mb": None if config.bucket_mb is None else f"{config.bucket_mb:g}",
        "--accumulate": config.accumulate if config.accumulate > 1 else None,
        "--momentum": config.momentum or None,
    }
    options = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    return [*options, *(["--activation-checkpointing"] if config.activation_checkpointing else [])]
