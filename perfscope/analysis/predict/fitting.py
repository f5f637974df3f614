"""Small numerics that the fits share."""

from __future__ import annotations

from functools import lru_cache
from math import erf, sqrt

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.scaling.speedup import Interval

Floats = NDArray[np.float64]
_GRID = 2001


def non_negative(design: Floats, target: Floats) -> Floats:
    """Least squares of two unknowns, both >= 0: the best of the four cases.

    Args:
        design: shape (n, 2).
        target: shape (n,).

    Returns:
        Shape (2,).
    """
    norm = np.linalg.norm(design, axis=0)
    norm[norm == 0] = 1.0
    unit = design / norm
    both, *_ = np.linalg.lstsq(unit, target, rcond=None)
    if (both >= 0).all():
        result: Floats = both / norm
        return result
    alone = np.maximum(unit.T @ target, 0)
    errors = [float(np.sum((target - unit[:, k] * alone[k]) ** 2)) for k in range(2)]
    chosen = int(np.argmin(errors))
    solution = np.zeros(2)
    solution[chosen] = alone[chosen] / norm[chosen]
    return solution


def interval(draws: Floats, point: float) -> Interval:
    """95 % of the draws (percentiles 2.5 and 97.5), stretched to hold the point."""
    low, high = np.percentile(draws, (2.5, 97.5))
    return Interval(low=min(float(low), point), high=max(float(high), point))


@lru_cache(maxsize=256)
def expected_maximum(num: int) -> float:
    """Mean of the largest of `num` independent standard normal values: 0, 0.56, 0.85, 1.03 for 1 to 4.

    The integral of x N phi(x) Phi(x)^(N-1), by the trapezoidal rule on [-8, 8].
    """
    if num < 2:
        return 0.0
    x = np.linspace(-8, 8, _GRID)
    below = np.array([(1 + erf(value / sqrt(2))) / 2 for value in x.tolist()])
    density = np.exp(-x * x / 2) / sqrt(2 * np.pi)
    return float(np.trapezoid(x * num * density * below ** (num - 1), x))
