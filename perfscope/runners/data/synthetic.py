"""Samples that can be learned, made from (seed, step, index); stored is only a strip of noise or text."""

from __future__ import annotations

from abc import abstractmethod
from math import prod, sqrt

import torch

from perfscope.runners.config import BenchConfig
from perfscope.runners.data.best import Best, best_of_classes, best_with_noise
from perfscope.runners.data.seeds import mixed_seed
from perfscope.runners.schemes.base import Batch, Feed

_GRID = 4  # a class is a color and _GRID x _GRID flat patches per channel: low in frequency, at any size
_COLOR, _PATCH, _NOISE = 0.5, 0.5, sqrt(0.5)  # standard deviations; a sample's is 1
_CENTER = sqrt(0.5)  # of a class of rows
_STRIP = 1 << 20  # values of noise beyond one sample's
_TEXT = 1 << 16  # tokens of a text, beyond one sample's
TOKEN_NOISE = 0.2  # share of tokens that do not follow from the one before, where nothing else is asked for
TRAINING, HELD_OUT = 1, 2  # streams of random numbers


class Synthetic(Feed):
    """Samples that follow from the run's seed alone; any rank makes any part of any step's batch."""

    def __init__(self, config: BenchConfig, device: torch.device, stream: int = TRAINING) -> None:
        self._config = config
        self._device = device
        self._stream = stream

    def batch(self, step: int, part: int, num_parts: int) -> Batch:
        """See Feed."""
        size = self._config.batch // num_parts
        return self.samples(step, self._config.batch, part * size, size)

    @property
    @abstractmethod
    def best(self) -> Best | None:
        """What no model can exceed on average, and one can reach; None where it does not follow."""

    @abstractmethod
    def samples(self, step: int, batch: int, first: int, num: int) -> Batch:
        """Samples first .. first+num-1 of a batch of `batch` samples."""

    def _draws(self, step: int) -> torch.Generator:
        return torch.Generator().manual_seed(mixed_seed(self._config.seed, self._stream, step + 2))

    def _given(self, labels: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
        """Labels (b,) as they are trained on: a share of `label_noise` drawn anew from all classes."""
        noise = self._config.label_noise
        if not noise:
            return labels
        anew = torch.rand(labels.shape, generator=draws) < noise
        random_labels = torch.randint(self._config.num_classes, labels.shape, generator=draws)
        return torch.where(anew, random_labels, labels)


class SyntheticTokens(Synthetic):
    """Windows of a text in which most tokens follow from the one before; targets are the next tokens.

    The text is a Markov chain: a token's successor is fixed (a permutation drawn from the seed), but for a
    share of `label_noise` that is drawn uniformly. The loss falls from log(vocabulary) to the chain's
    entropy.
    """

    def __init__(self, config: BenchConfig, device: torch.device, stream: int = TRAINING) -> None:
        super().__init__(config, device, stream)
        (length,), vocabulary = config.input_shape, config.num_classes
        noise = TOKEN_NOISE if config.label_noise is None else config.label_noise
        follows = torch.randperm(
            vocabulary, generator=torch.Generator().manual_seed(mixed_seed(config.seed, 0, 2))
        ).tolist()
        generator = torch.Generator().manual_seed(mixed_seed(config.seed, stream, 1))
        shape = (_TEXT + length,)
        surprises = torch.randint(vocabulary, shape, generator=generator).tolist()
        is_surprise = (torch.rand(shape, generator=generator) < noise).tolist()
        text, token = [], 0
        for other, surprised in zip(surprises, is_surprise, strict=True):
            token = other if surprised else follows[token]
            text.append(token)
        self._windows = torch.tensor(text, device=device).unfold(0, length + 1, 1)
        self._noise = noise

    @property
    def best(self) -> Best:
        """See Synthetic: the chain's own."""
        return best_with_noise(self._config.num_classes, self._noise)

    def samples(self, step: int, batch: int, first: int, num: int) -> Batch:
        """See Synthetic."""
        starts = torch.randint(_TEXT, (batch,), generator=self._draws(step))[first : first + num]
        windows = self._windows[starts.to(self._device)]
        return Batch(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


class SyntheticFeed(Synthetic):
    """Class pattern plus noise, labels uniform.

    Sample i of step t is pattern[label] + a window of a strip of white noise, of variance 1 together; label
    and window come from a generator seeded with (seed, t), as two short draws over the whole batch. So any
    rank makes any part of any step's batch at the cost of copying it, and the parts of a batch put together
    are bitwise the batch. float64 samples are sums of the same float32 numbers. Drawn on the CPU, made on the
    device.
    """

    def __init__(self, config: BenchConfig, device: torch.device, stream: int = TRAINING) -> None:
        super().__init__(config, device, stream)
        self._dtype: torch.dtype = getattr(torch, config.weight_dtype)
        channels, height, width = config.input_shape
        self._numel = prod(config.input_shape)
        patterns = uniform(
            (config.num_classes, channels, _GRID, _GRID), mixed_seed(config.seed, 0, 0), _PATCH
        )
        patterns += uniform((config.num_classes, channels, 1, 1), mixed_seed(config.seed, 0, 1), _COLOR)
        strip = uniform((_STRIP + self._numel,), mixed_seed(config.seed, stream, 1), _NOISE)
        self._patterns = patterns.to(device, self._dtype)
        self._windows = strip.to(device, self._dtype).unfold(0, self._numel, 1)
        self._rows = (torch.arange(height) * _GRID // height).to(device)
        self._columns = (torch.arange(width) * _GRID // width).to(device)

    def samples(self, step: int, batch: int, first: int, num: int) -> Batch:
        """See Synthetic."""
        generator = self._draws(step)
        labels = torch.randint(self._config.num_classes, (batch,), generator=generator)
        starts = torch.randint(_STRIP, (batch,), generator=generator)
        given = self._given(labels, generator)[first : first + num].to(self._device)
        classes = labels[first : first + num].to(self._device)
        positions = starts[first : first + num].to(self._device)
        inputs = self._windows[positions].view(num, *self._config.input_shape)
        inputs += self._patterns[classes][:, :, self._rows][:, :, :, self._columns]
        return Batch(inputs, given)

    @property
    def best(self) -> Best | None:
        """See Synthetic."""
        pixels = self._rows.bincount(minlength=_GRID).outer(self._columns.bincount(minlength=_GRID))
        centers = (self._patterns * pixels.sqrt()).flatten(1)  # as far apart as the images are
        return best_of_classes(centers, _NOISE, self._config.label_noise or 0.0)


class SyntheticTables(Synthetic):
    """The center of the label's class plus noise: rows of features of variance 1 together, labels uniform."""

    def __init__(self, config: BenchConfig, device: torch.device, stream: int = TRAINING) -> None:
        super().__init__(config, device, stream)
        dtype: torch.dtype = getattr(torch, config.weight_dtype)
        (features,) = config.input_shape
        centers = uniform((config.num_classes, features), mixed_seed(config.seed, 0, 0), _CENTER)
        strip = uniform((_STRIP + features,), mixed_seed(config.seed, stream, 1), _NOISE)
        self._centers = centers.to(device, dtype)
        self._windows = strip.to(device, dtype).unfold(0, features, 1)

    def samples(self, step: int, batch: int, first: int, num: int) -> Batch:
        """See Synthetic."""
        generator = self._draws(step)
        labels = torch.randint(self._config.num_classes, (batch,), generator=generator)
        starts = torch.randint(_STRIP, (batch,), generator=generator)
        given = self._given(labels, generator)[first : first + num].to(self._device)
        classes = labels[first : first + num].to(self._device)
        rows = self._windows[starts[first : first + num].to(self._device)]
        return Batch(rows + self._centers[classes], given)

    @property
    def best(self) -> Best | None:
        """See Synthetic."""
        return best_of_classes(self._centers, _NOISE, self._config.label_noise or 0.0)


def uniform(shape: tuple[int, ...], seed: int, deviation: float) -> torch.Tensor:
    """Mean 0; bits and one multiplication, the same on every CPU (as the models' weights)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float32).sub_(0.5).mul_(deviation * sqrt(12))
