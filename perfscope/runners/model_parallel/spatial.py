"""Splitting a model along the rows of its maps: weights on every rank, halo rows between neighbors."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

import torch
from torch import nn

from perfscope.runners.comm import Group
from perfscope.runners.model_parallel.dropout import DropoutSeeds
from perfscope.runners.model_parallel.halo import ExchangeHalo, GatherRows, TakeRows
from perfscope.runners.model_parallel.layers import GroupBatchNorm
from perfscope.runners.model_parallel.pieces import Pieces
from perfscope.runners.model_parallel.rows import WINDOWED, Halo, can_split, split_rows, window_of
from perfscope.runners.model_parallel.structure import (
    Structure,
    has_weights,
    is_container,
    join,
    paths_of,
    steps_of,
)
from perfscope.runners.models.blocks import Branches, Residual


class Layout(Enum):
    """How an activation lies on the ranks."""

    SAMPLES = "samples"  # all rows on every rank; its gradient is not needed
    ROWS = "rows"  # own rows
    WHOLE = "whole"  # all rows on every rank, and the same gradient


class RowSurgeon:
    """Rebuilds a model in place: rows stay split until a map has fewer than there are ranks, or is flattened.

    Attributes:
        pieces: what this rank holds: everything.
        partial: parameters whose gradient is the sum over the group, because each rank sees its rows only.
    """

    def __init__(self, group: Group, structure: Structure, *, seed: int, device: torch.device) -> None:
        self.group, self.structure, self.device = group, structure, device
        self.dropouts = DropoutSeeds(structure, seed, device, group.index)
        self.pieces = Pieces()
        self.partial: list[nn.Parameter] = []

    def split(self, model: nn.Sequential) -> nn.Sequential:
        """The model of this rank; names of parameters stay what they are."""
        children, _ = self._way(model, "", Layout.SAMPLES)
        made = nn.Sequential(children).to(self.device)
        self.pieces.keep_rest(made)
        return made

    def _way(self, way: nn.Module, prefix: str, layout: Layout) -> tuple[OrderedDict[str, nn.Module], Layout]:
        out: OrderedDict[str, nn.Module] = OrderedDict()
        for name, path, module in steps_of(way, prefix):
            if layout is not Layout.WHOLE and not can_split(self.structure, path, module, self.group.size):
                if layout is Layout.ROWS:
                    owned = split_rows(self.structure.in_shapes[path][1], self.group.size)
                    out[f"{name}_gather"] = GatherRows(self.group, owned)
                layout = Layout.WHOLE
            if layout is Layout.WHOLE or isinstance(module, nn.Dropout):
                out[name] = self.dropouts.seeded(module, path, split=layout is Layout.ROWS)
            elif is_container(module):
                out[name] = self._container(path, module, layout)
                layout = Layout.ROWS
            elif isinstance(module, WINDOWED):
                self._windowed(name, path, module, layout, out)
                layout = Layout.ROWS
            elif isinstance(module, nn.BatchNorm2d):
                if layout is Layout.SAMPLES:
                    out[f"{name}_rows"] = self._own_rows(path)
                self.partial += [module.weight, module.bias]
                out[name] = GroupBatchNorm(self.group, module, self.structure.in_shapes[path][1])
                layout = Layout.ROWS
            else:
                out[name] = module
        return out, layout

    def _windowed(
        self, name: str, path: str, module: nn.Module, layout: Layout, out: OrderedDict[str, nn.Module]
    ) -> None:
        window = window_of(module, path)
        halo = Halo.of(self.structure.in_shapes[path][1], window, self.group.size)
        fill = float("-inf") if isinstance(module, nn.MaxPool2d) else 0.0
        me = self.group.index
        if layout is Layout.SAMPLES:
            out[f"{name}_rows"] = TakeRows(halo.needed[me], halo.padding[me], fill)
        elif not halo.is_nothing:
            out[f"{name}_halo"] = ExchangeHalo(self.group, halo, fill)
        horizontal = module.padding if isinstance(module.padding, int) else module.padding[1]
        module.padding = (0, horizontal)  # the vertical part comes with the rows
        if has_weights(module):
            self.partial += list(module.parameters())
        out[name] = module

    def _container(self, path: str, container: nn.Module, layout: Layout) -> nn.Module:
        made: dict[str, nn.Sequential] = {}
        for key, way in paths_of(container):
            children, end = self._way(way, join(path, key), layout)
            if end is Layout.SAMPLES:
                children["rows"] = self._own_rows(join(path, key))
            made[key] = nn.Sequential(children)
        if isinstance(container, Residual):
            return Residual(made["body"], made["shortcut"])
        return Branches(**made)

    def _own_rows(self, path: str) -> TakeRows:
        rows = split_rows(self.structure.in_shapes[path][1], self.group.size)[self.group.index]
        return TakeRows(rows, (0, 0), 0.0)
