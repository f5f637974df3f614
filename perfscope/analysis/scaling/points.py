"""What was measured at each N, cleaned: sorted, one point per N, impossible figures left out."""

from __future__ import annotations

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
    """By ascending N, points of the same N pooled into repeats, without what no run can have measured."""
    pooled: dict[int, list[float]] = {}
    samples: dict[int, set[float | None]] = {}
    for point in points:
        if point.num_ranks >= 1:
            samples.setdefault(point.num_ranks, set()).add(point.samples_per_rank)
            pooled.setdefault(point.num_ranks, []).extend(
                map(float, filter(is_measurement, point.throughputs))
            )
    return tuple(
        ScalePoint(
            num_ranks=num_ranks,
            throughputs=tuple(throughputs),
            samples_per_rank=next(iter(samples[num_ranks])) if len(samples[num_ranks]) == 1 else None,
        )
        for num_ranks, throughputs in sorted(pooled.items())
        if throughputs
    )
