"""The time of operators without that of the operators inside them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64, numbered
from perfscope.analysis.spans import Spans


def own_time(spans: Spans, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Int64]:
    """Rows in another order, and each one's time without that of the given rows inside it, ns.

    Spans of a thread nest. The parent of a span is the last one before it whose depth is one less; its depth
    is the number of spans that are open when it starts.
    """
    order = np.lexsort((-spans.end[rows], spans.start[rows], spans.lane[rows]))
    rows = rows[order]
    # Threads one after the other on one line: no span of a thread is open when the next begins.
    shift = _shift(spans, rows)
    start, end = spans.start[rows] + shift, spans.end[rows] + shift
    length = end - start
    exclusive = length.copy()
    depth = np.arange(len(rows)) - np.searchsorted(np.sort(end), start, side="right")
    inner = np.flatnonzero(depth > 0)
    if not len(inner):
        return rows, exclusive
    by_depth = np.argsort(depth, kind="stable")
    keys = depth[by_depth] * len(rows) + by_depth
    parent = by_depth[np.searchsorted(keys, (depth[inner] - 1) * len(rows) + inner) - 1]
    encloses = (start[parent] <= start[inner]) & (end[inner] <= end[parent])
    np.subtract.at(exclusive, parent[encloses], length[inner[encloses]])
    return rows, np.maximum(exclusive, 0)


def _shift(spans: Spans, rows: NDArray[np.int64]) -> Int64:
    lanes, of_lane = numbered(spans.lane[rows])
    span = int(spans.end[rows].max() - spans.start[rows].min()) + 1
    return of_lane.astype(np.int64) * span if len(lanes) > 1 else np.zeros(len(rows), dtype=np.int64)
