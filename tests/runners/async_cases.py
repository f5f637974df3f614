"""What ranks run for test_async, test_easgd and test_mpi, and what one process computes by the rules alone.

The references share no code with the schemes: plain vectors, the formulas as the papers write them.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from perfscope.runners.comm import Group
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.registry import open_feed
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.base import LoopReporter
from perfscope.runners.schemes.local import loss_of
from perfscope.runners.schemes.ps_async import PsAsyncSgd
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.schemes.shared_memory import map_shared
from perfscope.runners.train import train
from perfscope.runners.transport import GlooTransport, PeerLostError, Transport
from perfscope.runners.world import Alone, World, open_world
from tests.runners.ranks import run_ranks
from tests.runners.training import expected_calls, train_here

BASE = BenchConfig(
    scheme="serial",
    model="smallcnn",
    input_shape=(3, 16, 16),
    num_classes=4,
    batch=12,
    steps=6,
    dtype="float64",
    learning_rate=0.05,
    device="cpu",
)


def case(scheme: str, num_ranks: int, **changes: Any) -> BenchConfig:
    """BASE for a scheme."""
    return replace(BASE, scheme=scheme, num_ranks=num_ranks, **changes)


def alone(config: BenchConfig) -> Any:
    """The Outcome of a run in this process."""
    return train(plan(config), World(Alone(), 0, torch.device("cpu")))


# --- on ranks -----------------------------------------------------------------------------------------------


ALL = (
    "ps.sync",
    "ps.async_sgd",
    "ps.async_msgd",
    "hogwild.sgd",
    "easgd.original",
    "easgd.async",
    "easgd.async_mom",
    "easgd.hogwild",
    "easgd.sync1",
    "easgd.sync2",
    "easgd.sync3",
    "easgd.sync_ar",
)
LONG_STEPS = 20


def exact(num_ranks: int) -> dict[str, BenchConfig]:
    """Short runs in float64, for comparisons with references."""
    cases = {name: case(name, num_ranks) for name in ALL}
    cases["ps.sync momentum"] = case("ps.sync", num_ranks, momentum=0.9)
    if num_ranks > 2:
        cases["ps.ssp 0"] = case("ps.ssp", num_ranks, staleness=0)
        cases["ps.ssp 2"] = case("ps.ssp", num_ranks, staleness=2)
        for name in ("ps.sync", "ps.async_sgd"):
            cases[f"{name} 2 servers"] = case(name, num_ranks, servers=2)
    cases["easgd.async_mom 0.5"] = case("easgd.async_mom", num_ranks, momentum=0.5, moving_rate=0.1)
    return cases


def long(num_ranks: int) -> dict[str, BenchConfig]:
    """Longer runs in float32, for losses."""
    rates = {
        "ps.async_msgd": 0.001,
        "easgd.async_mom": 0.002,
    }  # mu = 0.9 makes ten times as much of each gradient
    return {
        f"{name} long": case(
            name, num_ranks, dtype="float32", steps=LONG_STEPS, learning_rate=rates.get(name, 0.02)
        )
        for name in ALL
    }


@cache
def trained(num_ranks: int) -> dict[str, list[Any]]:
    """Case -> what each rank found, and special cases by name: one start of that many ranks for all tests."""
    cases = exact(num_ranks) | (long(num_ranks) if num_ranks == 4 else {})
    found = run_ranks(num_ranks, f"{__name__}:everything", configs=list(cases.values()))
    result = {name: [rank["trained"][i] for rank in found] for i, name in enumerate(cases)}
    return result | {name: [rank[name] for rank in found] for name in found[0] if name != "trained"}


def everything(world: World, configs: list[BenchConfig]) -> dict[str, Any]:
    """On each rank of `trained`."""
    result: dict[str, Any] = {"trained": train_all(world, configs)}
    if world.size == 2:
        result["share"] = share(world)
        result["elsewhere"] = map_what_only_rank_0_sees(world)
        result["norm"] = serve_a_norm(world)
        result["lost"] = lose_a_peer(world, 0.5)
    return result


def train_all(world: World, configs: list[BenchConfig]) -> list[dict[str, Any]]:
    """Trains one after the other; what each rank saw of each."""
    return [_train_one(world, config) for config in configs]


def _train_one(world: World, config: BenchConfig) -> dict[str, Any]:
    job = plan(config)
    outcome = train_here(world, config)
    predicted = expected_calls(find_scheme(config.scheme).traffic(job, world.rank), config.steps)
    return {
        "losses": outcome.losses,
        "num_ends": len(outcome.step_ends_ns),
        "recorded": {tuple(call): count for call, count in outcome.calls.items()},
        "predicted": dict(predicted),
        "details": dict(outcome.details),
        "state": outcome.state,
        "held_out_loss": outcome.held_out_loss,
        "json": outcome.as_json(),
    }


def lose_a_peer(world: World, timeout_s: float) -> dict[str, Any]:
    """Rank 1 is silent for longer than the timeout, then ends; what rank 0 hears, and how long it waited.

    The last thing that these ranks can do.
    """
    ranks = tuple(range(world.size))
    impatient = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout_s))
    heard: dict[str, Any] = {}
    for name, handle, source in (("silent", impatient, None), ("gone", dist.group.WORLD, 1)):
        transport = GlooTransport(Group("world", ranks, world.rank, handle, world.ledger))
        start = time.monotonic()
        if world.rank == 0:
            heard[name] = _complaint(transport, source)
            heard[f"{name}_s"] = time.monotonic() - start
        if name == "silent":
            world.peers.barrier()
    return heard


def _complaint(transport: Transport, source: int | None) -> str:
    try:
        transport.receive(torch.empty(3), source)
    except PeerLostError as error:
        return str(error)
    return "received"


def share(world: World) -> dict[str, Any]:
    """Rank 0 writes, all read; and whether the file behind it still has a name."""
    ranks = tuple(range(world.size))
    transport = GlooTransport(Group("world", ranks, world.rank, dist.group.WORLD, world.ledger))
    shared = map_shared("hogwild.sgd", torch.zeros(5), world.size, transport)
    if world.rank == 0:
        shared.weights.copy_(torch.arange(5.0))
    world.peers.barrier()
    seen = shared.weights.tolist()
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/perfscope-bench-" in line]
    world.peers.barrier()
    return {"seen": seen, "num_maps": len(maps), "named": [m for m in maps if not m.endswith("(deleted)")]}


def serve_a_norm(world: World) -> dict[str, torch.Tensor] | None:
    """A model with running statistics, trained through a server that never runs it."""
    config = case("ps.async_sgd", world.size, steps=2)
    scheme = PsAsyncSgd(plan(config), world)
    features = prod(config.input_shape)
    layers = (nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(features, config.num_classes))
    scheme.build(nn.Sequential(*layers).double())
    scheme.run(open_feed(config), config.steps, _Silent())
    world.peers.barrier()  # as in train(): a quick worker must not meet a server that still serves
    return scheme.full_state()


class _Silent(LoopReporter):
    def step(self, number: int, loss: torch.Tensor | None) -> bool:
        """Not noted."""
        return False


def map_what_only_rank_0_sees(world: World) -> str:
    """As on two hosts: the other ranks look for the shared file where it is not."""
    ranks = tuple(range(world.size))
    transport = GlooTransport(Group("world", ranks, world.rank, dist.group.WORLD, world.ledger))
    if world.rank:
        receive = transport.receive

        def elsewhere(into: torch.Tensor, source: int | None = None) -> int:
            found = receive(into, source)
            if bytes(into[:9].tolist()) == b"/dev/shm/":
                into[5:8] = torch.tensor(list(b"xyz"), dtype=torch.uint8)
            return found

        transport.receive = elsewhere  # type: ignore[method-assign]
    try:
        map_shared("hogwild.sgd", torch.zeros(5), world.size, transport)
    except BenchError as error:
        return str(error)
    return "mapped"


# --- one process, by the rules ------------------------------------------------------------------------------


class Samples:
    """Gradients of any worker's batch at any weights."""

    def __init__(self, config: BenchConfig, num_workers: int) -> None:
        self.feed, self.num_workers = open_feed(config), num_workers
        self.model = build_model(config)
        self.start = parameters_to_vector(self.model.parameters()).detach().clone()

    def gradient(self, weights: torch.Tensor, worker: int, step: int) -> torch.Tensor:
        """Of worker (from 0) at its own `step`-th batch."""
        vector_to_parameters(weights, self.model.parameters())
        loss = loss_of(self.model, self.feed.batch(step, worker, self.num_workers))
        return torch.cat(
            [one.reshape(-1) for one in torch.autograd.grad(loss, list(self.model.parameters()))]
        )


def synchronous_elastic(config: BenchConfig, num_workers: int, moving_rate: float) -> torch.Tensor:
    """The center after config.steps steps of (1), (2)."""
    samples = Samples(config, num_workers)
    center = samples.start.clone()
    workers = [samples.start.clone() for _ in range(num_workers)]
    for step in range(config.steps):
        gradients = [samples.gradient(w, i, step) for i, w in enumerate(workers)]
        pulls = [moving_rate * (w - center) for w in workers]
        workers = [
            w - config.learning_rate * g - pull for w, g, pull in zip(workers, gradients, pulls, strict=True)
        ]
        center = center + sum(pulls)
    return center


def elastic_by_arrival(
    config: BenchConfig,
    num_workers: int,
    moving_rate: float,
    order: Iterable[int],
    momentum: float | None = None,
) -> torch.Tensor:
    """The center when workers (from 0) come one by one in `order`; (1), or (5) and (6) with momentum."""
    samples = Samples(config, num_workers)
    center = samples.start.clone()
    workers = [samples.start.clone() for _ in range(num_workers)]
    velocities = [torch.zeros_like(center) for _ in range(num_workers)]
    steps = [0] * num_workers
    for i in order:
        gradient = samples.gradient(workers[i], i, steps[i])
        steps[i] += 1
        pull = moving_rate * (workers[i] - center)
        velocities[i] = (momentum or 0.0) * velocities[i] - config.learning_rate * gradient
        workers[i] = (
            workers[i] + velocities[i] - pull
            if momentum
            else workers[i] - config.learning_rate * gradient - pull
        )
        center = center + pull
    return center


def server_by_arrival(
    config: BenchConfig, num_workers: int, order: Iterable[int], momentum: float | None = None
) -> torch.Tensor:
    """The server's weights when gradients of workers (from 0) come in `order`; (3), (4) with momentum."""
    samples = Samples(config, num_workers)
    weights = samples.start.clone()
    velocity = torch.zeros_like(weights)
    known = [weights.clone() for _ in range(num_workers)]
    steps = [0] * num_workers
    for i in order:
        gradient = samples.gradient(known[i], i, steps[i])
        steps[i] += 1
        velocity = (momentum or 0.0) * velocity - config.learning_rate * gradient
        weights = weights + velocity
        known[i] = weights.clone()
    return weights


def bounded_by_arrival(
    config: BenchConfig, num_workers: int, order: Iterable[int], bound: int
) -> torch.Tensor:
    """As server_by_arrival, where a worker gets the weights when the slowest is at most `bound` steps behind.

    Raises:
        AssertionError: a worker came that had not got the weights yet.
    """
    samples = Samples(config, num_workers)
    weights = samples.start.clone()
    known: dict[int, torch.Tensor] = {worker: weights.clone() for worker in range(num_workers)}
    steps = [0] * num_workers
    for i in order:
        assert i in known, f"worker {i} is too far ahead"
        weights = weights - config.learning_rate * samples.gradient(known.pop(i), i, steps[i])
        steps[i] += 1
        for worker in set(range(num_workers)) - set(known):
            if steps[worker] - min(steps) <= bound:
                known[worker] = weights.clone()
    return weights


def shared_by_arrival(config: BenchConfig, num_workers: int, orders: list[list[int]]) -> torch.Tensor:
    """The weights that several servers have equal parts of, each with its own order of arrivals."""
    samples = Samples(config, num_workers)
    weights = samples.start.clone()
    ends = [weights.numel() * server // len(orders) for server in range(len(orders) + 1)]
    known = [weights.clone() for _ in range(num_workers)]
    done = [[0] * num_workers for _ in orders]
    gradients: dict[tuple[int, int], torch.Tensor] = {}
    left = [list(order) for order in orders]
    while any(left):
        before = sum(map(len, left))
        for server, order in enumerate(left):
            if not order or done[server][order[0]] > min(of[order[0]] for of in done):
                continue  # its next gradient needs what other servers answer first
            i = order.pop(0)
            step = done[server][i]
            if (i, step) not in gradients:
                gradients[i, step] = samples.gradient(known[i].clone(), i, step)
            part = slice(ends[server], ends[server + 1])
            weights[part] -= config.learning_rate * gradients[i, step][part]
            known[i][part] = weights[part]
            done[server][i] += 1
        assert sum(map(len, left)) < before, "no order of these gradients is possible"
    return weights


def distance(state: dict[str, torch.Tensor], weights: torch.Tensor) -> float:
    """Largest difference between a trained model without buffers and a vector of weights."""
    return float((torch.cat([one.reshape(-1) for one in state.values()]) - weights).abs().max())


def mean_held_out_loss_at_start(config: BenchConfig) -> float:
    """Of the untrained model."""
    from perfscope.runners.data.registry import held_out
    from perfscope.runners.learning.evaluation import mean_loss

    return mean_loss(build_model(config), held_out(config), 256)


# --- under mpiexec ------------------------------------------------------------------------------------------


def die_or_wait(world: World, configs: list[BenchConfig], folder: Path) -> None:
    """Rank 1 says nothing for a while, then fails; the others wait for it."""
    group = Group("world", tuple(range(world.size)), world.rank, None, world.ledger)
    transport = world.peers.transport(group)
    if world.rank == 0:
        (folder / "silent").write_text(_complaint(transport, None))
        lines = Path("/proc/self/maps").read_text().splitlines()
        mapped = {line.split(maxsplit=5)[-1] for line in lines if "/dev/shm/mpich" in line}
        (folder / "mapped").write_text("\n".join(mapped))
    world.peers.barrier()
    if world.rank == 1:
        raise RuntimeError("this rank has failed")
    world.peers.barrier()
    (folder / "survived").write_text(str(world.rank))


def _under_mpi(target: str, folder: Path) -> None:
    configs = pickle.loads((folder / "configs").read_bytes())
    world = open_world(replace(configs[0], scheme="serial", backend="mpi"))
    if target == "die_or_wait":
        die_or_wait(world, configs, folder)
    else:
        result = (train_all(world, configs), serve_a_norm(world))
        (folder / f"result{world.rank}").write_bytes(pickle.dumps(result))
    world.peers.barrier()
    world.peers.close()


if __name__ == "__main__":
    _under_mpi(sys.argv[1], Path(sys.argv[2]))
