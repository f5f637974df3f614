"""What the ranks of the pipeline and hybrid tests do; both share one start of 2 and one of 4 ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import torch

from perfscope.runners.config import BenchConfig, parse_scheme
from perfscope.runners.data.registry import open_feed
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.train import TrainingOutcome
from perfscope.runners.world import Alone, World
from tests.runners.ranks import run_ranks
from tests.runners.training import train_here

STEPS = 6
Sends = Counter[tuple[str, int]]


def configure(text: str, num_ranks: int, **other: Any) -> BenchConfig:
    """A small run in float64 with momentum."""
    name, modifiers = parse_scheme(text)
    settings: dict[str, Any] = {
        "batch": 8,
        "steps": STEPS,
        "input_shape": (3, 16, 16),
        "momentum": 0.9,
        "dtype": "float64",
        "device": "cpu",
        **other,
    }
    return BenchConfig(scheme=name, modifiers=modifiers, num_ranks=num_ranks, **settings)


TRAINED: dict[int, dict[str, BenchConfig]] = {
    2: {
        "gpipe": configure("pp.gpipe", 2),
        "gpipe, 8 microbatches": configure("pp.gpipe", 2, num_microbatches=8),
        "1f1b": configure("pp.1f1b", 2),
        "interleaved": configure("pp.interleaved", 2),
        "owt": configure("hy.owt", 2),
        "auto": configure("hy.auto", 2),
        "auto, first layer model parallel": configure("hy.auto", 2, model="mlp"),
        "numa": configure("hy.numa_replica", 2),
        "owt+fp16": configure("hy.owt+fp16", 2),
        "owt, overlapped": configure("hy.owt+overlap", 2),
    },
    4: {
        "gpipe": configure("pp.gpipe", 4),
        "1f1b": configure("pp.1f1b", 4),
        "interleaved": configure(
            "pp.interleaved", 4, model="googlenet", batch=4, steps=5, learning_rate=0.001
        ),
        "pp_dp": configure("hy.pp_dp", 4, mesh=Mesh.positional(2, 1, 2)),
        "pp_dp+fp16": configure("hy.pp_dp+fp16", 4, mesh=Mesh.positional(2, 1, 2)),
        "owt": configure("hy.owt", 4),
        "auto": configure("hy.auto", 4),
        "owt in groups": configure("hy.owt", 4, mesh=Mesh.positional(2, 2)),
        "auto in groups, first layer model parallel": configure(
            "hy.auto", 4, model="mlp", mesh=Mesh.positional(2, 2)
        ),
        "auto, last layer data parallel": configure("hy.auto", 4, num_classes=10),
        "numa, two chips": configure("hy.numa_replica", 4, mesh=Mesh.positional(2, 2, 1)),
        "numa, one chip": configure("hy.numa_replica", 4, mesh=Mesh.positional(1, 4, 1)),
    },
}
TRACED: dict[int, tuple[str, ...]] = {
    2: ("gpipe", "1f1b", "interleaved", "owt"),
    4: ("gpipe", "pp_dp", "numa, two chips"),
}


@dataclass(frozen=True)
class Trained:
    """One configuration: its reference and what each rank told.

    Attributes:
        config: what was run.
        ranks: outcomes, by rank.
        serial: outcome of one process on the same samples.
        traced: (event, elements) -> how often in one step, by rank; None where no trace was taken.
    """

    config: BenchConfig
    ranks: list[TrainingOutcome]
    serial: TrainingOutcome
    traced: list[Sends] | None

    def difference(self) -> float:
        """Largest difference of any weight from the serial one."""
        state, reference = self.ranks[0].state, self.serial.state
        assert state is not None and reference is not None
        assert list(state) == list(reference)
        return max(float((state[name] - reference[name]).abs().max()) for name in reference)


@cache
def trained(num_ranks: int) -> dict[str, Trained]:
    """Every configuration for that many ranks, in one start of them."""
    configs = TRAINED[num_ranks]
    found = run_ranks(num_ranks, "tests.runners.pp_cases:run_all", configs=configs, traced=TRACED[num_ranks])
    return {
        name: Trained(
            config,
            [outcomes[name] for outcomes, _ in found],
            trained_alone(config),
            [sends[name] for _, sends in found] if name in TRACED[num_ranks] else None,
        )
        for name, config in configs.items()
    }


def trained_alone(config: BenchConfig) -> TrainingOutcome:
    """The same model and samples, in this process; trained once for all meshes."""
    alone = replace(config, scheme="serial", modifiers=(), num_ranks=1, mesh=None, num_microbatches=None)
    return _alone(replace(alone, pipeline="1f1b", cp_attention="gather"))


@cache
def _alone(config: BenchConfig) -> TrainingOutcome:
    return train_here(World(Alone(), 0, torch.device("cpu")), config)


def run_all(
    world: World, configs: dict[str, BenchConfig], traced: tuple[str, ...]
) -> tuple[dict[str, TrainingOutcome], dict[str, Sends]]:
    """Trains every configuration in the same ranks, and traces the second step of some."""
    outcomes = {name: train_here(world, config) for name, config in configs.items()}
    return outcomes, {name: traced_step(world, configs[name]) for name in traced}


def traced_step(world: World, config: BenchConfig) -> Sends:
    """gloo's events in one step, from torch's own trace."""
    scheme: Any = find_scheme(config.scheme)(plan(config), world)
    feed = open_feed(config, world.device)
    scheme.build(build_model(config))
    part, num_parts = scheme.data_part
    scheme.step(feed.batch(0, part, num_parts))  # pipelines and buckets are settled in it
    sends: Sends = Counter()
    with gloo_events(sends):
        scheme.step(feed.batch(1, part, num_parts))
    world.peers.barrier()
    return sends


@contextmanager
def gloo_events(found: Sends) -> Iterator[None]:
    """Adds gloo's events of a step to `found`."""
    with torch.autograd.profiler.profile(use_kineto=True, record_shapes=True) as trace:
        yield
    found.update(
        (event.name.removeprefix("gloo:"), prod(event.input_shapes[0]))
        for event in trace.function_events
        if event.name.startswith("gloo:")
    )
