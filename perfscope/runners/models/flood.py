"""Flood-filling networks: 3-D convolutions that tell which voxels belong to the object in the center."""

from __future__ import annotations

import torch
from torch import nn

from perfscope.runners.models.blocks import LinearResidual
from perfscope.runners.models.dlrm import TwoScores
from perfscope.runners.models.stack import Stack

_MAPS, _DEPTH = 32, 9


class VoxelRows(nn.Module):
    """One row per voxel: (b, C, D, H, W) to (b, D H W, C)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Voxels in the order of memory."""
        return x.flatten(2).transpose(1, 2)


def flood_filling(stack: Stack, num_classes: int, dropout: float) -> None:
    """Januszewski et al. 2018 (Nature Methods 15): 472,353 parameters on an image and a map of the object.

    9 modules of two 3 x 3 x 3 convolutions with 32 maps, and one logit per voxel.
    """
    channels, *sides = stack.shape
    _conv(stack, "conv1a", channels)
    stack.relu("relu1")
    _conv(stack, "conv1b", _MAPS)
    for number in range(2, _DEPTH + 1):
        body = stack.branch()
        for index, letter in enumerate("ab", start=1):
            body.relu(f"relu{index}")
            _conv(body, f"conv{letter}", _MAPS)
        stack.add(f"module{number}", LinearResidual(body.sequential()), within=(body,))
    stack.relu("relu")
    stack.dropout("drop", dropout)
    last = nn.Conv3d(_MAPS, num_classes - 1, 1)
    stack.fan_ins[last] = float(_MAPS)
    stack.add("logit", last, (num_classes - 1, *sides))
    num_voxels = sides[0] * sides[1] * sides[2]
    stack.add("voxels", VoxelRows(), (num_voxels, num_classes - 1))
    stack.add("scores", TwoScores(), (num_voxels, num_classes))


def _conv(stack: Stack, name: str, channels: int) -> None:
    layer = nn.Conv3d(channels, _MAPS, 3, padding=1)
    stack.fan_ins[layer] = 27.0 * channels
    stack.add(name, layer, (_MAPS, *stack.shape[1:]))
