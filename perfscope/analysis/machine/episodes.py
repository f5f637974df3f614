"""When a level was high: stretches with hysteresis, short gaps bridged, short stretches dropped."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from perfscope.analysis.intervals import Int64, distinct, union
from perfscope.analysis.machine.counters import Float64

_HYSTERESIS = 0.5  # a stretch goes on while the level stays above this share of the threshold
BRIDGE_NS = 2_000_000_000  # stretches no further apart are one
SHORTEST_NS = 1_000_000_000


class Episode(Struct, frozen=True, kw_only=True):
    """One stretch of time; `mean` and `most` of the level in it."""

    start_ns: int
    end_ns: int
    mean: float
    most: float

    @property
    def dur_ns(self) -> int:
        return self.end_ns - self.start_ns


def episodes(
    start_ns: Int64, end_ns: Int64, level: Float64, threshold: float, shortest_ns: int = SHORTEST_NS
) -> list[Episode]:
    """Stretches in which the level reaches the threshold.

    Args:
        start_ns, end_ns: shape (n,), ascending, not overlapping.
        level: shape (n,); nan = not known, which ends a stretch.
        threshold: positive.
        shortest_ns: time above the threshold that a stretch must have.
    """
    above = level >= threshold  # nan compares as False
    held = level >= _HYSTERESIS * threshold
    if not above.any():
        return []
    # Runs of `held` neighbors, of which those count that reach the threshold somewhere.
    apart = np.concatenate(([True], ~held[:-1] | ~held[1:] | (start_ns[1:] > end_ns[:-1])))
    run = np.cumsum(apart)
    chosen = held & np.isin(run, distinct(run[above]))
    merged = union(start_ns[chosen] - BRIDGE_NS // 2, end_ns[chosen] + BRIDGE_NS // 2)
    merged = merged + np.array([BRIDGE_NS // 2, -(BRIDGE_NS // 2)], dtype=np.int64)
    found_episodes = []
    for first, last in merged.tolist():
        inside = (start_ns >= first) & (end_ns <= last) & np.isfinite(level)
        length = (end_ns - start_ns)[inside].astype(np.float64)
        if (end_ns - start_ns)[inside & above].sum() < shortest_ns:
            continue
        mean = float(np.average(level[inside], weights=length))
        found_episodes.append(
            Episode(start_ns=first, end_ns=last, mean=mean, most=float(level[inside].max()))
        )
    return found_episodes
