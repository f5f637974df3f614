"""Asynchronous parameter servers: first come, first served, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from perfscope.runners.job import Job
from perfscope.runners.schemes.base import Batch
from perfscope.runners.schemes.server_base import (
    SERVER,
    SERVER_WORDS,
    ArrivalUpdate,
    RemoteUpdate,
    ServerScheme,
    Staleness,
    require_no_momentum,
)

DEFAULT_MOMENTUM = 0.9


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

    def build_server(self) -> None:
        """See ServerScheme."""
        self.staleness = Staleness()
        self.incoming = self.packed.buffer()
        self.update = ArrivalUpdate(self.packed.weights, self.apply)

    def apply(self, gradient: torch.Tensor) -> None:
        """One update of the server's weights."""
        self.packed.weights.add_(gradient, alpha=-self.rate)

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
            self.transport.send(self.packed.weights, worker)

    def step(self, batch: Batch) -> torch.Tensor:
        """See ServerScheme."""
        loss = self.packed.backward(batch)
        self.transport.send(self.packed.gradient, SERVER)
        self.fetch.step(lambda: self.transport.receive(self.packed.weights, SERVER))
        return loss

    def details(self) -> Mapping[str, Any]:
        """Server: staleness and order of arrivals."""
        return self.staleness.as_json() if self.is_server else {}


class PsAsyncMsgd(PsAsyncSgd):
    """Momentum lives on the server."""

    name = "ps.async_msgd"
    summary = "Asynchronous parameter server with momentum on the server."
    rule = (
        SERVER_WORDS
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
        self.velocity = torch.zeros_like(self.packed.weights)

    def apply(self, gradient: torch.Tensor) -> None:
        """One update of the server's weights and velocity."""
        momentum_update(self.packed.weights, gradient, self.velocity, self.rate, self.momentum)

    def details(self) -> Mapping[str, Any]:
        """Server: staleness, order of arrivals, and the momentum used."""
        return {**super().details(), "momentum": self.momentum} if self.is_server else {}
