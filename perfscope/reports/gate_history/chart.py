"""Figures of sessions of runs in the order of time, with their levels and where those changed. Data only."""

from __future__ import annotations

from msgspec import Struct

from perfscope.reports.chart import Chart
from perfscope.reports.values import Unit


class SingleRun(Struct, frozen=True, kw_only=True):
    """One run of a session, in the chart's unit. `doubtful`: something disturbed it."""

    value: float
    doubtful: bool = False


class RunPoint(Struct, frozen=True, kw_only=True):
    """One session; `value` is nan where it was not measured.

    `parts`: one figure per entry of HistoryChart.parts, () where nothing is known. `doubtful`: something
    disturbed all of it. `label` names its commit or, without one, its first run; `date` is short: "3 Nov".
    `runs`: its single runs, oldest first; () where there is one only, which is the point itself.
    """

    number: int  # of the session in its series, from 1
    value: float
    label: str
    date: str = ""
    doubtful: bool = False
    parts: tuple[float, ...] = ()
    runs: tuple[SingleRun, ...] = ()


class Level(Struct, frozen=True, kw_only=True):
    """The sessions `first` to `last`, both included, lie around `value`."""

    first: int
    last: int
    value: float


class Break(Struct, frozen=True, kw_only=True):
    """The level is another one from session `number` on. `text`: "+8.2 %"; `label`: its commit."""

    number: int
    text: str
    label: str
    is_worse: bool
    rises: bool

    @property
    def arrow(self) -> str:
        return "▲" if self.rises else "▼"


class ColumnPart(Struct, frozen=True, kw_only=True):
    """One color of the columns. `key`: as of model.Part; `title` for the legend."""

    key: str
    title: str


class HistoryChart(Chart, Struct, frozen=True, kw_only=True):
    """Points over the sessions' numbers, and below them columns made of `parts` (of unit TIME).

    `small`: without words on the breaks, for charts that stand below one that has them.
    """

    id: str
    title: str
    y_title: str
    unit: Unit
    points: tuple[RunPoint, ...]
    levels: tuple[Level, ...] = ()
    breaks: tuple[Break, ...] = ()
    parts: tuple[ColumnPart, ...] = ()
    parts_title: str = ""
    caption: str = ""
    small: bool = False
