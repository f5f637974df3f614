"""Splitting only the linear layers: pairs of a column-parallel and a row-parallel one, as in Megatron-LM.

Every rank of the group holds all activations outside of a pair, and computes everything else in full.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from perfscope.runners.comm import Group
from perfscope.runners.model_parallel.channels import Parts
from perfscope.runners.model_parallel.dropout import DropoutSeeds
from perfscope.runners.model_parallel.layers import SumGradients, SumParts, TakePart
from perfscope.runners.model_parallel.pieces import Pieces
from perfscope.runners.model_parallel.structure import Structure
from perfscope.runners.models.blocks import Block

COLUMN, ROW, SINGLE = "column", "row", "single"
FUSED = "qkv"  # a layer of that name has queries, keys and values one behind the other


def roles(names: list[str]) -> dict[str, str]:
    """Linear layers in forward order, two by two column and row; a last odd one is single.

    A single one is row-parallel too; its input is cut, which costs an all_gather backward.
    """
    role_of = {}
    for index, name in enumerate(names):
        if index % 2:
            role_of[name] = ROW
        else:
            role_of[name] = COLUMN if index + 1 < len(names) else SINGLE
    return role_of


class PairSurgeon:
    """Rebuilds a model in place: linear layers among its top-level children and those of transformer blocks
    are split, the rest is left."""

    def __init__(self, group: Group, structure: Structure, *, seed: int, device: torch.device) -> None:
        self.group, self.device = group, device
        self.dropouts = DropoutSeeds(structure, seed, device, group.index)
        self.pieces = Pieces()

    def split(self, model: nn.Sequential) -> nn.Sequential:
        """The model of this rank; `pieces` says what it holds of what."""
        linears = [name for name, module in model.named_children() if isinstance(module, nn.Linear)]
        role_of = roles(linears)
        children: OrderedDict[str, nn.Module] = OrderedDict()
        inside_pair = False
        for name, module in model.named_children():
            role = role_of.get(name)
            if isinstance(module, Block):
                children[name] = self._block(name, self.dropouts.seeded(module, name, split=False))
            elif role is None:
                children[name] = self.dropouts.seeded(module, name, split=inside_pair)
            elif role == COLUMN:
                children[f"{name}_gradient_sum"] = SumGradients(self.group)
                self._columns(name, module)
                children[name] = module
            else:
                if role == SINGLE:
                    children[f"{name}_take"] = TakePart(self.group)
                bias = self._rows(name, module)
                children[name] = module
                children[f"{name}_sum"] = SumParts(self.group, bias)
            inside_pair = role == COLUMN or (inside_pair and role is None)
        made = nn.Sequential(children)
        self.pieces.keep_rest(made)
        return made.to(self.device)

    def _block(self, name: str, block: Block) -> nn.Module:
        """Attention is split by heads, the feed-forward layers by hidden features; each is one pair."""
        for part, columns, second in block.pairs:
            pair = getattr(block, part)
            for first in columns:
                copies = 3 if first == FUSED else 1  # queries, keys and values of the same heads
                self._columns(f"{name}.{part}.{first}", getattr(pair, first), copies)
            bias = self._rows(f"{name}.{part}.{second}", getattr(pair, second))
            setattr(block, part, nn.Sequential(SumGradients(self.group), pair, SumParts(self.group, bias)))
        return block

    def _columns(self, name: str, layer: nn.Linear, copies: int = 1) -> None:
        width = layer.out_features // copies
        part = Parts.even(width, self.group.size).indices[self.group.index]
        own_columns = torch.cat([part + width * copy for copy in range(copies)])
        layer.weight = self.pieces.keep(f"{name}.weight", layer.weight, 0, own_columns)
        if layer.bias is not None:
            layer.bias = self.pieces.keep(f"{name}.bias", layer.bias, 0, own_columns)

    def _rows(self, name: str, layer: nn.Linear) -> nn.Parameter | None:
        own_rows = Parts.even(layer.in_features, self.group.size).indices[self.group.index]
        layer.weight = self.pieces.keep(f"{name}.weight", layer.weight, 1, own_rows)
        bias, layer.bias = layer.bias, None
        return None if bias is None else self.pieces.keep(f"{name}.bias", bias)
