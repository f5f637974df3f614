"""Asynchronous parameter servers: first come, first served, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from perfscope.runners.job import Job
from perfscope.runners.schemes.base import Batch
from perfscope.runners.schemes.server_base import (
    SERVER_WORDS,
    SHARED_WORDS,
    ArrivalUpdate,
    RemoteUpdate,
    ServerScheme,
    Staleness,
    require_no_momentum,
)
from perfscope.vocabulary.taxonomy import Synchrony

DEFAULT_MOMENTUM = 0.9
DEFAULT_STALENESS = 1


def momentum_update(
    weights: torch.Tensor, gradient: torch.Tensor, velocity: torch.Tensor, rate: float, momentum: float
) -> None:
    """(3) V <- mu V - eta G;  (4) W <- W + V. In place; all (num_params,)."""
    velocity.mul_(momentum).add_(gradient, alpha=-rate)
    weights.add_(velocity)


class PsAsyncSgd(ServerScheme):
    """Each worker at its own pace."""

    name = "ps.async_sgd"
    summary = "Asynchronous parameter server: each worker's gradient is applied when it arrives."
    rule = (
        SERVER_WORDS
        + SHARED_WORDS
        + "The server takes gradients first come, first served (receive from any source), one at a time: "
        "W <- W - eta G^i, and sends W to that worker only. G^i was made with the W that worker i got last, "
        "and others have updated W since: their number is the staleness, whose histogram is recorded. Each "
        "worker makes `steps` updates from b samples: N * steps updates of W in all."
    )
    source = (
        "You, Buluc, Demmel, SC'17, arXiv 1708.02983 (Async SGD); InconsistentParameterServer of Deep500."
    )
    criterion = (
        "Replaying the recorded order of arrivals in one process gives the same weights to 1e-9 (float64); "
        "with one worker it is serial SGD; the staleness histogram sums to the number of updates; the loss "
        "falls."
    )

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        super().check(job)
        require_no_momentum(cls.name, job.config, "ps.async_msgd")

    divides_servers = True

    def build_server(self) -> None:
        """See ServerScheme."""
        self.staleness = Staleness()
        self.incoming = self.packed.buffer()[self.parts[self.world.rank]]
        self.update = ArrivalUpdate(self.served, self.apply)

    def apply(self, gradient: torch.Tensor) -> None:
        """One update of the server's weights."""
        self.served.add_(gradient, alpha=-self.rate)

    def build_worker(self) -> None:
        """See ServerScheme."""
        self.fetch = RemoteUpdate(self.packed.weights)

    def serve(self) -> None:
        """See ServerScheme."""
        self.update.step(self._round())

    def _round(self) -> Iterator[torch.Tensor]:
        for _ in self.workers:
            worker = self.transport.receive(self.incoming)
            self.staleness.arrived(worker)
            yield self.incoming
            self.answer(worker)

    def answer(self, worker: int) -> None:
        """The weights to a worker whose gradient is applied."""
        self.transport.send(self.served, worker)

    def step(self, batch: Batch) -> torch.Tensor:
        """See ServerScheme."""
        loss = self.packed.backward(batch)
        self.exchange(self.fetch)
        return loss

    def details(self) -> Mapping[str, Any]:
        """Server: staleness and order of arrivals."""
        return self.staleness.as_json() if self.is_server else {}


class BoundedStaleness(PsAsyncSgd):
    """No worker may be far ahead."""

    name = "ps.ssp"
    summary = "Asynchronous parameter server; a worker more than s steps ahead of the slowest waits."
    rule = (
        SERVER_WORDS
        + SHARED_WORDS
        + "As ps.async_sgd, but a worker whose gradients are more than s (--staleness, 1 without) ahead of "
        "those of the slowest worker gets its weights only when the slowest has caught up so far. With s = 0 "
        "every worker makes its k-th gradient before any makes its next. How often workers waited, and the "
        "largest lead, are recorded."
    )
    source = "Ho et al., NIPS 2013: stale synchronous parallel (SSP)."
    criterion = (
        "As ps.async_sgd, with the recorded order of arrivals; no gradient comes from a worker that is more "
        "than s steps ahead."
    )
    axes = ServerScheme.axes._replace(synchrony=Synchrony.BOUNDED)

    def build_server(self) -> None:
        """See ServerScheme."""
        super().build_server()
        given = self.config.staleness
        self.bound = DEFAULT_STALENESS if given is None else given
        self.steps = dict.fromkeys(self.workers, 0)
        self.waiting: list[int] = []
        self.num_waits = self.largest_lead = 0

    def answer(self, worker: int) -> None:
        """The weights to all who may go on."""
        self.largest_lead = max(self.largest_lead, self.steps[worker] - min(self.steps.values()))
        self.steps[worker] += 1
        slowest = min(self.steps.values())
        self.num_waits += self.steps[worker] - slowest > self.bound
        self.waiting.append(worker)
        for ready in [worker for worker in self.waiting if self.steps[worker] - slowest <= self.bound]:
            self.waiting.remove(ready)
            self.staleness.answered(ready)
            self.transport.send(self.served, ready)

    def details(self) -> Mapping[str, Any]:
        """Server: as ps.async_sgd; the bound, how often a worker waited, and the largest lead in steps."""
        if not self.is_server:
            return {}
        bounds = {"bound": self.bound, "num_waits": self.num_waits, "largest_lead": self.largest_lead}
        return {**super().details(), **bounds}


class PsAsyncMsgd(PsAsyncSgd):
    """Momentum lives on the server."""

    name = "ps.async_msgd"
    summary = "Asynchronous parameter server with momentum on the server."
    rule = (
        SERVER_WORDS
        + SHARED_WORDS
        + "As ps.async_sgd, with V <- mu V - eta G^i (3) and W <- W + V (4) on the server for each arriving "
        "gradient. mu is the run's momentum, 0.9 if that is 0; each gradient then counts 1/(1-mu) times in "
        "the long run, so lower eta."
    )
    source = "You, Buluc, Demmel, SC'17, arXiv 1708.02983 (Async MSGD)."

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme; momentum is welcome."""
        super(PsAsyncSgd, cls).check(job)

    def build_server(self) -> None:
        """See ServerScheme."""
        super().build_server()
        self.momentum = self.config.momentum or DEFAULT_MOMENTUM
        self.velocity = torch.zeros_like(self.served)

    def apply(self, gradient: torch.Tensor) -> None:
        """One update of the server's weights and velocity."""
        momentum_update(self.served, gradient, self.velocity, self.rate, self.momentum)

    def details(self) -> Mapping[str, Any]:
        """Server: staleness, order of arrivals, and the momentum used."""
        return {**super().details(), "momentum": self.momentum} if self.is_server else {}
