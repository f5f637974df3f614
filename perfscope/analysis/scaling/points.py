"""What was measured at each N, cleaned: sorted, one point per N, impossible figures said and left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from msgspec import Struct

from perfscope.analysis.missing import Missing, missing_figure
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

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


class CleanPoints(Struct, frozen=True, kw_only=True):
    """Points by ascending N, each N once, every figure finite and above 0; what was left out or merged."""

    points: tuple[ScalePoint, ...]
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]


def clean_points(points: Iterable[ScalePoint]) -> CleanPoints:
    """Sort, pool points of the same N into repeats, and leave out what no run can have measured, in words."""
    pooled: dict[int, list[float]] = {}
    samples: dict[int, set[float | None]] = {}
    given: dict[int, int] = {}
    missing: list[Missing] = []
    for point in points:
        if point.num_ranks < 1:
            missing.append(_left_out(point.num_ranks, Cause.NOT_A_RANK_COUNT))
            continue
        pooled.setdefault(point.num_ranks, [])
        given[point.num_ranks] = given.get(point.num_ranks, 0) + 1
        samples.setdefault(point.num_ranks, set()).add(point.samples_per_rank)
        for value in point.throughputs:
            if is_measurement(value):
                pooled[point.num_ranks].append(float(value))
            else:
                missing.append(_left_out(point.num_ranks, Cause.NOT_A_THROUGHPUT, value=str(value)))
    kept = []
    notes = []
    for num_ranks in sorted(pooled):
        if not pooled[num_ranks]:
            missing.append(_left_out(num_ranks, Cause.NO_USABLE_THROUGHPUT))
            continue
        if given[num_ranks] > 1:
            notes.append(f"{given[num_ranks]} points with {num_ranks} ranks are taken as repeats of one")
        known = samples[num_ranks]
        if len(known) > 1:
            notes.append(f"the points with {num_ranks} ranks do not agree on samples per rank")
        kept.append(
            ScalePoint(
                num_ranks=num_ranks,
                throughputs=tuple(pooled[num_ranks]),
                samples_per_rank=next(iter(known)) if len(known) == 1 else None,
            )
        )
    return CleanPoints(points=tuple(kept), missing=tuple(missing), notes=tuple(notes))


def _left_out(num_ranks: int, cause: Cause, **detail: Any) -> Missing:
    return missing_figure(Figure.THROUGHPUT_AT, cause, num_ranks=num_ranks, **detail)
