"""ResNet-50."""

from __future__ import annotations

from torch import nn

from perfscope.runners.models.blocks import Residual
from perfscope.runners.models.stack import Stack

_STAGES = ((2, 64, 3, 1), (3, 128, 4, 2), (4, 256, 6, 2), (5, 512, 3, 2))  # number, width, blocks, stride
_EXPANSION = 4


def resnet50(stack: Stack, num_classes: int, dropout: float) -> None:
    """He et al. 2016 (arXiv 1512.03385), stride in the 3x3 convolution (v1.5): 25,557,032 at 1000 classes.

    Blocks are named as in the paper's own files: res2a .. res5c.
    """
    stack.conv("conv1", 64, 7, stride=2, padding=3, bias=False)
    stack.norm("bn1")
    stack.relu("relu1")
    stack.max_pool("pool1", 3, 2, padding=1)
    for number, width, num_blocks, stride in _STAGES:
        for index in range(num_blocks):
            _bottleneck(stack, f"res{number}{chr(ord('a') + index)}", width, stride if index == 0 else 1)
    stack.spread("spread", 1)
    stack.flatten("flatten")
    stack.dropout("drop", dropout)
    stack.linear("fc", num_classes)


def _bottleneck(stack: Stack, name: str, width: int, stride: int) -> None:
    body = stack.branch()
    for index, (channels, kernel, step) in enumerate(
        ((width, 1, 1), (width, 3, stride), (width * _EXPANSION, 1, 1)), start=1
    ):
        body.conv(f"conv{index}", channels, kernel, stride=step, padding=kernel // 2, bias=False)
        body.norm(f"bn{index}")
        if index < 3:
            body.relu(f"relu{index}")
    shortcut: nn.Module = nn.Identity()
    projection = stack.branch()
    if body.shape != stack.shape:
        projection.conv("conv", width * _EXPANSION, 1, stride=stride, bias=False)
        projection.norm("bn")
        shortcut = projection.sequential()
    stack.add(name, Residual(body.sequential(), shortcut), body.shape, within=(body, projection))
