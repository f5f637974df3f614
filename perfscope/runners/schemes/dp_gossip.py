"""Replicas that only meet their neighbors: weights are averaged along a ring."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import Axes, Batch
from perfscope.runners.schemes.dp_gradients import Replicas
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


class Gossip(Replicas):
    """No collective at all: each rank talks to two others."""

    name = "dp.gossip"
    summary = "Data parallel; every rank trains alone and averages its weights with two neighbors on a ring."
    rule = (
        "Each rank makes its own update with the gradient of its b = B/P samples, then sends its weights to "
        "the ranks before and behind it, and continues with the mean of its own and theirs. Momentum stays "
        "each rank's own. The result, also of an evaluation, is the mean of all replicas."
    )
    volume = "2 |W| e to neighbors, 1 |W| e with two ranks, whatever P is"
    source = "Lian et al., NeurIPS 2017 (arXiv 1705.09056), D-PSGD on a ring; synchronous, unlike AD-PSGD"
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.POINT_TO_POINT,
        StatePlacement.REPLICATED,
        "each with two neighbors on a ring",
    )
    equals_serial = False
    criterion = (
        "Equals a single-process simulation of P replicas to 1e-12 in float64; with up to three ranks "
        "and SGD it equals serial, because then neighbors are all ranks."
    )

    def build(self, model: nn.Module) -> None:
        """See Scheme."""
        self.model = model
        self._group = self.data_group()
        self._neighbors = neighbors(self._group.index, self._group.size)
        self._params = list(model.parameters())
        self._flat = self.world.ledger.flat(model)
        self._arriving = [self.world.ledger.flat(model) for _ in self._neighbors]
        self._optimizer = make_optimizer(self, self._params)

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.passes.run(self.model, batch)
        self.passes.update(self._optimizer)
        self._meet()
        return loss

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _meet(self) -> None:
        if not self._neighbors:
            return
        comm.flatten(self._params, self._flat)
        pending = []
        for neighbor, arriving in zip(self._neighbors, self._arriving, strict=True):
            # The lower rank sends first: NCCL runs the calls of a pair one after the other.
            calls = [(comm.send, self._flat), (comm.receive, arriving)]
            for call, weights in calls if self._group.index < neighbor else reversed(calls):
                pending.append(call(weights, neighbor, self._group, async_op=True))
        for work in pending:
            work.wait()
        for arriving in self._arriving:
            self._flat += arriving
        self._flat /= 1 + len(self._neighbors)
        comm.unflatten(self._flat, self._params)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme; the replicas themselves are left as they are."""
        mean = comm.flatten(self._params, torch.zeros_like(self._flat))
        comm.all_reduce(mean, self._group)
        mean /= self._group.size
        if self.world.rank:
            return None
        state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        comm.unflatten(mean, [state[name] for name, _ in self.model.named_parameters()])
        return state

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        members = job.mesh.group(Axis.DP, rank)
        return [
            Traffic(
                collective="send",
                axis=Axis.DP,
                members=(rank, members[neighbor]),
                bytes=job.model_bytes,
                what="weights",
                group_size=len(members),
            )
            for neighbor in neighbors(members.index(rank), len(members))
        ]


def neighbors(index: int, size: int) -> tuple[int, ...]:
    """Before and behind a place on a ring, in ascending order; one of two ranks, none of one."""
    return tuple(sorted({(index - 1) % size, (index + 1) % size} - {index}))
