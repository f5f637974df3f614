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
from perfscope.cli.plan.text import bench_options, label
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
        Per candidate: label, batch, lower bound of the step and measured step (s; None where it failed),
        measured_to_min (measured / lower bound) and problem (a line, or "").
    """
    return [_verified(plan, config, cluster) for plan, config in zip(plans, configs, strict=True)]


def _verified(plan: Planned, config: BenchConfig, cluster: str | None) -> dict[str, Any]:
    measured, problem = _measured(config, cluster)
    return {
        "label": label(plan.candidate),
        "batch": config.batch,
        "min_step_s": plan.min_step_s,
        "measured_step_s": measured,
        "measured_to_min": None if measured is None else measured / plan.min_step_s,
        "problem": problem,
    }


def _measured(config: BenchConfig, cluster: str | None) -> tuple[float | None, str]:
    """Seconds of a step over all ranks, or what went wrong."""
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
    rate = figures.get("samples_per_s")
    problem = "other processes used this machine meanwhile" if figures.get("disturbed") else ""
    return (config.batch / rate, problem) if rate else (None, "it recorded no rate")
