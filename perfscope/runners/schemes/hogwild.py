"""Without a lock: all ranks of one host read and write one vector of weights as they please."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from perfscope.runners.config import BenchError
from perfscope.runners.job import Job
from perfscope.runners.mesh import WORLD
from perfscope.runners.schemes.base import CONSTANT_RULE, NO_SKIP, OWN_LOOP, OWN_RULE, Axes, Batch, Scheme
from perfscope.runners.schemes.easgd_rules import ElasticWorker, require_every_step, settle_moving_rate
from perfscope.runners.schemes.local import scaled_learning_rate
from perfscope.runners.schemes.server_base import RemoteUpdate, require_no_momentum
from perfscope.runners.schemes.server_packed import PackedModel
from perfscope.runners.schemes.shared_memory import UnlockedUpdates, map_shared, merged
from perfscope.runners.schemes.update_rules import follow_schedule
from perfscope.runners.traffic import Traffic
from perfscope.runners.world import World
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology

_UNLOCKED = (
    "No lock: while one worker adds, others read and add, so that parts of an update can be lost. How stale "
    "each update was is counted, and during how many updates another worker was seen writing; what was lost "
    "is not known. "
)


class _Unlocked(Scheme):
    """Every rank is a worker, N = P; what they share is in /dev/shm."""

    axes = Axes(
        (Parallelism.DATA,),
        Optimization.CENTRALIZED,
        Synchrony.ASYNCHRONOUS,
        Topology.SHARED_MEMORY,
        StatePlacement.SHARED_MEMORY,
        "shared memory",
    )
    refused_passes: ClassVar[Mapping[str, str]] = {**NO_SKIP, **OWN_LOOP}
    backends = ("gloo", "mpi")
    equals_serial = False
    deterministic = False
    one_host = True
    volume = "nothing over the network: |W| e are read from and added to shared memory per worker and step."

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        if job.config.num_hosts > 1:
            raise BenchError(
                f"{cls.name} keeps the weights in the memory of one host; it cannot run on "
                f"{job.config.num_hosts} hosts"
            )

    @classmethod
    def effective_batch(cls, job: Job) -> int:
        """b: one worker's samples are behind one update."""
        return job.group_batch

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        return ()

    def __init__(self, job: Job, world: World) -> None:
        super().__init__(job, world)
        group = world.groups(WORLD, job.mesh.groups(WORLD))
        self.transport = world.peers.transport(group) if world.size > 1 else None

    def build(self, model: nn.Sequential) -> None:
        """See Scheme. Rank 0 fills the shared weights; the barrier before training makes them everybody's."""
        self.packed = PackedModel(model, self.world.ledger, self.passes)
        self.shared = map_shared(self.name, self.packed.weights, self.world.size, self.transport)
        if self.world.rank == 0:
            self.shared.weights.copy_(self.packed.weights)
        self.unlocked = UnlockedUpdates(self.shared, self.world.rank)
        self.rate = scaled_learning_rate(self.config, self.effective_batch(self.job))
        self.recorded: dict[str, Any] = {}
        self.build_worker()

    @abstractmethod
    def build_worker(self) -> None:
        """Makes the optimizer."""

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """The shared weights, with rank 0's buffers; rank 0 also collects all workers' staleness."""
        counts = self.unlocked.as_json()
        parts = self.world.peers.gather(counts)
        self.recorded = counts if parts is None else merged(parts)
        return None if parts is None else self.packed.state(self.shared.weights)

    def details(self) -> Mapping[str, Any]:
        """Rank 0: all workers' staleness; others: their own."""
        return self.recorded


class HogwildSgd(_Unlocked):
    """ps.async_sgd without the server and its lock."""

    name = "hogwild.sgd"
    refused_updates = CONSTANT_RULE
    summary = "Hogwild: all workers of a host update one set of weights in shared memory, without a lock."
    rule = (
        "All P ranks of one host are workers (N = P, b = B/N samples each). Each step: copy W from shared "
        "memory, make G^i, W <- W - eta G^i in shared memory. " + _UNLOCKED
    )
    source = (
        "Recht et al., NIPS 2011, arXiv 1106.5730; You, Buluc, Demmel, SC'17, arXiv 1708.02983 (Hogwild SGD)."
    )
    criterion = (
        "With one worker it is serial SGD; with several the held-out loss falls at least half as far as "
        "serial's after equal samples, and the staleness histogram sums to the number of updates."
    )

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        super().check(job)
        require_no_momentum(cls.name, job.config, "ps.async_msgd")

    def build_worker(self) -> None:
        """See _Unlocked."""
        self.update = RemoteUpdate(self.packed.weights)

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self.unlocked.fetch(self.packed.weights)
        loss = self.packed.backward(batch)
        self.update.step(lambda: self.unlocked.add(self.packed.gradient.cpu(), -self.rate))
        return loss


class EasgdHogwild(_Unlocked):
    """easgd.async without the server and its lock."""

    name = "easgd.hogwild"
    refused_updates = OWN_RULE
    summary = "Elastic averaging with the center in shared memory, without a lock."
    rule = (
        "All P ranks of one host are workers (N = P, b = B/N samples each). Each step: make G^i, copy Wb "
        "from shared memory, W^i <- W^i - eta G^i - a (W^i - Wb) (1) at the worker, Wb <- Wb + a (W^i - Wb) "
        "in shared memory, the same difference on both sides. a is the moving rate, 0.9/N if none is given. "
        "" + _UNLOCKED
    )
    source = "You, Buluc, Demmel, SC'17, arXiv 1708.02983 (Hogwild EASGD)."
    criterion = (
        "With one worker it equals the single-process reference of easgd.async; with several the loss "
        "falls, and the staleness histogram sums to the number of updates."
    )

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        super().check(job)
        settle_moving_rate(cls.name, job.config, job.num_ranks)
        require_every_step(cls.name, job.config)
        require_no_momentum(cls.name, job.config, "easgd.async_mom")

    def build_worker(self) -> None:
        """See _Unlocked."""
        self.moving_rate = settle_moving_rate(self.name, self.config, self.world.size)
        self.known_center = torch.empty_like(self.packed.weights)
        self.update = ElasticWorker(self.packed.weights, self.known_center, self.rate, self.moving_rate)
        follow_schedule(self.update, self.config, self.rate)

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        loss = self.packed.backward(batch)
        self.unlocked.fetch(self.known_center)
        difference = self.packed.weights - self.known_center
        self.update.step()
        self.unlocked.add(difference.cpu(), self.moving_rate)
        return loss

    def details(self) -> Mapping[str, Any]:
        """As hogwild.sgd, and the moving rate used."""
        return {**super().details(), "moving_rate": self.moving_rate, "num_workers": self.world.size}
