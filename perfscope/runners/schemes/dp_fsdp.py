"""torch's fully sharded data parallelism (FSDP2), over all ranks or inside groups of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from perfscope.runners.job import Job
from perfscope.runners.schemes.base import NO_SKIP, NO_WHOLE_GRADIENT, Axes, Batch, Scheme
from perfscope.runners.schemes.dp_ddp import require_torch_group
from perfscope.runners.schemes.layer_rules import layers_of, norm_traffic
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology

SHARD, REPLICATE = "shard", "replicate"


def padded_elements(shape: tuple[int, ...], parts: int) -> int:
    """Elements of a parameter whose dim 0 FSDP has padded to a multiple of the number of shards."""
    return -(-shape[0] // parts) * parts * prod(shape[1:])


class _Sharded(Scheme):
    """Weights, gradients and optimizer state are cut over a group; blocks are gathered when needed."""

    refused_updates = NO_WHOLE_GRADIENT
    refused_passes: ClassVar[Mapping[str, str]] = {
        **NO_SKIP,
        "accumulate": "every micro-batch would gather all weights again; leave it out",
        "activation_checkpointing": "it gathers weights again where they are used; leave it out",
    }
    shard_axis: ClassVar[str] = Axis.FSDP

    def build(self, model: nn.Sequential) -> None:
        """See Scheme. Every top-level child with parameters is an FSDP unit; tied weights are the root's."""
        require_torch_group(self.name)
        mesh = self._device_mesh(self.world.device.type)
        # A linear layer on sequences returns a view; nothing here changes one in place.
        warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \(\w+\) returned a view tensor")
        root = _root_block(self.job)
        for name, child in model.named_children():
            if name != root and next(child.parameters(), None) is not None:
                fully_shard(child, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        # one rank of a group holds nothing of a layer that has fewer rows than the group ranks
        group = self.world.groups(self.shard_axis, self.job.mesh.groups(Axis.FSDP))
        layers = layers_of(self.model, group=group)
        self._optimizer = make_optimizer(self, self.model.parameters(), layers)

    def _device_mesh(self, device_type: str) -> Any:
        raise NotImplementedError

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.passes.run(self.model, batch)
        self.passes.update(self._optimizer)
        return loss

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme. Gathers one tensor after the other."""
        state = {
            name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in self.model.state_dict().items()
        }
        return None if self.world.rank else {name: value.detach() for name, value in state.items()}


def _shard_traffic(job: Job, axis: str, members: tuple[int, ...]) -> list[Traffic]:
    """Per block: gathered for the forward pass, again for the backward pass, gradients scattered once."""
    calls = []
    for block in job.shape.blocks:
        size = _block_bytes(job, block, len(members))
        gathers = 1 if block == _root_block(job) else 2
        if size and len(members) > 1:
            calls += [
                _by_fsdp("all_gather", axis, members, size, f"weights of {block}", gathers),
                _by_fsdp("reduce_scatter", axis, members, size, f"gradients of {block}", 1),
            ]
    return [*calls, *norm_traffic(job, axis, members)]


def _root_block(job: Job) -> str | None:
    """The block whose weights the head uses again: kept from its forward pass to its backward pass."""
    return job.shape.blocks[0] if job.shape.is_tied else None


def _block_bytes(job: Job, block: str, parts: int) -> int:
    shapes = [shape for name, shape in job.shape.params if name.split(".")[0] == block]
    return job.element_size * sum(padded_elements(shape, parts) for shape in shapes)


def _by_fsdp(
    collective: str, axis: str, members: tuple[int, ...], size: int, what: str, count: int
) -> Traffic:
    return Traffic(
        collective=collective, axis=axis, members=members, bytes=size, count=count, what=what, by_library=True
    )


class FSDP(_Sharded):
    """One shard per rank."""

    name = "dp.fsdp"
    summary = (
        "Data parallel by torch's fully_shard: weights, gradients and optimizer state are cut over all ranks."
    )
    rule = (
        "Each block's parameters are cut along dim 0, padded to P equal parts. A block is gathered for its "
        "forward pass, dropped, gathered again for its backward pass; a reduce-scatter leaves each rank the"
        " mean gradient of its part, which it updates. Next blocks are gathered ahead."
    )
    volume = "3 (P-1)/P |W| e: 2 all-gathers and 1 reduce-scatter per block, dim 0 padded to P"
    source = "Zhao et al., VLDB 2023 (arXiv 2304.11277); torch.distributed.fsdp.fully_shard"
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.ALL_GATHER,
        StatePlacement.SHARDED,
        "all-gather and reduce-scatter among all",
    )
    splits = (Axis.FSDP,)

    def _device_mesh(self, device_type: str) -> Any:
        return init_device_mesh(device_type, (self.job.num_ranks,), mesh_dim_names=(SHARD,))

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        return _shard_traffic(job, Axis.FSDP, job.mesh.group(Axis.FSDP, rank))


class HSDP(_Sharded):
    """M shards inside D replicas."""

    name = "dp.hsdp"
    summary = (
        "Data parallel by torch's fully_shard on a D x M mesh: D replicas, each cut over M consecutive ranks."
    )
    rule = (
        "As dp.fsdp inside each group of M consecutive ranks; then each rank's part of the gradient is "
        "averaged by an all-reduce over the D replicas. M counts shards here, not model parts: all P = D M "
        "ranks train on different samples, b = B/P."
    )
    volume = "3 (M-1)/M |W| e inside the group of M, 2 (D-1)/D |W|/M e between the D replicas"
    source = "torch.distributed.fsdp.fully_shard with a 2-d mesh (hybrid sharding)"
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.HIERARCHICAL,
        StatePlacement.SHARDED,
        "all-gather and reduce-scatter in groups, all-reduce between",
    )
    splits = (Axis.DP, Axis.FSDP)
    shard_axis = SHARD

    @classmethod
    def placement_groups(cls, job: Job) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """See Scheme."""
        by_axis = {REPLICATE: job.mesh.groups(Axis.DP), SHARD: job.mesh.groups(Axis.FSDP)}
        return {axis: groups for axis, groups in by_axis.items() if len(groups[0]) > 1}

    def _device_mesh(self, device_type: str) -> Any:
        mesh = self.job.mesh
        if mesh.size(Axis.DP) == 1:  # with a second axis FSDP would call all_reduce in groups of one
            return init_device_mesh(device_type, (mesh.size(Axis.FSDP),), mesh_dim_names=(SHARD,))
        return init_device_mesh(
            device_type, (mesh.size(Axis.DP), mesh.size(Axis.FSDP)), mesh_dim_names=(REPLICATE, SHARD)
        )

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        shards, replicas = job.mesh.group(Axis.FSDP, rank), job.mesh.group(Axis.DP, rank)
        calls = _shard_traffic(job, SHARD, shards)
        for block in job.shape.blocks:
            size = _block_bytes(job, block, len(shards)) // len(shards)
            if size and len(replicas) > 1:
                calls.append(_by_fsdp("all_reduce", REPLICATE, replicas, size, f"gradients of {block}", 1))
        return calls
