"""torch's fully sharded data parallelism (FSDP2), over all ranks or inside groups of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from perfscope.runners.composed.shards import shard_blocks, shard_calls
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import (
    NO_SKIP,
    NO_WHOLE_GRADIENT,
    OF_TORCH,
    Axes,
    Batch,
    Scheme,
    passes_options,
)
from perfscope.runners.schemes.compilation import require_blocks
from perfscope.runners.schemes.dp_ddp import require_torch_group
from perfscope.runners.schemes.layer_rules import layers_of, norm_traffic
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology

SHARD, REPLICATE = "shard", "replicate"


class _Sharded(Scheme):
    """Weights, gradients and optimizer state are cut over a group; blocks are gathered when needed."""

    backends = OF_TORCH
    refused_updates = NO_WHOLE_GRADIENT
    refused_passes: ClassVar[Mapping[str, str]] = {
        **NO_SKIP,
        "accumulate": "every micro-batch would gather all weights again; leave it out",
        "activation_checkpointing": "it gathers weights again where they are used; leave it out",
    }
    shard_axis: ClassVar[str] = Axis.FSDP

    @classmethod
    def check(cls, job: Job) -> None:
        """See Scheme."""
        if (option := passes_options(job.config).get("compile")) is not None:
            require_blocks(cls.name, job, option, "weights are gathered between its layers")

    def build(self, model: nn.Sequential) -> None:
        """See Scheme. Every top-level child with parameters is an FSDP unit; tied weights are the root's."""
        require_torch_group(self.name)
        mesh = self._device_mesh(self.world.device.type)
        self.model = shard_blocks(model, mesh, self.job.shape.tied_block)
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


def _traffic(job: Job, rank: int, shard_axis: str) -> list[Traffic]:
    """Of fully_shard, and of rules that need norms of layers."""
    shards = shard_axis, job.mesh.group(Axis.FSDP, rank)
    replicas = REPLICATE, job.mesh.group(Axis.DP, rank)
    calls = shard_calls(job.shape.params, job.element_size, shards, replicas, (job.shape.tied_block,))
    return [*calls, *norm_traffic(job, *shards)]


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
        return _traffic(job, rank, Axis.FSDP)


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
        return _traffic(job, rank, SHARD)
