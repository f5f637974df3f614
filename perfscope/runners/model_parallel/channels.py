"""Splitting a model along channels: by output maps (filter) or by input maps (channel).

Between layers every rank holds some of the channels; which ones is a `Parts`. A whole activation (the
samples, or what was gathered for several layers) is None in its place; its gradient on a rank is partial,
or is not needed. ReLU, pools, BatchNorm and dropout work on own channels alone, so they need nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from perfscope.runners.comm import Group
from perfscope.runners.model_parallel.dropout import DropoutSeeds
from perfscope.runners.model_parallel.layers import (
    Gather,
    GatherOutput,
    Keep,
    ScatterSum,
    SumParts,
)
from perfscope.runners.model_parallel.pieces import Pieces
from perfscope.runners.model_parallel.structure import (
    Structure,
    has_weights,
    holds_weights,
    is_container,
    join,
    paths_of,
    steps_of,
)
from perfscope.runners.models.blocks import Branches, Residual

Children = OrderedDict[str, nn.Module]


@dataclass(frozen=True, slots=True)
class Parts:
    """Which channels (or features) each rank of the group holds.

    Attributes:
        indices: by rank, in the order in which it holds them; int64, equally many.
    """

    indices: tuple[torch.Tensor, ...]

    @classmethod
    def even(cls, num: int, num_ranks: int) -> Parts:
        """Consecutive ones, in order of rank."""
        return cls(torch.arange(num).chunk(num_ranks))

    @property
    def in_order(self) -> bool:
        """Whether gathering them gives them in order."""
        gathered = torch.cat(self.indices)
        return bool(torch.equal(gathered, torch.arange(len(gathered))))

    def order(self) -> torch.Tensor | None:
        """Where to find each channel among the gathered; None if in order."""
        return None if self.in_order else torch.argsort(torch.cat(self.indices))

    def flattened(self, area: int) -> Parts:
        """Features, when channels of `area` pixels each are flattened."""
        pixels = torch.arange(area)
        return Parts(tuple((index[:, None] * area + pixels).reshape(-1) for index in self.indices))

    @classmethod
    def concatenated(cls, parts: list[Parts]) -> Parts:
        """Channels of several parts one behind the other, on every rank."""
        indices: list[list[torch.Tensor]] = [[] for _ in parts[0].indices]
        offset = 0
        for part in parts:
            for mine, index in zip(indices, part.indices, strict=True):
                mine.append(index + offset)
            offset += sum(map(len, part.indices))
        return cls(tuple(torch.cat(mine) for mine in indices))


class ChannelSurgeon:
    """Rebuilds a model in place, with what this rank keeps of each layer.

    by_filter: each rank computes K / M of a layer's maps from all C: the input is gathered in front of the
    layer, once for all branches of a block. Otherwise each rank computes partial sums of all K maps from its
    C / M, which are summed and scattered behind the layer; the last layer's are summed on every rank; layers
    that see the samples compute K / M maps from all, which costs nothing.
    """

    def __init__(
        self, group: Group, structure: Structure, *, by_filter: bool, seed: int, device: torch.device
    ) -> None:
        self.group, self.structure, self.by_filter = group, structure, by_filter
        self.device = device
        self.dropouts = DropoutSeeds(structure, seed, device, group.index)
        self.pieces = Pieces()
        last = structure.last_layer()
        self.last = last if "." not in last else ""

    def split(self, model: nn.Sequential) -> nn.Sequential:
        """The model of this rank. Its layers keep their names; `pieces` says what it holds of what."""
        children, layout = self._way(model, "", None)
        if layout is not None:
            children["output_gather"] = GatherOutput(self.group, layout.order())
        return nn.Sequential(children).to(self.device)

    def _way(self, way: nn.Module, prefix: str, layout: Parts | None) -> tuple[Children, Parts | None]:
        out: Children = OrderedDict()
        for name, path, module in steps_of(way, prefix):
            if has_weights(module):
                layout = self._layer(name, path, module, layout, out)
            elif isinstance(module, nn.BatchNorm2d):
                layout = self._norm(name, path, module, layout, out)
            elif is_container(module):
                layout = self._container(name, path, module, layout, out)
            elif isinstance(module, nn.Flatten):
                shape = self.structure.in_shapes[path]
                if layout is not None and len(shape) == 3:
                    layout = layout.flattened(shape[1] * shape[2])
                out[name] = module
            elif isinstance(module, nn.Dropout):
                out[name] = self.dropouts.seeded(module, path, split=layout is not None)
            else:
                out[name] = module
        return out, layout

    def _layer(
        self, name: str, path: str, layer: nn.Module, layout: Parts | None, out: Children
    ) -> Parts | None:
        num_out = layer.weight.shape[0]
        parts = Parts.even(num_out, self.group.size)
        own_index = parts.indices[self.group.index]
        if self.by_filter or layout is None:
            if layout is not None:
                out[f"{name}_gather"] = Gather(self.group, layout.order())
            layer.weight = self.pieces.keep(f"{path}.weight", layer.weight, 0, own_index)
            if layer.bias is not None:
                layer.bias = self.pieces.keep(f"{path}.bias", layer.bias, 0, own_index)
            out[name] = layer
            return parts
        layer.weight = self.pieces.keep(f"{path}.weight", layer.weight, 1, layout.indices[self.group.index])
        bias, layer.bias = layer.bias, None
        out[name] = layer
        if path == self.last:
            if bias is not None:
                bias = self.pieces.keep(f"{path}.bias", bias)
            out[f"{name}_sum"] = SumParts(self.group, bias)
            return None
        if bias is not None:
            bias = self.pieces.keep(f"{path}.bias", bias, 0, own_index)
        out[f"{name}_scatter"] = ScatterSum(self.group, bias)
        return parts

    def _norm(self, name: str, path: str, norm: nn.BatchNorm2d, layout: Parts | None, out: Children) -> Parts:
        if layout is None:
            layout = self._keep(f"{name}_keep", norm.num_features, out)
        own_index = layout.indices[self.group.index]
        for field in ("weight", "bias"):
            setattr(norm, field, self.pieces.keep(f"{path}.{field}", getattr(norm, field), 0, own_index))
        for field in ("running_mean", "running_var"):
            setattr(
                norm, field, self.pieces.keep_buffer(f"{path}.{field}", getattr(norm, field), 0, own_index)
            )
        norm.num_batches_tracked = self.pieces.keep_buffer(
            f"{path}.num_batches_tracked", norm.num_batches_tracked
        )
        norm.num_features = len(own_index)
        out[name] = norm
        return layout

    def _container(
        self, name: str, path: str, container: nn.Module, layout: Parts | None, out: Children
    ) -> Parts:
        ways = list(paths_of(container))
        if self.by_filter and layout is not None and sum(holds_weights(way) for _, way in ways) > 1:
            out[f"{name}_gather"] = Gather(self.group, layout.order())
            layout = None
        in_order = isinstance(container, Residual)
        ends: list[Parts] = []
        made: dict[str, nn.Sequential] = {}
        for key, way in ways:
            children, end = self._way(way, join(path, key), layout)
            num_maps = self.structure.out_shapes[join(path, key)][0]
            if end is None:
                end = self._keep("keep", num_maps, children)
            elif in_order and not end.in_order:
                children["reorder_gather"] = Gather(self.group, end.order())
                end = self._keep("reorder_keep", num_maps, children)
            made[key] = nn.Sequential(children)
            ends.append(end)
        if isinstance(container, Residual):
            out[name] = Residual(made["body"], made["shortcut"])
            return ends[0]
        out[name] = Branches(**made)
        return Parts.concatenated(ends)

    def _keep(self, name: str, num_maps: int, out: Children) -> Parts:
        out[name] = Keep(self.group)
        return Parts.even(num_maps, self.group.size)
