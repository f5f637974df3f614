"""Fewer spans for the eye: the longest stay as recorded, short neighbors melt into one, the rest goes.

Spans shorter than a threshold are far below a pixel at the zoom that shows the whole window. Those of one
lane, depth, kind, phase and step that follow each other closer than the threshold become one span that says
how many it stands for; if that is still too much, the shortest of these are left out.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64

LONG_SHARE = 0.6  # of the budget, for spans as recorded
PIXELS = 2000  # of a wide screen that shows the whole window


class Rows(Struct, frozen=True, kw_only=True, eq=False):
    """Spans of one rank and window; arrays of shape (n,)."""

    start: Int64
    end: Int64
    device: Int64
    lane: Int64
    depth: Int64
    kind: Int64
    phase: Int64
    step: Int64
    name: Int64
    layer: Int64  # -1 = none
    axis: Int64  # of communication; -1 = none
    group: Int64  # likewise
    reason: Int64  # why communication has no layer; -1 = it has one, or is no communication
    flops: Int64  # -1 = unknown
    bytes: Int64  # -1 = unknown
    count: Int64  # spans this one stands for

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Rows:
        return Rows(**{name: getattr(self, name)[index] for name in self.__struct_fields__})

    def joined(self, other: Rows) -> Rows:
        return Rows(
            **{
                name: np.concatenate((getattr(self, name), getattr(other, name)))
                for name in self.__struct_fields__
            }
        )


def thin(rows: Rows, budget: int, merged_name: int) -> tuple[Rows, int]:
    """At most `budget` rows.

    Args:
        rows: as recorded.
        budget: how many may stay.
        merged_name: the name of a span that stands for several.

    Returns:
        The rows, and the threshold below which spans were merged (ns; 0 = nothing was).
    """
    num = len(rows.start)
    if num <= budget:
        return rows, 0
    duration = rows.end - rows.start
    num_long = math.ceil(budget * LONG_SHARE)
    # Of several spans as long as the last that fits, the first in the table stay.
    longest = np.argsort(-duration, kind="stable")[:num_long]
    threshold = int(duration[longest[-1]]) if num_long else int(duration.max(initial=0)) + 1
    is_long = np.zeros(num, dtype=bool)
    is_long[longest] = True
    # A gap must stay below a pixel too, or a lane would look busy where it was not.
    gap = int(rows.end.max() - rows.start.min()) // PIXELS + 1
    merged = _melt(rows.take(~is_long), min(max(threshold, 1), gap), merged_name)
    room = budget - num_long
    if len(merged.start) > room:
        merged = merged.take(np.sort(np.argsort(merged.start - merged.end, kind="stable")[:room]))
    return rows.take(is_long).joined(merged), max(threshold, 1)


def _melt(rows: Rows, gap: int, merged_name: int) -> Rows:
    """Joins neighbors of one lane, depth, kind, phase and step that lie less than `gap` apart."""
    if not len(rows.start):
        return rows
    keys = (rows.device, rows.lane, rows.depth, rows.kind, rows.phase, rows.step)
    order = np.lexsort((rows.start, *reversed(keys)))
    rows = rows.take(order)
    new = np.zeros(len(order), dtype=bool)
    new[0] = True
    for key in keys:
        new[1:] |= key[order][1:] != key[order][:-1]
    new[1:] |= rows.start[1:] - rows.end[:-1] >= gap
    first = np.flatnonzero(new)
    count = np.add.reduceat(rows.count, first)
    common = {name: _common(getattr(rows, name), first) for name in ("layer", "axis", "group", "reason")}
    head = rows.take(first)
    return Rows(
        start=head.start,
        end=np.maximum.reduceat(rows.end, first),
        device=head.device,
        lane=head.lane,
        depth=head.depth,
        kind=head.kind,
        phase=head.phase,
        step=head.step,
        name=np.where(count > 1, merged_name, head.name),
        flops=_sum_known(rows.flops, first),
        bytes=_sum_known(rows.bytes, first),
        count=count,
        **common,
    )


def _common(values: Int64, first: NDArray[np.int64]) -> Int64:
    """The one value of each run of values; -1 where there are several."""
    least = np.minimum.reduceat(values, first)
    result: Int64 = np.where(least == np.maximum.reduceat(values, first), least, -1)
    return result


def _sum_known(values: Int64, first: NDArray[np.int64]) -> Int64:
    """Sum of each run of values; -1 where none is known."""
    total = np.add.reduceat(np.maximum(values, 0), first)
    result: Int64 = np.where(np.maximum.reduceat(values, first) >= 0, total, -1)
    return result


def fill(wanted: list[int], budget: int) -> list[int]:
    """Shares of a budget: none is larger than wanted, and the remainder is divided evenly."""
    shares = [0] * len(wanted)
    left = budget
    for num_served, index in enumerate(sorted(range(len(wanted)), key=lambda i: (wanted[i], i))):
        shares[index] = min(wanted[index], left // (len(wanted) - num_served))
        left -= shares[index]
    return shares
