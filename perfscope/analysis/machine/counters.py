"""Rates from raw counters, by how each kind of counter fails.

Two successive readings of a counter make an interval. What it counted is the difference: modulo the limit of
a counter that wraps there (less than one wrap per interval is assumed, and marked `ambiguous` where the link
is fast enough for more), modulo 2**64 otherwise. Left out and counted instead of guessed: intervals in which
a counter went backwards without a wrap (the driver was reloaded), in which one that sticks at its top reached
it, and those across two samplers.

Times are the middle of each reading, [t_begin, t_end]; half its length is the doubt.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64
from perfscope.rundir.metrics import AMBIGUOUS, COUNTER, QUALITIES, SATURATED, SATURATING
from perfscope.rundir.samples import SampleSeries

Float64 = NDArray[np.float64]
_AMBIGUOUS = QUALITIES.index(AMBIGUOUS)
_SATURATED = QUALITIES.index(SATURATED)
# A rate above this many times the source's own peak is no rate (a reset taken for a wrap).
_IMPLAUSIBLE = 2.0
_NEAR = 5
_GAP = 3.0  # readings further apart than this many usual intervals leave a gap in a line
_MOST_GAPS = 40
_MOST_CELLS = 2_000_000  # of a grid


class Rates(Struct, frozen=True, kw_only=True, eq=False):
    """What a counter counted between its readings; arrays of shape (m,), in time order.

    Attributes:
        start_ns, end_ns: middle of the readings on either side, monotonic.
        delta: counted in between, in the metric's unit; never negative.
        doubt_ns: by how much the interval may be longer or shorter.
        quality: index into QUALITIES, the worse of the two readings.
        total: sum of `delta`, computed on whole raw values.
        num_resets, num_saturated, num_split: intervals left out: the counter went backwards, had reached its
            top, or another sampler went on.
    """

    start_ns: Int64
    end_ns: Int64
    delta: Float64
    doubt_ns: Int64
    quality: NDArray[np.uint8]
    total: float
    num_resets: int
    num_saturated: int
    num_split: int

    @property
    def per_s(self) -> Float64:
        """delta per second, shape (m,)."""
        length = np.maximum(self.end_ns - self.start_ns, 1)
        result: Float64 = self.delta * 1e9 / length
        return result

    @property
    def worst_quality(self) -> str:
        """`saturated` where an interval was left out for it, else the worst of the intervals."""
        if self.num_saturated:
            return SATURATED
        return QUALITIES[int(self.quality.max(initial=0))]


def middle_ns(series: SampleSeries) -> Int64:
    """The middle of each reading, shape (n,)."""
    result: Int64 = series.t_begin_ns + (series.t_end_ns - series.t_begin_ns) // 2
    return result


@np.errstate(all="ignore")  # values near the limits of their type give inf or nan, which nothing shows
def rates(series: SampleSeries, *, peak_per_s: float | None = None) -> Rates:
    """Differences of a counter's successive readings.

    Args:
        series: of kind counter or saturating.
        peak_per_s: what the source can count at most per second, in the metric's unit: tells a wrap from a
            reset, and an interval long enough for two wraps.
    """
    middle, values = middle_ns(series), series.values
    doubt = (series.t_end_ns - series.t_begin_ns) // 2
    raw, backwards = _differences(series)
    length = middle[1:] - middle[:-1]
    quality = np.maximum(series.quality[1:], series.quality[:-1])
    split = (series.segment[1:] != series.segment[:-1]) | (length <= 0)
    full = quality == _SATURATED
    if series.kind == SATURATING and series.limit is not None:
        top = values >= series.limit
        full = full | top[1:] | top[:-1]
    full &= ~split
    reset = backwards & ~split & ~full
    if peak_per_s and series.limit is not None and series.kind == COUNTER:
        could = peak_per_s * length / 1e9
        wraps_twice = could >= series.limit * series.scale
        quality = np.where(wraps_twice, np.maximum(quality, _AMBIGUOUS), quality).astype(np.uint8)
        too_much = raw * series.scale > _IMPLAUSIBLE * could
        reset = reset | (too_much & ~wraps_twice & ~split & ~full)
    keep = ~(split | full | reset)
    kept = raw[keep]
    return Rates(
        start_ns=middle[:-1][keep],
        end_ns=middle[1:][keep],
        delta=kept.astype(np.float64) * series.scale,
        doubt_ns=(doubt[1:] + doubt[:-1])[keep],
        quality=quality[keep],
        total=float(sum(kept.tolist())) * series.scale,
        num_resets=int(reset.sum()),
        num_saturated=int(full.sum()),
        num_split=int(split.sum()),
    )


def _differences(series: SampleSeries) -> tuple[NDArray[np.int64] | Float64, NDArray[np.bool_]]:
    """Raw differences, and where the counter went backwards although it does not wrap."""
    values = series.values
    if len(values) < 2:
        return values[:0], np.zeros(0, dtype=bool)
    raw = values[1:] - values[:-1]  # int64 wraps as the unsigned 64-bit counters in it do
    if series.kind == COUNTER and series.limit is not None:
        # A value beyond the limit means that the limit is not what was said: then a fall is no wrap.
        beyond = (values[1:] > series.limit) | (values[:-1] > series.limit)
        return np.where(beyond, raw, raw % series.limit), beyond & (raw < 0)
    return raw, raw < 0


class Grid(Struct, frozen=True, kw_only=True, eq=False):
    """A counter's rate on equal stretches of time; arrays of shape (n,)."""

    start_ns: Int64
    end_ns: Int64
    per_s: Float64  # nan where readings are missing for more than half of the stretch


def on_grid(counted: Rates, start_ns: int, end_ns: int, width_ns: int) -> Grid:
    """Mean rates on stretches of `width_ns`: coarse counters (10 ms jiffies) average out.

    Wider stretches where there would be more than two million: a damaged file's times may be years apart.
    """
    width_ns = max(width_ns, 1, -(-(end_ns - start_ns) // _MOST_CELLS))
    num = max(0, (end_ns - start_ns) // width_ns)
    edges = start_ns + np.arange(num + 1, dtype=np.int64) * width_ns
    total = counted_before(counted, edges)
    covered = _covered_before(counted, edges)
    length, delta = np.diff(covered), np.diff(total)
    is_covered = length >= width_ns / 2
    per_s = np.where(is_covered, delta * 1e9 / np.maximum(length, 1), np.nan)
    return Grid(start_ns=edges[:-1], end_ns=edges[1:], per_s=per_s)


@np.errstate(all="ignore")
def counted_between(counted: Rates, start_ns: int, end_ns: int) -> tuple[float, int]:
    """What was counted within [start, end), and for how many ns of it readings are there.

    Intervals that reach over an edge count by the part of their time inside.
    """
    edges = np.array([start_ns, end_ns], dtype=np.int64)
    total, covered = counted_before(counted, edges), _covered_before(counted, edges)
    return float(total[1] - total[0]), int(covered[1] - covered[0])


@np.errstate(all="ignore")
def counted_in(counted: Rates, start_ns: Int64, end_ns: Int64) -> tuple[float, int]:
    """`counted_between` of several stretches together, shapes (n,)."""
    total = counted_before(counted, end_ns) - counted_before(counted, start_ns)
    covered = _covered_before(counted, end_ns) - _covered_before(counted, start_ns)
    return float(total.sum()), int(covered.sum())


def counted_before(counted: Rates, points: Int64) -> Float64:
    """What was counted before each point, evenly within an interval. Shape like `points`."""
    if not len(counted.delta):
        return np.zeros(points.shape)
    total = np.concatenate((np.zeros(1), np.cumsum(counted.delta)))
    return _before(counted, points, total, counted.delta)


def _covered_before(counted: Rates, points: Int64) -> Int64:
    if not len(counted.delta):
        return np.zeros(points.shape, dtype=np.int64)
    length = (counted.end_ns - counted.start_ns).astype(np.float64)
    total = np.concatenate((np.zeros(1), np.cumsum(length)))
    result: Int64 = np.rint(_before(counted, points, total, length)).astype(np.int64)
    return result


def _before(counted: Rates, points: Int64, total: Float64, each: Float64) -> Float64:
    index = np.searchsorted(counted.start_ns, points, side="right")
    inside = np.maximum(index - 1, 0)
    length = counted.end_ns[inside] - counted.start_ns[inside]
    part = np.clip((points - counted.start_ns[inside]) / np.maximum(length, 1), 0.0, 1.0)
    result: Float64 = np.where(index > 0, total[inside] + each[inside] * part, 0.0)
    return result


class Points(Struct, frozen=True, kw_only=True, eq=False):
    """A line thinned for drawing; arrays of shape (k,). Gaps are points of nan."""

    t_ns: Int64
    mean: Float64
    low: Float64
    high: Float64
    weight: Float64  # what each mean stands for, ns or readings; 0 at gaps


def thin(t_ns: Int64, values: Float64, weight: Float64, most: int = 400) -> Points:
    """At most `most` points in equal stretches of time; each keeps the least, the greatest and the mean.

    Args:
        t_ns: shape (n,), ascending.
        values: shape (n,), finite.
        weight: shape (n,), positive: how much each counts in a mean.
        most: at least 2.
    """
    num = len(t_ns)
    if not num:
        none = np.empty(0)
        return Points(t_ns=t_ns, mean=none, low=none, high=none, weight=none)
    gaps = _gaps(t_ns, most)
    room = max(1, most - 2 * len(gaps))
    # Stretches do not reach over a gap: each piece between gaps has its own.
    piece = np.searchsorted(gaps, np.arange(num), side="right").astype(np.int64)
    span = int(t_ns[-1] - t_ns[0]) + 1
    cell = (
        ((t_ns - t_ns[0]).astype(np.float64) * room / span).astype(np.int64) if num > room else np.arange(num)
    )
    change = (np.diff(cell) != 0) | (np.diff(piece) != 0)
    first = np.concatenate((np.zeros(1, dtype=np.int64), np.flatnonzero(change) + 1))
    total = np.add.reduceat(weight, first)
    base = int(t_ns[0])
    offset = np.add.reduceat((t_ns - base) * weight, first) / total
    points = Points(
        t_ns=base + np.rint(offset).astype(np.int64),
        mean=np.add.reduceat(values * weight, first) / total,
        low=np.minimum.reduceat(values, first),
        high=np.maximum.reduceat(values, first),
        weight=total,
    )
    return _with_gaps(points, t_ns, gaps, first)


def _gaps(t_ns: Int64, most: int) -> NDArray[np.int64]:
    """Indices of the readings before which too much time passed; the longest ones if there are many."""
    step = np.diff(t_ns)
    if len(step) < 3:
        return np.empty(0, dtype=np.int64)
    gaps = np.flatnonzero(step > _GAP * np.maximum(_usual(step), _usual(step[::-1])[::-1])) + 1
    longest = gaps[np.argsort(step[gaps - 1], kind="stable")[::-1][: min(_MOST_GAPS, most // 8)]]
    result: NDArray[np.int64] = np.sort(longest)
    return result


def _usual(step: NDArray[np.int64]) -> NDArray[np.float64]:
    """Median of the _NEAR steps from each one on: sampling may become slower in the course of a run.

    A step that others as long follow, or come before, is none that stands out.
    """
    padded = np.pad(step, (0, _NEAR - 1), mode="reflect")
    result: NDArray[np.float64] = np.median(np.lib.stride_tricks.sliding_window_view(padded, _NEAR), axis=1)
    return result


def _with_gaps(points: Points, t_ns: Int64, gaps: NDArray[np.int64], first: NDArray[np.int64]) -> Points:
    if not len(gaps):
        return points
    at = np.searchsorted(first, gaps)
    middle = t_ns[gaps - 1] + (t_ns[gaps] - t_ns[gaps - 1]) // 2
    nan = np.full(len(gaps), np.nan)
    return Points(
        t_ns=np.insert(points.t_ns, at, middle),
        mean=np.insert(points.mean, at, nan),
        low=np.insert(points.low, at, nan),
        high=np.insert(points.high, at, nan),
        weight=np.insert(points.weight, at, 0.0),
    )
