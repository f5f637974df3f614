"""What a run's traced windows tell about a bench run: which steps they slowed, what was sent and exposed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.analysis.bench import Traced
from perfscope.analysis.results import CollectiveResult, RankResult
from perfscope.analysis.steps import RankSteps
from perfscope.messages import bench as why


def traced_figures(
    ranks: Sequence[RankResult],
    collectives: Sequence[CollectiveResult],
    steps: Mapping[int, RankSteps],
    reason: str,
) -> Traced:
    """Sums up the windows of a bench run.

    Args:
        ranks: with the breakdown of their mean traced step.
        collectives: over all traced windows.
        steps: of the always-on probe, by rank.
        reason: why nothing was traced, should that be so.
    """
    spans = {rank: _spans(of_rank) for rank, of_rank in steps.items()}
    breakdowns = [rank.breakdown_ns for rank in ranks if rank.breakdown_ns is not None]
    total = sum(parts.step for parts in breakdowns)
    if not total:
        return Traced(spans_ns=spans, reason=reason)
    exposed = sum(parts.exposed_comm for parts in breakdowns)
    sizes: dict[str, float] = defaultdict(float)
    for collective in collectives:
        # a result holds the mean member's bytes; in a pipeline every stage is a sender
        sizes[collective.collective] += (
            (collective.bytes or 0) * (collective.group_size or 0) / breakdowns[0].num_steps
        )
    unknown = {
        collective.collective
        for collective in collectives
        if collective.bytes is None or collective.num_unsized or collective.group_size is None
    }
    if any("exposed_comm" in rank.unknown for rank in ranks):
        return Traced(spans_ns=spans, reason=why.UNSEEN_CALLS)
    return Traced(
        spans_ns=spans,
        bytes={name: amount for name, amount in sizes.items() if name not in unknown},
        exposed_comm_ns=exposed / len(breakdowns),
        exposed_comm_ratio=exposed / total,
        reason="",
    )


def _spans(steps: RankSteps) -> tuple[tuple[int, int], ...]:
    """(start, end) of the traced steps, ns."""
    rows = np.flatnonzero(steps.is_traced)
    starts, durations = steps.starts[rows].tolist(), steps.durations[rows].tolist()
    return tuple((start, start + duration) for start, duration in zip(starts, durations, strict=True))
