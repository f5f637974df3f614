"""Who delays which step, and whether it is always the same rank.

A step's straggler is the rank that was behind the others for longest in the collectives that it entered
last. It is persistent where it delays more steps than a fair draw among the ranks would have it do (tail of
the binomial, times the number of ranks, below 5 %). The always-on figures of the untraced steps can confirm
it: what they time outside the backward pass has no waiting for gradients in it, so the late rank's is most.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.intervals import Int64
from perfscope.analysis.spans import ArrayRecord, Table, is_constant, whole_numbers
from perfscope.analysis.steps import counted_steps
from perfscope.analysis.waits.common_start import SEND
from perfscope.analysis.waits.excess import others_median
from perfscope.analysis.waits.results import AlwaysOn, LateCause, PersistentStraggler, StepStraggler
from perfscope.analysis.waits.why_late import Late
from perfscope.messages import stragglers as words

LIKELY = 0.05
_FEWEST_STEPS = 3  # below this nothing is stated about persistence
_FEWEST_UNTRACED = 10
CONFIRMS = 0.25  # of the lateness in a traced step; a smaller excess in the untraced ones is another matter
OUTSIDE, INPUT = "outside the backward pass", "waiting for input"
_COLUMNS = {OUTSIDE: "outside_backward", INPUT: "input_wait"}  # of RankStepTimes


class RankStepTimes(ArrayRecord, frozen=True, kw_only=True, eq=False):
    """One rank's always-on figures; arrays of shape (steps,)."""

    step: Int64
    outside_backward: Int64  # ns; -1 = not measured
    input_wait: Int64  # ns; -1 = not measured
    is_usual: NDArray[np.bool_]  # neither warm-up nor traced


def step_times(table: Table) -> RankStepTimes:
    """Reads one rank's schema.STEPS."""
    duration, backward = whole_numbers(table, "dur_ns"), whole_numbers(table, "backward_ns")
    window = whole_numbers(table, "window")
    is_timed = not is_constant(backward) or backward[0] >= 0
    return RankStepTimes(
        step=whole_numbers(table, "step"),
        outside_backward=np.where(backward >= 0, np.maximum(duration - backward, 0), -1)
        if is_timed
        else backward,
        input_wait=whole_numbers(table, "input_ns"),
        is_usual=counted_steps(window) & (window < 0),
    )


def input_waits(times: Mapping[int, RankStepTimes], steps: Set[int]) -> dict[int, dict[int, int]]:
    """step -> rank -> its wait for input, where that was measured."""
    result: dict[int, dict[int, int]] = {step: {} for step in steps}
    for rank, rank_step_times in times.items():
        measured = (rank_step_times.input_wait >= 0) & np.isin(rank_step_times.step, list(steps))
        for step, waited in zip(
            rank_step_times.step[measured].tolist(),
            rank_step_times.input_wait[measured].tolist(),
            strict=True,
        ):
            result[step][rank] = waited
    return result


class _Tally(Struct, eq=False):
    """One rank in one step's collectives."""

    since: list[int] = []  # the others' entries of each call it came last to ...
    until: list[int] = []  # ... and its own
    worst: int = -1
    cause: LateCause | None = None

    @property
    def held(self) -> int:
        """As a union: two calls at the same time are late by the same delay."""
        return iv.length(iv.union(np.array(self.since, np.int64), np.array(self.until, np.int64)))


def step_stragglers(
    windows: Sequence[tuple[int, Sequence[JudgedCalls], Sequence[Late]]],
) -> tuple[StepStraggler, ...]:
    """One for each traced step with collectives of which the late rank is known.

    Args:
        windows: (window, its matches, what `why_late` says of them).
    """
    result = []
    for window, matches, judged in windows:
        tallies: dict[int, dict[int, _Tally]] = defaultdict(lambda: defaultdict(_Tally))
        num_calls: Counter[int] = Counter()
        for calls, late in zip(matches, judged, strict=True):
            if calls.key.collective != SEND:
                _count(calls, late, tallies, num_calls)
        for step in sorted(tallies):
            held = {rank: tally.held for rank, tally in tallies[step].items()}
            rank = max(
                held, key=lambda candidate: (held[candidate], len(tallies[step][candidate].since), -candidate)
            )
            rank_tally = tallies[step][rank]
            result.append(
                StepStraggler(
                    window=window,
                    step=step,
                    rank=rank,
                    times=len(rank_tally.since),
                    num_calls=num_calls[step],
                    held_ns=held[rank],
                    reason=rank_tally.cause.reason if rank_tally.cause else None,
                    sentence=rank_tally.cause.sentence if rank_tally.cause else "",
                )
            )
    return tuple(result)


def _count(
    judged_calls: JudgedCalls, late: Late, tallies: dict[int, dict[int, _Tally]], num_calls: Counter[int]
) -> None:
    calls = np.flatnonzero(late.is_late)
    rows = judged_calls.late_row[calls]
    steps = judged_calls.step[rows, calls]
    for call, row, step in zip(calls.tolist(), rows.tolist(), steps.tolist(), strict=True):
        tally, behind = tallies[step][judged_calls.ranks[row]], int(late.lateness[call])
        num_calls[step] += 1
        tally.since.append(int(judged_calls.last_entry[call]) - behind)
        tally.until.append(int(judged_calls.last_entry[call]))
        if behind > tally.worst:
            tally.worst, tally.cause = behind, late.causes.get(call)


def binomial_tail(times: int, trials: int, chance: float) -> float:
    """Probability of `times` or more out of `trials`."""
    if times <= 0 or chance >= 1:
        return 1.0
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(chance)
        + (trials - k) * math.log1p(-chance)
        for k in range(times, trials + 1)
    ]
    return min(1.0, math.fsum(math.exp(value) for value in logs))


def always_on(
    times: Mapping[int, RankStepTimes], figures: Sequence[str] = (OUTSIDE, INPUT)
) -> dict[int, list[AlwaysOn]]:
    """Ranks that stand out by one of these figures over the untraced steps that all ranks have."""
    if len(times) < 2:
        return {}
    ranks, kept = sorted(times), _common_steps(list(times.values()))
    if len(kept) < _FEWEST_UNTRACED:
        return {}
    rows = _rows_of(kept, [times[rank].step for rank in ranks])
    result: dict[int, list[AlwaysOn]] = defaultdict(list)
    for what in figures:
        column = _COLUMNS[what]
        values = np.stack([getattr(times[rank], column)[row] for rank, row in zip(ranks, rows, strict=True)])
        complete = (values >= 0).all(axis=0)
        values = values[:, complete]
        if values.shape[1] < _FEWEST_UNTRACED:
            continue
        late_row = values.argmax(axis=0)
        excess = values.max(axis=0) - others_median(values, late_row)
        counts = np.bincount(late_row, minlength=len(ranks))
        row = int(counts.argmax())
        p_value = min(1.0, len(ranks) * binomial_tail(int(counts[row]), values.shape[1], 1 / len(ranks)))
        of_row = excess[late_row == row]
        if p_value < LIKELY and 2 * counts[row] > values.shape[1] and np.median(of_row) > 0:
            result[ranks[row]].append(
                AlwaysOn(
                    rank=ranks[row],
                    what=what,
                    num_steps=values.shape[1],
                    times=int(counts[row]),
                    excess_ns=round(float(np.median(of_row))),
                    p_value=p_value,
                )
            )
    return dict(result)


def _common_steps(times: Sequence[RankStepTimes]) -> Int64:
    """Usual steps that all ranks have, ascending."""
    first = times[0].step[times[0].is_usual]
    common = iv.distinct(first)
    for other in times[1:]:
        steps = other.step[other.is_usual]
        if not np.array_equal(steps, first):  # of most runs all ranks made the same
            common = np.intersect1d(common, steps)
    return common


def _rows_of(wanted: Int64, steps: Sequence[Int64]) -> list[NDArray[np.int64]]:
    """Where each rank has its wanted steps, the first of several."""
    rows: list[NDArray[np.int64]] = []
    for number, of_rank in enumerate(steps):
        if number and np.array_equal(of_rank, steps[number - 1]):
            rows.append(rows[-1])
            continue
        order = np.argsort(of_rank, kind="stable")
        rows.append(order[np.searchsorted(of_rank[order], wanted)])
    return rows


class Pattern(Struct, frozen=True, kw_only=True):
    """Whether it is always the same rank."""

    persistent: tuple[PersistentStraggler, ...]
    pattern: str | None  # as WaitAnalysis.pattern
    reason: str


def pattern_of(
    stragglers: Sequence[StepStraggler], num_ranks: int, times: Mapping[int, RankStepTimes]
) -> Pattern:
    """Tells a rank that is always late from noise that hits one rank now, another then.

    Args:
        stragglers: of the traced steps.
        num_ranks: that took part in collectives.
        times: rank -> its untraced steps; empty where there are none.
    """
    if not stragglers:
        return Pattern(persistent=(), pattern=None, reason=words.NO_TRACED_STEP)
    counts = Counter(straggler.rank for straggler in stragglers)
    standing_out = always_on(times)
    patterns = []
    for rank, count in counts.most_common():
        p_value = min(1.0, num_ranks * binomial_tail(count, len(stragglers), 1 / num_ranks))
        held = sum(step_straggler.held_ns for step_straggler in stragglers if step_straggler.rank == rank)
        seen = _confirms(standing_out.get(rank, ()), held / count)
        often = 2 * count > len(stragglers)
        if not ((p_value < LIKELY and len(stragglers) >= _FEWEST_STEPS) or (often and seen is not None)):
            continue
        patterns.append(_persistent(rank, count, len(stragglers), p_value, held // len(stragglers), seen))
    if patterns:
        return Pattern(persistent=tuple(patterns), pattern="persistent", reason=patterns[0].sentence)
    if len(stragglers) < _FEWEST_STEPS:
        return Pattern(persistent=(), pattern=None, reason=words.too_few_steps(len(stragglers)))
    rank, count = counts.most_common(1)[0]
    return Pattern(
        persistent=(),
        pattern="varying",
        reason=words.varying(len(counts), len(stragglers), rank, count),
    )


def _confirms(standing_out: Sequence[AlwaysOn], held: float) -> AlwaysOn | None:
    """What stands out by an amount that can be the lateness of a traced step."""
    enough = [on for on in standing_out if on.excess_ns >= CONFIRMS * held]
    return max(enough, key=lambda straggler: straggler.excess_ns, default=None)


def _persistent(
    rank: int, times: int, num_steps: int, p_value: float, held: int, seen: AlwaysOn | None
) -> PersistentStraggler:
    always = None if seen is None else (seen.num_steps, seen.what, seen.times, seen.excess_ns)
    return PersistentStraggler(
        rank=rank,
        num_steps=num_steps,
        times=times,
        p_value=p_value,
        held_ns=held,
        always_on=seen,
        sentence=words.persistent(rank, times, num_steps, held, always),
    )
