"""What was measured at each N, cleaned: sorted, one point per N, impossible figures left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

# Beyond these nothing was ever measured; within them no square overflows.
_LEAST, _MOST = 1e-12, 1e18


def is_measurement(value: float) -> bool:
    """Whether a figure can be a throughput or a time: a number above 0, and of a size that exists."""
    return _LEAST <= value <= _MOST


class ScalePoint(Struct, frozen=True, kw_only=True):
    """One number of ranks.

    num_ranks: N. throughputs: samples/s of all ranks together, one figure per repeat. samples_per_rank: of
    one step, None if not known.
    """

    num_ranks: int
    throughputs: tuple[float, ...]
    samples_per_rank: float | None = None

    @property
    def throughput(self) -> float:
        """Median over the repeats, samples/s; NaN without one."""
        return float(np.median(self.throughputs)) if self.throughputs else float("nan")


def clean_points(points: Iterable[ScalePoint]) -> tuple[ScalePoint, ...]:
    """Points by ascending N, each N once, without figures that no run can have measured.

    Points of the same N are repeats of one; where they disagree on samples per rank, that is not known.
    """
    pooled: dict[int, list[float]] = defaultdict(list)
    samples: dict[int, set[float | None]] = defaultdict(set)
    for point in points:
        pooled[point.num_ranks] += (float(value) for value in point.throughputs if is_measurement(value))
        samples[point.num_ranks].add(point.samples_per_rank)
    return tuple(
        ScalePoint(
            num_ranks=num_ranks,
            throughputs=tuple(throughputs),
            samples_per_rank=next(iter(samples[num_ranks])) if len(samples[num_ranks]) == 1 else None,
        )
        for num_ranks, throughputs in sorted(pooled.items())
        if num_ranks >= 1 and throughputs
    )
