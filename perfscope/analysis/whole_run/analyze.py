"""The account of a run's wall time, per rank and for the mean rank, and what its long steps hold.

A rank's time goes from the start of the command to its end, on the wall clock of the ranks' hosts. Parts are
taken off it in order of time; what a later part has beyond what is left is not counted, and what is left over
is the shutdown, or, where the rank's end is not recorded, cannot be determined. So the parts add up exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.intervals import Int64, distinct, rounded_to
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.steps import Throughput
from perfscope.analysis.whole_run.results import LongSteps, RankRun, RunPartTime, WholeRun
from perfscope.analysis.whole_run.steps import LONG, StepParts, divided
from perfscope.rundir.records import Besides, RankRecord, RunRecord
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.run_parts import STEP_COLUMNS, TIMED, RunPart

FEWEST_EVEN = 3
_EVEN = 0.2  # of the median distance that half of the distances may differ by
_FEW = 0.25  # of the steps: waits for input in more of them belong to the ordinary step
_IN_LONG_STEPS = (*TIMED, RunPart.CPU_WAIT, RunPart.OTHER)
_RECORDED: Mapping[RunPart, str] = {
    part: name for part, name in STEP_COLUMNS.items() if part is not RunPart.INPUT
}


class _Rank(Struct, frozen=True, kw_only=True, eq=False):
    """One rank, its times in ns on its host's wall clock."""

    parts: StepParts
    divided: Mapping[RunPart, Int64]
    record: RankRecord
    first: int  # start of its first step
    last: int  # end of its last step
    started: int | None
    ended: int | None


def whole_run(
    run: RunRecord,
    records: Mapping[int, RankRecord],
    steps: Mapping[int, StepParts],
    speed: Throughput,
) -> tuple[WholeRun | None, tuple[Missing, ...]]:
    """The account of a run, or why there is none.

    Args:
        run: run.json.
        records: rank -> rank.json.
        steps: rank -> its steps.
        speed: samples of the mean step.
    """
    start, end = run.start_unix_ns, run.end_unix_ns
    numbers, most = _most([parts.step for parts in steps.values()], list(map(_apart, steps.values())))
    ranks = {
        rank: _rank(records[rank], parts, _others_ns(parts, numbers, most))
        for rank, parts in steps.items()
        if len(parts.step) and records[rank].anchors
    }
    if run.is_imported or not ranks or start is None or end is None or end <= start:
        cause = (
            Cause.IMPORTED if run.is_imported else Cause.NOT_CLOSED if run.is_open else Cause.NO_STEP_RECORDED
        )
        return None, (missing_figure(Figure.WHOLE_RUN, cause),)
    last_end = max((rank.ended for rank in ranks.values() if rank.ended is not None), default=None)
    accounts = {number: _account(rank, start, end, last_end) for number, rank in ranks.items()}
    training = [rank.last - rank.first for rank in ranks.values()]
    training_ns = round(sum(training) / len(training))
    num_steps = round(sum(len(rank.parts.step) for rank in ranks.values()) / len(ranks))
    samples = None if speed.mean_samples is None else speed.mean_samples * num_steps
    return WholeRun(
        wall_ns=end - start,
        parts=_mean(list(accounts.values()), end - start),
        ranks=tuple(RankRun(rank=rank, parts=_listed(times)) for rank, times in sorted(accounts.items())),
        num_steps=num_steps,
        training_ns=training_ns,
        usual_step_ns=round(float(np.median([rank.parts.usual_ns for rank in ranks.values()]))),
        samples_per_s=None if samples is None else samples * 1e9 / (end - start),
        training_samples_per_s=None if samples is None or not training_ns else samples * 1e9 / training_ns,
        long_steps=_long_steps(list(ranks.values()), training_ns),
    ), ()


def _rank(record: RankRecord, parts: StepParts, others_ns: Int64) -> _Rank:
    anchors = sorted(record.anchors)
    at_start, at_end = (unix - mono for mono, unix in (anchors[0], anchors[-1]))
    life = record.life
    first, last = int(parts.starts[0]), int((parts.starts + parts.durations).max())
    return _Rank(
        parts=parts,
        divided=divided(parts, others_ns),
        record=record,
        first=first + at_start,
        last=last + at_start,
        started=None if life.started_ns is None else life.started_ns + at_start,
        ended=None if life.ended_ns is None else life.ended_ns + at_end,
    )


def _others_ns(parts: StepParts, numbers: Int64, most: Int64) -> Int64:
    """For each step of a rank: how much longer than it another rank was busy with what is timed apart.

    In this step or the one before: what a rank does after its update, others wait for in their next step.

    Args:
        numbers: of all ranks' steps, ascending.
        most: in each of them, the time of the rank that was busy longest.
    """
    longer = np.maximum(most[np.searchsorted(numbers, parts.step)] - _apart(parts), 0)
    longer[1:] = np.maximum(longer[1:], longer[:-1])
    result: Int64 = longer
    return result


def _most(steps: Sequence[Int64], times: Sequence[Int64]) -> tuple[Int64, Int64]:
    """Numbers of all ranks' steps, ascending, and the time of the rank with most in each.

    Args:
        steps, times: per rank, of the same shape (steps,).
    """
    numbers = distinct(np.concatenate([np.empty(0, np.int64), *steps]))
    most = np.zeros(len(numbers), np.int64)
    for step, time in zip(steps, times, strict=True):
        np.maximum.at(most, np.searchsorted(numbers, step), time)
    return numbers, most


def _apart(parts: StepParts) -> Int64:
    total: Int64 = parts.durations - parts.untimed
    return total


def _account(rank: _Rank, start: int, end: int, last_end: int | None) -> dict[RunPart, int]:
    """One rank's time by part.

    Args:
        start, end: of the run.
        last_end: when the last rank ended; None: no rank's end is recorded.
    """
    times = dict.fromkeys(RunPart, 0)
    left = end - start

    def take(part: RunPart, ns: int) -> int:
        nonlocal left
        taken = min(max(ns, 0), left)
        times[part] += taken
        left -= taken
        return taken

    if rank.started is not None:
        take(RunPart.LAUNCH, rank.started - start)
    before = {part: getattr(rank.record.life.before, name) or 0 for part, name in _RECORDED.items()}
    after = _after(rank.parts, rank.record.life.before, rank.record.life.total)
    for part, ns in before.items():
        take(part, ns)
    take(RunPart.START_UP, rank.first - start - (end - start - left))
    for part, each in rank.divided.items():
        take(part, int(each.sum()))
    gaps = rank.last - rank.first - int(rank.parts.durations.sum())  # windows are opened and closed in them
    windows_ns = rank.record.overhead.windows_ns
    take(RunPart.PROFILING, gaps if windows_ns is None else min(gaps, windows_ns))
    take(RunPart.OTHER, rank.last - start - (end - start - left))
    for part, ns in after.items():
        take(part, ns)
    if rank.ended is None or last_end is None:
        take(RunPart.OTHER, left)
    take(RunPart.SHUTDOWN, (rank.ended or 0) - start - (end - start - left))
    take(RunPart.OTHER_RANKS, (last_end or 0) - max(rank.ended or 0, rank.last))
    take(RunPart.SHUTDOWN, left)
    return times


def _after(parts: StepParts, before: Besides, total: Besides) -> dict[RunPart, int]:
    """What was done besides training once the last step was over."""
    return {
        part: max(0, (getattr(total, name) or 0) - (getattr(before, name) or 0) - parts.recorded[part])
        for part, name in _RECORDED.items()
    }


def _mean(accounts: Sequence[Mapping[RunPart, int]], wall_ns: int) -> tuple[RunPartTime, ...]:
    means = [sum(account[part] for account in accounts) / len(accounts) for part in RunPart]
    return _listed(dict(zip(RunPart, rounded_to(means, wall_ns), strict=True)))


def _listed(times: Mapping[RunPart, int]) -> tuple[RunPartTime, ...]:
    return tuple(RunPartTime(part=part, ns=times[part]) for part in RunPart if times[part])


def _long_steps(ranks: Sequence[_Rank], training_ns: int) -> tuple[LongSteps, ...]:
    """By part, of the rank that has most of it in each step."""
    long_steps = []
    for part in _IN_LONG_STEPS:
        times = [rank.divided[part] for rank in ranks]
        if part is RunPart.INPUT:
            times = [
                _unusual_waits(each, rank.parts.usual_ns) for each, rank in zip(times, ranks, strict=True)
            ]
        numbers, most = _most([rank.parts.step for rank in ranks], times)
        holding = numbers[most > 0]
        if len(holding) and training_ns:
            longest = int(most.argmax())
            long_steps.append(
                LongSteps(
                    part=part,
                    num_steps=len(holding),
                    every=_every(holding),
                    ns=int(most.sum()),
                    ratio=min(1.0, float(most.sum()) / training_ns),
                    longest_ns=int(most[longest]),
                    longest_step=int(numbers[longest]),
                    written_bytes=_written(ranks) if part is RunPart.CHECKPOINT else None,
                )
            )
    return tuple(sorted(long_steps, key=lambda entry: -entry.ns))


def _written(ranks: Sequence[_Rank]) -> int | None:
    """Bytes that all ranks wrote to files in the steps in which they wrote checkpoints; None: not known."""
    written = [rank.parts.written[rank.divided[RunPart.CHECKPOINT] > 0] for rank in ranks]
    if any((of_rank < 0).any() for of_rank in written):
        return None
    return sum(int(of_rank.sum()) for of_rank in written)


def _unusual_waits(times: Int64, usual_ns: int) -> Int64:
    """Waits beyond the median one, which is part of the ordinary step.

    They count where they are as long as a step, the wait is LONG times the median one, and few steps have
    such a wait.
    """
    median = round(float(np.median(times))) if len(times) else 0
    beyond = times - median
    is_unusual = beyond >= max(1, usual_ns, (LONG - 1) * median)
    unusual: Int64 = np.where(is_unusual & (is_unusual.sum() <= _FEW * len(times)), beyond, 0)
    return unusual


def _every(numbers: Int64) -> int | None:
    """Steps from one to the next, where they are evenly spaced."""
    if len(numbers) < FEWEST_EVEN:
        return None
    apart = np.diff(numbers)
    usual = float(np.median(apart))
    return round(usual) if float(np.median(np.abs(apart - usual))) <= _EVEN * usual else None
