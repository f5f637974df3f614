"""Elastic averaging with a server that holds the center: round robin, or first come, first served."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch

from perfscope.runners.job import Job
from perfscope.runners.schemes.base import OWN_RULE, Axes, Batch
from perfscope.runners.schemes.easgd_rules import (
    ElasticCenter,
    ElasticWorker,
    require_every_step,
    settle_moving_rate,
)
from perfscope.runners.schemes.server_base import (
    SERVER,
    SERVER_WORDS,
    ServerScheme,
    Staleness,
    require_no_momentum,
)
from perfscope.runners.schemes.update_rules import follow_schedule
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology

_SOURCE = "You, Buluc, Demmel, SC'17, arXiv 1708.02983; Zhang, Choromanska, LeCun, arXiv 1412.6651."


class EasgdOriginal(ServerScheme):
    """Strict rank order."""

    name = "easgd.original"
    summary = "Elastic averaging, round robin: workers visit the center one by one, in rank order."
    rule = (
        SERVER_WORDS + "At time t only worker j = t mod N exchanges: it sends W^j, gets Wb, and "
        "W^j <- W^j - eta G^j - a (W^j - Wb); the server Wb <- Wb + a (W^j - Wb). All right-hand sides are "
        "values of before. Gradients are made by all workers at the same time (each depends on its own W^j "
        "only); who comes early waits for its turn. a = eta*rho is the moving rate, 0.9/N if none is given."
    )
    source = _SOURCE
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.SERVER,
        StatePlacement.CENTER,
        "single master, round robin",
    )
    deterministic = True
    criterion = (
        "Center and losses equal a single-process reference of the rule to 1e-6 (float64); the loss falls."
    )
    refused_updates = OWN_RULE
    sends_up = "weights"
    momentum_scheme: ClassVar[str] = "easgd.async_mom"

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        super().check(job)
        settle_moving_rate(cls.name, job.config, cls.num_workers(job))
        require_every_step(cls.name, job.config)
        cls.check_momentum(job)

    @classmethod
    def check_momentum(cls, job: Job) -> None:
        """Rule (1) has none."""
        require_no_momentum(cls.name, job.config, cls.momentum_scheme)

    @property
    def moving_rate(self) -> float:
        """a."""
        return settle_moving_rate(self.name, self.config, len(self.workers))

    def build_server(self) -> None:
        """See ServerScheme. The server's packed weights are the center."""
        self.staleness = Staleness()
        self.incoming = self.packed.buffer()
        self.center = ElasticCenter(self.packed.weights, self.moving_rate)

    def build_worker(self) -> None:
        """See ServerScheme."""
        self.known_center = self.packed.buffer()
        self.update = ElasticWorker(
            self.packed.weights, self.known_center, self.rate, self.moving_rate, self.worker_momentum
        )
        follow_schedule(self.update, self.config, self.rate)

    @property
    def worker_momentum(self) -> float | None:
        """mu; None for rule (1)."""
        return None

    def order(self) -> Iterator[int | None]:
        """Whom the server hears in one round; None: the one who comes."""
        yield from self.workers

    def serve(self) -> None:
        """See ServerScheme."""
        self.center.step(self._round())

    def _round(self) -> Iterator[torch.Tensor]:
        for expected in self.order():
            worker = self.transport.receive(self.incoming, expected)
            self.transport.send(self.packed.weights, worker)  # of before the update: time t on both sides
            self.staleness.arrived(worker)
            yield self.incoming

    def step(self, batch: Batch) -> torch.Tensor:
        """See ServerScheme."""
        loss = self.packed.backward(batch)
        self.transport.send(self.packed.weights, SERVER)
        self.transport.receive(self.known_center, SERVER)
        self.update.step()
        return loss

    def details(self) -> Mapping[str, Any]:
        """The moving rate; on the server staleness and order of arrivals, too."""
        details = {"moving_rate": self.moving_rate, "num_workers": len(self.workers)}
        return {**details, **self.staleness.as_json()} if self.is_server else details


class EasgdAsync(EasgdOriginal):
    """First come, first served."""

    name = "easgd.async"
    summary = "Elastic averaging, asynchronous: each worker meets the center when it is ready."
    rule = (
        SERVER_WORDS + "First come, first served, one at a time: worker i sends W^i, gets Wb, and "
        "W^i <- W^i - eta G^i - a (W^i - Wb) (1); the server Wb <- Wb + a (W^i - Wb). a is the moving rate, "
        "0.9/N if none is given."
    )
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.ASYNCHRONOUS,
        Topology.SERVER,
        StatePlacement.CENTER,
        "single master",
    )
    deterministic = False
    criterion = (
        "Replaying the recorded order of arrivals in one process gives the same center to 1e-9 (float64); "
        "the staleness histogram sums to the number of updates; the loss falls."
    )

    def order(self) -> Iterator[int | None]:
        """The one who comes, N times."""
        for _ in self.workers:
            yield None


DEFAULT_MOMENTUM = 0.9


class EasgdAsyncMom(EasgdAsync):
    """With a velocity on each worker."""

    name = "easgd.async_mom"
    summary = "Elastic averaging, asynchronous, with momentum on every worker."
    rule = (
        SERVER_WORDS
        + "As easgd.async with V^i <- mu V^i - eta G^i (5) and W^i <- W^i + V^i - a (W^i - Wb) (6) on the "
        "workers. mu is the run's momentum, 0.9 if that is 0; each gradient then counts 1/(1-mu) times in "
        "the long run, so lower eta."
    )

    @classmethod
    def check_momentum(cls, job: Job) -> None:
        """Rules (5), (6) have it."""

    @property
    def worker_momentum(self) -> float | None:
        """mu."""
        return self.config.momentum or DEFAULT_MOMENTUM

    def details(self) -> Mapping[str, Any]:
        """As easgd.async, and the momentum used."""
        return {**super().details(), "momentum": self.worker_momentum}
