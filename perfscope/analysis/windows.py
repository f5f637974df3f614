"""Windows of several ranks that are analyzed together.

A call of numpy costs about as much for thousands of spans as for ten. So the windows are put one behind the
other on one line of time, and their threads and steps are numbered anew, so that those of different
windows differ. What is computed on the line is then divided among the windows. One window stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.intervals import Int64, Intervals
from perfscope.analysis.spans import (
    MANY_ROWS,
    Columns,
    Mask,
    SpanTable,
    StepSpan,
    WindowFacts,
    constant,
    whole_numbers,
)

MOST_ROWS = MANY_ROWS  # of windows that are put together
_LONGEST_NS = 1 << 42  # of one of them: sums of all, for every thread, stay in 63 bits
_FEW_MEMBERS = 32  # of a group, that are hashed as fast as looked up
_GAP_NS = 1 << 10  # between windows: times of two never touch


class Line(Struct, frozen=True, eq=False):
    """Where on the line the windows are.

    Attributes:
        begin: of each window, ascending, shape (windows,).
        shift: what was added to the window's own times, shape (windows,).
    """

    begin: Int64
    shift: Int64

    def of(self, times: Int64) -> NDArray[np.int64]:
        """The window of each time on the line. Shape like `times`."""
        if len(self.begin) == 1:
            return constant(0, len(times), np.int64)
        window: NDArray[np.int64] = np.searchsorted(self.begin, times, side="right") - 1
        return window

    def lengths(self, intervals: Intervals) -> list[int]:
        """How many nanoseconds the intervals cover in each window."""
        if len(self.begin) == 1:
            return [iv.length(intervals)]
        return iv.exact_sums(self.of(intervals[:, 0]), intervals[:, 1] - intervals[:, 0], len(self.begin))


ONE_WINDOW = Line(np.full(1, np.iinfo(np.int64).min), np.zeros(1, np.int64))


class _LongMembers(tuple[int, ...]):
    """Ranks of a large group, whose hash is computed once: groups are keys, and Python hashes each rank."""

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=1 << 12)
def members_of(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The same ranks; of a large group, the same object for every rank that lists it."""
    return _LongMembers(ranks) if len(ranks) > _FEW_MEMBERS else ranks


class Window(Struct, frozen=True, eq=False):
    """One rank's window as it was read; `members`: process group name -> ranks, where that is known."""

    facts: WindowFacts
    rows: Columns
    members: Mapping[str, tuple[int, ...]] = {}


class Windows(Struct, frozen=True, eq=False):
    """At least one.

    Attributes:
        parts: in order of rank and window.
        table: rows of all, in that order; times are on the line.
        rows: where the rows of each window begin, and the end of the last, shape (windows + 1,).
        line: where the windows are.
        lanes: (window, lane) of each number that stands for a thread, shape (threads, 2); None: they are
            as they were.
        most_steps: between the numbers of a step in the table in windows next to each other.
    """

    parts: tuple[Window, ...]
    table: SpanTable
    rows: Int64
    line: Line = ONE_WINDOW
    lanes: Int64 | None = None
    most_steps: int = 0

    @property
    def facts(self) -> list[WindowFacts]:
        """Of each window."""
        return [part.facts for part in self.parts]

    @property
    def window_of_row(self) -> NDArray[np.int64]:
        """Shape (n,)."""
        if len(self.parts) == 1:
            return constant(0, self.table.num_rows, np.int64)
        return np.repeat(np.arange(len(self.parts)), np.diff(self.rows))

    def lanes_with(self, *roles: str) -> list[int]:
        """Host lanes of these roles, as the table numbers them."""
        wanted = [facts.lanes_with(*roles) for facts in self.facts]
        if self.lanes is None:
            return wanted[0]
        return [code for code, (index, lane) in enumerate(self.lanes.tolist()) if lane in wanted[index]]

    def own_lanes(self, lanes: Int64) -> Int64:
        """Threads as the windows number them."""
        return lanes if self.lanes is None else self.lanes[lanes, 1]

    def own_steps(self, steps: Int64, window: NDArray[np.int64]) -> Int64:
        """Steps as the windows number them; -1 = none.

        Args:
            steps: as the table numbers them.
            window: of each.
        """
        return np.where(steps >= 0, steps - window * self.most_steps, steps) if self.most_steps else steps

    def moved(self, steps: Sequence[StepSpan], index: int) -> tuple[StepSpan, ...]:
        """Steps of one window, on the line."""
        return _moved(steps, index * self.most_steps, int(self.line.shift[index]))

    def unmoved(self, steps: Sequence[StepSpan], index: int) -> tuple[StepSpan, ...]:
        """Steps on the line, as their window has them."""
        return _moved(steps, -index * self.most_steps, -int(self.line.shift[index]))

    def with_any(self, rows: Mask) -> Mask:
        """Windows with such rows, shape (windows,)."""
        if len(self.parts) == 1:
            return np.array([rows.any()])
        result: Mask = np.logical_or.reduceat(rows, self.rows[:-1])
        return result

    def alone(self, index: int) -> Windows:
        """One of the windows."""
        return self if len(self.parts) == 1 else one_window(self.parts[index])


def _moved(steps: Sequence[StepSpan], number: int, shift: int) -> tuple[StepSpan, ...]:
    if not number and not shift:
        return tuple(steps)
    return tuple(
        StepSpan(step=step.step + number, start_ns=step.start_ns + shift, end_ns=step.end_ns + shift)
        for step in steps
    )


def one_window(part: Window) -> Windows:
    """A window by itself."""
    return Windows((part,), SpanTable(part.rows), np.array([0, part.rows.num_rows]))


def in_order(code: NDArray[np.integer], position: NDArray[np.int64], num: int) -> list[int]:
    """The codes that occur, in order of their first position, then ascending.

    With windows as positions this is the order of reading one window after the other.

    Args:
        code: shape (n,), in [0, num).
        position: of each, shape (n,).
        num: of codes.
    """
    first = np.full(num, np.iinfo(np.int64).max)
    np.minimum.at(first, code, position)
    there = np.flatnonzero(first < np.iinfo(np.int64).max)
    result: list[int] = there[np.argsort(first[there], kind="stable")].tolist()
    return result


def together(parts: Iterable[Window]) -> Iterator[Windows]:
    """Puts windows together, as many as may be.

    A window with a device, or without marks of steps, stays by itself: what counts as its steps depends on
    its spans.
    """
    group: list[Window] = []
    for part in parts:
        can_join = _can_join(part)
        if group and not (can_join and _fits(group, part)):
            yield from _joined(group)
            group = []
        group.append(part)
        if not can_join:
            yield one_window(group.pop())
    yield from _joined(group)


def _can_join(part: Window) -> bool:
    facts = part.facts
    if not facts.steps or facts.whole_file or facts.lacks_device or facts.has_device:
        return False
    if not isinstance(part.rows, pa.Table) or part.rows.num_rows > MOST_ROWS or not facts.lanes_with("main"):
        return False
    return bool((whole_numbers(part.rows, "device") < 0).all())


def _fits(group: Sequence[Window], part: Window) -> bool:
    first: Any = group[0].rows  # tables, as `_can_join` says
    last: Any = part.rows
    num_rows = sum(other.rows.num_rows for other in group) + part.rows.num_rows
    return num_rows <= MOST_ROWS and bool(last.schema.equals(first.schema))


def _joined(group: Sequence[Window]) -> Sequence[Windows]:
    if len(group) < 2:
        return [one_window(part) for part in group]
    table = pa.concat_tables([part.rows for part in group])
    rows = np.cumsum([0, *(part.rows.num_rows for part in group)])
    window = np.repeat(np.arange(len(group)), np.diff(rows))
    start, length, launch, lane, step = (
        whole_numbers(table, column) for column in ("start_ns", "dur_ns", "launch_ns", "lane", "step")
    )
    is_launched, steps = launch >= 0, [part.facts.steps for part in group]
    low = np.minimum.reduceat(np.where(is_launched, np.minimum(launch, start), start), rows[:-1])
    low = np.minimum(low, [min(step.start_ns for step in of) for of in steps])
    high = np.maximum.reduceat(np.maximum(launch, start + length), rows[:-1])
    high = np.maximum(high, [max(step.end_ns for step in of) for of in steps])
    if (high - low >= _LONGEST_NS).any():
        return [one_window(part) for part in group]
    begin = np.cumsum([0, *(high - low + _GAP_NS)])[:-1]
    shift = begin - low
    most_steps = 1 + max(int(step.max()), *(step.step for of in steps for step in of))
    lanes, number = iv.distinct_pairs(window, lane)
    for column, values in {
        "start_ns": start + shift[window],
        "launch_ns": np.where(is_launched, launch + shift[window], -1),
        "lane": number.astype(np.int64),
        "step": np.where(step >= 0, step + window * most_steps, -1),
    }.items():
        table = table.set_column(table.column_names.index(column), column, pa.array(values))
    return [Windows(tuple(group), SpanTable(table), rows, Line(begin, shift), lanes, most_steps)]
