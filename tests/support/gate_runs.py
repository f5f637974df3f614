"""Runs as the gate sees them, made for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfscope.gate.records import Fingerprint, RunFigures
from perfscope.gate.results import Side

MACHINE = Fingerprint(
    cpu="AMD EPYC", num_cpus=2, num_hosts=1, torch="2.13.0", perfscope="0.1.0", world_size=2, batch=32
)
MS = 1e6


def run(name: str, p10_ms: float, **more: Any) -> RunFigures:
    """A clean run of 100 steps."""
    metrics = {"step_p10": p10_ms * MS, "step_mean": 1.1 * p10_ms * MS, **more.pop("metrics", {})}
    made = RunFigures(name=name, fingerprint=MACHINE, metrics=metrics, num_steps=100, clean=True)
    return replace(made, **more)


def side(label: str, p10s_ms: Sequence[float], *, paired: bool = True, **more: Any) -> Side:
    """Runs numbered from 1, each side of a pair where `paired`."""
    runs = [
        run(f"{number:02d}-{label}", p10, side=label, pair=number if paired else None, **more)
        for number, p10 in enumerate(p10s_ms, 1)
    ]
    return Side(label=label, runs=tuple(runs))


def noisy(seed: int, num: int, p10_ms: float = 26.0, spread: float = 0.02) -> list[float]:
    """p10s with lognormal noise, ms."""
    return [float(v) for v in p10_ms * np.exp(np.random.default_rng(seed).normal(0, spread, num))]
