"""Inception-v3."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.runners.models.blocks import Branches
from perfscope.runners.models.stack import Stack

_Layer = tuple[int, tuple[int, int]]  # maps, kernel
_Ways = Sequence[Sequence[_Layer]]
_ONE, _THREE, _FIVE, _ROW, _COLUMN = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1)
_WIDE = ((1, 3), (3, 1))  # in place of a 3 x 3 kernel, side by side


def inception_v3(stack: Stack, num_classes: int, dropout: float) -> None:
    """Szegedy et al. 2016 (arXiv 1512.00567) without the auxiliary classifier: 23,834,568 at 1000 classes.

    Blocks are named as in the published weights: mixed5b .. mixed7c.
    """
    _conv(stack, "1a", 32, _THREE, stride=2, valid=True)
    _conv(stack, "2a", 32, _THREE, valid=True)
    _conv(stack, "2b", 64, _THREE)
    stack.max_pool("pool1", 3, 2)
    _conv(stack, "3b", 80, _ONE)
    _conv(stack, "4a", 192, _THREE, valid=True)
    stack.max_pool("pool2", 3, 2)
    for letter, pooled in (("b", 32), ("c", 64), ("d", 64)):
        ways: _Ways = (((64, _ONE),), ((48, _ONE), (64, _FIVE)), ((64, _ONE), (96, _THREE), (96, _THREE)))
        _mixed(stack, f"mixed5{letter}", ways, pooled)
    _reduction(stack, "mixed6a", (((384, _THREE),), ((64, _ONE), (96, _THREE), (96, _THREE))))
    for letter, maps in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        twice = ((maps, _COLUMN), (maps, _ROW), (maps, _COLUMN), (192, _ROW))
        ways = (((192, _ONE),), ((maps, _ONE), (maps, _ROW), (192, _COLUMN)), ((maps, _ONE), *twice))
        _mixed(stack, f"mixed6{letter}", ways, 192)
    seven = ((192, _ONE), (192, _ROW), (192, _COLUMN), (192, _THREE))
    _reduction(stack, "mixed7a", (((192, _ONE), (320, _THREE)), seven))
    for letter in ("b", "c"):
        _last(stack, f"mixed7{letter}")
    stack.spread("spread", 1)
    stack.flatten("flatten")
    stack.dropout("drop", dropout)
    stack.linear("fc", num_classes)


def _conv(
    stack: Stack,
    name: str,
    channels: int,
    kernel: tuple[int, int],
    *,
    stride: int = 1,
    valid: bool = False,
) -> None:
    """With normalization; `valid`: not padded, where the map is as large as the kernel."""
    height, width = (size // 2 for size in kernel)
    if valid:
        height, width = (0 if size >= 3 else 1 for size in stack.shape[1:])
    stack.conv(f"conv{name}", channels, kernel, stride=stride, padding=(height, width), bias=False)
    stack.norm(f"bn{name}")
    stack.relu(f"relu{name}")


def _way(stack: Stack, layers: Sequence[_Layer]) -> Stack:
    way = stack.branch()
    for index, (channels, kernel) in enumerate(layers, start=1):
        _conv(way, str(index), channels, kernel)
    return way


def _pooled(stack: Stack, channels: int) -> Stack:
    way = stack.branch()
    way.mean_pool("pool", 3, 1, padding=1)
    _conv(way, "1", channels, _ONE)
    return way


def _mixed(stack: Stack, name: str, ways: Sequence[Sequence[_Layer]], pooled: int) -> None:
    _join(stack, name, [*(_way(stack, layers) for layers in ways), _pooled(stack, pooled)])


def _reduction(stack: Stack, name: str, ways: Sequence[Sequence[_Layer]]) -> None:
    """Half the side: the last convolution of each way has stride 2, and so has a pool."""
    branches = []
    for layers in ways:
        way = _way(stack, layers[:-1])
        channels, kernel = layers[-1]
        _conv(way, str(len(layers)), channels, kernel, stride=2, valid=True)
        branches.append(way)
    pool = stack.branch()
    pool.max_pool("pool", 3, 2, padding=tuple(0 if size >= 3 else 1 for size in stack.shape[1:]))
    _join(stack, name, [*branches, pool])


def _last(stack: Stack, name: str) -> None:
    """The two blocks on 8 x 8 maps, whose ways divide once more."""
    branches = [_way(stack, ((320, _ONE),))]
    for layers in (((384, _ONE),), ((448, _ONE), (384, _THREE))):
        way = _way(stack, layers)
        _join(way, "wide", [_way(way, ((384, kernel),)) for kernel in _WIDE])
        branches.append(way)
    _join(stack, name, [*branches, _pooled(stack, 192)])


def _join(stack: Stack, name: str, ways: Sequence[Stack]) -> None:
    module = Branches(**{f"branch{index}": way.sequential() for index, way in enumerate(ways, start=1)})
    shape = (sum(way.shape[0] for way in ways), *ways[0].shape[1:])
    stack.add(name, module, shape, within=ways)
