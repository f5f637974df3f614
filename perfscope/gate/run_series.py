"""Runs of one command on one kind of machine, in the order of time, and where their speed changed.

Only what is known of a run without analyzing it: `gate.trend` follows a history of measured runs and
explains its changes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from msgspec import Struct

from perfscope.gate.changepoints import ChangePoint, Search, search
from perfscope.gate.trend import SESSION_GAP_NS

FEWEST_RUNS = 2  # of a series
THRESHOLD = 0.05  # a smaller change of a level is not worth a warning


class SeriesRun(Struct, frozen=True, kw_only=True):
    """One run; `key`: of its series. Figures are None where they are not known, `step_ns` in ns."""

    key: tuple[str, ...]
    name: str
    started_unix_ns: int | None
    commit: str = ""
    step_ns: float | None = None
    samples_per_s: float | None = None


class RunSession(Struct, frozen=True, kw_only=True):
    """Runs of one commit without an hour's pause, oldest first. Figures are medians, nan: none has any."""

    runs: tuple[SeriesRun, ...]
    step_ns: float
    samples_per_s: float


class RunSeries(Struct, frozen=True, kw_only=True, eq=False):
    """A series of sessions, oldest first, with the search for changes of either figure."""

    key: tuple[str, ...]
    sessions: tuple[RunSession, ...]
    of_steps: Search
    of_rates: Search

    @property
    def num_runs(self) -> int:
        return sum(len(session.runs) for session in self.sessions)

    @property
    def last_unix_ns(self) -> int:
        return max(run.started_unix_ns or 0 for run in self.sessions[-1].runs)

    @property
    def is_slower(self) -> bool:
        """Whether the newest level of the step is above the lowest earlier one, by more than THRESHOLD."""
        changes = self.of_steps.changes
        return bool(changes) and _is_above(changes[-1].after, min(change.before for change in changes))

    @property
    def largest_rise(self) -> ChangePoint | None:
        """Of a slower series, the change that raised the step most; None where it is not slower.

        A rise that was undone later counts only where no other one lasted.
        """
        if not self.is_slower:
            return None
        changes = self.of_steps.changes
        lasting = [
            change
            for number, change in enumerate(changes)
            if _is_above(min(later.after for later in changes[number:]), change.before)
        ]
        lowest = min(range(len(changes)), key=lambda number: changes[number].before)
        return max(lasting or changes[lowest:], key=_relative)


def _is_above(level: float, earlier: float) -> bool:
    return level > earlier * (1 + THRESHOLD)


def _relative(change: ChangePoint) -> float:
    return math.inf if change.change is None else change.change


def series_of(runs: Iterable[SeriesRun]) -> tuple[RunSeries, ...]:
    """Every series of at least FEWEST_RUNS runs with a step time; slower and changed ones first."""
    groups: dict[tuple[str, ...], list[SeriesRun]] = {}
    for run in runs:
        if run.step_ns is not None:
            groups.setdefault(run.key, []).append(run)
    all_series = [_series(key, members) for key, members in groups.items() if len(members) >= FEWEST_RUNS]
    return tuple(
        sorted(
            all_series,
            key=lambda series: (
                not series.is_slower,
                not series.of_steps.changes,
                -len(series.sessions),
                -series.last_unix_ns,
                series.key,
            ),
        )
    )


def _series(key: tuple[str, ...], runs: Sequence[SeriesRun]) -> RunSeries:
    ordered = sorted(runs, key=lambda run: (run.started_unix_ns or 0, run.name))
    groups: list[list[SeriesRun]] = []
    for run in ordered:
        if groups and _is_same_session(groups[-1][-1], run):
            groups[-1].append(run)
        else:
            groups.append([run])
    sessions = tuple(
        RunSession(
            runs=tuple(members),
            step_ns=_median([run.step_ns for run in members]),
            samples_per_s=_median([run.samples_per_s for run in members]),
        )
        for members in groups
    )
    return RunSeries(
        key=key,
        sessions=sessions,
        of_steps=search([session.step_ns for session in sessions]),
        of_rates=search([session.samples_per_s for session in sessions]),
    )


def _is_same_session(previous: SeriesRun, following: SeriesRun) -> bool:
    if previous.commit != following.commit:
        return False
    if previous.started_unix_ns is None or following.started_unix_ns is None:
        return False
    return following.started_unix_ns - previous.started_unix_ns <= SESSION_GAP_NS


def _median(values: Sequence[float | None]) -> float:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(finite) if finite else math.nan
