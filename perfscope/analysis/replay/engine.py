"""Runs a program: longest path of the max-plus system, level by level.

A level holds calls that depend on nothing of the same level: every member's call before it is done.
`Schedule` orders events by level once; each replay is then a handful of numpy operations per level, whatever
is changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.replay.program import Change, Float, Index, Program


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Events in the order of levels.

    Attributes:
        events: shape (scheduled events,), index into the program's events; those of a call are together.
        calls: shape (scheduled calls,).
        bounds: (first event, last + 1, first call, last + 1) of each level, in this order.
        first: shape (scheduled calls,): a call's first event, in this order.
        num_stuck: calls that wait for each other in a circle and are left out.
    """

    events: Index
    calls: Index
    bounds: tuple[tuple[int, int, int, int], ...]
    first: Index
    num_stuck: int


def schedule(program: Program) -> Schedule:
    """Finds the levels. O(events), with numpy operations per level."""
    events, call_first = program.events, program.call_first
    num = len(events.rank)
    order = np.lexsort((events.call, events.rank))  # one rank after the other, each in its order
    following = np.full(num, -1, dtype=np.int64)
    same = events.rank[order[1:]] == events.rank[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    begins = np.ones(num, dtype=bool)
    begins[1:] = ~same
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
        ready = np.unique(asked[need[asked] == 0])
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
    )


def _ranges(first: Index, last: Index) -> Index:
    """All whole numbers of [first, last) of each pair, one after the other."""
    if len(first) == 1:
        return np.arange(first[0], last[0])
    sizes = last - first
    offset = np.repeat(first - np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)[:-1])), sizes)
    result: Index = np.arange(len(offset)) + offset
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replayed:
    """Times of one replay, ns since the window's beginning.

    Attributes:
        ready: shape (events,), when each member was there; nan where the schedule left it out.
        end: shape (events,).
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


def positions(program: Program, local: Float) -> tuple[Float, Float, Float]:
    """(position of each event, of each stretch's wait, of each rank's first cell) on the ranks' lines."""
    before = np.concatenate((np.zeros(1), np.cumsum(local)))
    events = program.events
    work = np.append(local, 0.0)
    launched = before[events.cell] + events.fraction * work[events.cell]
    return launched, before[program.stretches.cell], before[program.cells.first[:-1]]


def replay(program: Program, plan: Schedule, change: Change | None = None) -> Replayed:
    """Runs the program, with something changed or as it was measured."""
    change = change or Change()
    events, stretches = program.events, program.stretches
    local = program.cells.local if change.local is None else change.local
    transfer = events.transfer if change.transfer is None else change.transfer
    delay = events.delay if change.delay is None else change.delay
    launched, wait_at, begin = positions(program, local)
    order = plan.events
    stretch = events.stretch[order]
    awaited = np.where(change.waits, stretches.awaited[stretch], -1)
    before = np.where(awaited >= 0, stretch - 1, stretch)
    if not change.waits:
        before = _first_stretch(stretches.rank)[stretch]
        stretch = before
    # One place more than there are events: index -1 is "nothing awaited".
    place = np.full(len(events.rank) + 1, len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    awaited = place[awaited]
    lag = np.full(len(stretches.rank), -np.inf)
    first = np.flatnonzero(np.diff(stretches.rank, prepend=-1))
    at = program.begin if change.begin is None else change.begin
    lag[first] = (at - begin)[stretches.rank[first]]
    columns = (launched[order], wait_at[events.stretch[order]], delay[order], transfer[order])
    ready, end = _run(program, plan, (stretch, before, awaited, events.slot[order]), columns, lag)
    all_ready, all_end = np.full(len(events.rank), np.nan), np.full(len(events.rank), np.nan)
    all_ready[order], all_end[order] = ready, end
    step_ends = all_end[program.ends]
    if not change.waits:
        step_ends = _with_calls(program, all_end, step_ends)
    return Replayed(ready=all_ready, end=all_end, step_ends=step_ends)


def _run(
    program: Program,
    plan: Schedule,
    places: tuple[Index, Index, Index, Index],
    columns: tuple[Float, Float, Float, Float],
    lag: Float,
) -> tuple[Float, Float]:
    """The loop over levels; all arrays in the schedule's order. Returns ready and end of each event."""
    stretch, before, awaited, slot = places
    launched, wait_at, delay, transfer = columns
    num = len(stretch)
    end = np.full(num + 1, -np.inf)
    ready = np.empty(num)
    free = np.full(int(program.events.slot.max(initial=-1)) + 1, -np.inf)
    after = program.after[plan.calls]
    any_after = bool((after >= 0).any())
    start = np.full(program.num_calls + 1, -np.inf)
    sizes = np.diff(np.append(plan.first, num))
    for a, b, c, d in plan.bounds:
        own, lane = stretch[a:b], slot[a:b]
        lags = np.maximum(lag[before[a:b]], end[awaited[a:b]] - wait_at[a:b])
        lag[own] = lags
        there = np.maximum(lags + launched[a:b], free[lane]) + delay[a:b]
        ready[a:b] = there
        if d - c == 1:
            began: NDArray[np.float64] | float = there.max()
            if any_after:
                began = max(float(began), float(start[after[c]]))
                start[plan.calls[c]] = began
            ended = began + transfer[a:b]
        else:
            began = np.maximum.reduceat(there, plan.first[c:d] - a)
            if any_after:
                began = np.maximum(began, start[after[c:d]])
                start[plan.calls[c:d]] = began
            ended = np.repeat(began, sizes[c:d]) + transfer[a:b]
        end[a:b] = ended
        free[lane] = ended
    return ready, end[:-1]


def _first_stretch(rank: Index) -> Index:
    """Index of its rank's first stretch, for each stretch."""
    first = np.flatnonzero(np.diff(rank, prepend=-1))
    result: Index = first[np.searchsorted(first, np.arange(len(rank)), side="right") - 1]
    return result


def _with_calls(program: Program, end: Float, step_ends: Float) -> Float:
    """Step ends, the last of which also waits for every call of the window."""
    latest = np.full(len(program.ranks), -np.inf)
    known = ~np.isnan(end)
    np.maximum.at(latest, program.events.rank[known], end[known])
    result = step_ends.copy()
    result[:, -1] = np.maximum(result[:, -1], latest)
    return result
