"""The synchronous parameter server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from perfscope.runners.job import Job
from perfscope.runners.schemes.base import Axes, Batch
from perfscope.runners.schemes.layer_rules import layers_of
from perfscope.runners.schemes.server_base import SERVER_WORDS, SHARED_WORDS, RemoteUpdate, ServerScheme
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


class PsSync(ServerScheme):
    """Serial SGD on the server, gradients from the workers."""

    name = "ps.sync"
    summary = "Synchronous parameter server: it averages all workers' gradients, updates, sends weights back."
    rule = (
        SERVER_WORDS
        + SHARED_WORDS
        + "Each step the server takes the gradient of every worker in rank order, "
        "W <- W - eta * mean_i G^i (with momentum if asked for), and sends W to every worker."
    )
    source = "Li et al., OSDI 2014; as ConsistentParameterServer of Deep500 (without its lost root gradient)."
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.CENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.SERVER,
        StatePlacement.SERVER,
        "parameter server (1 of n)",
    )
    refused_updates: ClassVar[Mapping[str, str]] = {}
    equals_serial = True
    divides_servers = True
    deterministic = True

    @classmethod
    def effective_batch(cls, job: Job) -> int:
        """B: all workers' samples are behind one update."""
        return job.config.batch

    def build_server(self) -> None:
        """See ServerScheme."""
        self.optimizer = make_optimizer(self, [self.served], layers_of(self.packed.model))
        self.incoming = self.packed.buffer()[self.parts[self.world.rank]]

    def build_worker(self) -> None:
        """See ServerScheme."""
        self.update = RemoteUpdate(self.packed.weights)

    def serve(self) -> None:
        """See ServerScheme."""
        mean = self.served_gradient.zero_()
        for worker in self.workers:
            self.transport.receive(self.incoming, worker)
            mean += self.incoming
        mean /= len(self.workers)
        self.optimizer.step()
        for worker in self.workers:
            self.transport.send(self.served, worker)

    def step(self, batch: Batch) -> torch.Tensor:
        """See ServerScheme."""
        loss = self.packed.backward(batch)
        self.exchange(self.update)
        return loss
