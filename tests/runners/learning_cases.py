"""What the ranks of test_learning.py run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfscope.runners.config import BenchConfig
from perfscope.runners.planning import plan
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.world import World
from tests.runners.dp_cases import largest_difference
from tests.runners.training import expected_calls, train_here


def with_and_without(world: World, configs: list[BenchConfig]) -> dict[str, dict[str, Any]]:
    """Each run with its pauses and without: by scheme what was measured, and how far weights are apart."""
    found = {}
    for config in configs:
        outcome = train_here(world, config)
        plain = train_here(
            world,
            replace(config, evaluate_every=None, target=None, noise_every=None, steps=len(outcome.losses)),
        )
        traffic = find_scheme(config.scheme).traffic(plan(config), world.rank)
        entry: dict[str, Any] = {
            **outcome.learning,
            "num_steps": len(outcome.losses),
            "calls": {tuple(call): count for call, count in outcome.calls.items()},
            "predicted": dict(expected_calls(traffic, len(outcome.losses))),
            "step_ends_ns": outcome.step_ends_ns,
        }
        if outcome.state is not None and plain.state is not None:
            entry["difference"] = largest_difference(plain.state, outcome.state)
        found[config.full_name] = entry
    return found
