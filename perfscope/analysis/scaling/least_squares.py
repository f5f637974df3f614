"""Least squares on relative errors with some coefficients held at or above 0, for many targets at once.

Models here are linear in their coefficients and have at most three of them, so the bounded optimum is found
by trying every set of coefficients held at 0 (2^3 at most): exact, no iteration, no starting point.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def bounded_fit(design: Floats, targets: Floats, at_least_zero: Sequence[bool]) -> Floats:
    """Coefficients that minimize sum(((design @ c - y) / y)^2) with c_k >= 0 where asked.

    Args:
        design: (points, k), of full column rank.
        targets: (many, points), above 0.
        at_least_zero: k flags.

    Returns:
        (many, k).
    """
    scale = np.abs(design).max(axis=0)
    weighted = (design / scale)[None, :, :] / targets[:, :, None]  # the target of every row is now 1
    gram = np.einsum("bpi,bpj->bij", weighted, weighted)
    right = weighted.sum(axis=1)
    best = np.zeros((targets.shape[0], design.shape[1]))
    least = np.full(targets.shape[0], np.inf)
    for held in product(*((False, True) if bounded else (False,) for bounded in at_least_zero)):
        free = [column for column, is_held in enumerate(held) if not is_held]
        coefficients = np.zeros_like(best)
        if free:
            coefficients[:, free] = _solved(gram[:, free][:, :, free], right[:, free])
        allowed = np.ones(targets.shape[0], dtype=bool)
        for column, bounded in enumerate(at_least_zero):
            if bounded:
                allowed &= coefficients[:, column] >= 0
        loss = ((np.einsum("bpi,bi->bp", weighted, coefficients) - 1) ** 2).sum(axis=1)
        better = allowed & (loss < least)
        best[better] = coefficients[better]
        least[better] = loss[better]
    return np.asarray(best / scale, dtype=np.float64)


def _solved(gram: Floats, right: Floats) -> Floats:
    """Normal equations of many fits, (many, k, k) and (many, k) -> (many, k).

    Brought to a unit diagonal and kept a hair from singular: targets that differ by many orders leave one
    point
    with all the weight, and then only the other candidates of `bounded_fit` count.
    """
    size = np.sqrt(np.einsum("bii->bi", gram))
    size[size == 0] = 1
    even = gram / (size[:, :, None] * size[:, None, :]) + 1e-14 * np.eye(gram.shape[1])
    return np.asarray(np.linalg.solve(even, (right / size)[:, :, None])[:, :, 0] / size, dtype=np.float64)


def smape_of(fitted: Floats, measured: Floats) -> Floats:
    """Symmetric mean absolute error as a ratio, 0 to 2, over the last axis; a pair of zeros counts as 0."""
    size = np.abs(fitted) + np.abs(measured)
    error = np.divide(
        2 * np.abs(fitted - measured),
        size,
        out=np.zeros(np.broadcast(fitted, measured).shape),
        where=size > 0,
    )
    return np.asarray(error.mean(axis=-1), dtype=np.float64)


def resampled_targets(
    fitted: Floats, repeats: Sequence[Sequence[float]], num_coefficients: int, draws: int, seed: int
) -> Floats:
    """Targets as they might have been measured: the fit times relative residuals drawn from all repeats.

    Residuals hold the spread of repeats and what the model misses; they are widened by the degrees of freedom
    that the fit used up. Each resampled point is the median of as many draws as it had repeats.

    Args:
        fitted: (points,), above 0.
        repeats: per point its measurements, above 0.
        num_coefficients: of the model.
        draws: how many series.
        seed: of the generator, so that the same data give the same interval.

    Returns:
        (draws, points).
    """
    residuals = np.concatenate(
        [np.asarray(each) / value for each, value in zip(repeats, fitted, strict=True)]
    )
    spare = max(1, fitted.size - num_coefficients)
    residuals = 1 + (residuals - residuals.mean()) * np.sqrt(fitted.size / spare)
    residuals = np.clip(residuals, 0.05, None)
    random = np.random.default_rng(seed)
    targets = np.empty((draws, fitted.size))
    for index, each in enumerate(repeats):
        drawn = residuals[random.integers(0, residuals.size, (draws, len(each)))]
        targets[:, index] = fitted[index] * np.median(drawn, axis=1)
    return targets
