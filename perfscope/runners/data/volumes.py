"""Volumes with an object in the center, that can be learned voxel by voxel."""

from __future__ import annotations

from math import prod, sqrt

import torch

from perfscope.runners.config import BenchConfig
from perfscope.runners.data.best import Best, best_of_classes, best_with_noise
from perfscope.runners.data.seeds import mixed_seed
from perfscope.runners.data.synthetic import TRAINING, Synthetic, uniform
from perfscope.runners.schemes.base import Batch

_SHAPES, _GRID = 16, 4  # objects, and blocks of which each is made along a side
_CONTRAST, _NOISE = 0.5, sqrt(0.5)  # of a voxel: plus or minus the contrast, and the deviation of its noise
_CENTER, _ELSEWHERE = 0.95, 0.05  # of the map of the object that a network begins with
_STRIP = 1 << 20


class SyntheticVolumes(Synthetic):
    """Images of one of _SHAPES objects and noise; targets: which voxels are of the object.

    An object is a random choice of _GRID^3 blocks, drawn from the seed, with the block in the center. The
    first channel is the image; each other one is the map that a flood-filling network begins with: the center
    voxel is of the object, of the others nothing is known. A voxel by itself is ambiguous; all together tell
    which object it is. A share of `label_noise` of the targets is drawn anew.
    """

    def __init__(self, config: BenchConfig, device: torch.device, stream: int = TRAINING) -> None:
        super().__init__(config, device, stream)
        self._dtype: torch.dtype = getattr(torch, config.weight_dtype)
        self._channels, *self._sides = config.input_shape
        generator = torch.Generator().manual_seed(mixed_seed(config.seed, 0, 0))
        blocks = torch.randint(2, (_SHAPES, *(_GRID,) * 3), generator=generator)
        places = [torch.arange(side) * _GRID // side for side in self._sides]
        center = [int(place[side // 2]) for place, side in zip(places, self._sides, strict=True)]
        blocks[:, center[0], center[1], center[2]] = 1
        depth, height, width = places
        self._objects = blocks[:, depth][:, :, height][:, :, :, width].to(device)
        numel = prod(self._sides)
        strip = uniform((_STRIP + numel,), mixed_seed(config.seed, stream, 1), _NOISE)
        self._windows = strip.to(device, self._dtype).unfold(0, numel, 1)
        self._start = torch.full(self._sides, _ELSEWHERE, device=device, dtype=self._dtype)
        self._start[tuple(side // 2 for side in self._sides)] = _CENTER

    def samples(self, step: int, batch: int, first: int, num: int) -> Batch:
        """See Synthetic. Targets are (num, voxels), in the order of memory."""
        generator, own = self._draws(step), slice(first, first + num)
        kinds = torch.randint(_SHAPES, (batch,), generator=generator)[own].to(self._device)
        starts = torch.randint(_STRIP, (batch,), generator=generator)[own].to(self._device)
        objects = self._objects[kinds]
        image = self._windows[starts].view(num, *self._sides)
        image += (2 * objects - 1) * _CONTRAST
        maps = self._start.expand(num, self._channels - 1, *self._sides)
        targets = objects.flatten(1)
        if self._config.label_noise:
            shape = (batch, targets.shape[1])
            anew = torch.rand(shape, generator=generator) < self._config.label_noise
            drawn = torch.randint(2, shape, generator=generator)
            targets = torch.where(anew[own].to(self._device), drawn[own].to(self._device), targets)
        return Batch(torch.cat((image[:, None], maps), dim=1), targets)

    @property
    def best(self) -> Best | None:
        """See Synthetic: of a voxel, where the objects can be distinguished."""
        centers = (2 * self._objects.flatten(1) - 1) * _CONTRAST
        if best_of_classes(centers, _NOISE, 0.0) is None:
            return None
        return best_with_noise(2, self._config.label_noise or 0.0)
