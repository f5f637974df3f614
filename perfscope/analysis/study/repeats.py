"""Intervals and tests from repeated runs. The runs are the unit, never their steps.

With the two to five repeats that a study has, the plain percentile bootstrap is far too narrow (with two
values it cannot leave them). So its deviations are widened as Hesterberg 2015 ("What teachers should know
about the bootstrap", expanded percentiles) has it: by sqrt(n / (n - 1)) t(0.975; d) / 1.96, with d = n - 1,
for a ratio the degrees of freedom of Welch and Satterthwaite.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.study.results import Interval

SEED = 20_260
NUM_DRAWS = 2_000
MAX_PERMUTATIONS = 5_000  # exact below, drawn above
_Z = 1.959964
# Student's t, 97.5 %, by degrees of freedom 1..30
_T = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
Floats = NDArray[np.float64]


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, the same whatever the order. Raises ZeroDivisionError for none."""
    return math.fsum(values) / len(values)


def center(values: Sequence[float]) -> float:
    """Median: what stands for the repeats, as in the tables of `perfscope bench sweep`. Not of nothing."""
    return float(statistics.median(values))


def center_interval(values: Sequence[float]) -> Interval | None:
    """95 % interval of the median of positive `values`; None of fewer than two."""
    if len(values) < 2:
        return None
    low, high = _bounds(math.log(center(values)), log_centers(values), len(values), len(values) - 1)
    return Interval(low=low, high=high, num_repeats=len(values))


def ratio_interval(
    above: Sequence[float], below: Sequence[float], drawn: tuple[Floats, Floats] | None = None
) -> Interval | None:
    """95 % interval of median(above) / median(below), positive values; None where one has fewer than two.

    Args:
        above, below: one value per repeat.
        drawn: log_centers of `above` with stream 0 and of `below` with stream 1, where they are known.
    """
    num = min(len(above), len(below))
    if num < 2:
        return None
    numerators, denominators = drawn or (log_centers(above), log_centers(below, stream=1))
    freedom = _welch_freedom(np.log(above), np.log(below))
    low, high = _bounds(math.log(center(above) / center(below)), numerators - denominators, num, freedom)
    return Interval(low=low, high=high, num_repeats=num)


def permutation_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p of the difference of means if labels did not matter; None where a side has one value.

    Exact where there are at most MAX_PERMUTATIONS splits. Two repeats a side cannot give less than 1/3.
    """
    if min(len(first), len(second)) < 2:
        return None
    pooled = np.array(sorted([*first, *second]), dtype=np.float64)
    num = min(len(first), len(second))
    small = first if len(first) <= len(second) else second
    spread = abs(mean(small) - _mean_of_rest(pooled, math.fsum(small), num))
    if math.comb(len(pooled), num) <= MAX_PERMUTATIONS:
        sums = np.array([pooled[list(at)].sum() for at in itertools.combinations(range(len(pooled)), num)])
    else:
        rng = np.random.default_rng(SEED)
        sums = np.array([rng.permutation(pooled)[:num].sum() for _ in range(MAX_PERMUTATIONS)])
    differences = np.abs(sums / num - (pooled.sum() - sums) / (len(pooled) - num))
    return float((differences >= spread * (1 - 1e-12)).mean())


def _mean_of_rest(pooled: Floats, taken: float, num: int) -> float:
    return (math.fsum(pooled.tolist()) - taken) / (len(pooled) - num)


def log_centers(values: Sequence[float], stream: int = 0) -> Floats:
    """Logarithms of bootstrap medians of positive values, shape (NUM_DRAWS,).

    Sorted first, so that the order of the runs changes nothing.
    """
    ordered = np.array(sorted(values), dtype=np.float64)
    rng = np.random.default_rng([SEED, stream])
    drawn = ordered[rng.integers(0, len(ordered), size=(NUM_DRAWS, len(ordered)))]
    return np.asarray(np.log(np.median(drawn, axis=1)), dtype=np.float64)


def _welch_freedom(above: Floats, below: Floats) -> int:
    """Degrees of freedom of a difference of two means (Welch-Satterthwaite), rounded down."""
    parts = [float(side.var(ddof=1)) / side.size for side in (above, below)]
    least = min(above.size, below.size) - 1
    spread = sum(part**2 / (side.size - 1) for part, side in zip(parts, (above, below), strict=True))
    return max(least, int(sum(parts) ** 2 / spread)) if spread > 0 else above.size + below.size - 2


def _bounds(center: float, drawn: Floats, num: int, freedom: int) -> tuple[float, float]:
    """`drawn` and `center` are logarithms."""
    wider = math.sqrt(num / (num - 1)) * (_T[freedom - 1] if freedom <= len(_T) else _Z) / _Z
    low, high = np.percentile(drawn, (2.5, 97.5))
    return math.exp(center + (float(low) - center) * wider), math.exp(center + (float(high) - center) * wider)
