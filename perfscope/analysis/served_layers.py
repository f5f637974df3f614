"""What programs say themselves of their calls of communication: which layers' tensors these carry.

A program that packs tensors of several layers into one buffer can run the call inside a mark
(`layout.MARK_SERVES`); the schemes of `perfscope bench` do. The probe marks calls on parameters and
gradients, and messages between pipeline stages (`layout.MARK_BOUNDARY`), likewise. A call belongs to
the mark that was open when it was asked for, to the outermost on a thread: what the program says
counts. Where marks of several threads were, it is not known which one that is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from perfscope.analysis.intervals import Int64, distinct
from perfscope.analysis.spans import Mask, Spans, words
from perfscope.rundir import layout
from perfscope.rundir.served_layers import axis_of as axis_of
from perfscope.rundir.served_layers import decoded as decoded

_INDEX = re.compile(r"[0-9]{1,9}")


class Boundary(NamedTuple):
    """Between two stages of a pipeline."""

    sender: int
    receiver: int
    microbatch: int


class ServedLayers(Struct, frozen=True, eq=False):
    """The marks of one window, in order of start.

    Attributes:
        start, end, lane: of each mark, shape (n,).
        index: into those below, shape (n,).
        shares: layer -> bytes.
        axes: of the mesh; "" = the mark names none.
        boundaries: of messages; None = the mark is of layers.
    """

    start: Int64
    end: Int64
    lane: Int64
    index: Int64
    shares: Sequence[Mapping[str, int]]
    axes: Sequence[str]
    boundaries: Sequence[Boundary | None]

    def of(self, launch: Int64, start: Int64, lane: Int64) -> Int64:
        """Which of the shares each call has, shape (calls,); -1 = none.

        Args:
            launch: when each call was asked for, ns; -1 = by its own thread, when it began, or not known.
            start, lane: of the call itself.
        """
        if not len(self.start):
            return np.full(launch.shape, -1)
        time = np.where(launch >= 0, launch, start)
        mark = np.searchsorted(self.start, time, side="right") - 1
        before = np.maximum.accumulate(np.concatenate(([-1], self.end)))  # latest end of earlier marks
        is_open = (mark >= 0) & (time <= self.end[mark]) & (time > before[mark])
        is_open &= (launch >= 0) | (self.lane[mark] == lane)
        result: Int64 = np.where(is_open, self.index[mark], -1)
        return result


def served_layers(table: pa.Table, spans: Spans) -> ServedLayers:
    """The marks of one window.

    Args:
        table: name of schema.TIMELINE.
        spans: the same rows.
    """
    name, names = words(table, "name")
    payloads = [text.removeprefix(layout.MARK_SERVES) for text in names]
    shares = [
        decoded(text) if len(text) < len(mark) else {} for text, mark in zip(payloads, names, strict=True)
    ]
    axes = [axis_of(text) if layers else "" for text, layers in zip(payloads, shares, strict=True)]
    boundaries = [_boundary(text) for text in names]
    says = np.array([*(bool(share or other) for share, other in zip(shares, boundaries, strict=True)), False])
    rows = np.flatnonzero((spans.device < 0) & says[name])
    rows = rows[np.lexsort((-spans.end[rows], spans.start[rows]))]
    rows = rows[~_are_nested(spans.start[rows], spans.end[rows], spans.lane[rows])]
    return ServedLayers(
        spans.start[rows],
        spans.end[rows],
        spans.lane[rows],
        name[rows].astype(np.int64),
        shares,
        axes,
        boundaries,
    )


def _are_nested(start: Int64, end: Int64, lane: Int64) -> Mask:
    """Which marks are inside an earlier one of their thread; in order of start, the longest first."""
    nested = np.zeros(len(start), np.bool_)
    for number in distinct(lane).tolist():
        rows = np.flatnonzero(lane == number)
        nested[rows[1:]] = start[rows[1:]] < np.maximum.accumulate(end[rows])[:-1]
    return nested


def _boundary(text: str) -> Boundary | None:
    numbers = text.removeprefix(layout.MARK_BOUNDARY).split()
    if not text.startswith(layout.MARK_BOUNDARY) or len(numbers) != len(Boundary._fields):
        return None
    return Boundary(*map(int, numbers)) if all(map(_INDEX.fullmatch, numbers)) else None
