"""Where measurements gather, when many of them are late and never early.

The middle of the tightest half (Rousseeuw's least median of squares) stays put while fewer than half of the
values are wrong, all in one direction too, where a mean or a median gives way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NORMAL = 1.4826  # half-width of a normal distribution's tightest half -> its standard deviation
_KEEP = 2.5  # standard deviations; what lies further out has no say in the center


def gathered(values: Floats) -> tuple[float, float]:
    """(center, half-width of the tightest half): the median of the values that belong to the tightest half.

    Args:
        values: shape (n,), n >= 1, in any order.
    """
    ordered = np.sort(values)
    num = len(ordered) // 2 + 1
    width = ordered[num - 1 :] - ordered[: len(ordered) - num + 1]
    ties = (width == width.min()).nonzero()[0]
    half = float(width[ties[0]]) / 2
    # Of several equally short spans, half way between the outermost: no side is preferred.
    middle = float(ordered[ties[0]] + ordered[ties[-1]]) / 2 + half
    reach = _KEEP * NORMAL * half
    low, high = ordered.searchsorted(middle - reach), ordered.searchsorted(middle + reach, "right")
    if low >= high:
        return middle, half
    return float(ordered[(low + high - 1) // 2] + ordered[(low + high) // 2]) / 2, half


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value at which half of the weight is reached; shape (n,) both, n >= 1."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(reached, reached[-1] / 2)]])
