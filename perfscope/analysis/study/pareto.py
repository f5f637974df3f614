"""Which settings no other one beats in time, memory and bytes at once.

A setting dominates another one if it is no worse in all three and better in one. One with a missing figure is
not judged, and judges none. Medians of repeats are compared; two times are level where their repeats say so.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from perfscope.analysis.study.pareto_results import ParetoPoint
from perfscope.analysis.study.results import LearningRanking, LearningRow, Pair, SchemeRow
from perfscope.vocabulary.comparison import RankBasis
from perfscope.vocabulary.figures import Figure

_Level = frozenset[frozenset[str]]  # pairs of titles


def is_by_target(ranking: LearningRanking | None) -> bool:
    """Whether time is that to the target."""
    return ranking is not None and ranking.basis is RankBasis.TIME


def pareto_points(
    rows: Sequence[SchemeRow], ranking: LearningRanking | None, pairs: Sequence[Pair] = ()
) -> tuple[ParetoPoint, ...]:
    """The settings in the order of `rows`.

    Args:
        rows: the settings.
        ranking: by time to a target, if there is one.
        pairs: of the rows; says whose samples/s are level.
    """
    to_target: dict[str, float | None] | None = None
    level = frozenset(frozenset((pair.a, pair.b)) for pair in pairs if pair.level)
    if ranking is not None and is_by_target(ranking):
        to_target = {
            row.title: row.value if row.num_reached == row.num_runs else None for row in ranking.rows
        }
        level = _overlapping(ranking.rows)
    points = [_point(row, to_target) for row in rows]
    measured = [point for point in points if point.figures is not None]
    return tuple(_judged(point, measured, level) if point.figures else point for point in points)


def _overlapping(rows: Sequence[LearningRow]) -> _Level:
    """Whose intervals of the time to the target overlap."""
    return frozenset(
        frozenset((point.title, other.title))
        for at, point in enumerate(rows)
        for other in rows[at + 1 :]
        if point.interval and other.interval
        if point.interval.low <= other.interval.high and other.interval.low <= point.interval.high
    )


def _point(row: SchemeRow, to_target: dict[str, float | None] | None) -> ParetoPoint:
    per_sample = 1e9 / row.samples_per_s if row.samples_per_s else None
    recorded = [link.recorded for link in row.links]
    time_ns = per_sample if to_target is None else to_target.get(row.title)
    sent = None if not recorded else _sum(recorded)
    lacking = {
        *((Figure.SAMPLES_PER_S,) if time_ns is None else ()),
        *((Figure.MEMORY_AND_LINKS,) if row.peak_memory_bytes is None or sent is None else ()),
    }
    return ParetoPoint(
        title=row.title,
        time_ns=time_ns,
        memory_bytes=row.peak_memory_bytes,
        sent_bytes=sent,
        missing=tuple(missing for missing in row.missing if missing.figure in lacking),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    return None if None in values else sum(value for value in values if value is not None)


def _judged(point: ParetoPoint, measured: Sequence[ParetoPoint], level: _Level) -> ParetoPoint:
    peers = [other for other in measured if other is not point]
    apart = [other for other in peers if frozenset((other.title, point.title)) not in level]
    if any(_dominates(other.figures, point.figures) for other in apart):
        return structs.replace(point, is_best=False)
    near = [other for other in peers if other not in apart]
    if any(_dominates_if_faster(other, point) for other in near):
        return structs.replace(point, undecided=True)
    return structs.replace(point, is_best=True)


def _dominates(point: tuple[float, ...] | None, other: tuple[float, ...] | None) -> bool:
    if point is None or other is None or point == other:
        return False
    return all(a <= b for a, b in zip(point, other, strict=True))


def _dominates_if_faster(point: ParetoPoint, other: ParetoPoint) -> bool:
    """Whether memory and bytes of `point` are no more, so that only the time decides."""
    pairs = ((point.memory_bytes, other.memory_bytes), (point.sent_bytes, other.sent_bytes))
    return all(a is not None and b is not None and a <= b for a, b in pairs)
