"""One replica per NUMA domain: gradients go up and down a tree in each chip, and between the chips' roots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.schemes.base import Axes, Batch
from perfscope.runners.schemes.host_groups import HostGroups
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


class NumaReplica(HostGroups):
    """D chips of M replicas."""

    name = "hy.numa_replica"
    summary = (
        "M replicas inside a chip (one per NUMA domain) sum gradients along a tree; D chips meet at its root."
    )
    rule = (
        "Both axes split the batch: each of the P = D*M ranks trains a whole copy on B/P samples. Gradients "
        "are packed and summed up a binary tree to the chip's first rank, summed between these D ranks by "
        "all-reduce, sent down the tree and divided by P; each replica updates its own copy. Use --bind "
        "numa."
    )
    volume = "|w|*e up and |w|*e down each of a chip's M-1 tree edges; the D roots 2(D-1)/D * |w|*e each"
    source = "You, Buluc, Demmel 2017 (arXiv 1708.02983), KNL chip partitioning"
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.HIERARCHICAL,
        StatePlacement.REPLICATED,
        "binary tree in the chip, ring all-reduce between roots",
    )
    members = "replicas of a chip"

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        chip, roots = job.mesh.group(Axis.NUMA, rank), _roots(job.mesh)
        position = chip.index(rank)

        def send(to: int, what: str) -> Traffic:
            return Traffic(
                collective="send",
                axis=Axis.NUMA,
                members=(rank, chip[to]),
                bytes=job.model_bytes,
                what=what,
                group_size=len(chip),
            )

        sends = [send(parent(position), "gradients up the tree")] if position else []
        if position == 0 and len(roots) > 1:
            sends.append(
                Traffic(
                    collective="all_reduce",
                    axis=Axis.DP,
                    members=roots,
                    bytes=job.model_bytes,
                    what="gradients between chips",
                )
            )
        sends += [send(child, "gradients down the tree") for child in children(position, len(chip))]
        return sends

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        mesh = self.job.mesh
        self._chip = self.world.groups(Axis.NUMA, mesh.groups(Axis.NUMA))
        self._roots = self.world.groups(Axis.DP, [_roots(mesh)])
        self.model = model
        self._params = list(model.parameters())
        ledger, has_children = self.world.ledger, bool(children(self._chip.index, self._chip.size))
        self._flat = ledger.flat(model)
        self._arriving = ledger.flat(model) if has_children else None
        self.optimizer = make_optimizer(self, self._params)

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.passes.run(self.model, batch)
        gradients = [value.grad for value in self._params]
        total = comm.flatten(gradients, self._flat)
        tree_sum(total, self._arriving, self._chip)
        if self._chip.index == 0:
            comm.all_reduce(total, self._roots)
        tree_broadcast(total, self._chip)
        total /= self.job.num_ranks
        comm.unflatten(total, gradients)
        self.passes.update(self.optimizer)
        return loss

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme."""
        if self.world.rank:
            return None
        return {name: value.detach() for name, value in self.model.state_dict().items()}


def parent(position: int) -> int:
    """Parent of `position` (not 0) in the binary tree, its lowest set bit cleared: 1->0, 3->2, 2->0."""
    return position & (position - 1)


def children(position: int, size: int) -> tuple[int, ...]:
    """Below `position` among `size`, the largest subtree first; the root is 0."""
    limit = (position & -position) or size
    children_found = []
    bit = 1
    while bit < limit and position + bit < size:
        children_found.append(position + bit)
        bit *= 2
    return tuple(reversed(children_found))


def tree_sum(tensor: torch.Tensor, arriving: torch.Tensor | None, group: Group) -> None:
    """The sum over the group, in `tensor` of its first rank; elsewhere `tensor` holds the sum of the subtree.

    Args:
        tensor: in and out.
        arriving: memory of the same size, for ranks with children.
        group: of the tree.
    """
    if arriving is not None:
        for child in reversed(children(group.index, group.size)):  # the smallest subtree is ready first
            comm.receive(arriving, child, group)
            tensor += arriving
    if group.index > 0:
        comm.send(tensor, parent(group.index), group)


def tree_broadcast(tensor: torch.Tensor, group: Group) -> None:
    """`tensor` of the group's first rank, on all of them."""
    if group.index > 0:
        comm.receive(tensor, parent(group.index), group)
    for child in children(group.index, group.size):
        comm.send(tensor, child, group)


def _roots(mesh: Mesh) -> tuple[int, ...]:
    return tuple(mesh.rank_of({Axis.DP: d}) for d in range(mesh.size(Axis.DP)))
