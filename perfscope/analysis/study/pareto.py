"""Which settings no other one beats in time, memory and bytes at once.

A setting dominates another one if it is no worse in all three and better in one. One with a missing figure is
not judged, and judges none. Medians of repeats are compared; noise is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from perfscope.analysis.study.results import LearningRanking, SchemeRow
from perfscope.vocabulary.comparison import RankBasis


class ParetoPoint(Struct, frozen=True, kw_only=True):
    """One setting; None: not known.

    `time_ns`: training time to the target where settings were ranked by it, else time per sample.
    `memory_bytes`: peak of the rank with most. `sent_bytes`: per step, all ranks and links, as recorded.
    `is_best`: no other setting dominates it; None where a figure is missing.
    """

    title: str
    time_ns: float | None
    memory_bytes: float | None
    sent_bytes: float | None
    is_best: bool | None = None

    @property
    def figures(self) -> tuple[float, float, float] | None:
        """All three; None where one is missing."""
        if self.time_ns is None or self.memory_bytes is None or self.sent_bytes is None:
            return None
        return self.time_ns, self.memory_bytes, self.sent_bytes


def is_by_target(ranking: LearningRanking | None) -> bool:
    """Whether time is that to the target."""
    return ranking is not None and ranking.basis is RankBasis.TIME


def pareto_points(rows: Sequence[SchemeRow], ranking: LearningRanking | None) -> tuple[ParetoPoint, ...]:
    """The settings in the order of `rows`."""
    to_target: Mapping[str, float | None] | None = None
    if ranking is not None and is_by_target(ranking):
        to_target = {
            row.title: row.value if row.num_reached == row.num_runs else None for row in ranking.rows
        }
    points = [_point(row, to_target) for row in rows]
    measured = [figures for point in points if (figures := point.figures) is not None]
    return tuple(structs.replace(point, is_best=_is_best(point, measured)) for point in points)


def _point(row: SchemeRow, to_target: Mapping[str, float | None] | None) -> ParetoPoint:
    per_sample = 1e9 / row.samples_per_s if row.samples_per_s else None
    recorded = [link.recorded for link in row.links]
    sent = None if not recorded else _sum(recorded)
    return ParetoPoint(
        title=row.title,
        time_ns=per_sample if to_target is None else to_target.get(row.title),
        memory_bytes=row.peak_memory_bytes,
        sent_bytes=sent,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) if len(present) == len(values) else None


def _is_best(point: ParetoPoint, measured: Sequence[tuple[float, float, float]]) -> bool | None:
    figures = point.figures
    return None if figures is None else not any(_dominates(other, figures) for other in measured)


def _dominates(first: tuple[float, float, float], second: tuple[float, float, float]) -> bool:
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))
