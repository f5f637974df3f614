"""One host's clock against another's: offset, drift, and how wrong they can be.

Times run in one window for seconds, and windows of a run lie minutes apart: an offset is taken of each
stretch of calls, a drift through the stretches (Theil-Sen), and the offset anew once the drift is taken
out. The doubt is the largest of what the calls themselves show, but never more than causality leaves open;
see `_doubt`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis.clocks.center import NORMAL, Floats, gathered, weighted_median
from perfscope.analysis.clocks.evidence import OneWay, PairSamples
from perfscope.analysis.intervals import Int64, distinct, median_of

MAX_DRIFT = 1e-3  # crystals keep 100 ppm, and a clock being slewed 500: what is more is a clock that was set
_USUAL_DRIFT = 50e-6  # what a clock may drift unseen
_STRETCHES = 4  # at least, where there are calls enough
_STRETCH_CALLS = 8
_PLENTY = 40  # calls; of so many, half can be left out
_FEW = 10  # calls; fewer do not show how much exits stray
_SURE = 2.0  # standard errors that a figure may be off, and by which it must stand out
_CERTAIN = 3.0  # by which a drift must stand out in one window, where it matters little and noise a lot
_WORST_HALF = 5.0  # tightest half-widths: 3.4 standard deviations of a normal distribution
_MEDIAN_ERROR = 1.2533  # of n normal values: standard deviation / sqrt(n) times this


class PairFit(Struct, frozen=True, kw_only=True):
    """Clock b minus clock a = offset_ns + drift x (time on b - at_ns)."""

    offset_ns: int
    drift: float  # ns per ns; 0 where it is not known
    at_ns: int  # on b's clock
    residual_ns: int


class _Calls(Struct, frozen=True, kw_only=True, eq=False):
    """All windows' calls of a pair; times since `base_at`, differences since `base`. Shape (calls,)."""

    base: int
    base_at: int
    at: Floats
    skew: Floats
    low: Floats
    high: Floats
    window: NDArray[np.int64]
    side: NDArray[np.int8]
    stay: Floats
    held: Int64
    size: Int64

    @classmethod
    def of(cls, parts: Sequence[PairSamples]) -> _Calls:
        skew = np.concatenate([samples.skew for samples in parts])
        at = np.concatenate([samples.at for samples in parts])
        base, base_at = int(skew[0]), int(at.min()) // 2 + int(at.max()) // 2
        return cls(
            base=base,
            base_at=base_at,
            at=(at - base_at).astype(np.float64),
            skew=(skew - base).astype(np.float64),
            low=(np.concatenate([samples.low for samples in parts]) - base).astype(np.float64),
            high=(np.concatenate([samples.high for samples in parts]) - base).astype(np.float64),
            window=np.repeat([samples.window for samples in parts], [len(samples.at) for samples in parts]),
            side=np.concatenate([samples.side for samples in parts]),
            stay=np.concatenate([samples.stay for samples in parts]).astype(np.float64),
            held=np.concatenate([samples.held for samples in parts]),
            size=np.concatenate([samples.size for samples in parts]),
        )

    def take(self, which: NDArray[np.int64]) -> _Calls:
        columns = ("at", "skew", "low", "high", "window", "side", "stay", "held", "size")
        return replace(self, **{name: getattr(self, name)[which] for name in columns})


class _Stretches(Struct, frozen=True, kw_only=True, eq=False):
    """Calls close in time, one entry per stretch: their mean time, their skew's center, how sure that is."""

    where: Floats
    level: Floats
    error: Floats  # standard error of `level`

    @classmethod
    def of(cls, calls: _Calls) -> _Stretches:
        parts = _cut(calls.window, calls.at)
        gathered_parts = [gathered(calls.skew[rows]) for rows in parts]
        number = np.array([len(rows) for rows in parts])
        return cls(
            where=np.array([calls.at[rows].mean() for rows in parts]),
            level=np.array([level for level, _ in gathered_parts]),
            error=_MEDIAN_ERROR * NORMAL * np.array([half for _, half in gathered_parts]) / number**0.5,
        )

    @property
    def span(self) -> float:
        """ns."""
        return float(self.where.max() - self.where.min())


class _Line(Struct, frozen=True, kw_only=True, eq=False):
    """offset + drift x at, and by how much what is unsure of the drift may turn it, ns at either end."""

    stretches: _Stretches
    drift: float
    offset: float
    half: float  # of the tightest half of the calls around it
    hidden: float

    @classmethod
    def through(cls, calls: _Calls) -> _Line:
        stretches = _Stretches.of(calls)
        slope, error = _slope(stretches)
        wanted = _SURE if calls.window.min() < calls.window.max() else _CERTAIN
        significant = wanted * error < abs(slope) <= MAX_DRIFT
        drift = slope if significant else 0.0
        turn = _SURE * error if significant else min(_SURE * error, _USUAL_DRIFT)
        offset, half = gathered(calls.skew - drift * calls.at)
        return cls(
            stretches=stretches,
            drift=drift,
            offset=offset,
            half=half,
            hidden=turn * float(np.ptp(calls.at)) / 2,
        )

    def stray(self, calls: _Calls) -> Floats:
        """How far off it each call is, ns."""
        result: Floats = calls.skew - self.drift * calls.at - self.offset
        return result


def fit_shared(parts: Sequence[PairSamples]) -> PairFit:
    """From synchronizing collectives; at least one call."""
    calls = _Calls.of(parts)
    if len(calls.at) >= _PLENTY:
        calls = calls.take(_quickest(calls))
    line = _Line.through(calls)
    return PairFit(
        offset_ns=calls.base + round(line.offset),
        drift=line.drift,
        at_ns=calls.base_at,
        residual_ns=round(_doubt(calls, line)),
    )


def _quickest(calls: _Calls) -> NDArray[np.int64]:
    """Of each window and size, the half of the calls that both hosts left soonest after the last entry.

    What delays a call lets the exits stray: the minimum filter of NTP.
    """
    order = np.lexsort((calls.held, calls.size, calls.window))
    size, window = calls.size[order], calls.window[order]
    changes = np.flatnonzero((np.diff(size) != 0) | (np.diff(window) != 0)) + 1
    begin, end = np.append(0, changes), np.append(changes, len(order))
    position = np.arange(len(order)) - np.repeat(begin, end - begin)
    return np.sort(order[position < np.repeat((end - begin + 1) // 2, end - begin)])


def _cut(window: NDArray[np.int64], at: Floats) -> list[NDArray[np.int64]]:
    """Indices of each window's calls in order of time; of few windows, each in several parts."""
    order = np.lexsort((at, window))
    windows = np.split(order, np.flatnonzero(np.diff(window[order])) + 1)
    most = max(_STRETCHES // len(windows), 1)
    return [
        part
        for of_window in windows
        for part in np.array_split(of_window, max(min(most, len(of_window) // _STRETCH_CALLS), 1))
    ]


def _slope(stretches: _Stretches) -> tuple[float, float]:
    """(Theil-Sen slope through the stretches' centers, its standard error), ns per ns."""
    where, level = stretches.where, stretches.level
    slope = _through(where, level)
    if slope is None:
        return 0.0, np.inf
    off = level - slope * where
    miss = NORMAL * median_of(np.abs(off - median_of(off)))
    return slope, 2**0.5 * max(median_of(stretches.error), miss) / stretches.span


def _through(where: Floats, level: Floats) -> float | None:
    """The slope between most pairs of points, far ones counting for more; None for points at one time."""
    first, second = np.triu_indices(len(where), 1)
    apart = where[second] - where[first]
    far = np.abs(apart) > 0
    if not far.any():
        return None
    return weighted_median((level[second] - level[first])[far] / apart[far], np.abs(apart[far]))


def _doubt(calls: _Calls, line: _Line) -> float:
    """What the fit leaves uncertain, ns.

    Shown by the calls: how far they stray (90th percentile, or 5 half-widths of the tightest half where many
    leave late), how far any stretch lies off the line, by how much one host stays longer than the other after
    having entered last. Left by causality: window by window, the furthest the offset can be from the fit. Few
    calls show nothing, so causality alone speaks. A fit outside causality's bounds is wrong by at least that.
    """
    fitted, stretches = line.offset + line.drift * calls.at, line.stretches
    above = _per_window(calls.window, calls.high - fitted, np.minimum)
    below = _per_window(calls.window, fitted - calls.low, np.minimum)
    causal = float(np.maximum(above, below).max())
    outside = max(0.0, float(-above.min()), float(-below.min()))
    stray = np.abs(line.stray(calls))
    if len(stray) < (_FEW if len(above) == 1 else 2 * _FEW):
        return max(causal, outside, float(stray.max())) + line.hidden
    # Of few calls the tightest half may be tight by chance, and a tenth of them are one or none.
    usual = _upper(stray) if len(stray) >= 2 * _FEW else float(stray.max())
    stray_ns = max(min(usual, _WORST_HALF * line.half * (1 + _FEW / len(stray))), float(stray.min()))
    bent = float(np.abs(stretches.level - line.drift * stretches.where - line.offset).max())
    return max(min(max(stray_ns, bent) + _unequal(calls), causal), outside) + line.hidden


def _upper(values: Floats) -> float:
    """The 90th percentile, rounded up to one of the values."""
    return float(np.sort(values)[-(len(values) // 10 + 1)])


def _per_window(window: NDArray[np.int64], values: Floats, how: np.ufunc) -> Floats:
    order = np.argsort(window, kind="stable")
    starts = np.flatnonzero(np.diff(window[order], prepend=window[order[0]] - 1))
    result: Floats = how.reduceat(values[order], starts)
    return result


def _unequal(calls: _Calls) -> float:
    """How much longer the last one in stays on one host than on the other, for calls of one size, ns.

    Both should take the transfer time; if not, one leaves late, call after call, which the skew cannot
    show. The quickest calls are compared, which differ the least in what else delays a transfer.
    """
    best: tuple[float, float] | None = None
    for size in distinct(calls.size[calls.side != 0]):
        a = np.sort(calls.stay[(calls.side == -1) & (calls.size == size)])
        b = np.sort(calls.stay[(calls.side == 1) & (calls.size == size)])
        if min(len(a), len(b)) < _FEW:
            continue
        quick_a, quick_b = a[len(a) // 10], b[len(b) // 10]
        grain = (a[len(a) // 4] - a[0]) / len(a) ** 0.5 + (b[len(b) // 4] - b[0]) / len(b) ** 0.5
        apart = abs(float(quick_b - quick_a))
        unequal_ns = apart + _SURE * grain if apart > _SURE * grain else 0.0
        if best is None or min(quick_a, quick_b) < best[0]:
            best = min(quick_a, quick_b), unequal_ns
    return best[1] if best else 0.0


def fit_two_way(there: Sequence[OneWay], back: Sequence[OneWay]) -> PairFit | None:
    """From messages a -> b and b -> a: the quickest each way, as in NTP; None without a window that has both.

    Args:
        there: messages from a to b.
        back: messages from b to a.
    """
    at, middle, half = [], [], []
    for window in sorted(
        {direction.window for direction in there} & {direction.window for direction in back}
    ):
        to_b = [message for message in there if message.window == window]
        to_a = [message for message in back if message.window == window]
        high = min(int((message.got - message.sent).min()) for message in to_b)  # offset + delay
        low = -min(int((message.got - message.sent).min()) for message in to_a)  # offset - delay
        at.append(int(np.concatenate([message.got for message in to_b]).mean(dtype=np.float64)))
        middle.append(low + (high - low) // 2)
        half.append(abs(high - low) / 2)
    if not at:
        return None
    base, base_at = middle[0], at[0] // 2 + at[-1] // 2
    where = np.array([time - base_at for time in at], dtype=np.float64)
    level, doubt = np.array([value - base for value in middle], dtype=np.float64), np.array(half)
    drift = _drift_between(where, level, doubt)
    offset = weighted_median(level - drift * where, 1 / (doubt + 1))
    residual = float((np.abs(level - drift * where - offset) + doubt).max())
    return PairFit(offset_ns=base + round(offset), drift=drift, at_ns=base_at, residual_ns=round(residual))


def _drift_between(where: Floats, level: Floats, doubt: Floats) -> float:
    """Through windows whose offsets are known to within `doubt` each; 0 where that could be all there is."""
    slope = _through(where, level)
    if slope is None:
        return 0.0
    error = 2 * float(np.median(doubt)) / float(np.ptp(where))
    return slope if error < abs(slope) <= MAX_DRIFT else 0.0
