"""Runs a program: longest path of the max-plus system, level by level.

A level holds calls that depend on nothing of the same level: every member's call before it is done.
`Schedule` orders events by level once; each replay is then a handful of numpy operations per level, whatever
is changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import distinct
from perfscope.analysis.replay.program import Change, Float, Index, Program


class Schedule(Struct, frozen=True, kw_only=True, eq=False):
    """Events in the order of levels.

    Attributes:
        events: shape (scheduled events,), index into the program's events; those of a call are together.
        calls: shape (scheduled calls,).
        bounds: (first event, last + 1, first call, last + 1) of each level, in this order.
        first: shape (scheduled calls,): a call's first event, in this order.
        num_stuck: calls that wait for each other in a circle and are left out.
        in_order: `events` is 0, 1, 2 ...: nothing need be moved.
    """

    events: Index
    calls: Index
    bounds: tuple[tuple[int, int, int, int], ...]
    first: Index
    num_stuck: int
    in_order: bool


def schedule(program: Program) -> Schedule:
    """Finds the levels. O(events), with numpy operations per level."""
    events, call_first = program.events, program.call_first
    num = len(events.rank)
    # One rank after the other, each in its order: events stand by call already. Short keys sort by radix.
    few = len(program.ranks) <= np.iinfo(np.uint16).max
    short: NDArray[np.integer[Any]] = events.rank.astype(np.uint16) if few else events.rank
    order = np.argsort(short, kind="stable")
    width = np.int32 if num < np.iinfo(np.int32).max else np.int64
    following: NDArray[np.signedinteger[Any]] = np.full(num, -1, dtype=width)
    begins = np.ones(num, dtype=bool)
    np.not_equal(short[order[1:]], short[order[:-1]], out=begins[1:])
    following[order[:-1][~begins[1:]]] = order[1:][~begins[1:]]
    need = np.diff(call_first) + (program.after >= 0)
    then = np.full(program.num_calls, -1, dtype=np.int64)
    has_after = np.flatnonzero(program.after >= 0)
    then[program.after[has_after]] = has_after
    any_after = bool(len(has_after))
    arrived = order[begins[: len(order)]]
    asked = events.call[arrived]
    out_events, out_calls, bounds = [], [], []
    at_event = at_call = 0
    while len(asked):
        np.subtract.at(need, asked, 1)
        ready = distinct(asked[need[asked] == 0])
        if not len(ready):
            break
        members = _ranges(call_first[ready], call_first[ready + 1])
        out_events.append(members)
        out_calls.append(ready)
        bounds.append((at_event, at_event + len(members), at_call, at_call + len(ready)))
        at_event, at_call = at_event + len(members), at_call + len(ready)
        arrived = following[members]
        asked = events.call[arrived[arrived >= 0]]
        if any_after:
            released = then[ready]
            asked = np.concatenate((asked, released[released >= 0]))
    done = np.concatenate(out_events) if out_events else np.empty(0, dtype=np.int64)
    calls = np.concatenate(out_calls) if out_calls else np.empty(0, dtype=np.int64)
    sizes = np.diff(call_first)[calls]
    return Schedule(
        events=done,
        calls=calls,
        bounds=tuple(bounds),
        first=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))[:-1],
        num_stuck=program.num_calls - len(calls),
        in_order=len(done) == num and bool((np.diff(done) == 1).all()),
    )


def _ranges(first: Index, last: Index) -> Index:
    """All whole numbers of [first, last) of each pair, one after the other."""
    if len(first) == 1:
        return np.arange(first[0], last[0])
    sizes = last - first
    offset = np.repeat(first - np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)[:-1])), sizes)
    result: Index = np.arange(len(offset)) + offset
    return result


class Replayed(Struct, frozen=True, kw_only=True, eq=False):
    """Times of one replay, ns since the window's beginning.

    Attributes:
        ready: shape (events,), when each member was there; nan where the schedule left it out.
        end: shape (events,); -inf where it left it out.
        step_ends: shape (ranks, steps).
    """

    ready: Float
    end: Float
    step_ends: Float

    @property
    def wall_ns(self) -> float:
        """Until the last rank's last step."""
        return float(self.step_ends[:, -1].max())

    @property
    def step_ns(self) -> float:
        """Wall per step."""
        return self.wall_ns / float(self.step_ends.shape[1])


def replay(program: Program, plan: Schedule, change: Change | None = None) -> Replayed:
    """Runs the program, with something changed or as it was measured."""
    change = change or Change()
    cells, events, stretches = program.cells, program.events, program.stretches
    local = cells.local if change.local is None else change.local
    position = np.zeros(len(local) + 1)
    np.cumsum(local, out=position[1:])
    lag = np.full(len(stretches.rank), -np.inf)
    first = np.flatnonzero(np.diff(stretches.rank, prepend=-1))
    begin = program.begin if change.begin is None else change.begin
    lag[first] = (begin - position[cells.first[:-1]])[stretches.rank[first]]
    run = _Run(
        order=None if plan.in_order else plan.events,
        position=position,
        local=np.append(local, 0.0),
        transfer=events.transfer if change.transfer is None else change.transfer,
        delay=events.delay if change.delay is None else change.delay,
        # Without waits every event is in its rank's first stretch, and nothing is awaited.
        stretch=events.stretch if change.waits else _first_stretch(stretches.rank)[events.stretch],
        awaited=stretches.awaited if change.waits else np.full(len(stretches.rank), -1, dtype=np.int64),
        early=stretches.early if change.early is None else change.early,
        lag=lag,
        ready=np.full(len(events.rank), np.nan),
        # One place more than there are events: index -1 is "nothing awaited".
        # What is awaited before it was run (by clocks compared badly) delays no rank.
        end=np.full(len(events.rank) + 1, -np.inf),
    )
    _levels(program, plan, run)
    end = run.end[:-1]
    step_ends = end[program.ends]
    if not change.waits or change.early is not None:
        step_ends = _with_calls(program, end, step_ends)
    return Replayed(ready=run.ready, end=end, step_ends=step_ends)


class _Run(Struct, kw_only=True, eq=False):
    """Arrays of one replay; shapes as in Program. `order` None: levels follow the events as they stand."""

    order: Index | None
    position: Float  # shape (cells + 1,), where each cell begins on the ranks' lines, one after the other
    local: Float  # shape (cells + 1,)
    transfer: Float
    delay: Float
    stretch: Index
    awaited: Index
    early: Float
    lag: Float
    ready: Float
    end: Float


def _levels(program: Program, plan: Schedule, run: _Run) -> None:
    """The loop over levels; fills `ready` and `end`."""
    events, wait_cell, early = program.events, program.stretches.cell, run.early
    free = np.full(int(events.slot.max(initial=-1)) + 1, -np.inf)
    any_after = bool((program.after >= 0).any())
    start = np.full(program.num_calls + 1, -np.inf)
    sizes = np.diff(np.append(plan.first, len(plan.events)))
    for a, b, c, d in plan.bounds:
        at: slice | Index = slice(a, b) if run.order is None else run.order[a:b]
        stretches, cell, lane = run.stretch[at], events.cell[at], events.slot[at]
        awaited = run.awaited[stretches]
        lags = np.maximum(
            run.lag[stretches - (awaited >= 0)],
            run.end[awaited] - early[stretches] - run.position[wait_cell[stretches]],
        )
        run.lag[stretches] = lags
        launched = lags + run.position[cell] + events.fraction[at] * run.local[cell]
        there = np.maximum(launched, free[lane]) + run.delay[at]
        run.ready[at] = there
        if d - c == 1:
            began: NDArray[np.float64] | float = there.max()
            if any_after:
                call = plan.calls[c]
                began = start[call] = max(float(began), float(start[program.after[call]]))
            ended = began + run.transfer[at]
        else:
            began = np.maximum.reduceat(there, plan.first[c:d] - a)
            if any_after:
                calls = plan.calls[c:d]
                began = start[calls] = np.maximum(began, start[program.after[calls]])
            ended = np.repeat(began, sizes[c:d]) + run.transfer[at]
        run.end[at] = ended
        free[lane] = ended


def _first_stretch(rank: Index) -> Index:
    """Index of its rank's first stretch, for each stretch."""
    first = np.flatnonzero(np.diff(rank, prepend=-1))
    result: Index = first[np.searchsorted(first, np.arange(len(rank)), side="right") - 1]
    return result


def _with_calls(program: Program, end: Float, step_ends: Float) -> Float:
    """Step ends, the last of which also waits for every call of the window."""
    latest = np.full(len(program.ranks), -np.inf)
    has_ended = end > -np.inf
    np.maximum.at(latest, program.events.rank[has_ended], end[has_ended])
    result = step_ends.copy()
    result[:, -1] = np.maximum(result[:, -1], latest)
    return result
