"""Layers put one after another, with the shape that leaves them followed along, so that any input size fits.

Two rules keep a network whole at inputs smaller than those it was drawn for; neither changes a parameter:
a window that does not fit into its map along a dim
  - is, for a convolution, padded by (k - 1) // 2 there, which always fits;
  - is, for a pool, left out along that dim (window and stride 1).
They are applied from the input's shape when the model is built. At the classic sizes they change nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from torch import nn

Shape = tuple[int, ...]  # of one sample: (C, H, W), (T, width), (F,)
_POOLED = (
    1.5  # measured at initialization in AlexNet, VGG-16 and GoogLeNet: 1.3 to 1.6, windows of 2 and of 3
)


Fill = Callable[["Stack", int, float], None]  # appends a model's layers, given classes and dropout


class Stack:
    """An nn.Sequential in the making.

    Attributes:
        shape: of a sample after the layers so far.
        fan_ins: of every layer with weights, in order: how many inputs an output has on average. Taps that
            fall on padding are no inputs: on a 1 x 1 map a 3 x 3 kernel has one tap per channel, not nine.
            Inputs from a max pool count _POOLED-fold, as it raises the variance that much.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.fan_ins: dict[nn.Module, float] = {}
        self._variance = 1.0  # of what leaves, against what the last layer with weights gave out
        self._layers: OrderedDict[str, nn.Module] = OrderedDict()

    def branch(self) -> Stack:
        """An empty stack that starts where this one ends."""
        branch = Stack(self.shape)
        branch._variance = self._variance
        return branch

    def add(
        self, name: str, layer: nn.Module, shape: Shape | None = None, within: Sequence[Stack] = ()
    ) -> None:
        """Appends a layer that gives out `shape` (None: as it takes in), made of the stacks `within`."""
        self._layers[name] = layer
        self.shape = shape or self.shape
        if within:
            self._variance = 1.0
        for inner in within:
            self.fan_ins |= inner.fan_ins

    def conv(
        self,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = True,
        groups: int = 1,
    ) -> None:
        """A convolution with `channels` output maps; pairs are (vertical, horizontal)."""
        old, *sizes = self.shape
        pads = [
            pad if size + 2 * pad >= taps else (taps - 1) // 2
            for size, taps, pad in zip(sizes, _pair(kernel), _pair(padding), strict=True)
        ]
        height, width = (
            _Windows(size, taps, stride, pad)
            for size, taps, pad in zip(sizes, _pair(kernel), pads, strict=True)
        )
        layer = nn.Conv2d(old, channels, kernel, stride=stride, padding=tuple(pads), bias=bias, groups=groups)
        self._weigh(layer, old // groups * height.mean_taps * width.mean_taps)
        self.add(name, layer, (channels, height.num, width.num))

    def norm(self, name: str) -> None:
        """A BatchNorm over the maps so far."""
        self.add(name, nn.BatchNorm2d(self.shape[0]))

    def _weigh(self, layer: nn.Module, fan_in: float) -> None:
        self.fan_ins[layer] = fan_in * self._variance
        self._variance = 1.0

    def relu(self, name: str) -> None:
        """A rectifier; not in place, so that a scheme may keep its input."""
        self.add(name, nn.ReLU())

    def max_pool(self, name: str, kernel: int, stride: int, padding: int | tuple[int, ...] = 0) -> None:
        """The largest of each window."""
        if self._pool(nn.MaxPool2d, name, kernel, stride, padding):
            self._variance *= _POOLED

    def mean_pool(self, name: str, kernel: int, stride: int, padding: int = 0) -> None:
        """The mean of each window, zeros of the padding included."""
        self._pool(nn.AvgPool2d, name, kernel, stride, padding)

    def _pool(
        self, kind: type[nn.Module], name: str, kernel: int, stride: int, padding: int | tuple[int, ...]
    ) -> bool:
        """Whether there is a window that fits."""
        channels, *sizes = self.shape
        height, width = (
            _Windows(size, kernel, stride, pad) if size + 2 * pad >= kernel else _Windows(size, 1, 1, 0)
            for size, pad in zip(sizes, _pair(padding), strict=True)
        )
        if height.kernel == width.kernel == 1:
            self.add(name, nn.Identity())
            return False
        arguments = zip(height[1:], width[1:], strict=True)  # kernel, stride, padding of both dims
        layer = kind(*(pair[0] if pair[0] == pair[1] else pair for pair in arguments))
        self.add(name, layer, (channels, height.num, width.num))
        return True

    def spread(self, name: str, size: int) -> None:
        """Adaptive mean to size x size maps: what is flattened then does not depend on the input."""
        self.add(name, nn.AdaptiveAvgPool2d(size), (self.shape[0], size, size))

    def flatten(self, name: str) -> None:
        """(b, C, H, W) to (b, C*H*W)."""
        self.add(name, nn.Flatten(), (prod(self.shape),))

    def linear(self, name: str, features: int) -> None:
        """A fully connected layer; after `flatten`, or on a row of features."""
        layer = nn.Linear(self.shape[0], features)
        self._weigh(layer, self.shape[0])
        self.add(name, layer, (features,))

    def dropout(self, name: str, probability: float) -> None:
        """Dropout; a layer also at probability 0, so that names do not depend on it."""
        self.add(name, nn.Dropout(probability))

    def sequential(self) -> nn.Sequential:
        """The layers so far."""
        return nn.Sequential(self._layers)


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else value


class _Windows(NamedTuple):
    """The windows of a convolution or pool along one dim."""

    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def num(self) -> int:
        """How many there are."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def mean_taps(self) -> float:
        """Positions of a window that lie on the map and not on padding, on average."""
        # Those before the map (padding - start, of the first windows) and those behind it are taken off.
        over = (self.num - 1) * self.stride - self.padding + self.kernel - self.size  # of the last window
        outside = _falling_sum(self.padding, self.stride, self.num) + _falling_sum(
            over, self.stride, self.num
        )
        return self.kernel - outside / self.num


def _falling_sum(first: int, step: int, most: int) -> int:
    """first + (first - step) + ..., while the terms are positive, `most` of them at most."""
    num = min(most, max(0, -(-first // step)))
    return num * first - step * num * (num - 1) // 2
