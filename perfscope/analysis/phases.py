"""Time of phases by name: per rank, in steps and outside of them, nested phases apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64, distinct_pairs, exact_sums
from perfscope.analysis.spans import Table, whole_numbers
from perfscope.rundir.phase_records import PhaseTimes

PhaseKey = tuple[tuple[tuple[str, str], ...], bool]  # (name, source) from the outermost on, training thread


class RankPhase(Struct, frozen=True, kw_only=True):
    """A phase on one rank.

    Attributes:
        rank: global rank.
        count: how often it began; a decorated generator begins whenever it goes on.
        ns: time in it, nested phases included.
        own_ns: without the phases directly in it; phases of asyncio's tasks may overlap, then 0 at least.
        before_ns: of `ns`, before the first step.
        in_steps_ns: of `ns`, in steps. What remains is between or after steps.
        num_steps: steps that hold some of it.
        is_open: it had begun and not ended when the record of the rank ends.
    """

    rank: int
    count: int
    ns: int
    own_ns: int
    before_ns: int
    in_steps_ns: int
    num_steps: int
    is_open: bool


class PhaseResult(Struct, frozen=True, kw_only=True):
    """A phase, that is a path of nested names, in one kind of thread; means are over the ranks of the run.

    Attributes:
        name: of the innermost.
        path: names from the outermost on.
        source: who marked it: perfscope, record_function, nvtx, lightning, transformers; call: a function
            of vocabulary.host_calls.
        is_training_thread: in the thread that trains; phases of other threads overlap with it.
        count: how often it began.
        ns: time in it, nested phases included.
        own_ns: without the phases directly in it.
        before_ns: before the first step.
        in_steps_ns: in steps.
        per_step_ns: `in_steps_ns` per step; None: no step was recorded.
        ranks: that have it.
    """

    name: str
    path: tuple[str, ...]
    source: str
    is_training_thread: bool
    count: float
    ns: int
    own_ns: int
    before_ns: int
    in_steps_ns: int
    per_step_ns: int | None
    ranks: tuple[RankPhase, ...]


def rank_phases(rank: int, times: PhaseTimes | None, steps: Table) -> dict[PhaseKey, RankPhase]:
    """The phases of one rank.

    Args:
        steps: schema.STEPS of the rank.
    """
    if times is None or not len(times.phase):
        return {}
    at, is_before = _steps_of(times, steps)
    size = max(times.names) + 1

    def summed(values: Int64, chosen: NDArray[np.bool_] | None = None) -> list[int]:
        rows = slice(None) if chosen is None else np.flatnonzero(chosen)
        return exact_sums(times.phase[rows], values[rows], size)

    ns, begun, ended = summed(times.ns), summed(times.begun), summed(times.ended)
    before = summed(times.ns, is_before)
    in_steps = summed(times.ns, at >= 0)
    inner = [0] * size
    for number, name in times.names.items():
        if name.parent >= 0:
            inner[name.parent] += ns[number]
    holding: dict[int, int] = defaultdict(int)
    held = (at >= 0) & (times.ns > 0)
    for number in distinct_pairs(times.phase[held], at[held])[0][:, 0].tolist():
        holding[number] += 1
    return {
        _key(times, number): RankPhase(
            rank=rank,
            count=begun[number],
            ns=ns[number],
            own_ns=max(0, ns[number] - inner[number]),
            before_ns=before[number],
            in_steps_ns=in_steps[number],
            num_steps=holding[number],
            is_open=begun[number] > ended[number],
        )
        for number in times.names
        if begun[number]
    }


def time_per_step(
    phases: Mapping[PhaseKey, RankPhase], source: str, names: Collection[str], num_steps: int
) -> float:
    """Of one rank, ns per step in phases of its training thread with these names, which do not nest. Without
    steps 0.
    """
    ns = sum(
        phase.in_steps_ns
        for (path, trains), phase in phases.items()
        if trains and path[-1][1] == source and path[-1][0] in names
    )
    return ns / num_steps if num_steps else 0.0


def _steps_of(times: PhaseTimes, steps: Table) -> tuple[Int64, NDArray[np.bool_]]:
    """Of each row the position of its step, -1: it is in none; and whether it is before the first."""
    starts, durations = whole_numbers(steps, "start_ns"), whole_numbers(steps, "dur_ns")
    if not len(starts):
        return np.full(len(times.phase), -1), np.ones(len(times.phase), dtype=np.bool_)
    order = np.argsort(starts, kind="stable")
    middle = (times.begin_ns + times.end_ns) // 2
    at = np.searchsorted(starts[order], middle, side="right") - 1
    is_in = (at >= 0) & (middle < (starts + durations)[order][np.maximum(at, 0)])
    # What lies before the first step is cut where that begins: some microseconds later, or, where the thread
    # loses its CPU just then, as much later as it waits.
    first = int(starts[order[0]])
    is_before = (times.begin_ns < first) & (times.end_ns <= first + int(durations[order[0]]) // 2)
    return np.where(is_in & ~is_before, at, -1), is_before


def _key(times: PhaseTimes, number: int) -> PhaseKey:
    path: list[tuple[str, str]] = []
    name, at = times.names[number], number
    trains = name.trains
    while at >= 0:
        name = times.names[at]
        path.append((name.name, name.source))
        at = name.parent
    return tuple(reversed(path)), trains


def phases_of(
    ranks: Mapping[int, Mapping[PhaseKey, RankPhase]], num_steps: Mapping[int, int]
) -> tuple[PhaseResult, ...]:
    """The phases of a run: each before those in it, of the same parent the longest first.

    Args:
        ranks: by rank, `rank_phases`.
        num_steps: by rank.
    """
    together: dict[PhaseKey, list[RankPhase]] = defaultdict(list)
    num_ranks = sum(1 for of_rank in ranks.values() if of_rank)
    for of_rank in ranks.values():
        for key, phase in of_rank.items():
            together[key].append(phase)
    results = {key: _result(key, phases, num_ranks, num_steps) for key, phases in together.items()}

    def place(key: PhaseKey) -> tuple[object, ...]:
        path, trains = key
        longest = [
            (-(results[path[:depth], trains].ns if (path[:depth], trains) in results else 0), path[:depth])
            for depth in range(1, len(path) + 1)
        ]
        return (not trains, longest)

    return tuple(results[key] for key in sorted(results, key=place))


def _result(
    key: PhaseKey, phases: Sequence[RankPhase], num_ranks: int, num_steps: Mapping[int, int]
) -> PhaseResult:
    path, trains = key

    def mean(values: Sequence[int]) -> int:
        return round(sum(values) / num_ranks)

    steps = sum(num_steps.get(phase.rank, 0) for phase in phases)
    in_steps = [phase.in_steps_ns for phase in phases]
    return PhaseResult(
        name=path[-1][0],
        path=tuple(name for name, _ in path),
        source=path[-1][1],
        is_training_thread=trains,
        count=sum(phase.count for phase in phases) / num_ranks,
        ns=mean([phase.ns for phase in phases]),
        own_ns=mean([phase.own_ns for phase in phases]),
        before_ns=mean([phase.before_ns for phase in phases]),
        in_steps_ns=mean(in_steps),
        per_step_ns=round(sum(in_steps) / steps) if steps else None,
        ranks=tuple(sorted(phases, key=lambda phase: phase.rank)),
    )
