"""Speedup, efficiency and Karp-Flatt over the number of ranks, with intervals from repeats.

X is throughput (samples/s of all ranks), N ranks, 0 the reference. S = X_N / X_0, efficiency = S N_0/N: in
strong scaling that is the share of the ideal speedup, in weak scaling the ratio of per-rank throughputs;
the two are one formula because throughput counts samples and not steps. e = (1/S - 1/N)/(1 - 1/N), Karp,
Flatt, CACM 33(5), 1990.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Literal

from msgspec import Struct

from perfscope.vocabulary.scaling import ModeReason

Mode = Literal["strong", "weak"]

_SAME = 0.01  # sample counts within 1 % are the same


class Interval(Struct, frozen=True, kw_only=True):
    """95 % interval."""

    low: float
    high: float


def speedup_of(throughput: float, reference: float) -> float:
    """S = X_N / X_0. Raises ValueError unless both are finite and above 0."""
    if not (isfinite(throughput) and isfinite(reference) and throughput > 0 and reference > 0):
        raise ValueError(f"a speedup needs two throughputs above 0, not {throughput} and {reference}")
    return throughput / reference


def efficiency_of(speedup: float, num_ranks: int, reference_ranks: int = 1) -> float:
    """S N_0 / N. Raises ValueError for a number of ranks below 1."""
    if num_ranks < 1 or reference_ranks < 1:
        raise ValueError(f"no efficiency for {num_ranks} ranks against {reference_ranks}")
    return speedup * reference_ranks / num_ranks


def karp_flatt_of(speedup: float, num_ranks: int) -> float:
    """Experimentally determined serial fraction, against one rank; below 0 where the speedup is above N.

    Raises:
        ValueError: N < 2, or a speedup that is not above 0.
    """
    if num_ranks < 2:
        raise ValueError("Karp-Flatt needs at least two ranks")
    if not isfinite(speedup) or speedup <= 0:
        raise ValueError(f"Karp-Flatt needs a speedup above 0, not {speedup}")
    return (1 / speedup - 1 / num_ranks) / (1 - 1 / num_ranks)


def detect_mode(samples_per_rank: Mapping[int, float | None]) -> tuple[Mode | None, ModeReason]:
    """(strong | weak | None, why), from samples per rank and step at each N.

    The same per rank at every N is weak, the same in all is strong (to 1 %, or the rounding of an even
    split).
    """
    if len(samples_per_rank) < 2:
        return None, ModeReason.ONE_SIZE
    if any(value is None or not value > 0 for value in samples_per_rank.values()):
        return None, ModeReason.NOT_RECORDED
    samples = {num: value for num, value in samples_per_rank.items() if value is not None}
    each = list(samples.values())
    totals = [num * value for num, value in samples.items()]
    weak = max(each) <= min(each) * (1 + _SAME)
    strong = max(totals) - min(totals) <= max(_SAME * min(totals), max(samples) - 1)
    if weak and strong:
        weak, strong = min(each) == max(each), min(totals) == max(totals)
    if weak and not strong:
        return "weak", ModeReason.SAME_PER_RANK
    if strong and not weak:
        return "strong", ModeReason.DIVIDED
    return None, ModeReason.NEITHER
