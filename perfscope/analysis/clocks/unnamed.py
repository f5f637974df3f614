"""Clocks of ranks whose hosts no trace names: whether they are one, and if not, all on that of one rank.

Traces say on which host they were recorded only where the profiler wrote it. Ranks of several hosts then look
as if they shared a clock, and a clock that is off looks like a rank that is late. What ranks do together
shows it, as for named hosts (`fit`): then the rank's times are moved before they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from perfscope.analysis.clocks.fit import RankClock, RankClocks, fit_clocks
from perfscope.analysis.matching import MatchedCalls
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import Columns
from perfscope.rundir.window_records import WindowSummary

_STANDS_OUT = 2.0  # times its residual: an offset that is no straying of exits
_TIMES = ("start_ns", "launch_ns")


def rank_clocks(synchronizing: Iterable[tuple[int, MatchedCalls]], ranks: Sequence[int]) -> RankClocks | None:
    """The clocks of ranks on hosts without a name; None where nothing shows that they are several.

    Args:
        synchronizing: (window, calls), as for `fit_clocks`.
        ranks: of the run.
    """
    names = {rank: f"{rank:09d}" for rank in ranks}
    fit = fit_clocks(synchronizing, names)
    offsets = {rank: fit.offset_ns.get(name, 0) for rank, name in names.items()}
    doubts = [fit.residual_ns.get(name, 0) for name in names.values()]
    if all(
        abs(offset) <= _STANDS_OUT * doubt for offset, doubt in zip(offsets.values(), doubts, strict=True)
    ):
        return None
    clocks = tuple(RankClock(rank=rank, offset_ns=offset) for rank, offset in offsets.items())
    return RankClocks(ranks=clocks, residual_ns=max(doubts))


def on_one_clock(source: RunSource, clocks: RankClocks) -> RunSource:
    """The run with the times of each rank's traces moved onto the first rank's clock."""
    return cast("RunSource", _Moved(source, {clock.rank: clock.offset_ns for clock in clocks.ranks}))


class _Moved:
    """A RunSource; what has no times of traces is the other's."""

    def __init__(self, source: RunSource, offset_ns: Mapping[int, int]) -> None:
        self._source, self._offset_ns = source, offset_ns

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # before __init__, when it is unpickled
            raise AttributeError(name)
        return getattr(self._source, name)

    def part(self, ranks: Sequence[int]) -> RunSource:
        return cast("RunSource", _Moved(self._source.part(ranks), self._offset_ns))

    def summaries(self) -> list[WindowSummary]:
        return [
            replace(
                summary,
                steps=tuple(
                    (step, start - offset, end - offset)
                    for offset in [self._offset_ns.get(summary.rank, 0)]
                    for step, start, end in summary.steps
                ),
            )
            for summary in self._source.summaries()
        ]

    def timeline(self, rank: int, window: int, columns: Sequence[str] | None = None) -> pa.Table:
        return _moved(self._source.timeline(rank, window, columns), self._offset_ns.get(rank, 0))

    def timeline_columns(self, rank: int, window: int, columns: Sequence[str]) -> Columns:
        table: Columns = self.timeline(rank, window, columns)
        return table


def _moved(table: pa.Table, offset_ns: int) -> pa.Table:
    import pyarrow.compute as pc

    for name in _TIMES:
        if offset_ns and name in table.column_names:
            at = table.column_names.index(name)
            times = table.column(name)
            table = table.set_column(at, table.field(at), pc.subtract(times, np.int64(offset_ns)))
    return table
