"""Separable images made from (seed, step, index); nothing is stored but a strip of noise."""

from __future__ import annotations

from math import prod, sqrt

import torch

from perfscope.runners.config import BenchConfig
from perfscope.runners.data.seeds import mixed_seed
from perfscope.runners.schemes.base import Batch, Feed

_GRID = 4  # a class is a colour and _GRID x _GRID flat patches per channel: low in frequency, at any size
_COLOUR, _PATCH, _NOISE = 0.5, 0.5, sqrt(0.5)  # standard deviations; a sample's is 1
_STRIP = 1 << 20  # values of noise beyond one sample's
_TRAINING, _HELD_OUT = 1, 2  # streams of random numbers


class SyntheticFeed(Feed):
    """Class pattern plus noise, labels uniform.

    Sample i of step t is pattern[label] + a window of a strip of white noise, of variance 1 together; label
    and window come from a generator seeded with (seed, t), as two short draws over the whole batch. So any
    rank makes any part of any step's batch at the cost of copying it, and the parts of a batch put together
    are bitwise the batch. float64 samples are sums of the same float32 numbers. Drawn on the CPU, made on the
    device.
    """

    def __init__(self, config: BenchConfig, device: torch.device, stream: int = _TRAINING) -> None:
        self._config = config
        self._device = device
        self._stream = stream
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        channels, height, width = config.input_shape
        self._numel = prod(config.input_shape)
        patterns = _draw((config.num_classes, channels, _GRID, _GRID), mixed_seed(config.seed, 0, 0), _PATCH)
        patterns += _draw((config.num_classes, channels, 1, 1), mixed_seed(config.seed, 0, 1), _COLOUR)
        strip = _draw((_STRIP + self._numel,), mixed_seed(config.seed, stream, 1), _NOISE)
        self._patterns = patterns.to(device, self._dtype)
        self._windows = strip.to(device, self._dtype).unfold(0, self._numel, 1)
        self._rows = (torch.arange(height) * _GRID // height).to(device)
        self._columns = (torch.arange(width) * _GRID // width).to(device)

    def batch(self, step: int, part: int, num_parts: int) -> Batch:
        """See Feed."""
        size = self._config.batch // num_parts
        return self.samples(step, self._config.batch, part * size, size)

    def samples(self, step: int, batch: int, first: int, num: int) -> Batch:
        """Samples first .. first+num-1 of a batch of `batch` samples."""
        generator = torch.Generator().manual_seed(mixed_seed(self._config.seed, self._stream, step + 2))
        labels = torch.randint(self._config.num_classes, (batch,), generator=generator)
        starts = torch.randint(_STRIP, (batch,), generator=generator)
        targets = labels[first : first + num].to(self._device)
        places = starts[first : first + num].to(self._device)
        inputs = self._windows[places].view(num, *self._config.input_shape)
        inputs += self._patterns[targets][:, :, self._rows][:, :, :, self._columns]
        return Batch(inputs, targets)


def synthetic_held_out(config: BenchConfig, device: torch.device, num: int) -> Batch:
    """`num` samples of the same classes with noise that training never sees."""
    return SyntheticFeed(config, device, _HELD_OUT).samples(0, num, 0, num)


def _draw(shape: tuple[int, ...], seed: int, deviation: float) -> torch.Tensor:
    # Uniform: bits and one multiplication, the same on every CPU (as the models' weights).
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float32).sub_(0.5).mul_(deviation * sqrt(12))
