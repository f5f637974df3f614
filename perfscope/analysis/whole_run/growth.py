"""Steps that take ever longer over a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.host_idle import has_states, ran_ns
from perfscope.analysis.intervals import BLOCKS, Int64, block_medians, is_steady
from perfscope.analysis.steps import RankSteps
from perfscope.analysis.whole_run.steps import StepParts
from perfscope.tasks import chunks
from perfscope.vocabulary.run_parts import GrowingPart, RunPart

_FEWEST_STEPS = 5  # a block
_LONGER = 0.15  # of the first block, by which the last must be longer
_BUSY = "busy"  # name of a figure beside the parts
_MAY_BE_WAITS = (GrowingPart.OUTSIDE, GrowingPart.PASSES)
_RANKS_TOGETHER = 256
_OF_GROWTH = 0.5  # that one part must have to be named, and that larger batches must explain


class StepGrowth(Struct, frozen=True, kw_only=True):
    """Steps that take ever longer; medians of the first and the last block of untraced steps, ns.

    Without evaluations and checkpoints; of several ranks their median.
    """

    first_ns: float
    last_ns: float
    cost_ns: float  # what the mean of the steps takes beyond the first block
    mean_ns: float  # of the steps, with evaluations and checkpoints
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
    if not parts or any(of_rank.is_usual.sum() < BLOCKS * _FEWEST_STEPS for of_rank in parts.values()):
        return None
    medians = np.median(_of_ordinary(list(parts.values())), axis=0).astype(np.int64)
    first, last = float(medians[0]), float(medians[-1])
    more = last - first
    if more < _LONGER * first or _has_larger_batches(steps, more / first):
        return None
    figures = {rank: _of_rank(parts[rank]) for rank in parts}
    growing = medians if is_steady(medians) else _steady_part(figures, _LONGER * first)
    if growing is None:
        return None
    counts = [int(of_rank.is_usual.sum()) for of_rank in parts.values()]
    part, part_ns, rank = _part_that_grows(figures, float(growing[-1] - growing[0]))
    return StepGrowth(
        first_ns=first,
        last_ns=last,
        cost_ns=float(np.maximum(growing - growing[0], 0).mean()),
        mean_ns=float(np.mean([of_rank.durations[of_rank.is_usual].mean() for of_rank in parts.values()])),
        num_steps=round(float(np.median(counts))),
        part=part,
        part_ns=part_ns,
        rank=rank,
    )


def _steady_part(figures: Mapping[int, Mapping[str, Int64]], least_ns: float) -> Int64 | None:
    """The blocks of a part that grows steadily on most ranks, if steps as a whole do not, as passes vary."""
    for part in (*_TIMED.values(), GrowingPart.OUTSIDE):
        of_ranks = [of_rank[part.value] for of_rank in figures.values() if part.value in of_rank]
        blocks = [medians for medians in of_ranks if _grows(medians, least_ns)]
        if 2 * len(blocks) > len(figures):
            return np.asarray(np.median(blocks, axis=0), dtype=np.int64)
    return None


def _of_ordinary(ranks: Sequence[StepParts]) -> Int64:
    """Medians of the blocks of each rank's ordinary steps, shape (ranks, BLOCKS)."""
    medians = np.empty((len(ranks), BLOCKS), np.int64)
    alike: dict[int, list[int]] = defaultdict(list)  # as many steps: computed together
    for row, of_rank in enumerate(ranks):
        alike[int(of_rank.is_usual.sum())].append(row)
    for rows in alike.values():
        for part in chunks(rows, _RANKS_TOGETHER):
            steps = np.stack([_ordinary(ranks[row])[ranks[row].is_usual] for row in part])
            medians[part] = block_medians(steps)
    return medians


def _ordinary(parts: StepParts) -> Int64:
    """Steps without evaluations and checkpoints, of which there are other findings; shape (steps,)."""
    return parts.untimed + sum(parts.timed[timed] for timed in _TIMED)


def _of_rank(parts: StepParts) -> dict[str, Int64]:
    """By name, the medians of one rank's blocks."""
    chosen, figures = parts.is_usual, {}
    for timed, part in _TIMED.items():
        figures[part.value] = block_medians(parts.timed[timed][chosen])
    if (parts.passes[chosen] >= 0).all():
        figures[GrowingPart.PASSES.value] = block_medians(parts.passes[chosen])
        figures[GrowingPart.OUTSIDE.value] = block_medians(
            np.maximum(parts.untimed - parts.passes, 0)[chosen]
        )
    if has_states(parts)[chosen].all():
        figures[_BUSY] = block_medians((ran_ns(parts) + parts.runqueue)[chosen])
    return figures


_TIMED: Mapping[RunPart, GrowingPart] = {
    RunPart.INPUT: GrowingPart.INPUT,
    RunPart.GARBAGE_COLLECTION: GrowingPart.GARBAGE_COLLECTION,
}


def _part_that_grows(
    of_ranks: Mapping[int, Mapping[str, Int64]], more_ns: float
) -> tuple[GrowingPart | None, float, int | None]:
    """(part, by how much it grows, the rank if it is of few).

    What a rank waits for others grows, too, inside or outside of its passes: ranks that do more themselves
    are those whose threads are busy for longer. Where none is, parts that differ by rank are not named.
    """
    least = _OF_GROWTH * more_ns
    grown = {rank: _growths(figures, least) for rank, figures in of_ranks.items()}
    busy = [rank for rank, growths in grown.items() if _BUSY in growths]
    considered = busy or list(grown)
    for part in GrowingPart:
        growths = {rank: grown[rank][part.value] for rank in considered if part.value in grown[rank]}
        rank = max(growths, key=lambda each: growths[each], default=None)
        if rank is None:
            continue
        if part in _MAY_BE_WAITS and not busy and len(growths) < len(of_ranks):
            break
        alike = [each for each in growths if growths[each] >= _OF_GROWTH * growths[rank]]
        return part, growths[rank], rank if len(alike) <= len(of_ranks) // 2 else None
    return None, 0.0, None


def _growths(figures: Mapping[str, Int64], least_ns: float) -> dict[str, float]:
    """By name, of those that grow steadily by so much, ns."""
    return {
        name: float(medians[-1] - medians[0])
        for name, medians in figures.items()
        if _grows(medians, least_ns)
    }


def _grows(medians: Int64, least_ns: float) -> bool:
    return bool(medians[-1] - medians[0] >= least_ns) and is_steady(medians)


def _has_larger_batches(steps: Mapping[int, RankSteps], growth: float) -> bool:
    """Whether samples or tokens per step vary: then what a step takes may rise with them."""
    batches = [batch for of_rank in steps.values() for batch in (of_rank.samples, of_rank.tokens) if batch]
    return any(
        batch.vary and batch.range[1] >= (1 + _OF_GROWTH * growth) * max(batch.range[0], 1)
        for batch in batches
    )
