"""Predicted step of one planned run: docs/predict.md states the model in words.

    compute    = M(work) * slowdown          slowdown: threads per core of the target over those measured
    straggling = M * spread * e_N
    transfer   = r * max over ranks of sum over calls of (alpha messages + beta bytes)
    hidden     = min(h * transfer, share of compute that can hide it)
    step       = compute + straggling + transfer - hidden

A call over several hosts that sends inside one, too (a ring with neighbors on a host), uses both classes of
links at once, and its stages go at the pace of the slower: max over classes of alpha messages + beta bytes.

r: recorded over formula for the scheme's own runs (what a backend or a library moves or queues beyond it);
h: the share of communication that was hidden in the scheme's own runs, else in its family's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.predict.compute import ComputeModel
from perfscope.analysis.predict.fitting import expected_maximum
from perfscope.analysis.predict.links import terms
from perfscope.analysis.predict.records import BETWEEN_HOSTS, INSIDE_HOST, MeasuredRun, Plan

_LEAST_MISFIT, _MOST_MISFIT = 0.03, 0.5
Link = tuple[float, float]  # (alpha s, beta s/byte)
Stages = Mapping[str, Link]  # link class -> (messages, bytes); the slowest class counts
RankTerms = tuple[Stages, ...]  # of one rank's step, one after the other


class Traits(Struct, frozen=True, kw_only=True):
    """What a scheme's own runs say about its communication.

    Attributes:
        ratio: r, point.
        ratio_bounds: that draws take it from.
        hidden: h, point.
        hidden_bounds: likewise.
        hideable: share of compute that communication may hide under.
        observed: False: the scheme did not run; its figures are assumptions.
        overlap_from: whose overlap it is; None: of no run.
    """

    ratio: float
    ratio_bounds: tuple[float, float]
    hidden: float
    hidden_bounds: tuple[float, float]
    hideable: float
    observed: bool
    overlap_from: str | None


class StepParts(Struct, frozen=True, kw_only=True):
    """Of one draw, ns."""

    compute: float
    straggling: float
    transfer: float
    hidden: float

    @property
    def step(self) -> float:
        return self.compute + self.straggling + self.transfer - self.hidden


def rank_terms(plan: Plan, backend: str | None) -> tuple[RankTerms, ...]:
    """Messages and bytes of each different rank: calls over one class of links are added up."""
    rows = []
    for calls in plan.ranks:
        sums: dict[str, Link] = {}
        both: dict[Link, tuple[Link, float]] = {}
        for call in calls:
            messages, sent = terms(call, backend)
            if call.inside_too:
                sums_of_rank = (messages, sent)
                both[sums_of_rank] = (
                    (messages, sent / call.sharing),
                    both.get(sums_of_rank, (sums_of_rank, 0.0))[1] + call.count,
                )
                continue
            before = sums.get(call.link_class, (0.0, 0.0))
            sums[call.link_class] = (before[0] + call.count * messages, before[1] + call.count * sent)
        rows.append(
            (
                *({name: seconds} for name, seconds in sums.items()),
                *(
                    {BETWEEN_HOSTS: _times(across, count), INSIDE_HOST: _times(inside, count)}
                    for across, (inside, count) in both.items()
                ),
            )
        )
    return tuple(rows)


def _times(link: Link, count: float) -> Link:
    return link[0] * count, link[1] * count


def transfer_by_link(ranks: Sequence[RankTerms], links: Mapping[str, Link]) -> dict[str, float]:
    """Of the rank that communicates longest: link class -> ns that it sets the pace for.

    Calls over both classes of links count as between hosts alone where nothing is known of those inside.

    Raises:
        KeyError: another link class that `links` lacks.
    """
    costs = []
    for stages in ranks:
        cost: dict[str, float] = {}
        for stage in stages:
            name, time = _slowest(stage, links)
            cost[name] = cost.get(name, 0.0) + time
        costs.append(cost)
    return max(costs, key=lambda cost: sum(cost.values()), default={})


def _slowest(stage: Stages, links: Mapping[str, Link]) -> tuple[str, float]:
    times = {
        name: 1e9 * (links[name][0] * part[0] + links[name][1] * part[1])
        for name, part in stage.items()
        if len(stage) == 1 or name in links or name == BETWEEN_HOSTS
    }
    name = max(times, key=lambda link: times[link])
    return name, times[name]


def compose(
    plan: Plan,
    transfer_ns: float,
    compute: ComputeModel,
    traits: Traits,
    *,
    slowdown: float,
    ratio: float,
    hidden: float,
    growth: Callable[[int], float] = expected_maximum,
) -> StepParts:
    """Puts a step together from one set of figures; see the module."""
    compute_ns = compute.curve(plan.scheme).at(plan.work, plan.whole) * slowdown
    transfer = transfer_ns * ratio
    return StepParts(
        compute=compute_ns,
        straggling=compute_ns * compute.spread(plan.scheme) * growth(plan.num_ranks),
        transfer=transfer,
        hidden=min(hidden * transfer, traits.hideable * compute_ns),
    )


def traits_of(
    scheme: str,
    runs: Sequence[MeasuredRun],
    links: Mapping[str, Link],
    backend: str | None,
    misfit: float = 0.0,
) -> Traits:
    """What the runs say of a scheme that is to be predicted.

    Args:
        scheme: with modifiers.
        runs: all of them.
        links: fitted from their own calls, never a network that was given instead.
        backend: of the runs.
        misfit: how far calls lie from the links' fit, relative: how well the formulas hold here at all.
    """
    misfit = min(max(misfit, _LEAST_MISFIT), _MOST_MISFIT)
    measured_runs = [run for run in runs if run.plan.scheme == scheme and run.plan.num_ranks > 1]
    ratios = [ratio for run in measured_runs if (ratio := _ratio(run, links, backend)) is not None]
    family = scheme.partition(".")[0]
    alike = measured_runs or [
        run for run in runs if run.plan.num_ranks > 1 and run.plan.scheme.partition(".")[0] == family
    ]
    overlaps = [run.overlap_ratio for run in alike if run.overlap_ratio is not None]
    hidden = float(np.median(overlaps)) if overlaps else 0.0
    if not overlaps:
        bounds = (0.0, 0.5)
    elif max(overlaps) < 0.02:
        bounds = (0.0, 0.02)  # its calls block: nothing to carry over
    else:
        bounds = (max(0.0, min(overlaps) - 0.15), min(1.0, max(overlaps) + 0.15))
    hideable = [
        max(run.backward_share * (1 - run.fixed_share), (run.overlap_ratio or 0) * run.comm_ns / run.step_ns)
        for run in alike or runs
    ]
    point = float(np.median(ratios)) if ratios else 1.0
    return Traits(
        ratio=point,
        ratio_bounds=((1 - misfit) * min(ratios), (1 + misfit) * max(ratios)) if ratios else (0.7, 1.5),
        hidden=hidden,
        hidden_bounds=bounds,
        hideable=min(1.0, float(np.median(hideable))),
        observed=bool(measured_runs),
        overlap_from=(scheme if measured_runs else family) if overlaps else None,
    )


def _ratio(run: MeasuredRun, links: Mapping[str, Link], backend: str | None) -> float | None:
    """Recorded communication over that of the formulas; None where either is missing."""
    try:
        predicted = sum(transfer_by_link(rank_terms(run.plan, backend), links).values())
    except KeyError:
        return None
    return run.comm_ns / predicted if predicted > 0 and run.comm_ns > 0 else None
