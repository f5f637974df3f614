"""MLSL's distributed update: every rank updates a slice of the weights. ZeRO-1 in today's words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import NO_SKIP, NO_WHOLE_GRADIENT, Axes, Batch
from perfscope.runners.schemes.dp_gradients import LayerGradients, Replicas, clear, on_ready
from perfscope.runners.schemes.layer_rules import Layers, norm_traffic
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


def owned(numel: int, parts: int) -> int:
    """Elements of a layer that one of `parts` ranks updates: ceil(numel / parts); the last are padded."""
    return -(-numel // parts)


class _Slices:
    """A layer's weights and gradients, padded to equal slices, and the update of this rank's slice."""

    def __init__(self, index: int, name: str, module: nn.Module, group: Group) -> None:
        params = list(module.parameters(recurse=False))
        numel = sum(param.numel() for param in params)
        self.length = owned(numel, group.size)
        self._group = group.serving(name)
        self._params = params
        padded = self.length * group.size
        self.gradient = params[0].new_zeros(padded)
        self.layer = LayerGradients(index, name, params, self.gradient)
        self._numel = numel
        self._slice = params[0].new_zeros(self.length)
        self._all = params[0].new_zeros(padded)
        self.own = nn.Parameter(params[0].new_zeros(self.length))
        self.own.grad = self._slice
        self._increment = params[0].new_zeros(self.length)
        self._work: Any = None

    def send_gradient(self) -> None:
        self._work = comm.reduce_scatter(self._slice, self.gradient, self._group, async_op=True)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def wait_gradient(self) -> None:
        self._wait()
        self._slice /= self._group.size
        begin = self._group.index * self.length
        comm.flatten(self._params, self._all)
        self.own.data.copy_(self._all[begin : begin + self.length])
        self._increment.copy_(self.own.data)

    def send_increment(self) -> None:
        torch.sub(self.own.data, self._increment, out=self._increment)
        self._work = comm.all_gather(self._all, self._increment, self._group, async_op=True)

    def wait_increment(self) -> None:
        self._wait()
        offset = 0
        for param in self._params:
            end = offset + param.numel()
            param.data += self._all[offset:end].view_as(param)
            offset = end

    def _wait(self) -> None:
        if self._work is not None:
            self._work.wait()
            self._work = None


class DistributedUpdate(Replicas):
    """Reduce-scatter, update of the owned slice, all-gather of increments."""

    name = "dp.dist_update"
    summary = "Data parallel; each rank updates 1/P of every layer and sends the increments (ZeRO-1)."
    rule = (
        "Per layer: a reduce-scatter, started when its gradient is ready, gives each rank the mean gradient"
        " of its ceil(|w|/P) elements; it makes the update of these alone, keeping momentum only for them; "
        "an all-gather brings the increments of all to all, which add them to their weights. Slices are "
        "padded to equal length."
    )
    volume = (
        "2 (P-1)/P |W| e as an all-reduce: per layer a reduce-scatter and an all-gather of P ceil(|w|/P) e"
    )
    source = "Intel MLSL, distributedUpdate; Rajbhandari et al. 2020 (arXiv 1910.02054), ZeRO stage 1"
    axes = Axes(
        (Parallelism.DATA,),
        Optimization.DECENTRALIZED,
        Synchrony.SYNCHRONOUS,
        Topology.ALL_GATHER,
        StatePlacement.SHARDED_OPTIMIZER,
        "reduce-scatter and all-gather among all",
    )
    refused_updates: ClassVar[Mapping[str, str]] = NO_WHOLE_GRADIENT
    refused_passes: ClassVar[Mapping[str, str]] = NO_SKIP

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        self.model = model
        group = self.data_group()
        owners = [
            (name, owner) for name, owner in model.named_modules() if list(owner.parameters(recurse=False))
        ]
        self._slices = [_Slices(i, name, module, group) for i, (name, module) in enumerate(owners)]
        layers = [part.layer for part in self._slices]
        on_ready(layers, lambda layer: self._slices[layer.index].send_gradient(), self.passes)
        own_slices = [part.own for part in self._slices]
        self._optimizer = make_optimizer(self, own_slices, Layers([[param] for param in own_slices], group))

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        clear(part.layer for part in self._slices)
        loss = self.passes.run(self.model, batch)
        for part in reversed(self._slices):
            part.wait_gradient()
        self.passes.update(self._optimizer)
        for part in self._slices:
            part.send_increment()
        for part in self._slices:
            part.wait_increment()
        return loss

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        members = job.mesh.group(Axis.DP, rank)
        sizes = Counter(
            len(members) * owned(layer.num_params, len(members)) * job.element_size
            for layer in job.shape.layers
        )
        return [
            Traffic(collective=collective, axis=Axis.DP, members=members, bytes=size, count=count, what=what)
            for collective, what in (("reduce_scatter", "gradients"), ("all_gather", "increments"))
            for size, count in sizes.items()
        ] + norm_traffic(job, Axis.DP, members)
