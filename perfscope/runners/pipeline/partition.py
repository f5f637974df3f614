"""Where a pipeline is cut, and into how many microbatches its batch: from shapes, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from perfscope.runners.models.shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive blocks.

    Attributes:
        first, last: blocks first .. last - 1 of the model.
        blocks: their names.
        flops: of one sample's forward pass.
        params: elements.
        in_size, out_size: elements per sample that enter and leave.
        in_shape, out_shape: of one sample.
    """

    first: int
    last: int
    blocks: tuple[str, ...]
    flops: int
    params: int
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]

    @property
    def in_size(self) -> int:
        """Elements per sample that enter."""
        return prod(self.in_shape)

    @property
    def out_size(self) -> int:
        """Elements per sample that leave."""
        return prod(self.out_shape)


def num_cuttable(shape: ModelShape) -> int:
    """Blocks with parameters: the most stages there can be, as each must have something to train."""
    return sum(shape.block_params(block, block + 1) > 0 for block in range(len(shape.blocks)))


def cut(shape: ModelShape, input_shape: Sequence[int], num_stages: int) -> tuple[Stage, ...]:
    """Cuts a model into contiguous stages, each with parameters.

    The largest stage has as few flops as any cutting allows; of such cuttings, the fewest elements cross the
    cuts; then the cuts lie as early as can be. Exact, by dynamic programming: O(blocks^2 * stages).

    Args:
        shape: of the model.
        input_shape: of one sample.
        num_stages: 1 .. num_cuttable(shape).
    """
    flops = _running_sums([shape.flops(block) for block in range(len(shape.blocks))])
    params = _running_sums([shape.block_params(block, block + 1) for block in range(len(shape.blocks))])
    crossing = [prod(cut_shape) for cut_shape in shape.cuts]

    def load(first: int, last: int) -> int | None:
        return flops[last] - flops[first] if params[last] > params[first] else None

    largest = _least(len(shape.blocks), num_stages, load, max)[0]

    def traffic(first: int, last: int) -> int | None:
        largest_load = load(first, last)
        if largest_load is None or largest_load > largest:
            return None
        return crossing[first - 1] if first else 0

    bounds = _least(len(shape.blocks), num_stages, traffic, lambda a, b: a + b)[1]
    shapes = [tuple(input_shape), *shape.cuts]
    return tuple(
        Stage(
            first=first,
            last=last,
            blocks=shape.blocks[first:last],
            flops=flops[last] - flops[first],
            params=params[last] - params[first],
            in_shape=shapes[first],
            out_shape=shapes[last],
        )
        for first, last in zip((0, *bounds), (*bounds, len(shape.blocks)), strict=True)
    )


def default_microbatches(group_batch: int, num_stages: int, allowed: Callable[[int], bool]) -> int:
    """m when the user names none: 2 * S if it divides b and is allowed, else the nearest divisor of b.

    Divisors of at least S come first: with fewer microbatches than stages some stage is always idle.

    Args:
        group_batch: b.
        num_stages: S, ranks of the pipeline.
        allowed: whether the schedule takes that many.
    """
    divisors = [m for m in range(1, group_batch + 1) if group_batch % m == 0]
    fitting = [m for m in divisors if allowed(m)] or divisors
    return min(fitting, key=lambda m: (m < num_stages, abs(m - 2 * num_stages), -m))


def bubble_ratio(num_stages: int, num_microbatches: int, stages_per_rank: int = 1) -> float:
    """Share of a step in which a rank waits for the pipeline to fill and drain: (S-1) / (v*m + S-1).

    With equal stages; v stages per rank shorten it by v (Narayanan et al. 2021, arXiv 2104.04473).
    """
    return (num_stages - 1) / (stages_per_rank * num_microbatches + num_stages - 1)


def _least(
    num_blocks: int,
    num_stages: int,
    cost: Callable[[int, int], int | None],
    join: Callable[[int, int], int],
) -> tuple[int, tuple[int, ...]]:
    """The least joined cost of cutting blocks into stages, and the cuts; cost None = no such stage."""
    best: list[tuple[int, tuple[int, ...]] | None] = [None] * (num_blocks + 1)
    for last in range(1, num_blocks + 1):
        single = cost(0, last)
        best[last] = None if single is None else (single, ())
    for _ in range(1, num_stages):
        after: list[tuple[int, tuple[int, ...]] | None] = [None] * (num_blocks + 1)
        for last in range(1, num_blocks + 1):
            candidates = []
            for middle in range(1, last):
                before, own_cost = best[middle], cost(middle, last)
                if before is not None and own_cost is not None:
                    candidates.append((join(before[0], own_cost), (*before[1], middle)))
            after[last] = min(candidates) if candidates else None
        best = after
    best_cut = best[num_blocks]
    if best_cut is None:
        raise ValueError(f"{num_blocks} blocks cannot be cut into {num_stages} stages with parameters")
    return best_cut


def _running_sums(values: Sequence[int]) -> list[int]:
    sums = [0]
    for value in values:
        sums.append(sums[-1] + value)
    return sums
