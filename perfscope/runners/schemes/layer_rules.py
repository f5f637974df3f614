"""LARS and LAMB: every layer has a rate of its own, from norms of the whole layer.

Ranks that keep a part of each layer add up the squares of their parts, so that all know the same norms.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.config import LAYERWISE
from perfscope.runners.job import Job
from perfscope.runners.traffic import Traffic

_TRUST = 0.001  # eta of LARS, section 5 of its paper
_BETAS, _EPSILON = (0.9, 0.999), 1e-6  # of LAMB


class Layers(NamedTuple):
    """Which parameters are a layer.

    Attributes:
        params: of each layer, as this rank holds them: whole, or a part of each.
        group: ranks that hold the parts of each layer; None = this rank holds all of it.
    """

    params: Sequence[Sequence[torch.Tensor]]
    group: Group | None = None


def layers_of(*models: nn.Module, group: Group | None = None) -> Layers:
    """A layer is a module that holds parameters itself: weight and bias together."""
    modules = chain.from_iterable(model.modules() for model in models)
    held = (list(module.parameters(recurse=False)) for module in modules)
    return Layers([params for params in held if params], group)


def norm_traffic(job: Job, axis: str, members: tuple[int, ...]) -> list[Traffic]:
    """What ranks that hold parts of each layer add up in a step: two squared norms of each layer."""
    if job.config.optimizer not in LAYERWISE or len(members) == 1:
        return []
    num_layers = len({name.rpartition(".")[0] for name, _ in job.shape.params})
    size = 2 * num_layers * job.element_size
    return [Traffic(collective="all_reduce", axis=axis, members=members, bytes=size, what="norms of layers")]


class LayerRule(torch.optim.Optimizer):
    """Updates layer by layer, each at the rate times a trust ratio of two norms.

    A ratio whose norms are not both positive is 1.

    Args:
        layers: of the model.
        settings: of the rule, and `lr`.
    """

    def __init__(self, layers: Layers, **settings: Any) -> None:
        super().__init__([{"params": params} for params in layers.params], settings)
        self._group = layers.group

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: None = None) -> None:
        """One update of all layers; the norms of all of them are one all-reduce."""
        parts = [
            [
                (param, *self._change(_local(param), _local(param.grad), self.state[param], group))
                for param in group["params"]
            ]
            for group in self.param_groups
        ]
        norms = self._norms(parts)
        for group, layer, (of_weights, of_other) in zip(self.param_groups, parts, norms, strict=True):
            ratio = self._ratio(of_weights, of_other, group) if of_weights > 0 and of_other > 0 else 1.0
            for param, change, _ in layer:
                self._apply(_local(param), change, group["lr"] * ratio, self.state[param], group)

    def _norms(self, parts: Any) -> list[tuple[float, float]]:
        """Of each layer: of its weights, and of what is measured against them."""
        squares = torch.stack(
            [
                torch.stack(
                    [
                        sum(_local(param).square().sum() for param, _, _ in layer),
                        sum(other.square().sum() for _, _, other in layer),
                    ]
                )
                for layer in parts
            ]
        )
        if self._group is not None:
            comm.all_reduce(squares, self._group)
        return [(sqrt(weights), sqrt(other)) for weights, other in squares.tolist()]

    @abstractmethod
    def _change(
        self, weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(the direction of the update, what its ratio measures) of one parameter; same shape."""

    @abstractmethod
    def _ratio(self, of_weights: float, of_other: float, group: dict[str, Any]) -> float:
        """The trust ratio of a layer; both norms are positive."""

    def _apply(
        self, weight: torch.Tensor, change: torch.Tensor, rate: float, state: dict[str, Any], group: Any
    ) -> None:
        """`rate` is that of the layer."""
        weight.sub_(change, alpha=rate)


class Lars(LayerRule):
    """v <- mu v + eta_t l (g + b w), w <- w - v, with l = 0.001 |w| / (|g| + b |w|).

    You, Gitman, Ginsburg 2017 (arXiv 1708.03888), algorithm 1. The rate is inside the momentum.
    """

    def _change(
        self, weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return gradient.add(weight, alpha=group["weight_decay"]), gradient

    def _ratio(self, of_weights: float, of_other: float, group: dict[str, Any]) -> float:
        return _TRUST * of_weights / (of_other + float(group["weight_decay"]) * of_weights)

    def _apply(
        self, weight: torch.Tensor, change: torch.Tensor, rate: float, state: dict[str, Any], group: Any
    ) -> None:
        speed = state.setdefault("momentum_buffer", torch.zeros_like(weight))
        weight.sub_(speed.mul_(group["momentum"]).add_(change, alpha=rate))


class Lamb(LayerRule):
    """r = m^ / (sqrt(v^) + e) as Adam's, u = r + b w, w <- w - eta_t |w| / |u| u.

    You et al., ICLR 2020 (arXiv 1904.00962), algorithm 2, with phi the identity and both means corrected.
    """

    def _change(
        self, weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = _BETAS
        if not state:
            state.update(step=0, mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
        state["step"] += 1
        mean = state["mean"].lerp_(gradient, 1 - first) / (1 - first ** state["step"])
        square = state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square / (1 - second ** state["step"])).sqrt_().add_(_EPSILON)
        change = mean.div_(root).add_(weight, alpha=group["weight_decay"])
        return change, change

    def _ratio(self, of_weights: float, of_other: float, group: dict[str, Any]) -> float:
        return of_weights / of_other


def _local(tensor: Any) -> torch.Tensor:
    """This rank's part of a tensor that FSDP has cut."""
    held: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return held
