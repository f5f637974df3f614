"""What the ranks of the tests of memory do: real steps, and what torch's allocator says of them."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from perfscope.runners.config import BenchConfig
from perfscope.runners.data.registry import open_feed
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model, find_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.recomputation import checkpoint_activations
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.world import World

_STEPS = 2  # with the first, the optimizer has its state


def memory_config(scheme: str, model: str, **settings: Any) -> BenchConfig:
    """A run of a model at its own input size, if no other is given."""
    info = find_model(model)
    mesh = settings.pop("mesh", None)
    base: dict[str, Any] = {
        "input_shape": info.default_input or (3, 32, 32),
        "num_classes": info.default_classes or 64,
        "device": "cpu",
        "mesh": Mesh.parse(mesh) if mesh else None,
        "num_ranks": Mesh.parse(mesh).num_ranks if mesh else 1,
    }
    return BenchConfig(scheme=scheme, model=model, **{**base, **settings})


def peaks(world: World, cases: dict[str, BenchConfig]) -> dict[str, int]:
    """Most bytes that the allocator of this rank's tensors had given out at once, by case."""
    torch.set_num_threads(1)
    return {name: _peak(world, config) for name, config in cases.items()}


def _peak(world: World, config: BenchConfig) -> int:
    feed = open_feed(config, world.device)
    gc.collect()  # what an earlier case leaves must not be freed in this one
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job = plan(config)
        scheme = find_scheme(config.scheme)(job, world)
        model = build_model(config)
        if config.activation_checkpointing:
            checkpoint_activations(model)
        scheme.build(model)
        del model
        world.peers.barrier()
        for step in range(_STEPS):
            batch = feed.batch(step, *scheme.data_part)
            with torch.profiler.record_function(f"memory step {step}"):
                scheme.step(batch)
    return _most(profiler.profiler.kineto_results.events())


def _most(events: Any) -> int:
    """Most bytes at once in the last step, of what was allocated since the profiler started."""
    last = next(event for event in events if event.name() == f"memory step {_STEPS - 1}")
    begin, end = last.start_ns(), last.start_ns() + last.duration_ns()
    total = most = 0
    memory = (event for event in events if event.name() == "[memory]")
    for event in sorted(memory, key=lambda event: event.start_ns()):
        total += event.nbytes()
        if begin <= event.start_ns() <= end:
            most = max(most, total)
    return most
