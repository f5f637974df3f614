"""Batches from samples that lie somewhere: shuffled per epoch, the same order on every rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.sample_cache import SampleCache
from perfscope.runners.data.scale import scaled_bytes
from perfscope.runners.schemes.base import Batch, Feed

MOST_HELD_OUT = 10_000


class SampleStore(ABC):
    """Samples by index.

    Attributes:
        name: what the user called it, for messages.
        labels: class of each sample, from 0.
        first_held_out: samples from this one on are the data's own test set; None: it has none.
    """

    name: str
    labels: Sequence[int]
    first_held_out: int | None = None

    @abstractmethod
    def samples(self, indices: Sequence[int]) -> torch.Tensor:
        """(len(indices), C, H, W), float32, about mean 0 and deviation 1. Safe to call from several threads.

        Of other kinds of data as Batch.inputs.

        Raises:
            BenchError: one cannot be read.
        """

    def targets(self, indices: Sequence[int]) -> torch.Tensor:
        """See Batch.targets."""
        return torch.tensor([self.labels[index] for index in indices], dtype=torch.int64)

    @property
    def num_samples(self) -> int:
        """All of them."""
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Classes that occur, as far as known before samples are read."""
        return max(self.labels) + 1


class DecodedStore(SampleStore):
    """Samples that have to be decoded one by one, which a cache saves.

    Attributes:
        shape: (C, H, W) of a decoded sample, uint8.
        cache: of decoded samples; None: each is decoded whenever it is needed.
    """

    shape: tuple[int, int, int]
    cache: SampleCache | None = None

    def samples(self, indices: Sequence[int]) -> torch.Tensor:
        """See SampleStore."""
        return scaled_bytes(np.stack([self._decoded(index) for index in indices]))

    def _decoded(self, index: int) -> np.ndarray:
        if self.cache is None:
            return self.read(index)[0]
        return self.cache.sample(index, partial(self.read, index))

    @abstractmethod
    def read(self, index: int) -> tuple[np.ndarray, int]:
        """A sample of `shape`, and how many bytes it takes in storage.

        Raises:
            BenchError: it cannot be read.
        """


class StoredFeed(Feed):
    """An epoch takes each training sample at most once; what is left after the last whole batch is dropped.

    The order of an epoch follows from (seed, epoch). Held out is the data's own test set, else a tenth of the
    samples, MOST_HELD_OUT at most and one at least, drawn by the seed.
    """

    def __init__(self, config: BenchConfig, source: SampleStore) -> None:
        """Raises BenchError: too few samples, or more classes than the model has."""
        self._config = config
        self._source = source
        total = source.num_samples
        reserved = max(1, min(MOST_HELD_OUT, total // 10))
        if source.first_held_out is not None:
            reserved = total - source.first_held_out
        _require_fit(config, source, total - reserved, reserved)
        if source.first_held_out is None:
            order = _shuffled(total, config.seed, 0)
        else:  # the test set first
            order = torch.arange(total).roll(reserved)
        self._held_out, self._training = order[:reserved], order[reserved:]
        self._epoch = (-1, self._training)

    def batch(self, step: int, part: int, num_parts: int) -> Batch:
        """See Feed."""
        batch_size, size = self._config.batch, self._config.batch // num_parts
        epoch, index = divmod(step, len(self._training) // batch_size)
        first = index * batch_size + part * size
        return self._make(self._order_of(epoch)[first : first + size])

    def cache_record(self) -> list[dict[str, Any]]:
        """See Feed."""
        cache = self._source.cache if isinstance(self._source, DecodedStore) else None
        return [] if cache is None else cache.record()

    def _order_of(self, epoch: int) -> torch.Tensor:
        """Indices of all training samples. Several threads may ask, for different epochs where one ends."""
        epoch_cached, order = self._epoch
        if epoch_cached != epoch:
            order = self._training[_shuffled(len(self._training), self._config.seed, epoch + 1)]
            self._epoch = (epoch, order)
        return order

    def held_out(self, num: int | None) -> Batch:
        """Up to `num` samples (None: all) that no batch holds."""
        return self._make(self._held_out[:num])

    def _make(self, indices: torch.Tensor) -> Batch:
        wanted = indices.tolist()
        inputs = self._source.samples(wanted)
        if inputs.is_floating_point():
            inputs = inputs.to(getattr(torch, self._config.weight_dtype))
        return Batch(inputs, self._source.targets(wanted))


def _require_fit(config: BenchConfig, source: SampleStore, num_training: int, reserved: int) -> None:
    if num_training < config.batch:
        raise BenchError(
            f"{source.name} holds {num_training + reserved} samples, {reserved} of them kept for evaluation: "
            f"fewer than a batch of {config.batch}; make the batch {num_training} at most"
            if num_training > 0
            else f"{source.name} holds {num_training + reserved} samples; at least 2 are needed"
        )
    num_classes = source.num_classes
    if num_classes > config.num_classes:
        raise BenchError(
            f"{source.name} holds {num_classes} classes, but the model tells {config.num_classes} apart; "
            f"set the number of classes to {num_classes}"
        )


def _shuffled(num: int, seed: int, stream: int) -> torch.Tensor:
    # An odd multiplier far from 2: epochs of neighboring seeds do not repeat each other.
    generator = torch.Generator().manual_seed((seed * 0x9E3779B1 + stream) % (1 << 63))
    return torch.randperm(num, generator=generator)
