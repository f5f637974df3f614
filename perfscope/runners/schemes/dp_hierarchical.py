"""Gradients summed inside of nodes first, so that a part of them crosses the slow links."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.compression.registry import make_exchange
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import Axes, Batch
from perfscope.runners.schemes.dp_gradients import CODECS, Replicas, collect_gradients, exchange_traffic
from perfscope.runners.schemes.host_groups import HostGroups
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology

_PART = "part"


class Hierarchical(HostGroups, Replicas):
    """Reduce-scatter in the node, all-reduce between nodes, all-gather in the node."""

    name = "dp.hierarchical"
    summary = "Data parallel; reduce-scatter in each node, all-reduce between nodes, all-gather in each node."
    rule = (
        "Gradients are packed. A reduce-scatter among the M ranks of a node (axis numa) leaves each the sum "
        "of ceil(|W|/M) elements; ranks of equal place in the D nodes average theirs by an all-reduce; an "
        "all-gather in the node brings all to all. Modifiers compress what goes between nodes only: with "
        "+topk or +mstopk this is HiTopKComm."
    )
    volume = "2 (M-1)/M |W| e inside the node, 2 (D-1)/D |W|/M e between nodes"
    source = (
        "NCCL's and Horovod's hierarchical all-reduce; Shi et al., MLSys 2021 (arXiv 2010.10458), HiTopKComm"
    )
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.HIERARCHICAL,
        StatePlacement.REPLICATED,
        "reduce-scatter and all-gather in nodes, all-reduce between",
    )
    members = "ranks along numa"
    modifiers = CODECS

    def build(self, model: nn.Module) -> None:
        """See Scheme."""
        mesh, self.model = self.job.mesh, model
        self._node = self.world.groups(Axis.NUMA, mesh.groups(Axis.NUMA))
        self._between = self.data_group()
        self._exchange = make_exchange(self.config)
        params = list(model.parameters())
        self._flat = self.world.ledger.flat(model)
        collect_gradients(params, self._flat)
        length = part_length(self._flat.numel(), self._node.size)
        self._padded = self._flat.new_zeros(length * self._node.size)
        self._part = self._flat.new_zeros(length)
        self._optimizer = make_optimizer(self, params)

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self._flat.zero_()
        loss = self.passes.run(self.model, batch)
        node, between = (group.carrying(self._flat) for group in (self._node, self._between))
        self._padded[: self._flat.numel()].copy_(self._flat)
        comm.reduce_scatter(self._part, self._padded, node)
        mean = self._exchange.start(_PART, self._part, between).wait() / node.size
        comm.all_gather(self._padded, mean, node)
        self._flat.copy_(self._padded[: self._flat.numel()])
        self.passes.update(self._optimizer)
        return loss

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        node = job.mesh.group(Axis.NUMA, rank)
        length = part_length(job.shape.num_params, len(node))
        inside = [
            Traffic(
                collective=collective,
                axis=Axis.NUMA,
                members=node,
                bytes=length * len(node) * job.element_size,
                what="gradients",
            )
            for collective in ("reduce_scatter", "all_gather")
            if len(node) > 1
        ]
        return [*inside, *exchange_traffic(job, job.mesh.group(Axis.DP, rank), [(_PART, length)])]


def part_length(numel: int, num_parts: int) -> int:
    """Elements of each of the equal parts; the last one is padded."""
    return -(-numel // num_parts)
