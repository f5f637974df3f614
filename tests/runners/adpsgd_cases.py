"""What ranks run for test_adpsgd, and what one process computes by the rule of AD-PSGD alone."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

from perfscope.runners.config import BenchConfig
from perfscope.runners.data.registry import open_feed
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.base import Batch, Feed, LoopReporter
from perfscope.runners.schemes.dp_adpsgd import FETCHED, UPDATED, partners_of
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.world import World
from tests.runners.async_cases import Samples, case, train_all

STEPS_OF_RANK = (3, 1, 8, 4)


def configs(num_ranks: int) -> dict[str, BenchConfig]:
    """What is compared with a replay, in float64."""
    return {
        "plain": case("dp.adpsgd", num_ranks),
        "momentum": case("dp.adpsgd", num_ranks, momentum=0.9, seed=3),
        "paused": case("dp.adpsgd", num_ranks, evaluate_every=2),
        "ended": case("dp.adpsgd", num_ranks, evaluate_every=2, target="loss=1000"),
    }


def everything(world: World) -> dict[str, Any]:
    """On each rank: the outcomes of `configs`, and of a run with a slow rank and uneven steps."""
    trained = dict(
        zip(configs(world.size), train_all(world, list(configs(world.size).values())), strict=True)
    )
    return {**trained, "uneven": uneven(world) if world.size == len(STEPS_OF_RANK) else None}


def uneven(world: World) -> dict[str, Any]:
    """Rank 0 is slow, and every rank makes another number of steps."""
    config = case("dp.adpsgd", world.size, model="mlp")
    scheme = find_scheme(config.scheme)(plan(config), world)
    scheme.build(build_model(config))
    feed = open_feed(config)
    scheme.run(Slowed(feed) if world.rank == 0 else feed, STEPS_OF_RANK[world.rank], Silent())
    world.peers.barrier()
    state = scheme.full_state()
    return {"state": state, "config": config, "details": dict(scheme.details())}


def one_dies(world: World) -> str:
    """Rank 0, the only active one that works, is killed in its third step; what rank 1 hears."""
    config = case("dp.adpsgd", world.size, model="mlp", steps=10**6)
    scheme = find_scheme(config.scheme)(plan(config), world)
    scheme.build(build_model(config))
    feed = open_feed(config)
    try:
        scheme.run(Deadly(feed) if world.rank == 0 else feed, config.steps, Silent())
    except RuntimeError as error:
        raise AssertionError(f"rank {world.rank} noticed: {error}") from error
    return "trained"


class Slowed(Feed):
    """Batches that come late."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    def batch(self, step: int, part: int, num_parts: int) -> Batch:
        """See Feed."""
        time.sleep(0.5)
        return self.feed.batch(step, part, num_parts)


class Deadly(Slowed):
    """The third kills the process."""

    def batch(self, step: int, part: int, num_parts: int) -> Batch:
        """See Feed."""
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.feed.batch(step, part, num_parts)


class Silent(LoopReporter):
    """Notes nothing."""

    def step(self, number: int, loss: torch.Tensor | None) -> bool:
        """See LoopReporter."""
        return False


def replayed(
    config: BenchConfig, orders: dict[int, list[int]], steps_of_rank: tuple[int, ...]
) -> torch.Tensor:
    """The mean of all replicas, (num_params,), when each passive rank's events come in its order.

    Args:
        config: of the run.
        orders: passive rank -> its events: FETCHED, UPDATED, else the active rank that it averages with.
        steps_of_rank: how many steps each makes.

    Raises:
        AssertionError: these orders contradict each other, or a rank makes another number of steps.
    """
    samples = Samples(config, config.num_ranks)
    weights = {rank: samples.start.clone() for rank in range(config.num_ranks)}
    speeds = {rank: torch.zeros_like(samples.start) for rank in weights}
    fetched: dict[int, torch.Tensor] = {}
    steps = dict.fromkeys(weights, 0)
    partners = {
        rank: partners_of(config.seed, rank, config.num_ranks, steps_of_rank[rank])
        for rank in weights
        if rank % 2 == 0
    }
    left = {rank: list(order) for rank, order in orders.items()}

    def update(rank: int, gradient: torch.Tensor) -> None:
        speeds[rank] = config.momentum * speeds[rank] + gradient
        weights[rank] = weights[rank] - config.learning_rate * speeds[rank]
        steps[rank] += 1

    while any(left.values()):
        before = sum(map(len, left.values()))
        for passive, order in left.items():
            event = order[0] if order else None
            if event == FETCHED:
                fetched[passive] = weights[passive].clone()
            elif event == UPDATED:
                update(passive, samples.gradient(fetched[passive], passive, steps[passive]))
            elif event is not None and partners[event][steps[event]] == passive:
                gradient = samples.gradient(weights[event].clone(), event, steps[event])
                weights[passive] = weights[event] = (weights[passive] + weights[event]) / 2
                update(event, gradient)
            else:
                continue  # nothing is left, or that rank averages with another first
            order.pop(0)
        assert sum(map(len, left.values())) < before, "no order of these averagings is possible"
    assert tuple(steps.values()) == steps_of_rank
    return torch.stack([*weights.values()]).mean(0)
