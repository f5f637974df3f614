"""LARS and LAMB: equal to their formulas, and to one process where each rank holds a part of a layer."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch

from perfscope.runners.config import BenchConfig
from perfscope.runners.data.registry import open_feed
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.local import loss_of
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.schemes.update_rules import schedule_factor
from tests.runners.ranks import run_ranks
from tests.runners.test_dp import bench
from tests.runners.test_update_rules import alone, serial

SCHEDULED: dict[str, Any] = {"schedule": "linear", "warmup": 2}
LARS: dict[str, Any] = {"optimizer": "lars", "momentum": 0.9, "learning_rate": 10.0, "weight_decay": 0.01}
LAMB: dict[str, Any] = {"optimizer": "lamb", "momentum": 0.0, "learning_rate": 0.01, "weight_decay": 0.01}
DATA = ("dp.ddp", "dp.packed", "dp.dist_update", "dp.fsdp", "hy.numa_replica", "pp.gpipe")
RUNS = [
    *(bench(scheme, 2, model="mlp", **rule) for scheme in DATA for rule in (LARS, LAMB)),
    bench("dp.hsdp", 2, model="mlp", **LARS),
    bench("ps.sync", 2, model="mlp", **LAMB),
    bench("dp.dist_update", 2, model="mlp", momentum=0.9, weight_decay=0.1),
]


def norm(layer: list[torch.Tensor]) -> float:
    return sqrt(sum(float(value.square().sum()) for value in layer))


def lars(layer: list[Any], grads: list[torch.Tensor], rate: float, kept: list[Any], step: int) -> None:
    decay = 0.01
    trust = 0.001 * norm(layer) / (norm(grads) + decay * norm(layer))
    for index, (weight, grad) in enumerate(zip(layer, grads, strict=True)):
        kept[index] = 0.9 * kept[index] + rate * trust * (grad + decay * weight)
        weight.copy_(weight - kept[index])


def lamb(layer: list[Any], grads: list[torch.Tensor], rate: float, kept: list[Any], step: int) -> None:
    changes = []
    for index, (weight, grad) in enumerate(zip(layer, grads, strict=True)):
        mean, square = kept[index] if isinstance(kept[index], tuple) else (0, 0)
        kept[index] = mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad**2
        root = (square / (1 - 0.999**step)).sqrt() + 1e-6
        changes.append(mean / (1 - 0.9**step) / root + 0.01 * weight)
    trust = norm(layer) / norm(changes)
    for weight, change in zip(layer, changes, strict=True):
        weight.copy_(weight - rate * trust * change)


@pytest.mark.parametrize(("settings", "rule"), [(LARS, lars), (LAMB, lamb)])
def test_updates_are_those_of_the_formulas(settings: dict[str, Any], rule: Any) -> None:
    config = serial(model="smallcnn", steps=6, **settings, **SCHEDULED)
    model, feed = build_model(config), open_feed(config)
    layers = [list(part.parameters(recurse=False)) for part in model.modules()]
    layers = [layer for layer in layers if layer]
    kept: list[list[Any]] = [[0.0] * len(layer) for layer in layers]
    for step in range(config.steps):
        model.zero_grad()
        loss_of(model, feed.batch(step, 0, 1)).backward()
        rate = config.learning_rate * schedule_factor(config, step)
        with torch.no_grad():
            for layer, state in zip(layers, kept, strict=True):
                rule(layer, [value.grad for value in layer], rate, state, step + 1)
    trained = alone(config).state
    start = build_model(config).state_dict()
    assert max(float((start[name] - value).abs().max()) for name, value in trained.items()) > 1e-3
    for name, value in model.state_dict().items():
        assert float((trained[name] - value).abs().max()) < 1e-12, name


def test_ranks_that_hold_parts_of_layers_end_with_the_weights_of_one_process() -> None:
    for chosen in ("lars", "lamb", "sgd"):
        configs = [config for config in RUNS if config.optimizer == chosen]
        for rank in run_ranks(2, "tests.runners.dp_cases:train_all", configs=configs):
            for config in configs:
                entry = rank[f"{config.full_name} {config.model}"]
                assert entry["calls"] == entry["predicted"], config
                if "difference" in entry:
                    bound = 1e-8 if chosen == "lamb" else 1e-12
                    assert entry["difference"] < bound < 1e-4 < entry["learned"], (config.full_name, entry)


def test_norms_are_in_the_predicted_bytes() -> None:
    for scheme in ("dp.dist_update", "dp.fsdp"):
        with_norms, without = (
            find_scheme(scheme).traffic(plan(BenchConfig(scheme=scheme, num_ranks=2, optimizer=name)), 0)
            for name in ("lars", "sgd")
        )
        (added,) = [call for call in with_norms if call not in without]
        assert (added.collective, added.bytes) == ("all_reduce", 2 * 5 * 4)  # 5 layers, float32
