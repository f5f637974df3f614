"""What the ranks of test_passes.py run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfscope.runners.config import BenchConfig
from perfscope.runners.identity import all_traffic
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.world import World
from tests.runners.dp_cases import alone, largest_difference
from tests.runners.training import expected_calls, train_here


def against_plain(world: World, configs: list[BenchConfig], plain: dict[str, Any]) -> dict[str, Any]:
    """By scheme and option: difference to one process without the option, calls made and predicted."""
    found = {}
    for config in configs:
        outcome = train_here(world, config)
        traffic = all_traffic(plan(config))[world.rank]
        entry: dict[str, Any] = {
            "calls": {tuple(call): count for call, count in outcome.calls.items()},
            "predicted": dict(expected_calls(traffic, config.steps)),
        }
        if outcome.state is not None:
            serial = alone(replace(config, **plain))
            entry["difference"] = largest_difference(serial.state, outcome.state)
            entry["learned"] = largest_difference(build_model(config).state_dict(), outcome.state)
        found[f"{config.full_name} {config.accumulate}"] = entry
    return found
