"""Exact sums by group of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64


def exact_sums(group: NDArray[np.integer], ns: Int64, num: int) -> list[int]:
    """Exact sums by group: floating point would lose nanoseconds above 2**53."""
    totals = np.zeros(num, dtype=np.int64)
    np.add.at(totals, group, ns)
    result: list[int] = totals.tolist()
    return result


def text_of(texts: Sequence[str], code: int) -> str:
    """The text of a code; "" for -1."""
    return texts[code] if code >= 0 else ""
