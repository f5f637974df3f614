"""The operator that each launch is made in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.ingest.classify import HostClass
from perfscope.ingest.spill import HOST, Rows

Ints = npt.NDArray[np.int64]
NO_OPERATOR = -1
_OPERATORS = (HostClass.OPERATOR, HostClass.REGION, HostClass.NODE, HostClass.COLLECTIVE_OP)
_MOST_STEPS_BACK = 64  # rows looked at where times are rounded so that spans do not nest


class LaunchingOperators:
    """Keeps, per thread, the operators that are open at the end of a slice."""

    def __init__(self) -> None:
        self._open: dict[int, Rows] = {}

    def at(self, lane: int, rows: Rows, codes: Ints, moments: Ints, until: int) -> Ints:
        """Word of the innermost operator that is open at each moment; NO_OPERATOR for none.

        Args:
            lane: number of the thread.
            rows, codes: of the thread's slice, by start, what encloses first.
            moments: in the slice, shape (n,).
            until: end of the slice.
        """
        chosen = rows[np.isin(codes, _OPERATORS)]
        before = self._open.get(lane)
        if before is not None and len(before):
            chosen = np.concatenate([before, chosen])
        start, end = chosen["start"], chosen["start"] + np.maximum(chosen["dur"], 1)
        still_open = chosen[end > until]
        self._open[lane] = still_open if len(still_open) else np.zeros(0, HOST)
        if not len(chosen) or not len(moments):
            return np.full(len(moments), NO_OPERATOR)
        index = _innermost(start, end, moments)
        return np.where(index >= 0, chosen["name"][np.maximum(index, 0)], NO_OPERATOR).astype(np.int64)


def _innermost(start: Ints, end: Ints, moments: Ints) -> Ints:
    """Index of the innermost span around each moment; -1 = none. Spans by start, what encloses first.

    A span's depth is the number of spans that are open when it starts. What is innermost at a moment is the
    last span before it whose depth is one less than the number of spans open then.
    """
    count = len(start)
    ends = np.sort(end)
    depth = np.arange(count) - np.searchsorted(ends, start, side="right")
    begun = np.searchsorted(start, moments, side="right")
    wanted = begun - np.searchsorted(ends, moments, side="right") - 1
    by_depth = np.argsort(depth, kind="stable")
    keys = depth[by_depth] * count + by_depth
    position = np.searchsorted(keys, wanted * count + begun - 1, side="right") - 1
    index = np.where(wanted >= 0, by_depth[np.maximum(position, 0)], -1)
    wrong = (index >= 0) & ((end[index] <= moments) | (start[index] > moments))
    for at in np.flatnonzero(wrong).tolist():
        index[at] = _walk_back(end, int(begun[at]) - 1, int(moments[at]))
    return index


def _walk_back(end: Ints, last: int, moment: int) -> int:
    around = np.flatnonzero(end[max(0, last - _MOST_STEPS_BACK) : last + 1] > moment)
    return max(0, last - _MOST_STEPS_BACK) + int(around[-1]) if len(around) else -1
