"""Charts with a figure on either axis: curves with bands, and bars with an interval. Data only."""

from __future__ import annotations

from msgspec import Struct

from perfscope.reports.chart import Chart
from perfscope.reports.values import Unit


class Curve(Struct, frozen=True, kw_only=True):
    """One curve of a CurveChart; `x` rises, a gap is nan in `y`.

    `low`, `high`: an interval per point (nan: none), or () where there is none at all. `kind` decides how it
    is drawn: "data" with marks, "points" with a mark on each and no line, "fit" thin with a mark at its end,
    "ideal" dotted and "level" dashed, both without color.
    `dashed_from`: beyond this x nothing was measured, so the curve is dashed there. Colors go by place.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    kind: str = "data"
    dashed_from: float | None = None


class CurveChart(Chart, Struct, frozen=True, kw_only=True):
    """Curves over one pair of axes. The titles say what the axes are; their ticks carry the unit.

    `x_marks`: where ticks are wanted, such as the world sizes measured; (): round values. `x_log`,
    `y_log`: that axis is logarithmic. `y_zero`: the value axis starts at 0, unless it is logarithmic.
    """

    id: str
    title: str
    x_title: str
    y_title: str
    curves: tuple[Curve, ...]
    x_unit: Unit = Unit.COUNT
    y_unit: Unit = Unit.NUMBER
    x_log: bool = False
    y_log: bool = False
    y_zero: bool = True
    x_marks: tuple[float, ...] = ()
    caption: str = ""


class IntervalBar(Struct, frozen=True, kw_only=True):
    """One bar from 0 to `value`, with a whisker from `low` to `high`. None: not known, nothing is drawn."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    leading: bool = False  # the one the report speaks of


class IntervalBars(Chart, Struct, frozen=True, kw_only=True):
    id: str
    title: str
    axis_title: str
    unit: Unit
    bars: tuple[IntervalBar, ...]
    caption: str = ""
