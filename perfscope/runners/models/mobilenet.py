"""MobileNet-v2."""

from __future__ import annotations

from torch import nn

from perfscope.runners.models.blocks import LinearResidual
from perfscope.runners.models.stack import Stack

# Table 2 of the paper: expansion, maps, blocks, stride of the first of them.
_STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


def mobilenet_v2(stack: Stack, num_classes: int, dropout: float) -> None:
    """Sandler et al. 2018 (arXiv 1801.04381) at width 1: 3,504,872 parameters at 1000 classes."""
    _layer(stack, "1", 32, 3, stride=2)
    for number, (expansion, channels, depth, stride) in enumerate(_STAGES, start=2):
        for index in range(depth):
            _block(stack, f"block{number}_{index + 1}", expansion, channels, stride if index == 0 else 1)
    _layer(stack, "9", 1280, 1)
    stack.spread("spread", 1)
    stack.flatten("flatten")
    stack.dropout("drop", dropout)
    stack.linear("fc", num_classes)


def _layer(stack: Stack, name: str, channels: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
    stack.conv(f"conv{name}", channels, kernel, stride=stride, padding=kernel // 2, bias=False, groups=groups)
    stack.norm(f"bn{name}")
    stack.add(f"relu{name}", nn.ReLU6())


def _block(stack: Stack, name: str, expansion: int, channels: int, stride: int) -> None:
    """Expand, filter each map by itself, project without a rectifier."""
    body, hidden = stack.branch(), expansion * stack.shape[0]
    if expansion > 1:
        _layer(body, "1", hidden, 1)
    _layer(body, "2", hidden, 3, stride=stride, groups=hidden)
    body.conv("conv3", channels, 1, bias=False)
    body.norm("bn3")
    layers = body.sequential()
    is_residual = stride == 1 and channels == stack.shape[0]
    stack.add(name, LinearResidual(layers) if is_residual else layers, body.shape, within=(body,))
