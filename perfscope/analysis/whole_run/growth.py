"""Steps that take ever longer over a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from perfscope.analysis.intervals import BLOCKS, Int64, block_medians, is_steady
from perfscope.analysis.steps import RankSteps
from perfscope.analysis.whole_run.steps import StepParts
from perfscope.messages.findings.growth import GrowingPart
from perfscope.vocabulary.run_parts import RunPart

_FEWEST_STEPS = 5  # a block
_LONGER = 0.15  # of the first block, by which the last must be longer
_OF_GROWTH = 0.5  # that one part must have to be named, and that larger batches must explain


class StepGrowth(Struct, frozen=True, kw_only=True):
    """Steps that take ever longer; medians of the first and the last block of untraced steps, ns."""

    first_ns: float
    last_ns: float
    cost_ratio: float  # what the steps take beyond the first block, of the time of all
    num_steps: int
    part: GrowingPart | None = None  # None: no single one
    part_ns: float = 0.0  # by which it grows
    rank: int | None = None  # whose part it is; None: of all ranks


def step_growth(parts: Mapping[int, StepParts], steps: Mapping[int, RankSteps]) -> StepGrowth | None:
    """How much longer steps get over the run; None: they do not, or larger batches are why.

    Args:
        parts: by rank.
        steps: by rank, for what each step trained on.
    """
    read = {rank: _of_rank(of_rank) for rank, of_rank in parts.items()}
    of_ranks = {rank: figures for rank, figures in read.items() if figures is not None}
    if not of_ranks or len(of_ranks) < len(parts):
        return None
    medians = np.median([entry["step"] for entry in of_ranks.values()], axis=0).astype(np.int64)
    first, last = float(medians[0]), float(medians[-1])
    more = last - first
    if more < _LONGER * first or not is_steady(medians) or _has_larger_batches(steps, more / first):
        return None
    usual = {rank: of_rank.durations[of_rank.is_usual] for rank, of_rank in parts.items()}
    total = float(np.mean([durations.sum() for durations in usual.values()]))
    num_steps = min(len(durations) for durations in usual.values())
    part, part_ns, rank = _part_that_grows(of_ranks, more)
    return StepGrowth(
        first_ns=first,
        last_ns=last,
        cost_ratio=max(0.0, 1 - first * num_steps / total),
        num_steps=num_steps,
        part=part,
        part_ns=part_ns,
        rank=rank,
    )


def _of_rank(parts: StepParts) -> dict[str, Int64] | None:
    """By name, the medians of one rank's blocks; None: too few untraced steps."""
    chosen = parts.is_usual
    if chosen.sum() < BLOCKS * _FEWEST_STEPS:
        return None
    figures = {"step": block_medians(parts.durations[chosen])}
    remaining = parts.durations
    for timed, part in _TIMED.items():
        remaining = remaining - parts.timed[timed]
        figures[part.value] = block_medians(parts.timed[timed][chosen])
    if (parts.passes[chosen] >= 0).all():
        figures[GrowingPart.PASSES.value] = block_medians(parts.passes[chosen])
        beside = np.maximum(remaining - parts.passes, 0)[chosen]
        figures[GrowingPart.OUTSIDE.value] = block_medians(beside)
    return figures


_TIMED: Mapping[RunPart, GrowingPart] = {
    RunPart.INPUT: GrowingPart.INPUT,
    RunPart.GARBAGE_COLLECTION: GrowingPart.GARBAGE_COLLECTION,
}


def _part_that_grows(
    of_ranks: Mapping[int, Mapping[str, Int64]], more_ns: float
) -> tuple[GrowingPart | None, float, int | None]:
    """(part, by how much it grows, the rank if it is of few).

    Passes of a rank hold its waits for others: they are named last.
    """
    for part in (*_TIMED.values(), GrowingPart.OUTSIDE, GrowingPart.PASSES):
        grows = {
            rank: float(figures[part.value][-1] - figures[part.value][0])
            for rank, figures in of_ranks.items()
            if part.value in figures and is_steady(figures[part.value])
        }
        rank = max(grows, key=lambda each: grows[each], default=None)
        if rank is None or grows[rank] < _OF_GROWTH * more_ns:
            continue
        alike = [each for each in grows if grows[each] >= _OF_GROWTH * grows[rank]]
        return part, grows[rank], rank if len(alike) <= len(of_ranks) // 2 else None
    return None, 0.0, None


def _has_larger_batches(steps: Mapping[int, RankSteps], growth: float) -> bool:
    """Whether samples or tokens per step vary: then what a step takes may rise with them."""
    batches = [batch for of_rank in steps.values() for batch in (of_rank.samples, of_rank.tokens) if batch]
    return any(
        batch.vary and batch.range[1] >= (1 + _OF_GROWTH * growth) * max(batch.range[0], 1)
        for batch in batches
    )
