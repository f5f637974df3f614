"""Synchronous elastic averaging: all workers exchange with the center in every step, by collectives."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.job import Job
from perfscope.runners.mesh import WORLD
from perfscope.runners.schemes.base import NO_SKIP, OWN_LOOP, OWN_RULE, Axes, Batch, Scheme
from perfscope.runners.schemes.easgd_rules import (
    ElasticCenter,
    ElasticWorker,
    require_every_step,
    settle_moving_rate,
)
from perfscope.runners.schemes.local import scaled_learning_rate
from perfscope.runners.schemes.server_base import (
    SERVER,
    SERVER_WORDS,
    ServerScheme,
    require_no_momentum,
)
from perfscope.runners.schemes.server_packed import PackedModel
from perfscope.runners.schemes.update_rules import follow_schedule
from perfscope.runners.traffic import Traffic
from perfscope.runners.world import World
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology

_SOURCE = "You, Buluc, Demmel, SC'17, arXiv 1708.02983 (Sync EASGD, section 5); stability bound derived."
_RULES = (
    "W^i <- W^i - eta G^i - a (W^i - Wb) (1) on worker i; Wb <- Wb + a SUM_i (W^i - Wb) (2); both from "
    "values at time t. a = eta*rho is the moving rate, 0.9/N if none is given; a >= 2/(N+1) is refused "
    "because it diverges. "
)
_CRITERION = "Center equals a single-process reference of rules (1), (2) to 1e-6 (float64); the loss falls."
_TREE_AXES = Axes(
    (Parallelism.DATA,),
    Optimization.DECENTRALIZED,
    Synchrony.SYNCHRONOUS,
    Topology.TREE,
    StatePlacement.CENTER,
    "single master, tree",
)
_ROOTED_VOLUME = (
    "broadcast of |W| e and reduce of |W| e among all P ranks, 2 |W| e per rank and step along a tree."
)


def _rooted_traffic(job: Job) -> Sequence[Traffic]:
    ranks = tuple(range(job.num_ranks))
    return (
        Traffic(collective="broadcast", axis=WORLD, members=ranks, bytes=job.model_bytes, what="center"),
        Traffic(collective="reduce", axis=WORLD, members=ranks, bytes=job.model_bytes, what="sum of weights"),
    )


def _check_rules(name: str, job: Job, num_workers: int) -> None:
    settle_moving_rate(name, job.config, num_workers)
    require_every_step(name, job.config)
    require_no_momentum(name, job.config, "easgd.async_mom")


class EasgdSync1(ServerScheme):
    """The center on a rank of its own."""

    name = "easgd.sync1"
    summary = (
        "Sync EASGD1: the center is on a CPU of its own; broadcast and tree reduction instead of round robin."
    )
    rule = (
        SERVER_WORDS
        + "Each step: gradients on all workers; broadcast of Wb; tree reduction of SUM_i W^i to the server. "
        + _RULES
    )
    volume = _ROOTED_VOLUME
    source = _SOURCE
    axes = _TREE_AXES
    refused_updates = OWN_RULE
    backends = ("gloo", "mpi")
    deterministic = True
    criterion = _CRITERION

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        super().check(job)
        _check_rules(cls.name, job, cls.num_workers(job))

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        return _rooted_traffic(job)

    @property
    def moving_rate(self) -> float:
        """a."""
        return settle_moving_rate(self.name, self.config, len(self.workers))

    def build_server(self) -> None:
        """See ServerScheme."""
        self.group = self.transport.group
        self.total = self.packed.buffer()
        self.center = ElasticCenter(self.packed.weights, self.moving_rate)

    def build_worker(self) -> None:
        """See ServerScheme."""
        self.group = self.transport.group
        self.known_center = self.packed.buffer()
        self.on_host = self.packed.buffer("cpu")  # the center never leaves CPUs
        self.update = ElasticWorker(self.packed.weights, self.known_center, self.rate, self.moving_rate)
        follow_schedule(self.update, self.config, self.rate)

    def serve(self) -> None:
        """See ServerScheme."""
        comm.broadcast(self.packed.weights, SERVER, self.group)
        comm.reduce(self.total.zero_(), SERVER, self.group)
        self.center.step(iter([self.total]), len(self.workers))

    def step(self, batch: Batch) -> torch.Tensor:
        """See ServerScheme."""
        loss = self.packed.backward(batch)
        comm.broadcast(self.on_host, SERVER, self.group)
        self.known_center.copy_(self.on_host)
        comm.reduce(self.on_host.copy_(self.packed.weights), SERVER, self.group)
        self.update.step()
        return loss

    def details(self) -> Mapping[str, Any]:
        """The moving rate used."""
        return {"moving_rate": self.moving_rate, "num_workers": len(self.workers)}


class _EasgdTogether(Scheme):
    """Every rank is a worker, N = P; the exchange may be under way during forward and backward."""

    source = _SOURCE
    axes = _TREE_AXES
    refused_passes: ClassVar[Mapping[str, str]] = {**NO_SKIP, **OWN_LOOP}
    refused_updates = OWN_RULE
    equals_serial = False
    criterion = _CRITERION
    overlaps: ClassVar[bool] = True

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        _check_rules(cls.name, job, job.num_ranks)

    @classmethod
    def effective_batch(cls, job: Job) -> int:
        """b: each worker steps with its own samples' gradient."""
        return job.group_batch

    def __init__(self, job: Job, world: World) -> None:
        super().__init__(job, world)
        self.group = world.groups(WORLD, job.mesh.groups(WORLD))
        self.moving_rate = settle_moving_rate(self.name, self.config, world.size)

    def build(self, model: nn.Sequential) -> None:
        """See Scheme. All start from the same weights, the center too."""
        self.packed = PackedModel(model, self.world.ledger, self.passes)
        self.center = self.packed.buffer().copy_(self.packed.weights)
        self.total = self.packed.buffer()
        rate = scaled_learning_rate(self.config, self.effective_batch(self.job))
        self.update = ElasticWorker(self.packed.weights, self.center, rate, self.moving_rate)
        follow_schedule(self.update, self.config, rate)

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        works = self.start_exchange() if self.overlaps else ()
        loss = self.packed.backward(batch)
        for work in works or self.start_exchange():
            if work is not None:
                work.wait()
        self.update_both()
        return loss

    @abstractmethod
    def start_exchange(self) -> Sequence[Any]:
        """Starts what brings center and sum of weights to whom they belong; all of values at time t."""

    @abstractmethod
    def update_both(self) -> None:
        """(1), and (2) where this rank keeps the center."""

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """The center, with rank 0's buffers."""
        return self.packed.state(self.center) if self.world.rank == 0 else None

    def details(self) -> Mapping[str, Any]:
        """The moving rate used."""
        return {"moving_rate": self.moving_rate, "num_workers": self.world.size}


class EasgdSync2(_EasgdTogether):
    """The center on rank 0, which works as well."""

    name = "easgd.sync2"
    summary = "Sync EASGD2: the center lives on the first worker's device."
    rule = (
        "All P ranks are workers (N = P); rank 0 holds Wb as well. Each step: gradients; broadcast of Wb; "
        "tree reduction of SUM_i W^i to rank 0. " + _RULES
    )
    volume = _ROOTED_VOLUME
    overlaps = False

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        return _rooted_traffic(job)

    def start_exchange(self) -> Sequence[Any]:
        """See _EasgdTogether."""
        self.total.copy_(self.packed.weights)
        return (
            comm.broadcast(self.center, 0, self.group, async_op=True),
            comm.reduce(self.total, 0, self.group, async_op=True),
        )

    def update_both(self) -> None:
        """See _EasgdTogether."""
        if self.world.rank == 0:
            self.update.step(self.total, self.world.size)
        else:
            self.update.step()


class EasgdSync3(EasgdSync2):
    """With the exchange behind the computation."""

    name = "easgd.sync3"
    summary = "Sync EASGD3: as sync2, with the exchange running during forward and backward."
    rule = (
        "As easgd.sync2; broadcast and reduction are started before forward and backward and waited for "
        "after them, which changes no value: both sides use W and Wb of time t."
    )
    criterion = _CRITERION + " The same iterates as easgd.sync2, bit by bit."
    overlaps = True


class EasgdSyncAr(_EasgdTogether):
    """No master: each rank keeps the center."""

    name = "easgd.sync_ar"
    summary = (
        "Masterless Sync EASGD: every rank keeps the center; one all-reduce, behind forward and backward."
    )
    rule = (
        "All P ranks are workers (N = P) and hold Wb each. An all-reduce of W^i is started before forward "
        "and backward and waited for after them; then every rank applies (1) and (2) by itself. " + _RULES
    )
    volume = "2 (P-1)/P |W| e: one all-reduce of |W| e per step."
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.ALL_REDUCE,
        StatePlacement.CENTER,
        "ring all-reduce",
    )

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        ranks = tuple(range(job.num_ranks))
        return (
            Traffic(
                collective="all_reduce", axis=WORLD, members=ranks, bytes=job.model_bytes, what="weights"
            ),
        )

    def start_exchange(self) -> Sequence[Any]:
        """See _EasgdTogether."""
        self.total.copy_(self.packed.weights)
        return (comm.all_reduce(self.total, self.group, async_op=True),)

    def update_both(self) -> None:
        """See _EasgdTogether."""
        self.update.step(self.total, self.world.size)
