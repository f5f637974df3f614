"""Clocks of ranks whose hosts no trace names: whether they are one, and if not, all on that of one rank.

Traces say on which host they were recorded only where the profiler wrote it. Ranks of several hosts then look
as if they shared a clock, and a clock that is off looks like a rank that is late. Only causality tells the
two apart: no rank leaves a synchronizing collective before the last one has entered it. A rank that leaves
late breaks no such rule. Where it is broken, the clocks are fitted as those of named hosts (`fit`), and the
rank's times are moved before they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from perfscope.analysis.clocks.fit import ClockFit, RankClock, RankClocks, fit_clocks
from perfscope.analysis.comm_record import GroupCalls, GroupKey
from perfscope.analysis.intervals import Int64
from perfscope.analysis.matching import MatchedCalls
from perfscope.analysis.pairs import match_pairs
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import Columns
from perfscope.rundir.window_records import AllocatorCurve, WindowSummary

_NOISE_NS = 10_000  # profilers put a device's times on the host's clock to some microseconds
_SOLVED = 0.5  # of the impossible calls, that may be left: more are no matter of clocks (calls mismatched)
_BEFORE_NS = 3_600_000_000_000  # an hour: no trace begins longer before its first collective
_TIMES = ("start_ns", "launch_ns")

Calls = Sequence[tuple[int, MatchedCalls]]


def rank_clocks(
    synchronizing: Calls,
    ranks: Sequence[int],
    groups: Mapping[GroupKey, GroupCalls] | None = None,
    *,
    strict: Calls | None = None,
) -> RankClocks | None:
    """The clocks of ranks on hosts without a name; None where nothing proves that they are several.

    Args:
        synchronizing: (window, calls), as for `fit_clocks`.
        ranks: of the run, at least one.
        groups: all calls; messages connect ranks that share no synchronizing collective.
        strict: those of `synchronizing` in which surely every rank needs every other; None: all of them.
    """
    strict = synchronizing if strict is None else strict
    names = {rank: f"{rank:09d}" for rank in sorted(ranks)}
    num_impossible = _impossible(strict)
    if not num_impossible:
        return None
    fit = fit_clocks(synchronizing, names)
    messages = list(chain.from_iterable(match_pairs(groups or {}, names, fit).values()))
    if messages:
        fit = fit_clocks(synchronizing, names, messages)
    clocks = tuple(_clock(rank, name, fit) for rank, name in names.items())
    # Of the ranks of an impossible call at least, so there is one.
    residual_ns = max(clock.residual_ns for clock in clocks if clock.residual_ns is not None)
    moved = RankClocks(ranks=clocks, residual_ns=residual_ns)
    if _impossible(strict, moved) > _SOLVED * num_impossible:
        return None
    return replace(moved, later_ns=_later([*synchronizing, *messages], moved))


def _impossible(calls: Calls, clocks: RankClocks | None = None) -> int:
    """Calls that a rank left before another one entered: on one clock there are none."""
    num_calls = 0
    for _, matched in calls:
        last = np.full(matched.enter.shape[1], np.iinfo(np.int64).min)
        first = np.full(matched.enter.shape[1], np.iinfo(np.int64).max)
        for row, rank in enumerate(matched.ranks):
            times = np.stack((matched.enter[row], matched.exit[row]))
            enter, leave = times if clocks is None else clocks.to_reference(rank, times)
            np.maximum(last, enter, out=last)
            np.minimum(first, leave, out=first)
        num_calls += int((first + _NOISE_NS < last).sum())
    return num_calls


def _clock(rank: int, name: str, fit: ClockFit) -> RankClock:
    linked = next((island for island in fit.islands if name in island.offset_ns), fit)
    if name not in linked.offset_ns:
        return RankClock(rank=rank, reference=rank, offset_ns=0, drift_ppm=0.0, at_ns=0, residual_ns=None)
    return RankClock(
        rank=rank,
        reference=int(linked.reference),
        offset_ns=linked.offset_ns[name],
        drift_ppm=linked.drift_ppm[name],
        at_ns=linked.at_ns[name],
        residual_ns=linked.residual_ns[name],
    )


def _later(calls: Calls, clocks: RankClocks) -> int:
    """What to add to all times so that none is negative: readers take a negative time for one not known."""
    first: dict[int, int] = {}
    for _, matched in calls:
        for rank, enter in zip(matched.ranks, matched.enter, strict=True):
            if len(enter):
                first[rank] = min(first.get(rank, int(enter[0])), int(enter.min()))
    begins = {rank: np.array([max(time - _BEFORE_NS, 0)], dtype=np.int64) for rank, time in first.items()}
    return max(0, *(-int(clocks.to_reference(rank, begin)[0]) for rank, begin in begins.items()))


def on_one_clock(source: RunSource, clocks: RankClocks) -> RunSource:
    """The run with the times of each rank's traces moved onto its reference's clock."""
    return cast("RunSource", _Moved(source, clocks))


class _Moved:
    """A RunSource; what has no times of traces is the other's."""

    def __init__(self, source: RunSource, clocks: RankClocks) -> None:
        self._source, self._clocks = source, clocks

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # before __init__, when it is unpickled
            raise AttributeError(name)
        return getattr(self._source, name)

    def part(self, ranks: Sequence[int]) -> RunSource:
        return cast("RunSource", _Moved(self._source.part(ranks), self._clocks))

    def summaries(self) -> list[WindowSummary]:
        return [
            replace(
                summary,
                steps=tuple(
                    (step, *self._times(summary.rank, (start, end))) for step, start, end in summary.steps
                ),
                allocations=tuple(self._curve(summary.rank, curve) for curve in summary.allocations),
            )
            for summary in self._source.summaries()
        ]

    def timeline(self, rank: int, window: int, columns: Sequence[str] | None = None) -> pa.Table:
        table = self._source.timeline(rank, window, columns)
        for name in _TIMES:
            if name in table.column_names:
                at = table.column_names.index(name)
                table = table.set_column(at, table.field(at), self._column(rank, table.column(name)))
        return table

    def timeline_columns(self, rank: int, window: int, columns: Sequence[str]) -> Columns:
        table: Columns = self.timeline(rank, window, columns)
        return table

    def _curve(self, rank: int, curve: AllocatorCurve) -> AllocatorCurve:
        t_ns, (peak_ns,) = self._times(rank, curve.t_ns), self._times(rank, (curve.peak_ns,))
        return replace(curve, t_ns=t_ns, peak_ns=peak_ns)

    def _times(self, rank: int, times_ns: Iterable[int]) -> tuple[int, ...]:
        moved: Int64 = self._clocks.to_reference(rank, np.array(tuple(times_ns), dtype=np.int64))
        return tuple(moved.tolist())

    def _column(self, rank: int, times_ns: pa.ChunkedArray) -> pa.Array:
        """Nulls stay."""
        unknown = times_ns.is_null().to_numpy() if times_ns.null_count else None
        shown_ns = times_ns.fill_null(0).to_numpy() if times_ns.null_count else times_ns.to_numpy()
        return pa.array(self._clocks.to_reference(rank, shown_ns), times_ns.type, mask=unknown)
