"""What each step of a rank holds: the always-on times, and the rest of it.

The timed parts are taken off the step in the order of `TIMED`; what a later one has beyond what is left is
not counted, so that the parts and the rest add up to the step. Forward passes without gradients that are in
more than half of the steps (a teacher, a target network) belong to the ordinary step: only what exceeds their
median is an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64, median_of
from perfscope.analysis.spans import ArrayRecord, Table, constant, is_constant, whole_numbers
from perfscope.analysis.steps import counted_steps
from perfscope.vocabulary.run_parts import STEP_COLUMNS, TIMED, RunPart

LONG = 3  # times the median
LENGTHS = 1.5  # between the longest short and the shortest long step where steps have two lengths
FEWEST_LONG = 3
USED = (
    *("minor_faults", "major_faults", "user_ns", "system_ns"),
    *("thread_minor_faults", "thread_user_ns", "thread_system_ns"),
)
_PASSES = (RunPart.EVALUATION, RunPart.ROLLOUT, RunPart.INFERENCE)


class StepParts(ArrayRecord, frozen=True, kw_only=True, eq=False):
    """One rank's steps; arrays of shape (steps,), times in ns."""

    step: Int64
    starts: Int64
    durations: Int64
    is_traced: NDArray[np.bool_]
    is_usual: NDArray[np.bool_]  # neither warm-up nor traced
    timed: Mapping[RunPart, Int64]  # of TIMED; with `untimed` they add up to `durations`
    recorded: Mapping[RunPart, int]  # of all steps, as the rank recorded them
    untimed: Int64
    passes: Int64  # forward and backward passes; -1 = not recorded
    written: Int64  # bytes; -1 = not recorded
    runqueue: Int64  # ns that the training thread waited for a CPU; -1 = not recorded
    used: Mapping[str, Int64]  # columns of schema.STEPS that say what was used, of USED; -1 = not recorded

    @property
    def usual_ns(self) -> int:
        """Median rest of the untraced steps; of all where there are none."""
        chosen = self.untimed[self.is_usual] if self.is_usual.any() else self.untimed
        return round(median_of(chosen)) if len(chosen) else 0

    @property
    def long_from(self) -> float:
        """Rest from which on a step is long: LONG times the median, or the longer of two distinct lengths."""
        limit = LONG * float(self.usual_ns)
        lengths = np.sort(self.untimed[self.is_usual])
        half = len(lengths) // 2
        if len(lengths) - half <= FEWEST_LONG or lengths[half] <= 0:
            return limit
        ratios = lengths[half + 1 :] / np.maximum(lengths[half:-1], 1)
        apart = np.flatnonzero(ratios >= LENGTHS)
        apart = apart[len(ratios) - apart >= FEWEST_LONG]
        return min(limit, float(lengths[half + 1 + apart[0]])) if len(apart) else limit


def step_parts(table: Table, durations: Int64) -> StepParts:
    """What one rank's steps hold.

    Args:
        table: schema.STEPS.
        durations: shape (steps,), ns; RankSteps.reported.
    """
    window = whole_numbers(table, "window")
    usual = counted_steps(window) & (window < 0)
    remaining, timed, recorded = durations.copy(), {}, {}
    for part in TIMED:
        times = whole_numbers(table, STEP_COLUMNS[part])
        if is_constant(times) and times[0] <= 0:
            recorded[part], timed[part] = 0, constant(0, len(times), np.int64)
            continue
        times = np.maximum(times, 0)
        recorded[part] = int(times.sum())
        if part in _PASSES and len(times):
            times = np.maximum(times - int(median_of(times)), 0)
        timed[part] = _shared(np.minimum(times, remaining))
        remaining = remaining - timed[part]
    return StepParts(
        step=whole_numbers(table, "step"),
        starts=whole_numbers(table, "start_ns"),
        durations=durations,
        is_traced=window >= 0,
        is_usual=usual,
        timed=timed,
        recorded=recorded,
        untimed=remaining,
        passes=_shared(_passes(table)),
        written=_shared(whole_numbers(table, "written_bytes")),
        runqueue=_shared(whole_numbers(table, "runqueue_ns")),
        used={name: _shared(whole_numbers(table, name)) for name in USED},
    )


def _shared(values: Int64) -> Int64:
    """One array of all ranks for what is the same number in every step, mostly because it is not recorded."""
    if is_constant(values) or not len(values) or not (values == values[0]).all():
        return values
    return constant(int(values[0]), len(values), np.int64)


def traced_shares(ranks: Mapping[int, StepParts]) -> dict[RunPart, dict[int, float]]:
    """By part and rank: the share of its traced steps that the part takes; without ranks that have none."""
    totals = {rank: parts.durations[parts.is_traced].sum() for rank, parts in ranks.items()}
    return {
        part: {
            rank: _sum_of(ranks[rank].timed[part], ranks[rank].is_traced) / float(total)
            for rank, total in totals.items()
            if total > 0
        }
        for part in TIMED
    }


def _sum_of(times: Int64, chosen: NDArray[np.bool_]) -> float:
    return 0.0 if is_constant(times) and not times[0] else float(times[chosen].sum())


WRITES = 2**20  # bytes beyond the median from which on a long step is one that writes files
PASSES = 0.4  # of what a long step takes longer; not every framework shows the forward pass
_WAITS = 0.5  # of the median step that other ranks must be busy for, to be waited for


def divided(parts: StepParts, others_ns: Int64) -> dict[RunPart, Int64]:
    """Every step's time by part, shape (steps,); for each step they add up to its duration.

    What a warm-up step takes beyond the usual one is warm-up, what a traced one takes is profiling. Of other
    steps, what they take while other ranks do something else is waiting for them; if they are long, files
    they write come next, then the thread's waiting for a CPU. A step that is longer by its passes has more to
    compute, or waits for ranks that have: it is an ordinary step. The remainder cannot be determined.

    Args:
        parts: of one rank.
        others_ns: shape (steps,), how much longer than this rank another is busy with what is timed apart.
    """
    usual_ns = parts.usual_ns
    excess = np.maximum(parts.untimed - usual_ns, 0)
    is_warm_up = ~parts.is_usual & ~parts.is_traced
    is_long = parts.is_usual & (parts.untimed >= parts.long_from)
    result = dict(parts.timed)
    taken = np.zeros_like(excess)

    def take(part: RunPart, times: Int64) -> None:
        share = np.minimum(np.maximum(times, 0), excess - taken)
        result[part] = result.get(part, 0) + share
        taken[:] += share

    take(RunPart.WARM_UP, np.where(is_warm_up, excess, 0))
    take(RunPart.OTHER_RANKS, np.where(others_ns > _WAITS * usual_ns, others_ns, 0))
    take(RunPart.PROFILING, np.where(parts.is_traced, excess, 0))
    take(RunPart.CHECKPOINT, np.where(is_long & _beyond_median(parts.written, parts, WRITES), excess, 0))
    waited = parts.runqueue - _median(parts.runqueue, parts)
    take(RunPart.CPU_WAIT, np.where(is_long & (parts.runqueue >= 0), waited, 0))
    take(RunPart.OTHER, np.where(is_long & ~_by_passes(parts, excess - taken), excess, 0))
    result[RunPart.STEPS] = parts.untimed - taken
    return result


def _passes(table: Table) -> Int64:
    forward, backward = whole_numbers(table, "forward_ns"), whole_numbers(table, "backward_ns")
    result: Int64 = np.where(backward >= 0, np.maximum(forward, 0) + backward, -1)
    return result


def _by_passes(parts: StepParts, excess: Int64) -> NDArray[np.bool_]:
    """Whether forward and backward pass are a good part of what each step takes longer than the usual one."""
    beyond = parts.passes - _median(parts.passes, parts)
    result: NDArray[np.bool_] = (parts.passes >= 0) & (excess > 0) & (beyond >= PASSES * excess)
    return result


def _median(values: Int64, parts: StepParts) -> int:
    measured = values[parts.is_usual & (values >= 0)]
    return int(median_of(measured)) if len(measured) else 0


def _beyond_median(values: Int64, parts: StepParts, least: int) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = (values >= 0) & (values - _median(values, parts) >= least)
    return result
