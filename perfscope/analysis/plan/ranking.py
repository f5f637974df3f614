"""The step of a candidate, and which candidates are worth a run.

work    = forward + backward               of the slowest rank
bubble  = of the pipeline's schedule, below; S stages, m microbatches, v stages per rank
          GPipe, 1F1B   work * (S - 1) / m                 arXiv 1811.06965, 1806.03377
          interleaved   work * (S - 1) / (v m)             arXiv 2104.04473
          zero-bubble   forward * (S - 1) / (v m)          arXiv 2401.10241, ZB-H1: weights' gradients, as
                                                           long as the inputs', fill what backward leaves
hidden  = h * (transfer - exposed)         of DDP: exposed is what its buckets, sent one after the other, each
                                           once it is full, take beyond the end of the backward pass
          min(h * transfer, backward)      where a library communicates otherwise during that pass, else 0
step    = work + bubble + update + transfer - hidden

Where ranks share cores, a rank that waits leaves them to others: work + bubble is then at least work as ranks
slow each other down, and at least alone + bubble of it.

With rates of a machine these are lower bounds, with a calibrated candidate they are predictions.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perfscope.analysis.plan.records import Basis, Candidate, Planned

_STAGES_PER_RANK = {"interleaved": 2, "zero-bubble": 2}  # as the runners have them

_PER = 1e6  # samples that a cost is for
_HOUR_S = 3600.0


def planned(
    candidate: Candidate,
    basis: Basis,
    flops_per_s: float,
    hidden_ratio: float,
    price_per_rank_hour: float | None = None,
) -> Planned:
    """The figures of one candidate.

    Args:
        candidate: see Candidate.
        basis: what its times are from.
        flops_per_s: peak of one rank in its dtype, for the efficiency.
        hidden_ratio: h, share of the communication that may be hidden.
        price_per_rank_hour: in any currency.
    """
    work = candidate.forward_s + candidate.backward_s
    alone = work if candidate.alone_s is None else min(candidate.alone_s, work)
    bubble = max(alone + bubble_s(candidate) * (alone / work if work else 1.0), work) - work
    hidden = hidden_s(candidate, hidden_ratio)
    step = work + bubble + candidate.update_s + candidate.transfer_s - hidden
    sample = step / candidate.batch
    cost = None
    if price_per_rank_hour is not None:
        cost = _PER * sample / _HOUR_S * price_per_rank_hour * candidate.num_ranks
    return Planned(
        candidate=candidate,
        basis=basis,
        step_s=step,
        sample_s=sample,
        compute_ratio=(work + candidate.update_s) / step,
        communication_ratio=(candidate.transfer_s - hidden) / step,
        bubble_ratio=bubble / step,
        efficiency=candidate.flops / (step * flops_per_s * candidate.num_ranks),
        cost=cost,
    )


def hidden_s(candidate: Candidate, hidden_ratio: float) -> float:
    """Seconds of communication that the backward pass hides."""
    if not candidate.overlaps:
        return 0.0
    if not candidate.buckets:
        return min(hidden_ratio * candidate.transfer_s, candidate.backward_s)
    sent = 0.0
    for ready_ratio, transfer in candidate.buckets:
        sent = max(sent, ready_ratio * candidate.backward_s) + transfer
    exposed = max(sent - candidate.backward_s, 0.0)
    overlapped = max(sum(transfer for _, transfer in candidate.buckets) - exposed, 0.0)
    return hidden_ratio * min(overlapped, candidate.transfer_s)


def bubble_s(candidate: Candidate) -> float:
    """Seconds in which a rank waits for the pipeline to fill and drain, if all have cores of their own."""
    if candidate.stages == 1:
        return 0.0
    v = _STAGES_PER_RANK.get(candidate.schedule, 1)
    waiting = candidate.forward_s + (0.0 if candidate.schedule == "zero-bubble" else candidate.backward_s)
    return waiting * (candidate.stages - 1) / (v * candidate.microbatches)


def ranked(plans: Sequence[Planned]) -> tuple[tuple[int, ...], tuple[Planned, ...]]:
    """By the time per sample, of equal ones by memory; the Pareto front is marked.

    Returns:
        Places in `plans` in the new order, and the plans in that order.
    """
    points = [_objectives(plan) for plan in plans]
    front = [
        replace(plan, is_pareto=not any(_dominates(other, point) for other in points))
        for plan, point in zip(plans, points, strict=True)
    ]
    order = sorted(range(len(front)), key=lambda i: (front[i].sample_s, front[i].candidate.memory.peak))
    return tuple(order), tuple(front[index] for index in order)


def _objectives(plan: Planned) -> tuple[float, ...]:
    cost = () if plan.cost is None else (plan.cost,)
    return (plan.sample_s, plan.candidate.memory.peak, *cost)


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
