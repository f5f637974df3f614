"""A benchmark's history: its figures over time, where they changed level, and what moved there.

A point of the series is a session: runs of one commit that were made one after the other. They share what the
machine was like at that time, so that six of them tell hardly more than one, and a search over the single
runs would call every other session a change of level.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perfscope.gate.changepoints import ChangePoint, Search, search
from perfscope.gate.explain.explain import explain
from perfscope.gate.explain.untraced import metric_step, phase_parts, phase_step, steady_parts
from perfscope.gate.metrics import DECIDES, GateMetric, worse_by
from perfscope.gate.records import Fingerprint, RunFigures
from perfscope.gate.results import ExcludedRun, Explanation, MetricVerdict, Moved
from perfscope.messages.gate.runs import between_commits, between_sessions

NEIGHBORS = 40  # sessions on either side of a change that explain it: farther ones say of other days
NEWEST = 10  # a change that lies farther back, in sessions, was seen when it was new
SESSION_GAP_NS = 3_600 * 10**9  # a session goes on while the next run begins within an hour of the last one
HASH = 7  # letters of a commit that people use
_HEX = frozenset("0123456789abcdef")


class TrendEntry(Protocol):
    """What is needed of an entry of a store."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> Fingerprint: ...


class History(Protocol):
    """What is needed of a store (gate.store)."""

    def entries(self) -> Sequence[TrendEntry]: ...

    def runs(self, name: str, key: str) -> Sequence[RunFigures]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Runs of one commit that began within SESSION_GAP_NS of each other, oldest first.

    Attributes:
        first: index of its first run in `Trend.runs`.
    """

    runs: tuple[RunFigures, ...]
    first: int

    @property
    def is_disturbed(self) -> bool:
        """Something from outside disturbed every one of its runs: it is shown and not judged."""
        return all(run.clean is False for run in self.runs)

    @property
    def counted(self) -> tuple[RunFigures, ...]:
        """Its undisturbed runs; all of them where there is none."""
        if self.is_disturbed:
            return self.runs
        return tuple(run for run in self.runs if run.clean is not False)

    def value(self, metric_id: str) -> float:
        """The median over `counted`, in the metric's unit; nan = not measured."""
        values = [run.metrics[metric_id] for run in self._with(metric_id)]
        return statistics.median(values) if values else math.nan

    def middle(self, metric_id: str) -> RunFigures:
        """The run whose value is the median, of two the lower. IndexError: none has the metric."""
        by_value = sorted(self._with(metric_id), key=lambda run: run.metrics[metric_id])
        return by_value[(len(by_value) - 1) // 2]

    def parts(self) -> Mapping[str, float]:
        """Where the step goes, ns, mean over `counted`; {} = not known."""
        parts_of_runs = [parts for parts in map(parts_of, self.counted) if parts]
        keys = dict.fromkeys(key for parts in parts_of_runs for key in parts)
        return {key: statistics.fmean(parts.get(key, 0.0) for parts in parts_of_runs) for key in keys}

    def _with(self, metric_id: str) -> list[RunFigures]:
        return [run for run in self.counted if math.isfinite(run.metrics.get(metric_id, math.nan))]


def sessions_of(runs: Sequence[RunFigures]) -> tuple[Session, ...]:
    """`runs`, oldest first, by session.

    Runs that do not say when they began belong together where they are of one known commit; without a commit
    either, each is separate.
    """
    groups: list[list[RunFigures]] = []
    for run in runs:
        if groups and _same_session(groups[-1][-1], run):
            groups[-1].append(run)
        else:
            groups.append([run])
    sessions, first = [], 0
    for members in groups:
        sessions.append(Session(runs=tuple(members), first=first))
        first += len(members)
    return tuple(sessions)


def _same_session(previous: RunFigures, following: RunFigures) -> bool:
    old, new = previous.surroundings, following.surroundings
    if old.commit != new.commit:
        return False
    if old.start_unix_ns is None or new.start_unix_ns is None:
        return old.start_unix_ns == new.start_unix_ns and bool(old.commit)
    return abs(new.start_unix_ns - old.start_unix_ns) <= SESSION_GAP_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """One change of the metric's level.

    Attributes:
        point: where, and by how much; indexes count `Trend.sessions`.
        before, after: the last run of the old level, the first of the new one.
        metric: what changed.
        base_step: step_p10 of the old level, ns; None = not known.
        worse: by how much it became worse, as a share; negative = better; None: the old level was 0.
        is_worse: the direction alone.
        explanation: which part of the step moved there, and what differed around the sessions of both levels,
            each represented by its middle run.
    """

    point: ChangePoint
    before: RunFigures
    after: RunFigures
    metric: GateMetric
    base_step: float | None
    worse: float | None
    is_worse: bool
    explanation: Explanation

    @property
    def is_beyond(self) -> bool:
        """The levels differ by more than the metric's threshold, in whichever direction."""
        return self.beyond(self.point.after)

    def beyond(self, level: float) -> bool:
        """Whether `level` differs from that before the change by more than the metric's threshold."""
        share = worse_by(self.metric, self.point.before, level, self.base_step)
        # Where nothing can be divided by, because the old level was 0, any change is a large one.
        return level != self.point.before if share is None else abs(share) > self.metric.threshold

    @property
    def cause(self) -> str:
        """A part of the step, "surroundings" or "unknown"."""
        return self.explanation.cause

    @property
    def moved(self) -> Moved | None:
        """The part of the step that `cause` names; else the one that certainly moved most, if any did."""
        parts = self.explanation.parts
        named = next((part for part in parts if part.what == self.cause), None)
        certain = [part for part in parts if part.is_certain]
        return named or max(certain, key=lambda part: abs(part.change_ns), default=None)

    @property
    def between(self) -> str:
        """ "between a1b2c3d and e4f5a6b", or what is known instead."""
        old, new = (short_commit(run.surroundings.commit) for run in (self.before, self.after))
        if not old or not new:
            return between_sessions(self.point.index)
        return between_commits(old, new)

    @property
    def same_commit(self) -> bool:
        """Both runs are of one recorded commit: the code that git knows did not change."""
        old, new = self.before.surroundings, self.after.surroundings
        return bool(old.commit) and old.commit == new.commit and not new.dirty and not old.dirty


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The history of one benchmark on one kind of machine, by one metric.

    Attributes:
        runs: that can be judged, oldest first; `sessions` are the same in groups, the points of the series.
        values: the metric's for each session, NaN = not measured.
        searched: the same without sessions that something disturbed: they are shown, not judged.
        left_out: runs that cannot be judged.
        parts: of each session's step, ns; {} = not known.
        newest: sessions within which a change makes the series fail.
    """

    name: str
    fingerprint: Fingerprint
    metric: GateMetric
    runs: tuple[RunFigures, ...]
    sessions: tuple[Session, ...]
    values: tuple[float, ...]
    searched: tuple[float, ...]
    search: Search
    changes: tuple[LevelChange, ...] = ()
    left_out: tuple[ExcludedRun, ...] = ()
    parts: tuple[Mapping[str, float], ...] = field(default=())
    newest: int = NEWEST

    @property
    def latest(self) -> LevelChange | None:
        return self.changes[-1] if self.changes else None

    @property
    def latest_is_worse(self) -> bool:
        """Whether the newest level is worse than the one before it."""
        return self.latest is not None and self.latest.is_worse

    @property
    def latest_is_regression(self) -> bool:
        """Whether it is worse than the one before it by more than the metric's threshold."""
        return self.latest is not None and self.latest.is_worse and self.latest.is_beyond

    @property
    def failing(self) -> LevelChange | None:
        """The newest change for the worse, beyond the threshold, within the `newest` judged sessions.

        None as well where the level has come back since.
        """
        for change in reversed(self.changes):
            since = [value for value in self.searched[change.point.index :] if math.isfinite(value)]
            if len(since) <= self.newest and change.is_worse and change.is_beyond and self._lasts(change):
                return change
        return None

    def _lasts(self, change: LevelChange) -> bool:
        """Whether today's level is still worse than that before `change`, beyond the threshold."""
        now = self.changes[-1].point.after
        is_worse = (now > change.point.before) == (self.metric.better == "lower")
        return is_worse and change.beyond(now)

    @property
    def reported(self) -> LevelChange | None:
        """The change that the headline is about."""
        return self.failing or self.latest

    @property
    def current(self) -> tuple[float, ...]:
        """The judged values of the newest level."""
        start = self.latest.point.index if self.latest else 0
        return tuple(value for value in self.searched[start:] if math.isfinite(value))

    @property
    def num_disturbed(self) -> int:
        """Sessions that something disturbed in every run."""
        return sum(session.is_disturbed for session in self.sessions)

    def series(self, metric_id: str) -> tuple[float, ...]:
        """Another metric of the same sessions; NaN = not measured."""
        return tuple(session.value(metric_id) for session in self.sessions)

    @property
    def last_start_unix_ns(self) -> int:
        """When the newest run started; 0 where no run says."""
        return max((run.surroundings.start_unix_ns or 0 for run in self.runs), default=0)


def trends(
    history: History,
    metric: GateMetric,
    *,
    name: str | None = None,
    alpha: float | None = None,
    newest: int = NEWEST,
) -> tuple[Trend, ...]:
    """Every series of a history, the one with the newest run first.

    Args:
        name: only this benchmark's.
        alpha: of the search for changes; None = its default.
        newest: sessions within which a change makes a series fail.
    """
    results = [
        trend(
            entry.name,
            entry.fingerprint,
            history.runs(entry.name, entry.fingerprint.key),
            metric,
            alpha=alpha,
            newest=newest,
        )
        for entry in history.entries()
        if name is None or entry.name == name
    ]
    return tuple(
        sorted(results, key=lambda item: (-item.last_start_unix_ns, item.name, item.fingerprint.key))
    )


def trend(
    name: str,
    fingerprint: Fingerprint,
    runs: Sequence[RunFigures],
    metric: GateMetric,
    *,
    alpha: float | None = None,
    newest: int = NEWEST,
) -> Trend:
    """The series of one benchmark on one kind of machine; `runs` oldest first."""
    judged = tuple(run for run in runs if not run.problem)
    sessions = sessions_of(judged)
    values = tuple(session.value(metric.id) for session in sessions)
    searched = tuple(
        math.nan if session.is_disturbed else value for session, value in zip(sessions, values, strict=True)
    )
    result = search(searched) if alpha is None else search(searched, alpha=alpha)
    return Trend(
        name=name,
        fingerprint=fingerprint,
        metric=metric,
        runs=judged,
        sessions=sessions,
        values=values,
        searched=searched,
        search=result,
        changes=tuple(_change(point, sessions, metric) for point in result.changes),
        left_out=tuple(
            ExcludedRun(name=run.name, side="", reason=run.problem) for run in runs if run.problem
        ),
        parts=tuple(session.parts() for session in sessions),
        newest=newest,
    )


def parts_of(run: RunFigures) -> Mapping[str, float]:
    """Where the step (p10) goes, ns; without a trace what the probe alone knows; {} = nothing is known."""
    step = metric_step(run) or phase_step(run)
    return steady_parts(run, step) or phase_parts(run, step)


def _change(point: ChangePoint, sessions: Sequence[Session], metric: GateMetric) -> LevelChange:
    is_worse = (point.after > point.before) == (metric.better == "lower")
    old = _judged(sessions[point.first : point.index], metric)
    new = _judged(sessions[point.index : point.end], metric)
    base, head = ([session.middle(metric.id) for session in side] for side in (old, new))
    steps = [run.metrics[DECIDES] for run in base if DECIDES in run.metrics]
    return LevelChange(
        point=point,
        before=old[-1].counted[-1],
        after=new[0].counted[0],
        metric=metric,
        base_step=statistics.median(steps) if steps else None,
        worse=_worse(point, metric),
        is_worse=is_worse,
        explanation=_explained(point, base, head, metric, is_worse=is_worse),
    )


def _judged(sessions: Sequence[Session], metric: GateMetric) -> list[Session]:
    """Those of a level that its figures come from."""
    return [
        session
        for session in sessions
        if not session.is_disturbed and math.isfinite(session.value(metric.id))
    ]


def _worse(point: ChangePoint, metric: GateMetric) -> float | None:
    if point.change is None:
        return None
    if metric.better == "lower":
        return point.change
    return point.before / point.after - 1 if point.after > 0 else math.inf


def _explained(
    point: ChangePoint,
    before: Sequence[RunFigures],
    after: Sequence[RunFigures],
    metric: GateMetric,
    *,
    is_worse: bool,
) -> Explanation:
    """Why, from a run of each session next to the change, at most NEIGHBORS on either side."""
    # Numbers of pairs are those of the check that made a run: they pair nothing across a history.
    base = [dataclasses.replace(run, pair=None) for run in before[-NEIGHBORS:]]
    head = [dataclasses.replace(run, pair=None) for run in after[:NEIGHBORS]]
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
