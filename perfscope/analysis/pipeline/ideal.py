"""Which schedule a pipeline follows, and the bubble that it has at best.

Ratios are of the active time: idle time of all ranks over ranks x (last end - first start), with equal stages
and nothing lost between them. p: ranks, m: microbatches, v: stages per rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from perfscope.analysis.pipeline.record import StageSpan
from perfscope.vocabulary.pipelines import Schedule, StageWork

_BACKWARDS = (StageWork.BACKWARD, StageWork.INPUT_BACKWARD)


def schedule_of(ranks: Sequence[Sequence[StageSpan]]) -> Schedule:
    """The schedule, from the order of each rank's actions and where the stages are.

    Args:
        ranks: each rank's actions of one step in order.
    """
    kinds = {span.work for rank in ranks for span in rank}
    stages = [sorted({span.stage for span in rank}) for rank in ranks]
    per_rank = max(len(of_rank) for of_rank in stages)
    if kinds == {StageWork.FORWARD}:
        return Schedule.FORWARD_ONLY
    if StageWork.WEIGHT_BACKWARD in kinds:
        return _zero_bubble(stages)
    if not all(
        of_rank == list(range(of_rank[0], of_rank[0] + len(ranks) * per_rank, len(ranks)))
        for of_rank in stages
    ):
        return Schedule.OTHER
    if all(_forwards_first(rank) for rank in ranks):
        return Schedule.GPIPE if per_rank == 1 else Schedule.LOOPED_BFS
    return Schedule.ONE_F_ONE_B if per_rank == 1 else Schedule.INTERLEAVED


def _zero_bubble(stages: Sequence[Sequence[int]]) -> Schedule:
    num = sum(len(of_rank) for of_rank in stages)
    if len(stages) > 1 and all(len(of_rank) == 2 and sum(of_rank) == num - 1 for of_rank in stages):
        return Schedule.ZB_V
    in_turn = all(
        all(later - earlier == len(stages) for earlier, later in pairwise(of_rank)) for of_rank in stages
    )
    return Schedule.ZERO_BUBBLE if in_turn else Schedule.OTHER


def _forwards_first(rank: Sequence[StageSpan]) -> bool:
    """Whether every forward pass comes before every backward pass."""
    backwards = [number for number, span in enumerate(rank) if span.work in _BACKWARDS]
    forwards = [number for number, span in enumerate(rank) if span.work is StageWork.FORWARD]
    return max(forwards, default=-1) < min(backwards, default=len(rank))


def ideal_ratio(
    schedule: Schedule,
    *,
    num_ranks: int,
    num_microbatches: int,
    stages_per_rank: int,
    mean_ns: Mapping[StageWork, float],
) -> float | None:
    """The bubble of a schedule at its best; None where no formula is known.

    - GPipe, and forward passes alone: (p-1)/(m+p-1), Huang et al. 2019 (arXiv 1811.06965, section 2.3:
      O((p-1)/(m+p-1)) of the time); 1F1B has the same, Narayanan et al. 2021 (arXiv 2104.04473, section 2.2:
      idle time (p-1)(t_f+t_b) beside m(t_f+t_b) of work).
    - Interleaved 1F1B: (p-1)/(v m+p-1), Narayanan et al. 2021, section 2.2.2: the idle time is divided by v.
      Looped BFS likewise, Lamy-Poirier 2023 (arXiv 2211.05953).
    - Zero bubble (ZB-H1): (p-1)(T_F+T_B-T_W) idle beside m(T_F+T_B+T_W), with T_B the backward pass for
      inputs and T_W that for weights; Qi et al. 2024 (arXiv 2401.10241, table 2). With v stages per rank, as
      torch interleaves it, times are those of one stage.
    - ZB-V: ranks only begin one after the other, Qi et al. 2024, section 6, if T_F = T_B = T_W: (p-1) T_F
      idle beside 2 m (T_F+T_B+T_W). The paper does not count this shift, because ranks that update their
      weights apart begin the next step apart; here a step ends with its last rank.

    Args:
        schedule: which.
        num_ranks, num_microbatches, stages_per_rank: p, m, v.
        mean_ns: mean duration of each kind of work.
    """
    p, work = num_ranks, stages_per_rank * num_microbatches
    if schedule is Schedule.OTHER or work < 1:
        return None
    if schedule not in (Schedule.ZERO_BUBBLE, Schedule.ZB_V):
        return (p - 1) / (work + p - 1)
    forward, weights = mean_ns.get(StageWork.FORWARD, 0.0), mean_ns.get(StageWork.WEIGHT_BACKWARD, 0.0)
    inputs = mean_ns.get(StageWork.INPUT_BACKWARD, 0.0)
    each = forward if schedule is Schedule.ZB_V else max(forward + inputs - weights, 0.0)
    idle = (p - 1) * each
    total = work * (forward + inputs + weights) + idle
    return idle / total if total else None
