"""What the replay runs: every rank's local work, and the calls that tie ranks together.

A rank is a line of cells of local work. Calls are launched at positions on the line and run beside it, one
after the other in their lane. At a *wait* the line stands still until a call has ended; the line between two
waits is a *stretch*. With max-plus, over the members e of a call:

    H(stretch)  = max(H(stretch before), end(awaited) - early - position(wait)) lag of time behind position
    launched(e) = H(stretch of e) + position(e)
    ready(e)    = max(launched(e), end of the call before it in its lane) + delay(e)
    start(call) = max over members of ready(e)                                   and start(call.after)
    end(e)      = start(call) + transfer(e)

All ranks begin together: in a training that goes on, what makes a rank begin late lies at the end of the
step before, which the window has as well. Only where that does not give the measured times (one step, traced
from a moment at which ranks stood apart) they begin as they did.

Positions and times are float64 ns relative to the window's beginning: exact for whole numbers below 2^53.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis.mainline import LINE_EXPOSED

Float = NDArray[np.float64]
Index = NDArray[np.int64]
_ROWS_TOGETHER = 1024
_CODES_TOGETHER = 1 << 20


class Cells(Struct, frozen=True, kw_only=True, eq=False):
    """Local work of all ranks, one rank after the other; arrays of shape (cells,)."""

    first: Index  # shape (ranks + 1,): rank i has cells first[i] to first[i + 1]
    local: Float  # ns that the line takes for the cell; 0 where it only waits
    part: NDArray[np.int8]  # index into mainline.LINE_PARTS
    layer: NDArray[np.int32]
    phase: NDArray[np.int8]
    step: NDArray[np.int32] | Index

    @property
    def rank(self) -> NDArray[np.int32]:
        """Row of the rank that each cell belongs to. Shape (cells,)."""
        return np.repeat(np.arange(len(self.first) - 1, dtype=np.int32), np.diff(self.first))


class Events(Struct, frozen=True, kw_only=True, eq=False):
    """One rank's part in one call; arrays of shape (events,), sorted by call.

    Marks (the end of a step, a stretch without a call) are calls of one rank without a transfer.
    """

    rank: Index  # row
    call: Index  # 0, 1, ... in the order in which they really began
    stretch: Index  # in which it was launched; stretches count through all ranks
    cell: Index  # where on the line it was launched: in this cell ...
    fraction: Float  # ... after this share of it
    slot: Index  # lane, counted through all ranks; marks have one of their own rank that nothing waits in
    delay: Float  # between launch (or the end of the lane's last call) and the beginning
    transfer: Float  # between the last member's beginning and this one's end


class Stretches(Struct, frozen=True, kw_only=True, eq=False):
    """Shape (stretches,), one rank after the other; each rank's first one waits for nothing."""

    rank: Index
    awaited: Index  # index into Events; -1 = none
    cell: Index  # the wait is at this cell's beginning
    early: Float  # ns by which the line went on before the recorded end of what it awaited


class Program(Struct, frozen=True, kw_only=True, eq=False):
    """One window of a run.

    Attributes:
        ranks: global rank of each row.
        after: shape (calls,): the call whose start a call may not precede; -1 = none (an eager receive and
            its send).
        kind: shape (calls,), index into `names`; -1 = a mark.
        size: shape (calls,), S of METRICS §2 in bytes; -1 = unknown.
        names: (collective, group) by kind.
        ends: shape (ranks, steps), event that marks each step's end.
        measured: shape (ranks, steps), measured times of those ends, the rank's line beginning at `begin`.
        skew: shape (ranks,), how long after the first rank each one really began the window.
        begin: shape (ranks,), when each rank begins in the replay: 0, or `skew`.
        steps: number of the training step, per column.
    """

    ranks: tuple[int, ...]
    cells: Cells
    events: Events
    stretches: Stretches
    after: Index
    kind: Index
    size: Index
    names: tuple[tuple[str, str], ...]
    ends: Index
    measured: Float
    skew: Float
    begin: Float
    steps: tuple[int, ...]

    def with_skew(self) -> Program:
        """The same with ranks that begin when they really did."""
        return replace(self, begin=self.skew, measured=self.measured + (self.skew - self.begin)[:, None])

    @property
    def unexplained_ns(self) -> float:
        """Exposed communication in which the line waited for no call that is known, over all ranks."""
        return float(self.cells.local[self.cells.part == LINE_EXPOSED].sum())

    @property
    def step_rows(self) -> Index:
        """Which of the sorted `steps` each cell belongs to. Shape (cells,)."""
        return np.searchsorted(np.array(sorted(self.steps), self.cells.step.dtype), self.cells.step)

    @property
    def num_calls(self) -> int:
        return len(self.kind)

    @property
    def call_first(self) -> Index:
        """Shape (calls + 1,): a call's events are call_first[i] to call_first[i + 1]."""
        counts = np.bincount(self.events.call, minlength=self.num_calls)
        return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))


class Change(Struct, frozen=True, kw_only=True, eq=False):
    """What is different in a replay; None = as measured. Shapes as in Cells and Events."""

    local: Float | None = None
    transfer: Float | None = None
    delay: Float | None = None
    begin: Float | None = None  # shape (ranks,)
    early: Float | None = None  # of the stretches; inf: they wait for nothing
    waits: bool = True  # False: lines wait for nothing but, at the end, for every call


def sums_of(
    row: NDArray[np.signedinteger[Any]],
    column: NDArray[np.signedinteger[Any]],
    values: Float,
    shape: tuple[int, int],
    chosen: NDArray[np.bool_] | None = None,
) -> Float:
    """Values summed up in the order they have, by row and column.

    Args:
        row: of each value, ascending.
        column: of each value.
        values: shape (n,).
        shape: rows and columns.
        chosen: values that count; None = all.
    """
    sums = np.zeros(shape)
    for first in range(0, shape[0], _ROWS_TOGETHER):  # so that what numpy makes on the way stays small
        part = sums[first : first + _ROWS_TOGETHER]
        begin, end = np.searchsorted(row, (first, first + _ROWS_TOGETHER))
        place = (row[begin:end].astype(np.int64) - first) * shape[1] + column[begin:end]
        counted = values[begin:end] if chosen is None else np.where(chosen[begin:end], values[begin:end], 0)
        part[:] = np.bincount(place, counted, minlength=part.size).reshape(part.shape)
    return sums


def distinct(
    *columns: NDArray[np.signedinteger[Any]],
) -> tuple[Index, NDArray[np.signedinteger[Any]]]:
    """The different rows of a table, in order, as columns; and which of them each row is.

    Args:
        columns: shape (rows,), of few different numbers near each other: they are counted, not sorted.
    """
    least = [int(column.min(initial=0)) for column in columns]
    shape = [int(column.max(initial=0)) - low + 1 for column, low in zip(columns, least, strict=True)]
    short: Any = np.int32 if math.prod(shape) <= np.iinfo(np.int32).max else np.int64
    code: NDArray[np.signedinteger[Any]] = np.zeros(len(columns[0]), dtype=short)
    for column, low, width in zip(columns, least, shape, strict=True):
        code *= width
        code += column.astype(short) - low
    is_present = np.zeros(math.prod(shape), dtype=bool)
    parts = [slice(begin, begin + _CODES_TOGETHER) for begin in range(0, len(code), _CODES_TOGETHER)]
    for part in parts:  # numpy makes long numbers of those that it looks up with
        is_present[code[part]] = True
    present = np.flatnonzero(is_present)
    number = np.zeros(math.prod(shape), dtype=short)
    number[present] = np.arange(len(present))
    for part in parts:
        code[part] = number[code[part]]
    return np.stack(np.unravel_index(present, shape)) + np.array(least)[:, None], code
