"""After how many pairs a check looks at its verdict, and how many could prove anything. Without numpy."""

from __future__ import annotations

import math


def looks(pairs: int, most: int) -> tuple[int, ...]:
    """Numbers of pairs after which the verdict is looked at: `pairs`, `most` and one halfway, each once."""
    most = max(pairs, most)
    return tuple(sorted({pairs, (pairs + most + 1) // 2, most}))


def fewest_pairs(alpha: float) -> int:
    """The fewest pairs that can prove anything: all of them slower must have p < alpha."""
    return math.floor(-math.log2(alpha)) + 1
