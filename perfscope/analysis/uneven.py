"""Steps whose median does not stand for them."""

from __future__ import annotations

import numpy as np

from perfscope.analysis.intervals import Int64, median_of

FEWEST_UNEVEN = 10  # steps by which times are judged to be uneven
STALLS = 0.01  # of the steps, the longest, that do not make them so
UNEVEN = 0.1  # of the median, from the mean of the others


def uneven_mean(durations: Int64) -> float | None:
    """The mean of steps for which their median does not stand; None where it does.

    A few stalls (`STALLS` of the steps, the longest) do not count for that, but are part of the mean.

    Args:
        durations: shape (n,), ns.
    """
    if len(durations) < FEWEST_UNEVEN:
        return None
    kept = np.sort(durations)[: len(durations) - max(1, round(STALLS * len(durations)))]
    median = median_of(durations)
    is_uneven = abs(float(kept.mean()) - median) > UNEVEN * median
    return float(durations.mean()) if is_uneven else None
