"""The best candidates in short runs on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscope.analysis.plan.records import Planned
from perfscope.cli.plan.text import label
from perfscope.runners.config import BenchConfig

_STEPS = 12
_LIMIT_S = 600


def verify(
    plans: Sequence[Planned], configs: Sequence[BenchConfig], cluster: str | None
) -> list[dict[str, Any]]:
    """Each candidate trained for a few steps.

    Args:
        plans: predicted for this machine.
        configs: of the same.
        cluster: to emulate; None: plain processes.

    Returns:
        Per candidate: label, batch, predicted and measured step (s; None where it failed), error_ratio
        (predicted / measured - 1) and problem (a line, or "").
    """
    return [_verified(plan, config, cluster) for plan, config in zip(plans, configs, strict=True)]


def _verified(plan: Planned, config: BenchConfig, cluster: str | None) -> dict[str, Any]:
    measured, problem = _measured(config, cluster)
    return {
        "label": label(plan.candidate),
        "batch": config.batch,
        "predicted_step_s": plan.step_s,
        "measured_step_s": measured,
        "error_ratio": None if measured is None else plan.step_s / measured - 1,
        "problem": problem,
    }


def _measured(config: BenchConfig, cluster: str | None) -> tuple[float | None, str]:
    """Seconds of a step over all ranks, or what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "perfscope", "bench", "run", config.scheme, "--json"),
            *("-o", str(Path(folder) / "run"), "--ceilings", "off", "--no-trace"),
            *_options(config),
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
    rate = figures.get("samples_per_s")
    problem = "other processes used this machine meanwhile" if figures.get("disturbed") else ""
    return (config.batch / rate, problem) if rate else (None, "it recorded no rate")


def _options(config: BenchConfig) -> list[str]:
    given: dict[str, Any] = {
        "--model": config.model,
        "--input": "x".join(map(str, config.input_shape)),
        "--classes": config.num_classes,
        "--batch": config.batch,
        "--steps": _STEPS,
        "--dtype": config.dtype,
        "--optimizer": config.optimizer,
        "--lr": 1e-3,
        "--ranks": config.num_ranks,
        "--mesh": config.mesh,
        "--microbatches": config.num_microbatches,
        "--accumulate": config.accumulate if config.accumulate > 1 else None,
        "--momentum": config.momentum or None,
    }
    options = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    return [*options, *(["--activation-checkpointing"] if config.activation_checkpointing else [])]
