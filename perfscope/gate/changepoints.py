"""Where a series of runs changed its level: E-divisive (Matteson and James 2014) on robust logarithms.

A segment is cut where the energy statistic between what lies left and right of the cut is largest,

    Q = m n / (m + n) (2 mean |X - Y| - mean |X - X'| - mean |Y - Y'|),   m = |X|, n = |Y|,

with either side allowed to end before the segment does, so that a level that came and went does not hide
itself. The best cut of all segments is kept if at most `alpha` of the permutations within segments reach its
Q, then the search goes on in the pieces; at the first cut that is not kept it ends. Under "nothing changed"
this reports anything at all with probability `alpha`, however many cuts it looks at.

Two things keep single slow runs from becoming a change: levels are compared on a logarithmic scale (where
every value is above zero), and in each segment values are pulled to within CLIP robust standard deviations of
its median. Neither depends on the order of the values, so the permutations stay exact. A large change is cut
short by that and still a change, and its pieces are steadied anew by their own, smaller spread.

What the permutations assume is that points of one level could have come in any order. Runs made one after
the other are not of that kind (what the machine was like just then moves all of them together), so a point
is a session, not a run: gate.trend. A machine whose speed drifts from day to day breaks it as well, and its
drift is found as a change: the surroundings tell the two apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfscope.gate.statistics import robust_spread, shift_interval
from perfscope.messages.gate.runs import sessions_needed, sessions_searched

Float64 = NDArray[np.float64]

FEWEST_POINTS = 10
MIN_SEGMENT = 5
ALPHA = 0.01  # a history is looked at after every run: one look in twenty would be a false alarm
PERMUTATIONS = 499
MOST_POINTS = 1_000  # the work grows with the square; older points are left out, and said
CLIP = 3.0
GRID = 24  # places at which a side may end before its segment does
ROUND = 50  # permutations at a time: most series are done after the first ones
BATCH = 60_000  # distances at a time: they stay in the processor's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """The level is another one from run `index` on.

    Attributes:
        index: the first point after the change, in the series as it was given.
        before, after: medians of the segments on either side, in the series' unit.
        change: after over before, minus 1; None where `before` is not above zero.
        low, high: 95 % interval of `change`: Hodges-Lehmann, without a distribution's assumption.
        p: share of permutations within segments whose best cut is as good.
        first, end: the points of both segments are first .. index-1 and index .. end-1.
    """

    index: int
    before: float
    after: float
    change: float | None
    low: float | None
    high: float | None
    p: float
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search found.

    Attributes:
        changes: oldest first.
        num_points: finite values that were searched.
        lacking: points that are missing to FEWEST_POINTS; 0 = it was searched.
        left_out: older points that were not searched, because there are more than MOST_POINTS.
    """

    changes: tuple[ChangePoint, ...] = ()
    num_points: int = 0
    lacking: int = 0
    left_out: int = 0

    @property
    def reason(self) -> str:
        """Why the series was not searched, or not all of it; "" = it was."""
        if self.lacking:
            return sessions_needed(FEWEST_POINTS, self.num_points)
        if self.left_out:
            return sessions_searched(self.num_points)
        return ""


def search(
    values: Sequence[float] | Float64,
    *,
    min_segment: int = MIN_SEGMENT,
    alpha: float = ALPHA,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Search:
    """Looks for changes of level in `values`, oldest first.

    Args:
        values: any unit; NaN and infinities are points that are missing.
        min_segment: points that a level lasts at least.
        alpha: probability of reporting a change where there is none.
        permutations: 1 / (permutations + 1) is the smallest p value.

    Raises:
        ValueError: `min_segment` below 2, or permutations too few for any p value to reach `alpha`.
    """
    if min_segment < 2:
        raise ValueError(f"min_segment is {min_segment}: a level needs at least two points")
    if 1 / (permutations + 1) > alpha:
        raise ValueError(f"{permutations} permutations cannot show p <= {alpha:g}")
    every = np.asarray(values, dtype=np.float64)
    positions = np.flatnonzero(np.isfinite(every))
    left_out = max(len(positions) - MOST_POINTS, 0)
    positions = positions[left_out:]
    if len(positions) < FEWEST_POINTS:
        return Search(num_points=len(positions), lacking=FEWEST_POINTS - len(positions))
    finite = every[positions]
    cuts = _divide(_levels(finite), min_segment, alpha, permutations, seed)
    edges = [0, *sorted(cuts), len(finite)]
    changes = tuple(
        _described(finite, edges[number - 1 : number + 2], cuts[edges[number]], positions)
        for number in range(1, len(edges) - 1)
    )
    return Search(changes=changes, num_points=len(finite), left_out=left_out)


def _levels(values: Float64) -> Float64:
    """Logarithms, where there are any: a change is a share then, whatever the unit."""
    return np.log(values) if values.min() > 0 else values


def steadied(levels: Float64) -> Float64:
    """`levels` with each within CLIP robust standard deviations of their median."""
    middle = float(np.median(levels))
    # Of a series that is mostly ties the median deviation is 0 although it is not constant.
    scale = robust_spread(levels) or math.sqrt(math.pi / 2) * float(np.abs(levels - middle).mean())
    return np.clip(levels, middle - CLIP * scale, middle + CLIP * scale)


class _Segment:
    """A stretch of the series with its best cut, and those of its permutations that were asked for."""

    def __init__(self, levels: Float64, start: int, end: int, min_segment: int, seed: int) -> None:
        self.start, self.end = start, end
        self._own = steadied(levels[start:end])
        self._min_segment, self._seed = min_segment, seed
        self._permuted: dict[int, Float64] = {}
        best, where = best_cuts(self._own[None, :], min_segment)
        self.best, self.cut = float(best[0]), start + int(where[0])

    def permuted(self, number: int, count: int) -> Float64:
        """The best Q of each of the `count` permutations of round `number`."""
        if number not in self._permuted:
            # Seeded by place, so that nothing hangs on the order in which segments are looked at.
            random = np.random.default_rng((self._seed, self.start, self.end, number))
            shuffled = random.permuted(np.broadcast_to(self._own, (count, len(self._own))), axis=1)
            self._permuted[number] = best_cuts(shuffled, self._min_segment)[0]
        return self._permuted[number]


def _divide(
    levels: Float64, min_segment: int, alpha: float, permutations: int, seed: int
) -> dict[int, float]:
    """Cut -> its p value."""

    def examined(start: int, end: int) -> list[_Segment]:
        if end - start < 2 * min_segment or np.ptp(levels[start:end]) == 0:
            return []
        return [_Segment(levels, start, end, min_segment, seed)]

    cuts: dict[int, float] = {}
    segments = examined(0, len(levels))
    while segments:
        leading = max(segments, key=lambda segment: segment.best)
        p = _p(leading.best, segments, alpha, permutations)
        if leading.best <= 0 or p > alpha:
            break
        cuts[leading.cut] = p
        segments = [segment for segment in segments if segment is not leading]
        segments += examined(leading.start, leading.cut) + examined(leading.cut, leading.end)
    return cuts


def _p(best: float, segments: Sequence[_Segment], alpha: float, permutations: int) -> float:
    """Share of permutations within the segments whose best cut is as good; ends early once above `alpha`."""
    as_good = 0
    for number, start in enumerate(range(0, permutations, ROUND)):
        count = min(ROUND, permutations - start)
        reached = np.max([segment.permuted(number, count) for segment in segments], axis=0)
        # Sums in another order differ in their last digits; a tie counts against the change.
        as_good += int(np.count_nonzero(reached >= best * (1 - 1e-9)))
        if (1 + as_good) / (1 + permutations) > alpha:
            break
    return (1 + as_good) / (1 + permutations)


def best_cuts(series: Float64, min_segment: int) -> tuple[Float64, NDArray[np.int64]]:
    """The largest Q of each series and the first point right of its cut.

    Args:
        series: (number of series, points); at least 2 * min_segment points.

    Returns:
        Two arrays of (number of series,).
    """
    num_points = series.shape[1]
    edges = _edges(num_points)
    width = int(np.diff(edges).max())
    rows = max(1, BATCH // (num_points * width))
    best = np.empty(len(series))
    where = np.empty(len(series), dtype=np.int64)
    weights = _weights(num_points, edges, min_segment)
    for start in range(0, len(series), rows):
        rows_slice = slice(start, start + rows)
        q = _energies(series[rows_slice], edges, weights).max(axis=2)
        where[rows_slice] = q.argmax(axis=1)
        best[rows_slice] = np.take_along_axis(q, where[rows_slice, None], axis=1)[:, 0]
    return best, where


def _edges(num_points: int) -> NDArray[np.int64]:
    """Where a side may end: the same seen from either end, so that time's direction plays no part."""
    count = min(GRID, num_points)
    left = np.arange(count // 2 + 1) * num_points // count
    return np.unique(np.concatenate([left, num_points - left]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Factors of Q for each (cut, edge): of sums across, left and right; nan where a side is too short."""

    cross: Float64
    left: Float64
    right: Float64

    def q(self, cross: Float64, left: Float64, right: Float64) -> Float64:
        return cross * self.cross - left * self.left - right * self.right


def _weights(num_points: int, edges: NDArray[np.int64], min_segment: int) -> tuple[_Weights, _Weights]:
    """For right sides that end at an edge, and for left sides that begin at one."""
    cuts = np.arange(num_points + 1)[:, None]

    def weights(left: NDArray[np.int64], right: NDArray[np.int64]) -> _Weights:
        allowed = (left >= min_segment) & (right >= min_segment)
        m, n = (np.where(allowed, side, 2).astype(np.float64) for side in (left, right))
        both = m * n / (m + n)
        return _Weights(
            cross=np.where(allowed, 2 * both / (m * n), np.nan),
            left=both / (m * (m - 1)),
            right=both / (n * (n - 1)),
        )

    from_start = weights(np.broadcast_to(cuts, (num_points + 1, len(edges))), edges[None, :] - cuts)
    to_end = weights(cuts - edges[None, :], np.broadcast_to(num_points - cuts, (num_points + 1, len(edges))))
    return from_start, to_end


def _energies(series: Float64, edges: NDArray[np.int64], weights: tuple[_Weights, _Weights]) -> Float64:
    """Q of every cut (0 .. points) and end of a side: (series, points + 1, 2 * edges); -inf: not allowed."""
    count, num_points = series.shape
    blocks = np.zeros((count, num_points + 1, len(edges)))  # sums of distances to the points of each block
    earlier = np.zeros((count, num_points + 1))  # to all points before it
    for number, (low, high) in enumerate(itertools.pairwise(edges), 1):
        distances = series[:, low:high, None] - series[:, None, :]
        np.abs(distances, out=distances)
        blocks[:, 1:, number] = distances.sum(axis=1)
        earlier[:, low + 1 : high + 1] = blocks[:, low + 1 : high + 1, 1:number].sum(axis=2)
        earlier[:, low + 1 : high + 1] += np.triu(distances[:, :, low:high], 1).sum(axis=1)
    # upto[cut, edge]: all distances between the points before the cut and those before the edge.
    upto = blocks.cumsum(axis=2).cumsum(axis=1)
    within = 2 * earlier.cumsum(axis=1)[:, :, None]  # among the points before the cut, each pair twice
    to_all = upto[:, :, -1:]
    total = to_all[:, -1:]
    at_edges = within[:, edges, 0][:, None, :]
    from_start, to_end = weights
    right_ends = from_start.q(upto - within, within, at_edges - 2 * upto + within)
    across = to_all - to_all[:, edges, 0][:, None, :] - (within - upto)
    left_begins = to_end.q(across, within - 2 * upto + at_edges, total - 2 * to_all + within)
    energies = np.concatenate([right_ends, left_begins], axis=2)
    return np.where(np.isnan(energies), -np.inf, energies)


def _described(values: Float64, edges: Sequence[int], p: float, positions: NDArray[np.int64]) -> ChangePoint:
    """The change at edges[1] between the segments edges[0]..edges[1] and edges[1]..edges[2] of `values`."""
    first, cut, end = edges
    old, new = values[first:cut], values[cut:end]
    before, after = float(np.median(old)), float(np.median(new))
    change = after / before - 1 if before > 0 else None
    low = high = None
    if change is not None and values.min() > 0:
        shift = shift_interval(np.log(old), np.log(new))
        assert shift is not None  # a segment has two points at least
        # The ratio of medians is not the interval's middle, and seldom beyond its ends.
        low, high = min(float(np.expm1(shift[0])), change), max(float(np.expm1(shift[1])), change)
    return ChangePoint(
        index=int(positions[cut]),
        before=before,
        after=after,
        change=change,
        low=low,
        high=high,
        p=p,
        first=int(positions[first]),
        end=int(positions[end - 1]) + 1,
    )
