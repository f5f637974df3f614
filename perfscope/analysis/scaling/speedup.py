"""Formulas of speedup, efficiency and Karp-Flatt over the number of ranks, and the mode of scaling.

X is throughput (samples/s of all ranks), N ranks, 0 the reference. S = X_N / X_0, efficiency = S N_0/N: in
strong scaling that is the share of the ideal speedup, in weak scaling the ratio of per-rank throughputs;
the two are one formula because throughput counts samples and not steps. e = (1/S - 1/N)/(1 - 1/N), Karp,
Flatt, CACM 33(5), 1990.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Literal

Mode = Literal["strong", "weak"]

_SAME = 0.01  # sample counts within 1 % are the same


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


def detect_mode(samples_per_rank: Mapping[int, float | None]) -> tuple[Mode | None, str]:
    """(strong | weak | None, the sentence why), from samples per rank and step at each N.

    The same per rank at every N is weak, the same in all is strong (to 1 %, or the rounding of an even
    split).
    """
    if len(samples_per_rank) < 2:
        return None, "the mode cannot be told from one number of ranks; give --mode strong or --mode weak"
    unknown = sorted(num for num, value in samples_per_rank.items() if value is None or not value > 0)
    if unknown:
        named = ", ".join(str(num) for num in unknown)
        return (
            None,
            f"the mode cannot be told: samples per rank are not recorded for N = {named}; give --mode",
        )
    known = {num: value for num, value in sorted(samples_per_rank.items()) if value is not None}
    each = list(known.values())
    totals = [num * value for num, value in known.items()]
    listed = ", ".join(f"{value:g} at N={num}" for num, value in known.items())
    weak = max(each) <= min(each) * (1 + _SAME)
    strong = max(totals) - min(totals) <= max(_SAME * min(totals), max(known) - 1)
    if weak and strong:
        weak, strong = min(each) == max(each), min(totals) == max(totals)
    if weak and not strong:
        return "weak", f"weak scaling: samples per rank stay the same ({listed})"
    if strong and not weak:
        return (
            "strong",
            f"strong scaling: {totals[0]:g} samples per step are divided over the ranks ({listed})",
        )
    return None, f"neither strong nor weak: samples per rank are {listed}; give --mode to state what is meant"
