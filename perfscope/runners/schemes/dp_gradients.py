"""Gradients of a replica, layer by layer: flat buffers, and when each is ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import ClassVar

import torch
from torch import nn

from perfscope.runners.comm import Group
from perfscope.runners.compression.registry import make_exchange
from perfscope.runners.job import Job
from perfscope.runners.schemes.base import Axes, Scheme
from perfscope.runners.schemes.passes import Passes
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology

CODECS = frozenset({"fp16", "bf16", "int8", "onebit", "topk", "mstopk", "powersgd"})
ALL_REDUCE_AXES = Axes(
    (Parallelism.DATA,),
    Optimization.DECENTRALIZED,
    Synchrony.SYNCHRONOUS,
    Topology.ALL_REDUCE,
    StatePlacement.REPLICATED,
    "all-reduce among all",
)


def collect_gradients(params: Iterable[nn.Parameter], flat: torch.Tensor) -> None:
    """Makes the parameters' `.grad` views of one 1-d buffer, one behind the other."""
    offset = 0
    for param in params:
        param.grad = flat[offset : offset + param.numel()].view_as(param)
        offset += param.numel()


class LayerGradients:
    """Gradients of one layer in one flat buffer. The parameters' `.grad` are views of it: nothing is copied.

    Attributes:
        index: place among the layers, in forward order.
        name: qualified module path.
        params: of the layer itself, in the module's order: weight, bias.
        flat: 1-d; the gradients one behind the other.
    """

    def __init__(
        self, index: int, name: str, params: Iterable[nn.Parameter], flat: torch.Tensor | None = None
    ) -> None:
        self.index, self.name = index, name
        self.params = list(params)
        size = sum(param.numel() for param in self.params)
        self.flat = self.params[0].new_zeros(size) if flat is None else flat
        collect_gradients(self.params, self.flat)

    def take(self, mean: torch.Tensor, start: int = 0) -> None:
        """Puts an exchanged piece back where it came from, unless it is there already."""
        target = self.flat[start : start + mean.numel()]
        if mean.data_ptr() != target.data_ptr():
            target.copy_(mean)


def gradients_by_layer(named: Iterable[tuple[str, nn.Parameter]]) -> list[LayerGradients]:
    """Parameters by the layer that their names begin with, in this order. Sets the `.grad` of all of them."""
    layers: dict[str, list[nn.Parameter]] = {}
    for name, param in named:
        layers.setdefault(name.rpartition(".")[0], []).append(param)
    return [LayerGradients(index, name, params) for index, (name, params) in enumerate(layers.items())]


def clear(layers: Iterable[LayerGradients]) -> None:
    """Before a backward pass, which adds to what is there."""
    for layer in layers:
        layer.flat.zero_()


def on_ready(
    layers: Iterable[LayerGradients],
    ready: Callable[[LayerGradients], None],
    passes: Passes,
    num_passes: int = 1,
) -> None:
    """Calls `ready(layer)` in the last backward pass of a step as soon as a layer's gradients are complete.

    `num_passes` is how many backward passes a step has that `passes` does not know of, as in a pipeline.
    Autograd runs a graph's nodes in the same order on every rank (on one device, newest first), so that
    collectives that are started from here match.
    """

    def watch(layer: LayerGradients) -> None:
        missing = needed = len(layer.params) * num_passes

        def hook(_: torch.Tensor) -> None:
            nonlocal missing
            if not passes.last:
                return
            missing -= 1
            if missing == 0:
                missing = needed
                ready(layer)

        for param in layer.params:
            param.register_post_accumulate_grad_hook(hook)

    for layer in layers:
        watch(layer)


def exchange_traffic(
    job: Job, members: tuple[int, ...], pieces: Iterable[tuple[Hashable, int]]
) -> Sequence[Traffic]:
    """What averaging gradients over the data group sends, given (key, number of elements) of each piece."""
    exchange = make_exchange(job.config)
    calls = Counter(
        sent for key, numel in pieces for sent in exchange.sends(numel, job.element_size, len(members), key)
    )
    return [
        Traffic(
            collective=sent.collective,
            axis=Axis.DP,
            members=members,
            bytes=sent.bytes,
            count=count,
            what="gradients",
        )
        for sent, count in calls.items()
    ]


class Replicas(Scheme):
    """Every rank holds the whole model and trains on its part of the batch."""

    axes: ClassVar[Axes] = ALL_REDUCE_AXES
    splits: ClassVar[tuple[Axis, ...]] = (Axis.DP,)

    def data_group(self) -> Group:
        """All ranks."""
        return self.world.groups(Axis.DP, self.job.mesh.groups(Axis.DP))

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme; replicas are equal, rank 0 gives its own."""
        if self.world.rank:
            return None
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    model: nn.Module
