"""When further pairs need not be run.

For a pass: as soon as no outcome of the pairs still planned could make the check a regression. That is
exact: such a check would have ended as it does, only later. For a regression: once the first six pairs or
more (three quarters of those planned) were all slower by more than the threshold. This one further look
costs error probability: for 8 pairs the chance of a false proof is 4.54 % with it and 3.91 % without
(enumerated in the tests), still below the 5 % of the test, and before the threshold is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from perfscope.gate.statistics import signed_rank_tail

FIRST_LOOK = 6


def settled(ratios: Sequence[float], planned: int, threshold: float, alpha: float, fewest: int) -> str:
    """Why the check can end after these pairs, one sentence; "" = it cannot.

    Args:
        ratios: head / base of the pairs so far.
        fewest: pairs below which nothing may be judged.
    """
    done = len(ratios)
    if done < fewest or done >= planned:
        return ""
    if done >= first_look(planned) and min(ratios) > 1 + threshold and 0.5**done < alpha:
        return f"all of the first {done} pairs are slower by more than the threshold"
    if not _could_be_proven(ratios, planned, alpha):
        return f"after {done} pairs no slow-down can be proven any more"
    if sum(ratio <= 1 + threshold for ratio in ratios) > planned // 2:
        return f"after {done} pairs the median can no longer exceed the threshold"
    return ""


def first_look(planned: int) -> int:
    """The number of pairs from which on a regression may be called early."""
    return max(FIRST_LOOK, math.ceil(0.75 * planned))


def _could_be_proven(ratios: Sequence[float], planned: int, alpha: float) -> bool:
    """Whether the signed-rank test can still reach `alpha` if all further pairs are slower, by any amount."""
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    order = np.lexsort((logs <= 0, np.abs(logs)))
    ranks = np.empty(len(logs), dtype=np.int64)
    ranks[order] = np.arange(1, len(logs) + 1)
    below = int(ranks[logs <= 0].sum())  # least that W- can end with: further pairs all larger in magnitude
    total = planned * (planned + 1) // 2
    return bool(signed_rank_tail(planned)[total - below] < alpha)
