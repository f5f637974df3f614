"""Top-k and MSTopK: of every gradient a fixed number of elements, with error feedback.

k = ceil(r * n), of the decimal number r as it was written, so that the bytes are known beforehand. Elements
go as value and position; positions take 4 bytes below 2^31 elements.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from fractions import Fraction
from math import ceil, inf
from random import Random
from typing import NamedTuple

import torch

from perfscope.runners.compression.gathering import GatheringExchange, Parts
from perfscope.runners.compression.state import draw_seed

ROUNDS = 25  # halvings of the threshold's interval; float32 cannot tell more apart
ROUGH_ROUNDS = 6


def num_kept(share: float, numel: int) -> int:
    """k = ceil(r * n). 7 % of 100 are 7, although 0.07 * 100 in binary is more."""
    return ceil(Fraction(repr(float(share))) * numel)


class SparseExchange(GatheringExchange):
    """Sends the values at the positions that `choose` gives; keeps the rest."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    @abstractmethod
    def choose(self, flat: torch.Tensor, k: int, names: Hashable) -> torch.Tensor:
        """k different positions in `flat`, int64."""

    def encode(self, flat: torch.Tensor, residual: torch.Tensor, names: Hashable) -> Parts:
        """See GatheringExchange."""
        chosen = self.choose(flat, num_kept(self._share, flat.numel()), names)
        residual.copy_(flat)
        residual[chosen] = 0
        return flat[chosen], chosen.to(_position_type(flat.numel()))

    def add_decoded(self, flat: torch.Tensor, parts: Parts) -> None:
        """See GatheringExchange."""
        values, positions = parts
        flat.index_add_(0, positions, values)

    def message_bytes(self, numel: int, element_size: int) -> int:
        """See GatheringExchange."""
        position_bytes: int = _position_type(numel).itemsize
        return num_kept(self._share, numel) * (element_size + position_bytes)


class TopKExchange(SparseExchange):
    """The k elements of largest magnitude. NaN counts as largest, and is sent."""

    def choose(self, flat: torch.Tensor, k: int, names: Hashable) -> torch.Tensor:
        """See SparseExchange."""
        magnitudes = flat.abs()
        if not bool(torch.isfinite(magnitudes.sum())):
            return magnitudes.topk(k, sorted=False).indices
        # Selecting among the few above a rough threshold is several times faster than among all.
        rough = find_thresholds(magnitudes, k, rounds=ROUGH_ROUNDS)
        candidates = (magnitudes >= rough.low).nonzero().view(-1)
        return candidates[magnitudes[candidates].topk(k, sorted=False).indices]


class MsTopKExchange(SparseExchange):
    """About the k largest, found by halving a threshold instead of sorting; exactly k are sent."""

    def __init__(self, share: float, seed: int) -> None:
        super().__init__(share)
        self._seed = seed
        self._draws: dict[Hashable, Random] = {}

    def choose(self, flat: torch.Tensor, k: int, names: Hashable) -> torch.Tensor:
        """See SparseExchange."""
        draws = self._draws.get(names)
        if draws is None:
            draws = self._draws[names] = Random(draw_seed(self._seed, "mstopk", names))
        magnitudes = flat.abs()
        if not bool(torch.isfinite(magnitudes.sum())):
            # Mean and maximum say nothing beside a NaN; exact top-k puts it first.
            return magnitudes.topk(k, sorted=False).indices
        return choose_by_threshold(magnitudes, k, find_thresholds(magnitudes, k), draws)


class Thresholds(NamedTuple):
    """`high` keeps `num_high` <= k elements; `low` keeps `num_low` >= k."""

    high: float
    num_high: int
    low: float
    num_low: int


def find_thresholds(magnitudes: torch.Tensor, k: int, rounds: int = ROUNDS) -> Thresholds:
    """MSTopK's search (Shi et al., MLSys 2021, algorithm 1): halve [mean, max] and count what is not below.

    Args:
        magnitudes: (n,), finite, none negative.
        k: 1 .. n.
    """
    mean, top = float(magnitudes.mean()), float(magnitudes.max())
    left, right = 0.0, 1.0
    high, num_high, low, num_low = inf, 0, 0.0, magnitudes.numel()
    candidates = magnitudes  # thresholds only rise above `left`: what is below it need not be counted again
    for _ in range(rounds):
        middle = (left + right) / 2
        threshold = mean + middle * (top - mean)
        reached = candidates >= threshold
        count = int(reached.count_nonzero())
        if count <= k:
            right = middle
            if count > num_high:
                high, num_high = threshold, count
        else:
            left = middle
            if count < num_low:
                low, num_low = threshold, count
            if 2 * count < candidates.numel():
                candidates = candidates[reached]
        if count == k:
            break
    return Thresholds(high, num_high, low, num_low)


def choose_by_threshold(
    magnitudes: torch.Tensor, k: int, thresholds: Thresholds, draws: Random
) -> torch.Tensor:
    """All positions at or above `high`, and of those between the two a run of neighbors begun at random."""
    sure = (magnitudes >= thresholds.high).nonzero().view(-1)
    missing = k - sure.numel()
    if not missing:
        return sure
    between = ((magnitudes >= thresholds.low) & (magnitudes < thresholds.high)).nonzero().view(-1)
    begin = draws.randint(0, between.numel() - missing)
    return torch.cat([sure, between[begin : begin + missing]])


def _position_type(numel: int) -> torch.dtype:
    return torch.int32 if numel < 2**31 else torch.int64
