"""The shortest step that a candidate can have, and which candidates are worth a run.

These are lower bounds: operators at the rates that are given, none waits for another or for its launch.

work    = forward + backward               of the slowest rank
bubble  = work * (S - 1) / m               a pipeline of S stages and m microbatches
hidden  = min(h * transfer, backward)      where the library communicates during the backward pass, else 0
step    = work + bubble + update + transfer - hidden
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perfscope.analysis.plan.records import Candidate, Planned

_PER = 1e6  # samples that a cost is for
_HOUR_S = 3600.0


def planned(
    candidate: Candidate, flops_per_s: float, hidden_ratio: float, price_per_rank_hour: float | None = None
) -> Planned:
    """The figures of one candidate.

    Args:
        candidate: see Candidate.
        flops_per_s: peak of one rank in its dtype, for the efficiency.
        hidden_ratio: h, share of the communication that may be hidden.
        price_per_rank_hour: in any currency.
    """
    work = candidate.forward_s + candidate.backward_s
    bubble = work * (candidate.stages - 1) / candidate.microbatches
    hidden = min(hidden_ratio * candidate.transfer_s, candidate.backward_s) if candidate.overlaps else 0.0
    step = work + bubble + candidate.update_s + candidate.transfer_s - hidden
    sample = step / candidate.batch
    cost = None
    if price_per_rank_hour is not None:
        cost = _PER * sample / _HOUR_S * price_per_rank_hour * candidate.num_ranks
    return Planned(
        candidate=candidate,
        min_step_s=step,
        min_sample_s=sample,
        compute_ratio=(work + candidate.update_s) / step,
        communication_ratio=(candidate.transfer_s - hidden) / step,
        bubble_ratio=bubble / step,
        max_efficiency=candidate.flops / (step * flops_per_s * candidate.num_ranks),
        min_cost=cost,
    )


def ranked(plans: Sequence[Planned]) -> tuple[Planned, ...]:
    """By the lower bound of the time per sample, of equal ones by memory; the Pareto front is marked."""
    points = [_objectives(plan) for plan in plans]
    front = [
        replace(plan, is_pareto=not any(_dominates(other, point) for other in points))
        for plan, point in zip(plans, points, strict=True)
    ]
    return tuple(sorted(front, key=lambda plan: (plan.min_sample_s, plan.candidate.memory.peak)))


def _objectives(plan: Planned) -> tuple[float, ...]:
    cost = () if plan.min_cost is None else (plan.min_cost,)
    return (plan.min_sample_s, plan.candidate.memory.peak, *cost)


def _dominates(point: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return point != other and all(a <= b for a, b in zip(point, other, strict=True))


def order_agreement(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Share of pairs that both put in the same order; None with fewer than two."""
    pairs = [
        (predicted[i] - predicted[j]) * (measured[i] - measured[j]) > 0
        for i in range(len(predicted))
        for j in range(i)
    ]
    return sum(pairs) / len(pairs) if pairs else None
