"""How figures in each unit of gate metrics look: in text, columns, charts and the formats of other tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from perfscope import units
from perfscope.gate.metrics import MetricUnit
from perfscope.reports.values import Unit


class UnitForms(NamedTuple):
    """The forms of one unit.

    Attributes:
        column: of tables and charts.
        text: a figure with its unit.
        symbol: of the base unit.
        exposition: OpenMetrics' name of the base unit, and what a figure is multiplied by.
        chart: what a figure is divided by in charts that keep their unit from run to run, and its symbol.
    """

    column: Unit
    text: Callable[[float], str]
    symbol: str
    exposition: tuple[str, float]
    chart: tuple[float, str]


def _per_s(value: float) -> str:
    return f"{value:,.0f} /s" if abs(value) >= 100 else f"{value:.3g} /s"


def _joules(value: float) -> str:
    return units.format_si(value * 1e3, "mJ") if abs(value) < 1 else units.format_si(value, "J")


FORMS: Mapping[MetricUnit, UnitForms] = {
    MetricUnit.NS: UnitForms(Unit.TIME, units.format_ns, "s", ("seconds", 1e-9), (1e6, "ms")),
    MetricUnit.PER_S: UnitForms(Unit.SAMPLES, _per_s, "/s", ("samples_per_second", 1.0), (1.0, "samples/s")),
    MetricUnit.BYTES: UnitForms(Unit.BYTES, units.format_bytes, "B", ("bytes", 1.0), (1 << 20, "MiB")),
    MetricUnit.RATIO: UnitForms(Unit.RATIO, units.format_ratio, "", ("ratio", 1.0), (0.01, "%")),
    MetricUnit.JOULES: UnitForms(Unit.ENERGY, _joules, "J", ("joules", 1.0), (1.0, "J")),
}
