"""Which parameters a gradient bucket holds, inferred from its size.

DistributedDataParallel packs gradients into buckets in the order they become ready, which is the reverse of
registration at first and the reverse of execution once it has seen a step. A sequence of all-reduces whose
element counts cut one of these orders into pieces exactly is taken for these buckets. A bucket may end
between two parameters of one layer, whose own order is left open.
"""

from __future__ import annotations

from collections.abc import Sequence

LayerParams = tuple[str, tuple[int, ...]]  # layer, element count of each of its own parameters
Bucket = dict[str, int]  # layer -> elements in the bucket

_MAX_OPEN = 12  # parameters of one layer among which a subset is searched


def match_buckets(
    orders: Sequence[Sequence[LayerParams]], sizes: Sequence[int], num_ranks: int = 0
) -> list[Bucket | None] | None:
    """Finds what each all-reduce of one step carried.

    Args:
        orders: candidate orders in which gradients become ready.
        sizes: elements of each all-reduce, in order. Other all-reduces (a mean loss) may stand among them.
        num_ranks: that share the tensors equally; the last bucket may be padded up to a multiple of it.

    Returns:
        One entry per size, None for an all-reduce that is no bucket; or None when no order fits exactly.
    """
    for order in orders:
        buckets = _fit(order, sizes, num_ranks)
        if buckets is not None:
            return buckets
    return None


def _fit(order: Sequence[LayerParams], sizes: Sequence[int], num_ranks: int) -> list[Bucket | None] | None:
    unassigned = [(layer, counts) for layer, counts in order if counts]
    buckets: list[Bucket | None] = []
    for size in sizes:
        taken = _take(unassigned, size, num_ranks)
        if taken is None:
            buckets.append(None)
            continue
        bucket, unassigned = taken
        buckets.append(bucket)
    return buckets if not unassigned else None


def _take(
    unassigned: list[LayerParams], size: int, num_ranks: int
) -> tuple[Bucket, list[LayerParams]] | None:
    """Cuts `size` elements off the front of `unassigned`, or None when no cut falls there."""
    bucket: Bucket = {}
    if size <= 0:
        return None
    for position, (layer, counts) in enumerate(unassigned):
        num_elements = sum(counts)
        if num_elements > size:
            part = _subset(counts, size)
            if part is None:
                return None
            bucket[layer] = size
            left = tuple(count for index, count in enumerate(counts) if index not in part)
            return bucket, [(layer, left), *unassigned[position + 1 :]]
        bucket[layer] = num_elements
        size -= num_elements
        if size == 0:
            return bucket, unassigned[position + 1 :]
    return (bucket, []) if bucket and size < num_ranks else None


def _subset(counts: tuple[int, ...], size: int) -> frozenset[int] | None:
    """Indices of counts that add up to `size`."""
    if len(counts) > _MAX_OPEN:
        return None
    for mask in range(1, 1 << len(counts)):
        chosen = frozenset(index for index in range(len(counts)) if mask >> index & 1)
        if sum(counts[index] for index in chosen) == size:
            return chosen
    return None
