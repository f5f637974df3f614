"""What a split model exchanges inside its group, from shapes alone: (collective, elements per sample, why).

Written apart from the surgery, so that a test can compare the two. A layer's x is what it
takes in, y what it gives out, per sample.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from torch import nn

from perfscope.runners.model_parallel.pairs import COLUMN, ROW, roles
from perfscope.runners.model_parallel.structure import (
    Structure,
    has_weights,
    holds_weights,
    is_container,
    join,
    paths_of,
    steps_of,
)
from perfscope.runners.models.blocks import Block, Residual

FORWARD, BACKWARD = "activations forward", "activation gradients backward"


class Exchanged(NamedTuple):
    """One call per step; S is `per_sample` * b * e bytes."""

    collective: str
    per_sample: int
    what: str


def filter_volumes(structure: Structure) -> list[Exchanged]:
    """x of every layer but those that see the samples: all_gather forward, reduce_scatter backward.

    Layers that start the branches of one container share the gather of its input. The model's output is
    gathered forward only.
    """
    exchanged, split = _filter_way(structure, structure.model, "", False)
    if split:
        exchanged.append(Exchanged("all_gather", prod(list(structure.out_shapes.values())[-1]), "output"))
    return exchanged


def _filter_way(
    structure: Structure, way: nn.Module, prefix: str, split: bool
) -> tuple[list[Exchanged], bool]:
    exchanged: list[Exchanged] = []
    for _, path, module in steps_of(way, prefix):
        gathered = _gathered(prod(structure.in_shapes[path]))
        if has_weights(module):
            exchanged += gathered if split else []
        elif is_container(module):
            ways = list(paths_of(module))
            if split and sum(holds_weights(branch) for _, branch in ways) > 1:
                exchanged += gathered
                split = False
            for key, branch in ways:
                inner, still_split = _filter_way(structure, branch, join(path, key), split)
                exchanged += inner
                if still_split and isinstance(module, Residual) and _mixed(structure, branch, path, key):
                    exchanged += _gathered(prod(structure.out_shapes[path]))
        if has_weights(module) or is_container(module) or isinstance(module, nn.BatchNorm2d):
            split = True
    return exchanged, split


def channel_volumes(structure: Structure) -> list[Exchanged]:
    """y of every layer but those that see the samples: reduce_scatter forward, all_gather backward.

    Of the last layer: all_reduce forward, nothing backward.
    """
    last = structure.last_layer()
    exchanged, split = _channel_way(structure, structure.model, "", False, last if "." not in last else "")
    if split:
        exchanged.append(Exchanged("all_gather", prod(list(structure.out_shapes.values())[-1]), "output"))
    return exchanged


def _channel_way(
    structure: Structure, way: nn.Module, prefix: str, split: bool, last: str
) -> tuple[list[Exchanged], bool]:
    exchanged: list[Exchanged] = []
    for _, path, module in steps_of(way, prefix):
        size = prod(structure.out_shapes[path])
        if has_weights(module):
            if split and path == last:
                exchanged.append(Exchanged("all_reduce", size, FORWARD))
                split = False
                continue
            if split:
                exchanged += [
                    Exchanged("reduce_scatter", size, FORWARD),
                    Exchanged("all_gather", size, BACKWARD),
                ]
        elif is_container(module):
            for key, branch in paths_of(module):
                exchanged += _channel_way(structure, branch, join(path, key), split, last)[0]
                if split and isinstance(module, Residual) and _mixed(structure, branch, path, key):
                    exchanged += _gathered(size)
        if has_weights(module) or is_container(module) or isinstance(module, nn.BatchNorm2d):
            split = True
    return exchanged, split


def pair_volumes(structure: Structure) -> list[Exchanged]:
    """Per pair of linear layers: y of the second forward and x of the first backward, both all_reduce.

    A last layer without a partner: all_reduce of y forward, all_gather of x backward. A transformer block has
    two pairs, attention and the feed-forward layers.
    """
    layers = [
        (name, isinstance(module, nn.Linear))
        for name, module in structure.model.named_children()
        if holds_weights(module)
    ]
    first = layers[0][0]
    exchanged: list[Exchanged] = []
    for name, role in roles([name for name, linear in layers if linear]).items():
        if role != COLUMN:
            exchanged.append(Exchanged("all_reduce", prod(structure.out_shapes[name]), FORWARD))
        if role != ROW and name != first:  # the samples' gradient is not needed
            collective = "all_reduce" if role == COLUMN else "all_gather"
            exchanged.append(Exchanged(collective, prod(structure.in_shapes[name]), BACKWARD))
    for name, module in structure.model.named_children():
        if isinstance(module, Block):
            for part, _, _ in module.pairs:
                exchanged.append(
                    Exchanged("all_reduce", prod(structure.out_shapes[f"{name}.{part}"]), FORWARD)
                )
                exchanged.append(
                    Exchanged("all_reduce", prod(structure.in_shapes[f"{name}.{part}"]), BACKWARD)
                )
    return exchanged


def _gathered(size: int) -> list[Exchanged]:
    return [Exchanged("all_gather", size, FORWARD), Exchanged("reduce_scatter", size, BACKWARD)]


def _mixed(structure: Structure, way: nn.Module, path: str, key: str) -> bool:
    """Whether a way through a Residual ends with channels that lie on the ranks branch by branch."""
    return bool(_mixing(structure).get(join(path, key), False))


def _mixing(structure: Structure) -> dict[str, bool]:
    """By way through a container: whether what leaves it is a concatenation of branches' channels."""
    mixes: dict[str, bool] = {}

    def walk(way: nn.Module, prefix: str, mixed: bool) -> bool:
        for _, path, module in steps_of(way, prefix):
            if has_weights(module):
                mixed = False
            elif is_container(module):
                ends = []
                for key, branch in paths_of(module):
                    mixes[join(path, key)] = walk(branch, join(path, key), mixed)
                    ends.append(mixes[join(path, key)])
                mixed = not isinstance(module, Residual) and (len(ends) > 1 or any(ends))
        return mixed

    walk(structure.model, "", False)
    return mixes
