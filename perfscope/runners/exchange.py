"""Averaging gradients over a group: the one point where compression can come in between.

An exchange is started with a flat gradient and gives back the mean. Codecs of perfscope.runners.compression
have the same shape; compression.registry.make_exchange picks by the run's modifiers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch

from perfscope.runners import comm
from perfscope.runners.comm import Group


class Sent(NamedTuple):
    """One call that an exchange makes: which collective, S bytes as comm.py defines it."""

    collective: str
    bytes: int


class PendingExchange(ABC):
    """An exchange that has been started."""

    @abstractmethod
    def wait(self) -> torch.Tensor:
        """The mean over the group, dense, dtype and shape of what was given (possibly the same memory)."""


class Exchange(ABC):
    """Averages over groups. One object per rank and run: error feedback is kept in it, by key."""

    def start(self, key: Hashable, flat: torch.Tensor, group: Group) -> PendingExchange:
        """Starts averaging the 1-d `flat` over `group`; it may be overwritten.

        `key` names the buffer across steps: error feedback is kept by it. Calls serve the layers of `flat`.
        """
        return self._start_on(key, flat, group.carrying(flat))

    @abstractmethod
    def _start_on(self, key: Hashable, flat: torch.Tensor, group: Group) -> PendingExchange:
        """See start; all calls are to be made on this `group`."""

    @abstractmethod
    def sends(self, numel: int, element_size: int, num_ranks: int, key: Hashable = None) -> Sequence[Sent]:
        """The calls of one `start` with that many elements, in order. Empty for num_ranks 1."""


class DenseExchange(Exchange):
    """One all_reduce, then the division."""

    def _start_on(self, key: Hashable, flat: torch.Tensor, group: Group) -> PendingExchange:
        """See Exchange."""
        return _DensePending(flat, group.size, comm.all_reduce(flat, group, async_op=True))

    def sends(self, numel: int, element_size: int, num_ranks: int, key: Hashable = None) -> Sequence[Sent]:
        """See Exchange."""
        return [Sent("all_reduce", numel * element_size)] if num_ranks > 1 else []


class _DensePending(PendingExchange):
    def __init__(self, flat: torch.Tensor, num_ranks: int, work: Any) -> None:
        self._flat, self._num_ranks, self._work = flat, num_ranks, work

    def wait(self) -> torch.Tensor:
        if self._work is not None:
            self._work.wait()
            self._work = None
            self._flat /= self._num_ranks
        return self._flat
