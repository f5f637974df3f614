"""Expert parallelism: each rank has some of the experts, and tokens go to them and back by all-to-all."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.models.llama import Experts, Mixture
from perfscope.runners.models.shapes import EXPERTS, ModelShape


class ExpertLayers(NamedTuple):
    """The experts of one block.

    Attributes:
        path: of the module that holds all of them.
        num_experts: how many there are.
        size: elements per sample that go to them: a row for each token and each expert that it takes.
        params: names of their parameters.
    """

    path: str
    num_experts: int
    size: int
    params: frozenset[str]


def expert_layers(shape: ModelShape) -> tuple[ExpertLayers, ...]:
    """Of all blocks, in forward order; empty for a model without experts."""
    paths = dict.fromkeys(layer.name.rpartition(".")[0] for layer in shape.layers if layer.kind == EXPERTS)
    layers = []
    for path in paths:
        inside = [layer for layer in shape.layers if layer.name.rpartition(".")[0] == path]
        params = frozenset(f"{layer.name}.weight" for layer in inside)
        layers.append(ExpertLayers(path, inside[0].weight_shape[0], inside[0].in_size, params))
    return tuple(layers)


def divide_experts(model: nn.Module, group: Group) -> None:
    """Leaves this rank's experts of each mixture; parameters keep their names."""
    for module in model.modules():
        if isinstance(module, Mixture):
            module.experts = ExchangedExperts(module.experts, group)


class ExchangedExperts(Experts):
    """Some of the experts on each rank of a group, the first ones on its first rank.

    Counts of rows per expert go ahead of the rows themselves; results and gradients go back the same way.
    """

    def __init__(self, experts: Experts, group: Group) -> None:
        nn.Module.__init__(self)
        self.group = group
        for name, layer in experts.named_children():
            self.add_module(name, layer)
            with torch.no_grad():
                layer.weight = nn.Parameter(layer.weight.chunk(group.size)[group.index].clone())

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Rows (n, width), those of the first expert of all first, `counts` of each, to the same shape."""
        arrived = torch.empty_like(counts)
        comm.all_to_all(arrived, counts, self.group)
        by_rank = arrived.view(self.group.size, -1)  # [from, expert of this rank]
        sent, received = counts.view(self.group.size, -1).sum(1).tolist(), by_rank.sum(1).tolist()
        rows = _exchanged(x, received, sent, self.group)
        experts = torch.arange(by_rank.shape[1], device=x.device).repeat(self.group.size)
        order = experts.repeat_interleave(arrived).argsort(stable=True)  # rows of one expert together
        made = super().forward(rows[order], by_rank.sum(0))
        return _exchanged(torch.empty_like(made).index_copy(0, order, made), sent, received, self.group)


def _exchanged(x: torch.Tensor, received: list[int], sent: list[int], group: Group) -> torch.Tensor:
    """Rows from all ranks of the group, `sent` of x to each; gradients go the opposite way."""
    from torch.distributed import _functional_collectives as collectives

    rows = collectives.all_to_all_single_autograd(x, received, sent, group.handle)
    return torch.ops._c10d_functional.wait_tensor(rows)
