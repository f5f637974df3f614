"""What the ranks of test_dp.py run."""

from __future__ import annotations

import copy
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from perfscope.runners.config import BenchConfig
from perfscope.runners.data.registry import open_feed
from perfscope.runners.identity import identity
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.base import Scheme
from perfscope.runners.schemes.local import loss_of
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.traffic import Traffic
from perfscope.runners.world import Alone, World
from tests.runners.training import expected_calls, train_here

State = dict[str, torch.Tensor]
_SIZES = {"float": 4, "double": 8, "long int": 8, "unsigned char": 1, "c10::BFloat16": 2, "c10::Half": 2}


def alone(config: BenchConfig) -> Any:
    """The same steps by `serial`, in this process."""
    config = replace(config, scheme="serial", modifiers=(), num_ranks=1, mesh=None)
    return train_here(World(Alone(), 0, torch.device("cpu")), config)


def _average(models: list[torch.nn.Module], step: int, config: BenchConfig) -> None:
    """dp.local_sgd: all replicas become their mean at the end of a period."""
    if (step + 1) % (config.period or 4) == 0 or step + 1 == config.steps:
        for same in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([one.detach() for one in same]).mean(dim=0)
            for one in same:
                one.copy_(mean)


def _gossip(models: list[torch.nn.Module], step: int, config: BenchConfig) -> None:
    """dp.gossip: each becomes the mean of itself and the two beside it; the result is the mean of all."""
    num = len(models)
    for same in zip(*(model.parameters() for model in models), strict=True):
        before = [one.detach().clone() for one in same]
        for index, one in enumerate(same):
            meeting = {(index - 1) % num, index, (index + 1) % num}
            one.copy_(sum(before[other] for other in meeting) / len(meeting))
        if step + 1 == config.steps:
            same[0].copy_(sum(one.clone() for one in same) / num)


RULES = {"dp.local_sgd": _average, "dp.gossip": _gossip}


def simulated(config: BenchConfig) -> State:
    """A scheme's rule with all replicas in this process, from the formulas of SGD with momentum."""
    feed, parts = open_feed(config), config.num_ranks
    start = build_model(config)
    models = [copy.deepcopy(start) for _ in range(parts)]
    speeds = [[torch.zeros_like(p) for p in start.parameters()] for _ in range(parts)]
    for step in range(config.steps):
        for part, model in enumerate(models):
            model.zero_grad()
            loss_of(model, feed.batch(step, part, parts)).backward()
            with torch.no_grad():
                for param, speed in zip(model.parameters(), speeds[part], strict=True):
                    speed.mul_(config.momentum).add_(param.grad)
                    param.sub_(config.learning_rate * speed)
        with torch.no_grad():
            RULES[config.scheme](models, step, config)
    state: State = models[0].state_dict()
    return state


def largest_difference(one: State, other: State) -> float:
    """Over all tensors, which must have the same names and shapes."""
    assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in other.items()}
    return max(float((other[name] - value).abs().max()) for name, value in one.items())


def train_all(world: World, configs: list[BenchConfig]) -> dict[str, dict[str, Any]]:
    """By scheme and model: difference to serial's weights, calls made and predicted, losses ..."""
    references: dict[str, Any] = {}
    found = {}
    for config in configs:
        steps: list[Any] = []
        counting = register_optimizer_step_post_hook(lambda *_, steps=steps: steps.append(None))
        outcome = train_here(world, config)
        counting.remove()
        entry: dict[str, Any] = {
            "calls": {tuple(call): count for call, count in outcome.calls.items()},
            "predicted": dict(expected_calls(_traffic(config, world.rank), config.steps)),
            "losses": outcome.losses,
            "optimizer_steps": len(steps),
        }
        if outcome.state is not None:
            common = replace(config, scheme="serial", modifiers=(), mesh=None, period=None).to_json()
            serial = references.setdefault(common, None) or alone(config)
            references[common] = serial
            entry["difference"] = largest_difference(serial.state, outcome.state)
            entry["learned"] = largest_difference(build_model(config).state_dict(), outcome.state)
            entry["held_out"] = (outcome.held_out_loss, serial.held_out_loss)
            if config.scheme in RULES:
                entry["simulated"] = largest_difference(simulated(config), outcome.state)
        found[f"{config.full_name} {config.model}"] = entry
    return found


def trace_all(world: World, configs: list[BenchConfig], steps: int = 2) -> dict[str, tuple[Any, Any]]:
    """By scheme and mesh: (collective, bytes) -> calls in torch's trace of some steps, and as predicted."""
    return {
        f"{config.full_name} {config.mesh}": (_traced(world, config, steps), _as_traced(world, config, steps))
        for config in configs
    }


def _traffic(config: BenchConfig, rank: int) -> Iterable[Traffic]:
    return find_scheme(config.scheme).traffic(plan(config), rank)


def _traced(world: World, config: BenchConfig, steps: int) -> Counter[tuple[str, int]]:
    from torch.profiler import ProfilerActivity, profile

    scheme: Scheme = find_scheme(config.scheme)(plan(config), world)
    feed = open_feed(config, world.device)
    scheme.build(build_model(config))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        for number in range(steps):
            scheme.step(feed.batch(number, *scheme.data_part))
        scheme.finish()
    world.peers.barrier()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    found: Counter[tuple[str, int]] = Counter()
    for event in events:
        if event["name"].startswith("gloo:"):
            (length,), dtype = event["args"]["Input Dims"][0], event["args"]["Input type"][0]
            found[event["name"].removeprefix("gloo:"), length * _SIZES[dtype]] += 1
    return found


def _as_traced(world: World, config: BenchConfig, steps: int) -> Counter[tuple[str, int]]:
    """gloo makes an all_reduce of a reduce_scatter; of an all_gather torch notes one rank's part."""
    found: Counter[tuple[str, int]] = Counter()
    for one in _traffic(config, world.rank):
        name = {"reduce_scatter": "all_reduce"}.get(one.collective, one.collective)
        size = one.bytes // len(one.members) if name == "all_gather" else one.bytes
        found[name, size] += one.calls_in(steps)
    return found


def drawn_twice(world: World, config: BenchConfig) -> dict[str, list[list[float | None]]]:
    """Losses of equal runs, and of one without dropout; the process's own random state differs."""
    torch.manual_seed(world.rank + time.monotonic_ns() % 1000)
    return {
        "same": [train_here(world, config).losses for _ in range(2)],
        "undrawn": [train_here(world, replace(config, dropout=0.0)).losses],
    }


def bytes_sent(world: World, config: BenchConfig, steps: Iterable[int]) -> dict[int, tuple[float, float]]:
    """By number of steps: bytes per step of this rank, predicted in run.json and recorded."""
    found = {}
    for number in steps:
        one = replace(config, steps=number)
        calls = identity(plan(one))["predicted"]["calls_of_rank"][str(world.rank)]
        expected = sum(row["calls"] * sum(row["links"].values()) for row in calls) / number
        made = train_here(world, one).calls
        share = 2 * (world.size - 1) / world.size  # of an all_reduce
        found[number] = (expected, sum(share * call.bytes * count for call, count in made.items()) / number)
    return found


def everything(world: World, configs: list[BenchConfig], traced: list[BenchConfig]) -> dict[str, Any]:
    """`train_all`, `trace_all` and others in one start of the ranks."""
    tiny = replace(configs[0], scheme="dp.packed", modifiers=(), mesh=None, model="mlp", steps=3)
    return {
        "drawn": drawn_twice(world, replace(tiny, dropout=0.5)),
        "sent": bytes_sent(world, replace(tiny, scheme="dp.local_sgd", period=4), (1, 3, 4, 5, 8, 10)),
        "trained": train_all(world, configs),
        "traced": trace_all(world, traced),
    }


def one_dies(world: World, configs: list[BenchConfig]) -> Any:
    """The last rank is killed in the middle of the last run; the others tell what happened and how soon."""
    last = len(configs) - 1
    for index, config in enumerate(configs):
        scheme = find_scheme(config.scheme)(plan(config), world)
        feed = open_feed(config, world.device)
        scheme.build(build_model(config))
        begin = time.monotonic()
        try:
            for number in range(config.steps):
                if number == 2 and index == last and world.rank == world.size - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                scheme.step(feed.batch(number, *scheme.data_part))
            scheme.finish()
        except RuntimeError as error:
            raise AssertionError(
                f"{config.scheme} noticed after {time.monotonic() - begin:.1f} s: {error}"
            ) from error
    return None
