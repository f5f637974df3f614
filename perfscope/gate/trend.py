"""A benchmark's history: its figures over time, where they changed level, and what moved there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perfscope.gate.changepoints import ChangePoint, Search, search
from perfscope.gate.explain.explain import explain
from perfscope.gate.explain.steady import metric_step, phase_parts, phase_step, steady_parts
from perfscope.gate.metrics import Metric
from perfscope.gate.records import Fingerprint, RunFigures
from perfscope.gate.results import Explanation, LeftOut, MetricVerdict, Moved

NEIGHBOURS = 40  # runs on either side of a change that explain it: farther ones tell of other days
HASH = 7  # letters of a commit that people use
_HEX = frozenset("0123456789abcdef")


class Kept(Protocol):
    """What is needed of an entry of a store."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> Fingerprint: ...


class History(Protocol):
    """What is needed of a store (gate.store)."""

    def entries(self) -> Sequence[Kept]: ...

    def runs(self, name: str, key: str) -> Sequence[RunFigures]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of the metric's level.

    Attributes:
        point: where, and by how much; indexes count `Trend.runs`.
        before, after: the last run of the old level, the first of the new one.
        worse: by how much it became worse, as a share; negative = better; None: the old level was 0.
        is_worse: the direction alone.
        explanation: which part of the step moved there, and what differed around the runs of both levels.
    """

    point: ChangePoint
    before: RunFigures
    after: RunFigures
    worse: float | None
    is_worse: bool
    explanation: Explanation

    @property
    def cause(self) -> str:
        """A part of the step, "surroundings" or "unknown"."""
        return self.explanation.cause

    @property
    def moved(self) -> Moved | None:
        """The part of the step that `cause` names; else the one that certainly moved most, if any did."""
        parts = self.explanation.parts
        named = next((one for one in parts if one.what == self.cause), None)
        certain = [one for one in parts if one.is_certain]
        return named or max(certain, key=lambda one: abs(one.change_ns), default=None)

    @property
    def between(self) -> str:
        """ "between a1b2c3d and e4f5a6b", or what is known instead."""
        old, new = (short_commit(run.surroundings.commit) for run in (self.before, self.after))
        if not old or not new:
            return f"between runs {self.point.index} and {self.point.index + 1}"
        return f"between {old} and {new}" if old != new else f"within {new}"

    @property
    def same_commit(self) -> bool:
        """Both runs are of one recorded commit: the code that git knows did not change."""
        old, new = self.before.surroundings, self.after.surroundings
        return bool(old.commit) and old.commit == new.commit and not new.dirty and not old.dirty


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The history of one benchmark on one kind of machine, by one metric.

    Attributes:
        runs: that can be judged, oldest first; `values` are the metric's for each, NaN = not measured.
        searched: the same without runs that something disturbed: they are shown, not judged.
        left_out: runs that cannot.
    """

    name: str
    fingerprint: Fingerprint
    metric: Metric
    runs: tuple[RunFigures, ...]
    values: tuple[float, ...]
    searched: tuple[float, ...]
    search: Search
    changes: tuple[Change, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    parts: tuple[Mapping[str, float], ...] = field(default=())  # of each run's step, ns; {} = not known

    @property
    def latest(self) -> Change | None:
        return self.changes[-1] if self.changes else None

    @property
    def latest_is_worse(self) -> bool:
        """Whether the newest level is worse than the one before it."""
        return self.latest is not None and self.latest.is_worse

    @property
    def current(self) -> tuple[float, ...]:
        """The judged values of the newest level."""
        start = self.latest.point.index if self.latest else 0
        return tuple(value for value in self.searched[start:] if math.isfinite(value))

    @property
    def num_disturbed(self) -> int:
        return sum(run.clean is False for run in self.runs)

    def series(self, metric_id: str) -> tuple[float, ...]:
        """Another metric of the same runs; NaN = not measured."""
        return tuple(run.metrics.get(metric_id, math.nan) for run in self.runs)

    @property
    def last_start_unix_ns(self) -> int:
        """When the newest run started; 0 where no run says."""
        return max((run.surroundings.start_unix_ns or 0 for run in self.runs), default=0)


def trends(
    history: History, metric: Metric, *, name: str | None = None, alpha: float | None = None
) -> tuple[Trend, ...]:
    """Every series of a history, the one with the newest run first.

    Args:
        name: only this benchmark's.
        alpha: of the search for changes; None = its default.
    """
    found = [
        trend(
            entry.name,
            entry.fingerprint,
            history.runs(entry.name, entry.fingerprint.key),
            metric,
            alpha=alpha,
        )
        for entry in history.entries()
        if name is None or entry.name == name
    ]
    return tuple(sorted(found, key=lambda one: (-one.last_start_unix_ns, one.name, one.fingerprint.key)))


def trend(
    name: str,
    fingerprint: Fingerprint,
    runs: Sequence[RunFigures],
    metric: Metric,
    *,
    alpha: float | None = None,
) -> Trend:
    """The series of one benchmark on one kind of machine; `runs` oldest first."""
    judged = tuple(run for run in runs if not run.problem)
    values = tuple(run.metrics.get(metric.id, math.nan) for run in judged)
    searched = tuple(
        math.nan if run.clean is False else value for run, value in zip(judged, values, strict=True)
    )
    found = search(searched) if alpha is None else search(searched, alpha=alpha)
    return Trend(
        name=name,
        fingerprint=fingerprint,
        metric=metric,
        runs=judged,
        values=values,
        searched=searched,
        search=found,
        changes=tuple(_change(point, judged, metric) for point in found.changes),
        left_out=tuple(LeftOut(name=run.name, side="", reason=run.problem) for run in runs if run.problem),
        parts=tuple(parts_of(run) for run in judged),
    )


def parts_of(run: RunFigures) -> Mapping[str, float]:
    """Where the step (p10) goes, ns; without a trace what the probe alone knows; {} = nothing is known."""
    step = metric_step(run) or phase_step(run)
    return steady_parts(run, step) or phase_parts(run, step)


def _change(point: ChangePoint, runs: Sequence[RunFigures], metric: Metric) -> Change:
    is_worse = (point.after > point.before) == (metric.better == "lower")
    judged_before = _judged(runs[point.first : point.index], metric)
    return Change(
        point=point,
        before=judged_before[-1],
        after=runs[point.index],
        worse=_worse(point, metric),
        is_worse=is_worse,
        explanation=_explained(
            point, judged_before, _judged(runs[point.index : point.end], metric), metric, is_worse=is_worse
        ),
    )


def _judged(runs: Sequence[RunFigures], metric: Metric) -> list[RunFigures]:
    """Those of a level that its figures come from."""
    return [run for run in runs if metric.id in run.metrics and run.clean is not False]


def _worse(point: ChangePoint, metric: Metric) -> float | None:
    if point.change is None:
        return None
    if metric.better == "lower":
        return point.change
    return point.before / point.after - 1 if point.after > 0 else math.inf


def _explained(
    point: ChangePoint,
    before: Sequence[RunFigures],
    after: Sequence[RunFigures],
    metric: Metric,
    *,
    is_worse: bool,
) -> Explanation:
    """Why, from the runs next to the change, at most NEIGHBOURS on either side."""
    # Numbers of pairs are those of the check that made a run: they pair nothing across a history.
    base = [dataclasses.replace(run, pair=None) for run in before[-NEIGHBOURS:]]
    head = [dataclasses.replace(run, pair=None) for run in after[:NEIGHBOURS]]
    verdict = MetricVerdict(
        metric=metric,
        state="worse" if is_worse else "better",
        base=point.before,
        head=point.after,
        worse=_worse(point, metric),
        p=point.p,
        num_base=len(base),
        num_head=len(head),
    )
    return explain(base, head, [verdict])


def short_commit(commit: str) -> str:
    """A hash as people write it; what is no hash as it is."""
    return commit[:HASH] if len(commit) > HASH and set(commit.lower()) <= _HEX else commit
