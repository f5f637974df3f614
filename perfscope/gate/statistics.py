"""The tests behind a verdict: exact, one-sided, and on runs, never on steps.

The steps of one run share its placement, its caches and its neighbors, so they are not independent; runs
are the unit. Sources: F. Wilcoxon, Individual comparisons by ranking methods (1945) for the signed-rank and
the rank-sum test; Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., 3.1-3.3 and
4.1-4.3 for the exact null distributions and the intervals from Walsh averages and pairwise differences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
_EXACT_RUNS = 60  # of both sides together; beyond, the normal approximation is as good and far cheaper
_MAD_TO_SD = 1.4826
_Z_80 = 0.8416  # quantile of the normal distribution


def signed_rank_p(differences: Sequence[float] | Floats) -> float:
    """One-sided p value of Wilcoxon's signed-rank test that differences lie above 0; 1.0 of nothing.

    Ties and zeros are counted against the alternative: of equal magnitudes those above 0 get the lower
    ranks, and a zero counts as below. So the p value is never too small.
    """
    values = np.asarray(differences, dtype=np.float64)
    return float(signed_rank_p_of(values[None, :])[0]) if len(values) else 1.0


def signed_rank_p_of(differences: Floats) -> Floats:
    """`signed_rank_p` of every row.

    Args:
        differences: shape (tests, pairs), finite.

    Returns:
        shape (tests,).
    """
    num = differences.shape[1]
    above = differences > 0
    # lexsort sorts by its last key first: magnitude, then those above 0 before the others.
    order = np.lexsort((~above, np.abs(differences)), axis=1)
    ranks = np.empty(differences.shape, dtype=np.int64)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(1, num + 1), differences.shape), axis=1)
    result: Floats = signed_rank_tail(num)[(ranks * above).sum(axis=1)]
    return result


@lru_cache(maxsize=256)
def signed_rank_tail(num: int) -> Floats:
    """P(W+ >= w) for w = 0 .. num(num+1)/2 when each rank is as likely above as below 0."""
    mass = np.ones(1)
    for rank in range(1, num + 1):
        mass = np.concatenate((mass, np.zeros(rank))) / 2 + np.concatenate((np.zeros(rank), mass)) / 2
    tail: Floats = np.minimum(1.0, np.cumsum(mass[::-1])[::-1])
    tail.flags.writeable = False
    return tail


def rank_sum_p(base: Sequence[float] | Floats, head: Sequence[float] | Floats) -> float:
    """One-sided p value of the rank-sum (Mann-Whitney) test that `head` lies above `base`; 1.0 of nothing.

    Exact up to 60 values, ties by mid-ranks; beyond by the normal approximation with corrections for ties and
    continuity.
    """
    first, second = np.asarray(base, dtype=np.float64), np.asarray(head, dtype=np.float64)
    num, total = len(second), len(first) + len(second)
    if not len(first) or not num:
        return 1.0
    doubled = _doubled_mid_ranks(np.concatenate((first, second)))
    observed = int(doubled[len(first) :].sum())
    if total > _EXACT_RUNS:
        return _rank_sum_normal(doubled, num, observed)
    # ways[k, s]: subsets of k values of which the doubled ranks add up to s; floats hold them exactly enough.
    ways = np.zeros((num + 1, int(doubled.sum()) + 1))
    ways[0, 0] = 1.0
    for rank in doubled:
        for size in range(num, 0, -1):
            ways[size, rank:] += ways[size - 1, : ways.shape[1] - rank]
    return float(ways[num, observed:].sum() / ways[num].sum())


def _doubled_mid_ranks(values: Floats) -> NDArray[np.int64]:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    first = last - counts + 1
    result: NDArray[np.int64] = (first + last)[group]
    return result


def _rank_sum_normal(doubled: NDArray[np.int64], num: int, observed: int) -> float:
    total = len(doubled)
    mean = num * float(doubled.sum()) / total
    spread = float(doubled.std())
    deviation = spread * math.sqrt(num * (total - num) / (total - 1))
    if deviation == 0:
        return 1.0
    return 0.5 * math.erfc((observed - 1 - mean) / deviation / math.sqrt(2))


def walsh_interval(differences: Sequence[float] | Floats) -> tuple[float, float] | None:
    """95 % interval of the center of paired differences, from their Walsh averages.

    Of fewer than 6 differences no interval reaches 95 %: then the widest there is (5: 93.75 %). None of
    fewer than 2.
    """
    values = np.sort(np.asarray(differences, dtype=np.float64))
    num = len(values)
    if num < 2:
        return None
    upper = np.triu_indices(num)
    averages = np.sort((values[upper[0]] + values[upper[1]]) / 2)
    tail = signed_rank_tail(num)  # symmetric: P(W+ >= total - k) = P(W+ <= k)
    beyond = [k for k in range(len(averages)) if tail[len(averages) - k] <= (1 - CONFIDENCE) / 2]
    cut = min(max(beyond, default=0), (len(averages) - 1) // 2)
    return float(averages[cut]), float(averages[len(averages) - 1 - cut])


def shift_interval(
    base: Sequence[float] | Floats, head: Sequence[float] | Floats
) -> tuple[float, float] | None:
    """95 % interval of how much `head` lies above `base`, from all pairwise differences.

    None of fewer than 2 a side. By the normal approximation to the rank-sum statistic (within one rank of
    exact from 5 a side on).
    """
    first, second = np.asarray(base, dtype=np.float64), np.asarray(head, dtype=np.float64)
    m, n = len(first), len(second)
    if m < 2 or n < 2:
        return None
    gaps = np.sort((second[:, None] - first[None, :]).ravel())
    cut = m * n / 2 - 1.96 * math.sqrt(m * n * (m + n + 1) / 12)
    at = max(0, min(math.floor(cut) - 1, (len(gaps) - 1) // 2))
    return float(gaps[at]), float(gaps[len(gaps) - 1 - at])


def robust_spread(values: Sequence[float] | Floats) -> float:
    """Standard deviation by the median absolute deviation, in the values' own unit; 0 of fewer than 2."""
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) < 2:
        return 0.0
    return float(_MAD_TO_SD * np.median(np.abs(numbers - np.median(numbers))))


def visible_change(spread: float, looks: Sequence[int], threshold: float, alpha: float) -> float:
    """The smallest slow-down that a check of pairs finds four times out of five, as a share.

    It must pass two hurdles: the median beyond the threshold at the first look (efficiency of a median
    2/pi), and the test at the last (signed-rank, efficiency 3/pi). Normal noise is assumed; `perfscope
    check --calibrate` resamples real runs.

    Args:
        spread: of the log ratio of a pair.
        looks: numbers of pairs after which the verdict is looked at, ascending.
    """
    proof = (_z(1 - alpha) + _Z_80) * spread * math.sqrt(math.pi / 3 / looks[-1])
    size = math.log1p(threshold) + _Z_80 * spread * math.sqrt(math.pi / 2 / looks[0])
    return math.expm1(max(proof, size))


def visible_shift(spread: float, num: int, needed: float, alpha: float) -> float:
    """The same for two sides of `num` runs each, of which the medians must lie `needed` apart (a share).

    Args:
        spread: of a run's log value.
    """
    error = spread * math.sqrt(2 / max(num, 1))
    proof = (_z(1 - alpha) + _Z_80) * error * math.sqrt(math.pi / 3)
    size = math.log1p(needed) + _Z_80 * error * math.sqrt(math.pi / 2)
    return math.expm1(max(proof, size))


def _z(share: float) -> float:
    return NormalDist().inv_cdf(share)
