"""What the ranks of test_compile.py run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch._dynamo.utils import counters

from perfscope.runners import train as training
from perfscope.runners.config import BenchConfig
from perfscope.runners.models.registry import build_model
from perfscope.runners.schemes.compilation import compile_ahead
from perfscope.runners.train import TrainingOutcome
from perfscope.runners.world import World
from tests.runners.dp_cases import largest_difference
from tests.runners.training import train_here


def compiled(world: World, config: BenchConfig) -> tuple[TrainingOutcome, int, int]:
    """The outcome, and how many graphs were compiled until the first step, and until the end."""
    torch._dynamo.reset()
    counters.clear()
    ahead: list[int] = []

    def counted(*args: Any) -> int:
        taken = compile_ahead(*args)
        ahead.append(counters["stats"]["unique_graphs"])
        return taken

    with mock.patch.object(training, "compile_ahead", counted):
        outcome = train_here(world, config)
    return outcome, ahead[0], counters["stats"]["unique_graphs"]


def against_eager(world: World, configs: list[BenchConfig]) -> dict[str, Any]:
    """By scheme and mesh: difference to the same ranks without `--compile`, and graphs."""
    found = {}
    for config in configs:
        eager = train_here(world, replace(config, compile="none"))
        outcome, ahead, in_all = compiled(world, config)
        entry: dict[str, Any] = {
            "ahead": ahead,
            "in_all": in_all,
            "calls_alike": eager.calls == outcome.calls,
            "details": dict(outcome.details),
        }
        if outcome.state is not None and eager.state is not None:
            entry["difference"] = largest_difference(eager.state, outcome.state)
            entry["learned"] = largest_difference(build_model(config).state_dict(), outcome.state)
        found[f"{config.full_name} {config.mesh or ''} {config.model}"] = entry
    return found
