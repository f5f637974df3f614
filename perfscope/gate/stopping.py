"""After how many pairs a check ends.

It looks at the verdict after `pairs` pairs, and where these leave it in doubt (the median beyond the
threshold, but not proven) after more, twice at most, up to `most_pairs`. In between it ends early

- for a pass as soon as the median can no longer exceed the threshold at the next look. That is exact: such a
  check would have passed there, only later;
- for a regression once seven pairs (six, where `alpha` allows it) were all slower by more than twice the
  threshold.

Each look is an exact test at `alpha` (0.01). Three of them, with the threshold that the median must exceed
besides, gave 1 % false alarms with real runs whose p10 steps differ by 6 % and found +10 % in six of seven
checks; one look at 0.05 gave twice to three times as many and found less (docs/check.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfscope.gate.statistics import Floats, signed_rank_p_of
from perfscope.messages.gate import runs as words

FIRST_OBVIOUS = 6
OBVIOUS = 2.0  # times the threshold


def settled(
    judged: Sequence[tuple[Sequence[float], float]], at: Sequence[int], alpha: float, fewest: int
) -> str:
    """Why the check ends after these pairs, one sentence; "" = it goes on.

    It ends when one of the metrics that can fail it does so, or when none of them can any more.

    Args:
        judged: for each such metric, head / base of the pairs so far (1 + the share by which it is worse) and
            its threshold.
        at: the looks, ascending.
        fewest: pairs below which nothing may be judged.
    """
    reasons = []
    for ratios, threshold in judged:
        done = len(ratios)
        tried = np.asarray([ratios], dtype=np.float64).reshape(1, done)
        regression, used = sequential_rule(tried, at, threshold, alpha, fewest)
        number = int(used[0])
        if regression[0]:
            if number < at[0]:
                return words.all_slower(number)
            return words.decided(number)
        reason = words.decided(number) if number in at else words.cannot_fail(number)
        reasons.append(reason if number else "")
    return reasons[0] if reasons and all(reasons) else ""


def sequential_rule(
    ratios: Floats, at: Sequence[int], threshold: float, alpha: float, fewest: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The gate's whole rule for many checks at once.

    Args:
        ratios: head / base of each pair in the order they ran, shape (checks, pairs), positive.
        at: the looks, ascending.

    Returns:
        Whether each check is a regression, and after how many pairs it ended, both of shape (checks,). 0
        pairs: it is not settled by the pairs there are.
    """
    checks, pairs = ratios.shape
    regression = np.zeros(checks, dtype=bool)
    used = np.zeros(checks, dtype=np.int64)
    slower = ratios > 1 + threshold
    for done in range(fewest, min(pairs, at[-1]) + 1):
        so_far = ratios[:, :done]
        if done in at:
            large = np.atleast_1d(np.median(so_far, axis=1)) > 1 + threshold
            proven = large & (signed_rank_p_of(np.log(so_far)) < alpha)
            ends = np.asarray(proven | ~large | (done == at[-1]))
        else:
            look = next(one for one in at if one > done)
            ends = (~slower[:, :done]).sum(axis=1) > look // 2
            proven = np.zeros(checks, dtype=bool)
            if FIRST_OBVIOUS <= done < at[0] and 0.5**done < alpha:
                proven = np.asarray((so_far > 1 + OBVIOUS * threshold).all(axis=1))
            ends = np.asarray(ends | proven)
        now = ends & (used == 0)
        used[now] = done
        regression[now] = proven[now]
    return regression, used
