"""Speedup, efficiency and Karp-Flatt over the number of ranks, with intervals from repeats.

X is throughput (samples/s of all ranks), N ranks, 0 the reference. S = X_N / X_0, efficiency = S N_0/N: in
strong scaling that is the share of the ideal speedup, in weak scaling the ratio of per-rank throughputs;
the two are one formula because throughput counts samples and not steps. e = (1/S - 1/N)/(1 - 1/N), Karp,
Flatt, CACM 33(5), 1990.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.scaling.points import ScalePoint, clean_points
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

Mode = Literal["strong", "weak"]
Floats = NDArray[np.float64]

_DRAWS = 1000
_SEED = 20_240_501
_SAME = 0.01  # sample counts within 1 % are the same
_RISE = 1.25  # Karp-Flatt at the largest N over its smallest: above this it rises
_KF_NOISE = 0.005  # ... but a fraction this small says nothing about a trend


class Interval(Struct, frozen=True, kw_only=True):
    """95 % interval."""

    low: float
    high: float


class ScalingRow(Struct, frozen=True, kw_only=True):
    """One N. throughput: median, samples/s. An interval is None where `Scaling.missing` says why."""

    num_ranks: int
    num_repeats: int
    throughput: float
    per_rank: float
    speedup: float | None
    efficiency: float | None
    karp_flatt: float | None
    throughput_interval: Interval | None
    speedup_interval: Interval | None
    efficiency_interval: Interval | None
    karp_flatt_interval: Interval | None


class Scaling(Struct, frozen=True, kw_only=True):
    """The whole series by ascending N.

    reference_ranks: N_0, None without a usable point. mode: strong or weak, None if it cannot be told.
    mode_reason: one sentence. karp_flatt_reading: what its course says, None if it says nothing.
    """

    reference_ranks: int | None
    mode: Mode | None
    mode_reason: str
    rows: tuple[ScalingRow, ...]
    karp_flatt_reading: str | None
    missing: tuple[Missing, ...]
    notes: tuple[str, ...] = ()


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


def measure_scaling(
    points: Iterable[ScalePoint], *, mode: Mode | None = None, reference_ranks: int | None = None
) -> Scaling:
    """Speedup, efficiency and Karp-Flatt of every N against the reference.

    Args:
        points: in any order; the same N twice counts as repeats.
        mode: stated by the user; None reads it from samples per rank.
        reference_ranks: N_0; None takes the smallest N.

    Raises:
        ValueError: no usable point with `reference_ranks`.
    """
    clean = clean_points(points)
    told: Mode | None
    if mode is None:
        told, reason = detect_mode({point.num_ranks: point.samples_per_rank for point in clean.points})
    else:
        told, reason = mode, f"{mode} scaling, as stated"
    missing = list(clean.missing)
    if not clean.points:
        if reference_ranks is not None:
            raise ValueError(f"no usable point with {reference_ranks} ranks: nothing to refer to")
        missing.append(missing_figure(Figure.SPEEDUP, Cause.NO_USABLE_THROUGHPUT))
        return Scaling(
            reference_ranks=None, mode=told, mode_reason=reason, rows=(), karp_flatt_reading=None,
            missing=tuple(missing), notes=clean.notes,
        )  # fmt: skip
    by_ranks = {point.num_ranks: point for point in clean.points}
    chosen = clean.points[0].num_ranks if reference_ranks is None else reference_ranks
    if chosen not in by_ranks:
        known = ", ".join(str(num) for num in by_ranks)
        raise ValueError(f"no usable point with {chosen} ranks to refer to; there are N = {known}")
    rows = tuple(_row(point, by_ranks[chosen]) for point in clean.points)
    missing.extend(_gaps(clean.points, chosen))
    return Scaling(
        reference_ranks=chosen,
        mode=told,
        mode_reason=reason,
        rows=rows,
        karp_flatt_reading=_reading(rows, told),
        missing=tuple(missing),
        notes=(*clean.notes, *_oddities(rows, chosen)),
    )


def _draws(point: ScalePoint) -> Floats | None:
    """Medians of resampled repeats, shape (draws,); None with a single repeat."""
    values = np.asarray(point.throughputs)
    if values.size < 2:
        return None
    random = np.random.default_rng((_SEED, point.num_ranks))
    return np.asarray(
        np.median(values[random.integers(0, values.size, (_DRAWS, values.size))], axis=1), dtype=np.float64
    )


def _interval(draws: Floats | None) -> Interval | None:
    if draws is None:
        return None
    low, high = np.percentile(draws, (2.5, 97.5))
    return Interval(low=float(low), high=float(high))


def _row(point: ScalePoint, reference: ScalePoint) -> ScalingRow:
    num, base = point.num_ranks, reference.num_ranks
    own = _draws(point)
    theirs = _draws(reference)
    speedup = speedup_of(point.throughput, reference.throughput)
    itself = num == base
    ratio = own / theirs if own is not None and theirs is not None and not itself else None
    with_karp_flatt = base == 1 and num > 1
    return ScalingRow(
        num_ranks=num,
        num_repeats=len(point.throughputs),
        throughput=point.throughput,
        per_rank=point.throughput / num,
        speedup=speedup,
        efficiency=efficiency_of(speedup, num, base),
        karp_flatt=karp_flatt_of(speedup, num) if with_karp_flatt else None,
        throughput_interval=_interval(own),
        speedup_interval=_interval(ratio),
        efficiency_interval=None if ratio is None else _interval(ratio * base / num),
        karp_flatt_interval=(
            _interval((1 / ratio - 1 / num) / (1 - 1 / num))
            if ratio is not None and with_karp_flatt
            else None
        ),
    )


def _gaps(points: tuple[ScalePoint, ...], reference_ranks: int) -> list[Missing]:
    gaps = []
    single = [str(point.num_ranks) for point in points if len(point.throughputs) == 1]
    if single:
        sizes = ", ".join(single)
        gaps.append(missing_figure(Figure.THROUGHPUT_INTERVAL, Cause.ONE_REPEAT, sizes=sizes))
        if any(point.num_ranks == reference_ranks and len(point.throughputs) == 1 for point in points):
            cause = Cause.REFERENCE_RUN_ONCE
            gaps.append(missing_figure(Figure.SPEEDUP_INTERVALS, cause, reference=reference_ranks))
    if len(points) == 1:
        gaps.append(missing_figure(Figure.SPEEDUP, Cause.ONE_RANK_COUNT))
    if reference_ranks != 1:
        cause = Cause.REFERENCE_NOT_ONE_RANK
        gaps.append(missing_figure(Figure.KARP_FLATT, cause, reference=reference_ranks))
    return gaps


def _oddities(rows: tuple[ScalingRow, ...], reference_ranks: int) -> list[str]:
    above = [str(row.num_ranks) for row in rows if row.efficiency is not None and row.efficiency > 1 + _SAME]
    if not above:
        return []
    return [
        f"efficiency above 100 % at N = {', '.join(above)}: more than the reference, "
        f"N = {reference_ranks}, explains (caches that now fit, a disturbed reference, another batch)"
    ]


def _reading(rows: tuple[ScalingRow, ...], mode: Mode | None) -> str | None:
    """What the course of e over N says; it takes two values of e to say anything."""
    known = [row for row in rows if row.karp_flatt is not None]
    series = [(row.num_ranks, row.karp_flatt) for row in known if row.karp_flatt is not None]
    if len(series) < 2:
        return None
    (first_n, first), (last_n, last) = series[0], series[-1]
    apart = _apart(known[0].karp_flatt_interval, known[-1].karp_flatt_interval)
    course = f"from {first:.3f} at N={first_n} to {last:.3f} at N={last_n}"
    if max(abs(value) for _, value in series) < _KF_NOISE:
        return f"Karp-Flatt is next to nothing ({course}): no serial part and no overhead to speak of"
    if apart and last > first * _RISE and last - first > _KF_NOISE:
        return f"Karp-Flatt rises ({course}): overhead that grows with N, such as communication or waiting"
    if apart and first > last * _RISE and first - last > _KF_NOISE:
        return f"Karp-Flatt falls ({course}): the smallest step up in N cost most; later ones cost less"
    if mode == "weak":
        return f"Karp-Flatt stays level ({course}): the cost added per rank is the same at every N"
    return f"Karp-Flatt stays level ({course}): a part of the step that more ranks do not shorten"


def _apart(one: Interval | None, other: Interval | None) -> bool:
    """Whether two intervals do not overlap; unknown intervals do not hold a difference back."""
    if one is None or other is None:
        return True
    return one.high < other.low or other.high < one.low
