"""Makes a program of what was traced: main lines, and matched calls on one clock.

Where a rank's line waited: exposed communication [a, b) is a wait for the last of the rank's calls that ended
in it; what is left of it after that end is the rank's own time (a device without work, Python). It is cut
where a call was launched in it: the line was not waiting at that instant. Exposed slivers that are short
against the call that ends in them are chance, not waiting (`MIN_SHARE`, `MIN_WAIT_NS`).

Where a call was launched: by the `c10d` operator or the device launch (behind the kernels launched before
it), else where it began. Between that, or the end of the call before it in its lane, and its beginning lies
its `delay`.

A send that ended before its receive began was eager: the sender does not wait. Else both ends wait for
each other. Calls that could not be matched on all ranks stay what they were: time of their rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.intervals import Int64, distinct, numbered
from perfscope.analysis.mainline import LINE_EXPOSED, LINE_IDLE, NO_LAYER, MainLine
from perfscope.analysis.pairs import SEND
from perfscope.analysis.replay.program import Cells, Events, Float, Index, Program, Stretches

MIN_WAIT_NS = 100_000  # exposed time that counts as waiting however long the call is
MIN_SHARE = 0.2  # of the call's own time from which a shorter one does
# A backend may write a call's end down so long after the line that waited went on, whose CPU its thread may
# need; or a tenth of the wait later, where that is longer.
_LATE_NS = 2_500_000
_LATE_SHARE = 10
_QUEUED_NS = 50_000  # how soon after its lane became free a queued call begins
_MARK = -1


class _RankCalls(Struct, eq=False):
    """One rank's calls on the reference clock, in order of entry; arrays of shape (calls,)."""

    enter: Int64
    exit: Int64
    launch: Int64  # its own clock moved to the reference; -1 = unknown
    lane: Int64
    call: Int64  # number of the call
    transfer: Int64


class _Parts(Struct, eq=False):
    """Columns of the program, gathered rank by rank."""

    cells: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))
    events: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))
    stretches: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))
    first: list[int] = field(default_factory=lambda: [0])
    num_stretches: int = 0
    num_slots: int = 0
    num_events: int = 0
    marks: list[int] = []  # key of each mark, in order
    ends: list[list[int]] = []  # per rank: number of the mark of each step's end
    measured: list[list[int]] = []
    begins: list[int] = []  # per rank, reference clock


class _Calls(Struct, eq=False):
    """All calls of a window; arrays of shape (calls,)."""

    key: Int64  # latest entry: calls are run in this order
    kind: Int64
    size: Int64
    after: Int64
    names: tuple[tuple[str, str], ...]
    of_rank: dict[int, _RankCalls]


def build_program(
    lines: Mapping[int, MainLine], matches: Sequence[JudgedCalls], clocks: ClockFit
) -> Program | None:
    """The program of one window; None where no rank has a step, or ranks have not the same steps.

    Args:
        lines: rank -> its main line in this window.
        matches: the window's matched calls, any order.
        clocks: how the hosts' clocks stand to each other.
    """
    ranks = tuple(sorted(rank for rank, line in lines.items() if len(line.start)))
    if not ranks or len({tuple(step.step for step in lines[rank].steps) for rank in ranks}) != 1:
        return None
    replayed = set(ranks)
    within = [
        match
        for match in matches
        if len(match.ranks) > 1 and len(match.seq) and replayed.issuperset(match.ranks)
    ]
    calls = _gather(within, {rank: lines[rank] for rank in ranks}, clocks)
    parts = _Parts()
    for row, rank in enumerate(ranks):
        _add_rank(row, lines[rank], calls, clocks, parts)
    return _assemble(ranks, calls, parts, tuple(step.step for step in lines[ranks[0]].steps))


def _gather(matches: Sequence[JudgedCalls], lines: Mapping[int, MainLine], clocks: ClockFit) -> _Calls:
    """Numbers the calls and sorts them by rank."""
    columns: dict[int, dict[str, list[Int64]]] = {rank: defaultdict(list) for rank in lines}
    key, kind, size, after = ([np.empty(0, dtype=np.int64)] for _ in range(4))
    names: dict[tuple[str, str], int] = {}
    total = 0
    for match in matches:
        num = len(match.seq)
        numbers = np.tile(total + np.arange(num), (len(match.ranks), 1))
        transfer = match.duration - match.wait
        eager = np.flatnonzero((match.exit[0] < match.enter[1]) & (match.key.collective == SEND))
        # An eager send is a call of its own: it may begin and end before its receive does.
        sends = total + num + np.arange(len(eager))
        before = np.full(num, -1, dtype=np.int64)
        if len(eager):
            numbers[0, eager], before[eager] = sends, sends
            transfer[0, eager] = match.duration[0, eager]
        code = names.setdefault((match.key.collective, match.key.group), len(names))
        key += [match.last_entry, match.enter[0, eager]]
        kind.append(np.full(num + len(eager), code))
        size += [match.size, match.size[eager]]
        after += [before, np.full(len(eager), -1, dtype=np.int64)]
        for row, rank in enumerate(match.ranks):
            ready = lines[rank].ready(match.launch[row])  # for a host, the launch itself
            launch = np.where(match.launch[row] >= 0, clocks.to_reference(lines[rank].host, ready), -1)
            values = (match.enter[row], match.exit[row], launch, match.lane[row], numbers[row], transfer[row])
            for name, column in zip(_RankCalls.__struct_fields__, values, strict=True):
                columns[rank][name].append(column)
        total += num + len(eager)
    return _Calls(
        key=np.concatenate(key),
        kind=np.concatenate(kind),
        size=np.concatenate(size),
        after=np.concatenate(after),
        names=tuple(names),
        of_rank={rank: _in_order(parts) for rank, parts in columns.items()},
    )


def _in_order(parts: Mapping[str, list[Int64]]) -> _RankCalls:
    none = [np.empty(0, dtype=np.int64)]
    arrays = {name: np.concatenate(parts.get(name) or none) for name in _RankCalls.__struct_fields__}
    order = np.argsort(arrays["enter"], kind="stable")
    return _RankCalls(**{name: values[order] for name, values in arrays.items()})


class _Pieces(Struct, eq=False):
    """A rank's line, cut where it waits; arrays of shape (cells,) but for the waits'."""

    start: Int64  # reference clock
    end: Int64
    source: Index  # segment of the main line it comes from
    local: Float
    part: NDArray[np.int8]
    first: Int64  # shape (waits,): first cell of each wait
    in_wait: NDArray[np.bool_]
    awaited: Index  # shape (waits,): which of the rank's calls
    begins: Int64  # shape (waits + 1,): when each stretch begins


def _pieces(line: MainLine, rank_calls: _RankCalls, asked: Int64, clocks: ClockFit) -> _Pieces:
    start, end = (clocks.to_reference(line.host, times) for times in (line.start, line.end))
    # The line did not wait at an instant at which it launched something, or went on to its next step.
    moving = distinct(np.concatenate((asked, _step_ends(line, clocks))))
    cell_start, cell_end, source = _cut(start, end, line.part == LINE_EXPOSED, moving)
    exposed = line.part[source] == LINE_EXPOSED
    waits, awaited, until = _waits(cell_start, cell_end, exposed, moving, rank_calls, asked)
    local = cell_end - cell_start
    wait_of = np.full(len(local), -1)
    for number, (first, last) in enumerate(waits):
        wait_of[first:last] = number
    in_wait = wait_of >= 0
    remaining = cell_end[in_wait] - np.maximum(cell_start[in_wait], until[wait_of[in_wait]])
    local[in_wait] = np.maximum(remaining, 0)
    return _Pieces(
        start=cell_start,
        end=cell_end,
        source=source,
        local=local.astype(np.float64),
        part=np.where(in_wait & (local > 0), LINE_IDLE, line.part[source]).astype(np.int8),
        first=np.array([first for first, _ in waits], dtype=np.int64),
        in_wait=in_wait,
        awaited=awaited,
        begins=np.concatenate((start[:1], until)),
    )


def _add_rank(row: int, line: MainLine, calls: _Calls, clocks: ClockFit, parts: _Parts) -> None:
    rank_calls = calls.of_rank[line.rank]
    asked, behind = _launched(rank_calls)
    asked = np.maximum(asked, clocks.to_reference(line.host, line.start[:1]))
    pieces = _pieces(line, rank_calls, asked, clocks)
    base_cell, base_stretch = parts.first[-1], parts.num_stretches
    cell, stretch, fraction = _places(pieces, asked)
    lanes, lane = numbered(rank_calls.lane)
    step_end = _step_ends(line, clocks)
    marks = _marks(pieces, stretch, calls.key[rank_calls.call], step_end)
    num_marks, parts_before = len(marks.key), parts.num_events
    zeros = np.zeros(num_marks)
    columns = {
        "rank": (np.full(len(asked), row), np.full(num_marks, row)),
        "call": (rank_calls.call, np.full(num_marks, _MARK)),
        "stretch": (base_stretch + stretch, base_stretch + marks.stretch),
        "cell": (base_cell + cell, base_cell + marks.cell),
        "fraction": (fraction, zeros),
        "slot": (parts.num_slots + lane, np.full(num_marks, parts.num_slots + len(lanes))),
        "delay": (np.maximum(rank_calls.enter - np.maximum(asked, behind), 0).astype(np.float64), zeros),
        "transfer": (rank_calls.transfer.astype(np.float64), zeros),
    }
    for name, pair in columns.items():
        parts.events[name].extend(pair)
    parts.num_events += len(asked) + num_marks
    parts.num_slots += len(lanes) + 1
    parts.ends.append([len(parts.marks) + int(end) for end in marks.step_ends])
    parts.marks.extend(marks.key.tolist())
    parts.begins.append(int(pieces.begins[0]))
    parts.measured.append((step_end - pieces.begins[0]).tolist())
    cells: dict[str, NDArray[Any]] = {
        "local": pieces.local,
        "part": pieces.part,
        "layer": line.layer[pieces.source],
        "phase": line.phase[pieces.source],
        "step": line.step[pieces.source],
    }
    # One empty cell closes the line, so that its end is a position on it: no work, of the last step.
    closing = {"local": 0, "part": LINE_IDLE, "layer": NO_LAYER, "phase": -1, "step": line.steps[-1].step}
    for name, values in cells.items():
        parts.cells[name].append(np.append(values, np.array([closing[name]], dtype=values.dtype)))
    parts.first.append(base_cell + len(pieces.local) + 1)
    parts.stretches["rank"].append(np.full(len(pieces.begins), row))
    parts.stretches["awaited"].append(np.concatenate((np.full(1, -1), parts_before + pieces.awaited)))
    early = np.maximum(rank_calls.exit[pieces.awaited] - pieces.begins[1:], 0).astype(np.float64)
    parts.stretches["early"].append(np.concatenate((np.zeros(1), early)))
    parts.stretches["cell"].append(base_cell + np.concatenate((np.zeros(1, dtype=np.int64), pieces.first)))
    parts.num_stretches += len(pieces.begins)


def _places(pieces: _Pieces, asked: Int64) -> tuple[Int64, Int64, Float]:
    """(cell, stretch, share of the cell) at which each call was launched."""
    cell = np.clip(np.searchsorted(pieces.start, asked, side="right") - 1, 0, len(pieces.start) - 1)
    stretch = np.searchsorted(pieces.first, cell, side="right")
    in_wait = pieces.in_wait[cell]
    # At the beginning of a wait: before it. Behind its end, in what is left of the cell: after it.
    before = in_wait & (asked < pieces.begins[stretch])
    since = np.where(in_wait, np.maximum(pieces.start[cell], pieces.begins[stretch]), pieces.start[cell])
    done = np.where(before, 0, np.maximum(asked - since, 0))
    local = pieces.local[cell]
    fraction = np.where(local > 0, np.minimum(done / np.maximum(local, 1), 1.0), 0.0)
    return cell, stretch - before, fraction


def _step_ends(line: MainLine, clocks: ClockFit) -> Int64:
    ends = np.array([step.end_ns for step in line.steps], dtype=np.int64)
    return clocks.to_reference(line.host, ends)


def _launched(rank_calls: _RankCalls) -> tuple[Int64, Int64]:
    """(when the line launched each call, when the call before it in its lane had ended)."""
    asked = np.where(rank_calls.launch >= 0, rank_calls.launch, rank_calls.enter)
    behind = np.full(len(asked), np.iinfo(np.int64).min)
    for lane in distinct(rank_calls.lane).tolist():
        at = np.flatnonzero(rank_calls.lane == lane)
        behind[at[1:]] = np.maximum.accumulate(rank_calls.exit[at])[:-1]
    # Not known when it was launched, and it began as its lane became free: it had been queued before.
    queued = (rank_calls.launch < 0) & (
        rank_calls.enter - np.maximum(behind, rank_calls.enter - _QUEUED_NS - 1) <= _QUEUED_NS
    )
    asked = np.where(queued, np.minimum(asked, behind), asked)
    return np.minimum(asked, rank_calls.enter), behind


def _cut(start: Int64, end: Int64, exposed: NDArray[np.bool_], points: Int64) -> tuple[Int64, Int64, Index]:
    """Cuts exposed cells at `points`; returns (start, end, index of the cell each piece came from)."""
    index = np.searchsorted(start, points, side="right") - 1
    keep = exposed[index] & (points > start[index]) & (points < end[index])
    index, points = index[keep], points[keep]
    source = np.concatenate((np.arange(len(start)), index))
    starts = np.concatenate((start, points))
    order = np.argsort(starts, kind="stable")
    source, starts = source[order], starts[order]
    ends = end[source].copy()
    inner = source[1:] == source[:-1]
    ends[:-1][inner] = starts[1:][inner]
    return starts, ends, source


def _waits(
    start: Int64,
    end: Int64,
    exposed: NDArray[np.bool_],
    moving: Int64,
    rank_calls: _RankCalls,
    asked: Int64,
) -> tuple[list[tuple[int, int]], Index, Int64]:
    """Where the line waited: ([first, last + 1) cells of each wait, awaited call, when it ended)."""
    rows = np.flatnonzero(exposed)
    if not len(rows) or not len(rank_calls.exit):
        return [], np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    touches = np.zeros(len(rows), dtype=bool)
    touches[1:] = (rows[1:] == rows[:-1] + 1) & (start[rows[1:]] == end[rows[:-1]])
    touches &= ~np.isin(start[rows], moving)
    first = np.flatnonzero(~touches)
    last = np.append(first[1:], len(rows)) - 1
    a, b = start[rows[first]], end[rows[last]]
    call = _ends_it(a, b, asked, rank_calls.exit)
    has_end = call >= 0
    until = np.minimum(rank_calls.exit[call], b)
    waited = until - a
    share = waited / np.maximum(rank_calls.exit[call] - rank_calls.enter[call], 1)
    is_wait = has_end & (waited > 0) & ((waited >= MIN_WAIT_NS) | (share >= MIN_SHARE))
    chosen = np.flatnonzero(is_wait)
    cells = [(int(rows[first[wait]]), int(rows[last[wait]]) + 1) for wait in chosen.tolist()]
    return cells, call[chosen], until[chosen]


def _ends_it(a: Int64, b: Int64, asked: Int64, leave: Int64) -> Index:
    """The call whose end let the line go on at b, of those launched until a: the one that ended nearest to b.

    Between a and a little after b (`_LATE_NS`); -1 = none. Shape like `a`.

    Args:
        a: where exposed communication begins, shape (n,).
        b: where it ends.
        asked: when the line launched each call, shape (calls,).
        leave: when each ended.
    """
    order = np.argsort(leave, kind="stable")
    leave, asked = leave[order], asked[order]
    late = np.minimum((b - a) // 2, np.maximum(_LATE_NS, (b - a) // _LATE_SHARE))
    after = np.searchsorted(leave, b, side="right")
    best, distance = np.full(len(a), -1), np.full(len(a), np.iinfo(np.int64).max)
    for way, begin in ((-1, after - 1), (1, after)):
        index, looking = begin, np.ones(len(a), dtype=bool)
        while looking.any():
            at = np.clip(index, 0, len(leave) - 1)
            looking &= (index == at) & (leave[at] > a) & (leave[at] <= b + late)
            is_candidate = looking & (asked[at] <= a)
            nearer = is_candidate & (np.abs(leave[at] - b) < distance)
            best[nearer], distance[nearer] = order[at[nearer]], np.abs(leave[at] - b)[nearer]
            looking &= ~is_candidate
            index = index + way
    return best


class _Marks(Struct, eq=False):
    key: Int64
    stretch: Int64  # of its rank, from 0
    cell: Int64
    step_ends: Int64  # which of the marks end a step


def _marks(pieces: _Pieces, stretch: Int64, key: Int64, step_end: Int64) -> _Marks:
    """The ends of the steps, and one mark per stretch that no call would open in time."""
    end_cell = np.searchsorted(pieces.start, step_end, side="left")
    # A step that ends where a wait begins ends before it.
    end_stretch = np.searchsorted(pieces.first, end_cell, side="left")
    opened = _opened_in_order(stretch[np.argsort(key, kind="stable")], len(pieces.begins))
    lacking = 1 + np.flatnonzero(~opened[1:])
    end_key = np.maximum.accumulate(np.maximum(step_end, pieces.begins[end_stretch]))
    return _Marks(
        key=np.concatenate((pieces.begins[lacking], end_key)),
        stretch=np.concatenate((lacking, end_stretch)),
        cell=np.concatenate((pieces.first[lacking - 1], end_cell)),
        step_ends=len(lacking) + np.arange(len(step_end)),
    )


def _opened_in_order(stretch: Int64, num: int) -> NDArray[np.bool_]:
    """For each stretch, whether the first event of it or of a later one is its own. Shape (num,)."""
    far = len(stretch)
    first_opened = np.full(num, far)
    np.minimum.at(first_opened, stretch, np.arange(far))
    ahead = np.minimum.accumulate(first_opened[::-1])[::-1]
    result: NDArray[np.bool_] = (first_opened == ahead) & (first_opened < far)
    return result


def _assemble(ranks: tuple[int, ...], calls: _Calls, parts: _Parts, steps: tuple[int, ...]) -> Program:
    num_real = len(calls.key)
    mark_key = np.array(parts.marks, dtype=np.int64)
    keys = np.concatenate((calls.key, mark_key))
    # Among equal keys marks come last: what they wait for is a call.
    order = np.lexsort((np.arange(len(keys)) >= num_real, keys))
    number = np.empty(len(keys), dtype=np.int64)
    number[order] = np.arange(len(keys))
    columns = {name: np.concatenate(parts.events.pop(name)) for name in tuple(parts.events)}
    is_mark = columns["call"] == _MARK
    old = columns["call"].astype(np.int64)
    old[is_mark] = num_real + np.arange(int(is_mark.sum()))
    columns["call"] = number[old]
    arrange = np.argsort(columns["call"], kind="stable")
    position = np.empty(len(arrange), dtype=np.int64)
    position[arrange] = np.arange(len(arrange))
    mark_place = position[np.flatnonzero(is_mark)]
    awaited = np.concatenate(parts.stretches["awaited"]).astype(np.int64)
    awaited = np.where(awaited >= 0, position[awaited], -1)
    every = np.concatenate((calls.after, np.full(len(mark_key), -1, dtype=np.int64)))
    after = np.full(len(keys), -1, dtype=np.int64)
    has = every >= 0
    after[number[has]] = number[every[has]]
    kind, size = np.full(len(keys), -1, dtype=np.int64), np.full(len(keys), -1, dtype=np.int64)
    kind[number[:num_real]], size[number[:num_real]] = calls.kind, calls.size
    cells = {name: np.concatenate(parts.cells.pop(name)) for name in tuple(parts.cells)}
    return Program(
        ranks=ranks,
        cells=Cells(first=np.array(parts.first, dtype=np.int64), **cells),
        events=Events(**{name: values[arrange] for name, values in columns.items()}),
        stretches=Stretches(
            rank=np.concatenate(parts.stretches["rank"]),
            awaited=awaited,
            cell=np.concatenate(parts.stretches["cell"]),
            early=np.concatenate(parts.stretches["early"]),
        ),
        after=after,
        kind=kind,
        size=size,
        names=calls.names,
        ends=mark_place[np.array(parts.ends, dtype=np.int64)],
        measured=np.array(parts.measured, dtype=np.float64),
        skew=(np.array(parts.begins) - min(parts.begins)).astype(np.float64),
        begin=np.zeros(len(ranks)),
        steps=steps,
    )
