"""A server on rank 0, workers on all others: what parameter-server and elastic-averaging schemes share."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import nn

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.job import Job
from perfscope.runners.mesh import WORLD, Mesh
from perfscope.runners.schemes.base import (
    CONSTANT_RULE,
    NO_SKIP,
    OWN_LOOP,
    Axes,
    Batch,
    Feed,
    LoopReporter,
    Scheme,
)
from perfscope.runners.schemes.local import scaled_learning_rate
from perfscope.runners.schemes.server_packed import PackedModel, buffers_of
from perfscope.runners.traffic import Traffic
from perfscope.runners.world import World
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology

SERVER = 0
MAX_RECORDED_ARRIVALS = 10_000
SHARED_WORDS = (
    "--servers K: ranks 0..K-1 are servers, each of 1/K of the packed weights, and N = P-K; a worker sends "
    "each its part of the gradient. "
)
SERVER_WORDS = (
    "Rank 0 is a server (--servers: the first ranks are) without samples of its own, "
    "ranks 1..P-1 are the N = P-1 workers (mesh D = P: the "
    "server has a place in it). Each worker takes b = B/N samples per step, so N must divide B. "
)


def _send(sender: int, receiver: int, job: Job, part: slice, what: str) -> Traffic:
    return Traffic(
        collective="send",
        axis=WORLD,
        members=(sender, receiver),
        bytes=(part.stop - part.start) * job.element_size,
        what=what,
        group_size=job.num_ranks,
    )


def served_parts(num_params: int, num_servers: int) -> list[slice]:
    """Which elements of the packed weights each server has: equally many, but for rounding."""
    ends = [num_params * index // num_servers for index in range(num_servers + 1)]
    return [slice(first, end) for first, end in pairwise(ends)]


def require_no_momentum(name: str, config: BenchConfig, instead: str) -> None:
    """Raises BenchError if momentum was asked for and the rule has none."""
    if config.momentum:
        raise BenchError(f"{name} has no momentum in its rule; use {instead}, or momentum 0")


class Staleness:
    """How many updates of others came between a worker's fetch of the weights and its own update.

    Attributes:
        histogram: staleness -> number of updates.
        arrivals: which worker each update came from, in order (ranks).
    """

    def __init__(self) -> None:
        self.histogram: Counter[int] = Counter()
        self.arrivals: list[int] = []
        self.num_updates = 0
        self._fetched: dict[int, int] = {}

    def arrived(self, worker: int) -> None:
        """`worker`'s update is made now, and it gets the weights with it."""
        self.histogram[self.num_updates - self._fetched.get(worker, 0)] += 1
        self.num_updates += 1
        self.answered(worker)
        if len(self.arrivals) < MAX_RECORDED_ARRIVALS:
            self.arrivals.append(worker)

    def answered(self, worker: int) -> None:
        """`worker` gets the weights as they are now."""
        self._fetched[worker] = self.num_updates

    def as_json(self) -> dict[str, Any]:
        """For details(); arrivals beyond MAX_RECORDED_ARRIVALS are not kept."""
        return {
            "num_updates": self.num_updates,
            "staleness": {str(key): self.histogram[key] for key in sorted(self.histogram)},
            "arrivals": list(self.arrivals),
        }


class ServerScheme(Scheme):
    """Ranks 0 .. K-1 serve, K = 1 but for schemes that divide servers; see SERVER_WORDS.

    In a step each worker makes a gradient and exchanges a message of |W| with the server, in both directions.
    A server's step is a round of N such exchanges.
    """

    axes = Axes(
        (Parallelism.DATA,),
        Optimization.CENTRALIZED,
        Synchrony.ASYNCHRONOUS,
        Topology.SERVER,
        StatePlacement.SERVER,
        "parameter server (1 of n)",
    )
    splits = (Axis.DP,)
    backends: ClassVar[tuple[str, ...]] = ("gloo", "mpi")
    refused_updates: ClassVar[Mapping[str, str]] = CONSTANT_RULE
    refused_passes: ClassVar[Mapping[str, str]] = {**NO_SKIP, **OWN_LOOP}
    equals_serial = False
    deterministic = False
    volume = (
        "|W| e from every worker to the server and back: a worker sends |W| e per step, each of K servers "
        "N |W| e / K, which all crosses that server's one link."
    )
    sends_up: ClassVar[str] = "gradients"

    @classmethod
    def num_workers(cls, job: Job) -> int:
        """N = P - K."""
        return job.num_ranks - job.config.servers

    @classmethod
    def num_parts(cls, mesh: Mesh, servers: int = 1) -> int:
        """See Scheme: one for each worker."""
        return mesh.num_ranks - servers

    @classmethod
    def check_mesh(cls, mesh: Mesh) -> None:
        """See Scheme."""
        super().check_mesh(mesh)
        if mesh.num_ranks < 2:
            raise BenchError(f"{cls.name} needs at least 2 ranks: one server, one worker")

    @classmethod
    def effective_batch(cls, job: Job) -> int:
        """b = B / N: one worker's samples are behind one update."""
        return job.config.batch // cls.num_workers(job)

    @classmethod
    def placement_groups(cls, job: Job) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """See Scheme; each server talks with each worker."""
        servers = job.config.servers
        workers = tuple(range(servers, job.num_ranks))
        by_axis = {"server": tuple((server, worker) for server in range(servers) for worker in workers)}
        return {**by_axis, "workers": (workers,)} if len(workers) > 1 else by_axis

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        parts = served_parts(job.shape.num_params, job.config.servers)
        if rank >= len(parts):
            return tuple(_send(rank, server, job, part, cls.sends_up) for server, part in enumerate(parts))
        workers = range(len(parts), job.num_ranks)
        return tuple(_send(rank, worker, job, parts[rank], "weights") for worker in workers)

    def __init__(self, job: Job, world: World) -> None:
        super().__init__(job, world)
        group = world.groups(WORLD, job.mesh.groups(WORLD))
        self.transport = world.peers.transport(group)
        self.workers = range(job.config.servers, world.size)
        self.parts = served_parts(job.shape.num_params, job.config.servers)

    @property
    def is_server(self) -> bool:
        """Whether this rank is a server."""
        return self.world.rank < len(self.parts)

    @property
    def data_part(self) -> tuple[int, int]:
        """(rank - K, N); a server, which draws nothing, has the first worker's."""
        return max(self.world.rank - len(self.parts), 0), len(self.workers)

    def build(self, model: nn.Sequential) -> None:
        """See Scheme. Server and workers start from the same weights: nothing needs to be fetched first."""
        self.packed = PackedModel(  # a server is host memory
            model.cpu() if self.is_server else model, self.world.ledger, self.passes
        )
        if self.is_server:
            served_part = self.parts[self.world.rank]
            self.served, self.served_gradient = (
                self.packed.weights[served_part],
                self.packed.gradient[served_part],
            )
            self.served.grad = self.served_gradient
        self.rate = scaled_learning_rate(self.config, self.effective_batch(self.job))
        if self.is_server:
            self.build_server()
        else:
            self.build_worker()

    @abstractmethod
    def build_server(self) -> None:
        """Makes what a server needs; `self.served` are the weights it serves, their `.grad` theirs."""

    @abstractmethod
    def build_worker(self) -> None:
        """Makes what a worker needs."""

    @abstractmethod
    def serve(self) -> None:
        """Server: one round of N exchanges."""

    @abstractmethod
    def step(self, batch: Batch) -> torch.Tensor:
        """Worker: gradient, exchange, update."""

    def exchange(self, fetch: RemoteUpdate) -> None:
        """Worker: the gradient to the servers, their weights back."""
        weights, gradient = self.packed.weights, self.packed.gradient
        # All are asked before any is given: a server that answers must not wait for one that does not yet.
        waits = [
            self.transport.start_receive(weights[part], server) for server, part in enumerate(self.parts)
        ]
        for server, part in enumerate(self.parts):
            self.transport.send(gradient[part], server)

        def fetched() -> None:
            for wait in waits:
                wait()

        fetch.step(fetched)

    def run(self, feed: Feed, steps: int, note: LoopReporter) -> None:
        """See Scheme. A server knows how many messages will come, and ends with the last."""
        if not self.is_server:
            super().run(feed, steps, note)
            return
        for number in range(steps):
            self.serve()
            if note.step(number, None):
                break

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """The servers' weights. Buffers are the first worker's: servers never run the model."""
        for server, part in list(enumerate(self.parts))[1:]:
            if self.world.rank == SERVER:
                self.transport.receive(self.packed.weights[part], server)
            elif self.world.rank == server:
                self.transport.send(self.packed.weights[part], SERVER)
        for buffer in buffers_of(self.packed.model):
            if self.world.rank == SERVER:
                self.transport.receive(buffer, self.workers[0])
            elif self.world.rank == self.workers[0]:
                self.transport.send(buffer, SERVER)
        return self.packed.state(self.packed.weights) if self.world.rank == SERVER else None


class RemoteUpdate(torch.optim.Optimizer):
    """A worker's update that is made elsewhere: its step is the arrival of the new weights."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__([weights], {})

    def step(self, fetch: Callable[[], object]) -> None:
        """`fetch` overwrites the weights."""
        with torch.no_grad():
            fetch()


class ArrivalUpdate(torch.optim.Optimizer):
    """A server's rounds: each message is applied to the weights by `apply` as it arrives, one at a time."""

    def __init__(self, weights: torch.Tensor, apply: Callable[[torch.Tensor], None]) -> None:
        super().__init__([weights], {})
        self._apply = apply

    def step(self, messages: Iterator[torch.Tensor]) -> None:
        """`messages` receives the next one when it is asked for it, and answers the last one before that."""
        with torch.no_grad():
            for message in messages:
                self._apply(message)
