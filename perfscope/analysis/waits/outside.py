"""What untraced steps say of a slow rank, whatever the few traced ones show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.host_idle import asleep_ns, has_states, ran_ns
from perfscope.analysis.intervals import Int64, median_of
from perfscope.analysis.spans import Mask, is_constant
from perfscope.analysis.waits.stragglers import OUTSIDE, RankStepTimes, always_on
from perfscope.analysis.whole_run.steps import StepParts
from perfscope.vocabulary.run_parts import TIMED

_WAITED = 0.5  # of the rank's excess that the others must sleep for
_SLEEPS = 0.05  # of the step that some rank must sleep, for waiting to show as sleep
_FEWEST_STEPS = 20  # untraced ones, of each rank, that can contradict traced ones


class SlowOutside(Struct, frozen=True, kw_only=True):
    """What a rank spends outside the backward pass beyond its peers; medians per untraced step.

    Without what is timed by itself (input, checkpoints, evaluation ...), of which there are other findings.
    """

    rank: int
    num_steps: int
    step_ns: float
    excess_ns: int
    waited_ns: float  # of it, that the others wait
    ran_ns: float  # CPU time of its training thread beyond the mean of theirs; below 0: less


def slow_outside(times: Mapping[int, RankStepTimes], parts: Mapping[int, StepParts]) -> SlowOutside | None:
    """The rank that most steps stand out by, if the others sleep meanwhile.

    A synchronous step takes equally long on all ranks: who does more outside the backward pass waits less in
    it. Ranks that sleep no longer than the slow one have more to do themselves, or spin.

    Args:
        times: by rank; none has its backward pass timed where that is not known.
        parts: by rank.

    Returns:
        None where no rank stands out, or CPU times were not recorded.
    """
    if set(times) - set(parts):
        return None
    untimed = {rank: _without_timed(times[rank], parts[rank]) for rank in times}
    slow = next((entry for of_rank in always_on(untimed, [OUTSIDE]).values() for entry in of_rank), None)
    if slow is None:
        return None
    chosen = {rank: parts[rank].is_usual & has_states(parts[rank]) for rank in times}
    if not all(mask.any() for mask in chosen.values()):
        return None

    def median(values: Int64, rank: int) -> float:
        return float(median_of(values[chosen[rank]]))

    ran = {rank: median(ran_ns(parts[rank]), rank) for rank in times}
    asleep = {rank: max(0.0, median(asleep_ns(parts[rank]), rank)) for rank in times}
    step_ns = median(parts[slow.rank].durations, slow.rank)
    measured = times[slow.rank].is_usual & (times[slow.rank].outside_backward >= 0)
    in_backward = step_ns - float(median_of(times[slow.rank].outside_backward[measured]))
    others = [rank for rank in times if rank != slow.rank]
    # What the slow rank itself sleeps in its backward pass is transfer; that is no more than its length.
    transfer = min(asleep[slow.rank], max(0.0, in_backward))
    waited = float(np.mean([asleep[rank] for rank in others])) - transfer
    if waited < _WAITED * slow.excess_ns:
        return None
    return SlowOutside(
        rank=slow.rank,
        num_steps=slow.num_steps,
        step_ns=step_ns,
        excess_ns=slow.excess_ns,
        waited_ns=min(waited, float(slow.excess_ns)),
        ran_ns=ran[slow.rank] - float(np.mean([ran[rank] for rank in others])),
    )


class UntracedWork(Struct, frozen=True, kw_only=True):
    """How much ranks that do the same work differ in it in untraced steps.

    Attributes:
        excess: by rank, how much longer than its peers it works in the median step, ns; below 0: less. Empty:
            not known.
        imbalance_ns: CPU time of the busiest training thread of a step beyond the mean of all ranks, mean
            over the steps; None: not known.
    """

    excess: Mapping[int, float] = {}
    imbalance_ns: float | None = None

    def imbalance_of(self, busiest: int) -> float | None:
        """What balanced work would save in an untraced step at most, ns: where ranks take turns, and where
        `busiest` always works longest. None: not known."""
        if self.imbalance_ns is None or busiest not in self.excess:
            return None
        return max(self.imbalance_ns, self.excess[busiest] * (1 - 1 / len(self.excess)))


NOT_COMPARED = UntracedWork()


def untraced_work(times: Mapping[int, RankStepTimes], parts: Mapping[int, StepParts]) -> UntracedWork:
    """How ranks differ in untraced steps.

    A rank's excess is the most of three that a rank which takes longer for the same work on CPUs has more of:
    time of its training thread on a CPU or waiting for one, CPU time of its process, and time outside the
    backward pass (without what is timed by itself), which has no waiting for gradients in it. Against the
    lower median of all other ranks.

    Args:
        times: by rank.
        parts: by rank.

    Returns:
        Nothing is known where one of the three was not recorded in enough steps of each rank, where ranks
        read pages from a disk, and where no rank sleeps: ranks that spin while they wait are as busy as a
        slow one.
    """
    if len(times) < 2 or set(times) - set(parts):
        return NOT_COMPARED
    figures, sleeps, chosen_of = [], False, []
    for rank, rank_times in times.items():
        of_rank = parts[rank]
        chosen = of_rank.is_usual & has_states(of_rank) & (rank_times.outside_backward >= 0)
        chosen &= (of_rank.used["user_ns"] >= 0) & (of_rank.used["system_ns"] >= 0)
        if chosen.sum() < _FEWEST_STEPS:
            return NOT_COMPARED
        if median_of(of_rank.used["major_faults"][chosen]) > 0:
            return NOT_COMPARED
        sleeps |= median_of(asleep_ns(of_rank)[chosen]) >= _SLEEPS * median_of(of_rank.durations[chosen])
        busy = ran_ns(of_rank) + of_rank.runqueue
        process = of_rank.used["user_ns"] + of_rank.used["system_ns"]
        outside = _without_timed(rank_times, of_rank).outside_backward
        figures.append([median_of(values[chosen]) for values in (busy, process, outside)])
        chosen_of.append((of_rank, chosen))
    if not sleeps:
        return NOT_COMPARED
    more = [values - _others_median(values) for values in np.array(figures, dtype=np.int64).T]
    excess = dict(zip(times, np.max(more, axis=0).astype(float).tolist(), strict=True))
    return UntracedWork(excess=excess, imbalance_ns=_imbalance_ns(chosen_of))


def _imbalance_ns(ranks: Sequence[tuple[StepParts, Mask]]) -> float | None:
    """Of each rank, its steps and those that count; None: the ranks share too few."""
    of_ranks = [parts.step[chosen] for parts, chosen in ranks]
    steps = of_ranks[0]
    if not all(np.array_equal(steps, other) for other in of_ranks[1:]):  # seldom, and dear for many ranks
        steps = reduce(np.intersect1d, of_ranks)
    if len(steps) < _FEWEST_STEPS:
        return None
    most, total = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.int64)
    for parts, chosen in ranks:
        ran = ran_ns(parts)[chosen][np.searchsorted(parts.step[chosen], steps)]
        most, total = np.maximum(most, ran), total + ran
    return float(np.mean(most - total / len(ranks)))


def _others_median(values: Int64) -> Int64:
    """Of each entry, the lower median of all others; shape (ranks,), at least two."""
    in_order = np.argsort(values, kind="stable")
    middle = (len(values) - 2) // 2
    result = np.full_like(values, values[in_order[middle]])
    result[in_order[: middle + 1]] = values[in_order[middle + 1]]  # itself is before the middle
    return result


def _without_timed(times: RankStepTimes, parts: StepParts) -> RankStepTimes:
    if is_constant(times.outside_backward) and times.outside_backward[0] < 0:
        return times
    timed_ns = sum((parts.timed[part] for part in TIMED), np.zeros_like(times.outside_backward))
    outside_ns = np.maximum(times.outside_backward - timed_ns, 0)
    return replace(times, outside_backward=np.where(times.outside_backward >= 0, outside_ns, -1))
