"""Residual networks of 18 to 152 layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from perfscope.runners.models.blocks import Residual
from perfscope.runners.models.stack import Fill, Stack

_WIDTHS = (64, 128, 256, 512)  # of the stages 2 to 5; the first block of those after the first has stride 2
_EXPANSION = 4
_Body = Callable[[Stack, int, int], None]  # appends a block's layers, given width and stride


def resnet(depth: int) -> Fill:
    """What fills a Stack with He et al. 2016 (arXiv 1512.03385), stride in the 3x3 convolution (v1.5).

    Blocks are named as in the paper's own files: res2a .. res5c; those of long stages res4b1 .. res4b22.

    Args:
        depth: 18, 34, 50, 101 or 152.
    """
    basic, bottleneck = _basic, _bottleneck
    body, depths = {
        18: (basic, (2, 2, 2, 2)),
        34: (basic, (3, 4, 6, 3)),
        50: (bottleneck, (3, 4, 6, 3)),
        101: (bottleneck, (3, 4, 23, 3)),
        152: (bottleneck, (3, 8, 36, 3)),
    }[depth]
    return partial(_fill, body, depths)


def _fill(body: _Body, depths: tuple[int, ...], stack: Stack, num_classes: int, dropout: float) -> None:
    stack.conv("conv1", 64, 7, stride=2, padding=3, bias=False)
    stack.norm("bn1")
    stack.relu("relu1")
    stack.max_pool("pool1", 3, 2, padding=1)
    for number, (width, num_blocks) in enumerate(zip(_WIDTHS, depths, strict=True), start=2):
        for index in range(num_blocks):
            name = f"res{number}{_letters(index, num_blocks)}"
            _block(stack, name, body, width, 2 if number > 2 and index == 0 else 1)
    stack.spread("spread", 1)
    stack.flatten("flatten")
    stack.dropout("drop", dropout)
    stack.linear("fc", num_classes)


def _letters(index: int, num_blocks: int) -> str:
    return chr(ord("a") + index) if index == 0 or num_blocks <= 6 else f"b{index}"


def _block(stack: Stack, name: str, fill_body: _Body, width: int, stride: int) -> None:
    body = stack.branch()
    fill_body(body, width, stride)
    shortcut: nn.Module = nn.Identity()
    projection = stack.branch()
    if body.shape != stack.shape:
        projection.conv("conv", body.shape[0], 1, stride=stride, bias=False)
        projection.norm("bn")
        shortcut = projection.sequential()
    stack.add(name, Residual(body.sequential(), shortcut), body.shape, within=(body, projection))


def _basic(body: Stack, width: int, stride: int) -> None:
    _layers(body, ((width, 3, stride), (width, 3, 1)))


def _bottleneck(body: Stack, width: int, stride: int) -> None:
    _layers(body, ((width, 1, 1), (width, 3, stride), (width * _EXPANSION, 1, 1)))


def _layers(body: Stack, layers: tuple[tuple[int, int, int], ...]) -> None:
    for index, (channels, kernel, stride) in enumerate(layers, start=1):
        body.conv(f"conv{index}", channels, kernel, stride=stride, padding=kernel // 2, bias=False)
        body.norm(f"bn{index}")
        if index < len(layers):
            body.relu(f"relu{index}")
