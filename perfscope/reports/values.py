"""What a figure is, and how it becomes text: units of columns and axes.

Base units everywhere: ns, bytes, per second, ratio. `format_value` is the only way a value becomes text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from perfscope import units

Value = str | int | float | None


class Unit(Enum):
    """What a column's values are, which decides how they look. Base units: ns, bytes, per second, ratio."""

    TEXT = "text"
    CODE = "code"  # set in a fixed-width face: layer paths, files, commands
    TIME = "time"
    BYTES = "bytes"
    COUNT = "count"
    RATIO = "ratio"
    RATE = "rate"
    FLOPS = "flops"
    FLOP_RATE = "flop_rate"
    NUMBER = "number"  # a plain figure with up to two decimals, such as calls per step
    FACTOR = "factor"  # one figure over another: two decimals, of a small one two digits that count
    POWER = "watts"
    ENERGY = "joules"
    FREQUENCY = "hz"
    TEMPERATURE = "celsius"
    EVENTS = "per_s"
    SAMPLES = "samples_per_s"  # TITLED
    LOSS = "loss"


# Units that titles of columns and axes state: cells and ticks hold the figure alone.
TITLED: dict[Unit, str] = {Unit.SAMPLES: "samples/s"}


def with_unit(title: str, unit: Unit) -> str:
    """The title of an axis: ``Throughput (samples/s)``; of units whose figures say them, the title alone."""
    return f"{title} ({TITLED[unit]})" if unit in TITLED else title


def format_alone(unit: Unit, value: Value) -> str:
    """`value` where no title states its unit: ``1,060 samples/s``."""
    text = format_value(unit, value)
    return f"{text} {TITLED[unit]}" if unit in TITLED and text != units.MISSING else text


def format_value(unit: Unit, value: Value) -> str:
    """`value` as a person reads it. None, NaN and infinities become an en dash, never 0."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return units.MISSING
    if isinstance(value, str):
        return value
    return _format_number(unit, value)


# Units whose figures carry a decimal prefix.
PREFIXED = {
    Unit.FLOPS: "FLOP",
    Unit.FLOP_RATE: "FLOP/s",
    Unit.POWER: "W",
    Unit.ENERGY: "J",
    Unit.FREQUENCY: "Hz",
    Unit.EVENTS: "/s",
}


def _factor(value: float) -> str:
    """``1.32``, of a ratio near 0 the digits that count: ``0.0032``."""
    magnitude = abs(value)
    if not 0 < magnitude < 0.095:  # above, two decimals are two digits
        return units.fixed(value, 2)
    if magnitude < 1e-6:
        return f"{value:.1e}"
    return f"{value:.{1 - math.floor(math.log10(magnitude))}f}"


FORMATS: dict[Unit, Callable[[float], str]] = {
    Unit.TIME: units.format_ns,
    Unit.BYTES: units.format_bytes,
    Unit.RATIO: units.format_ratio,
    Unit.RATE: units.format_rate,
    Unit.SAMPLES: units.three_digits,
    Unit.LOSS: lambda value: units.fixed(value, 3),
    Unit.FACTOR: _factor,
    Unit.TEMPERATURE: lambda value: f"{units.fixed(value, 0)} °C",
}


def _format_number(unit: Unit, value: float) -> str:
    if unit in FORMATS:
        return FORMATS[unit](value)
    if unit in PREFIXED:
        return units.format_si(value, PREFIXED[unit])
    if unit is Unit.NUMBER and value != int(value):
        return units.fixed(value, 2).rstrip("0").rstrip(".")
    return units.format_count(value)
