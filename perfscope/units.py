"""How a number looks: the only place in perfscope that formats figures for reading.

Every function takes the base unit (ns, bytes, ratio ...) and returns text with its unit.
`None` always becomes an en dash: a missing figure is never shown as 0.
"""

from __future__ import annotations

import re

MISSING = "–"

# (size, name), largest first.
TIME_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
BINARY_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
DECIMAL_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
ROUNDED_UP = 0.9995  # of a unit: 999.5 of the next smaller one, which reads 1.00


def fixed(value: float, digits: int) -> str:
    """So many decimals, with thousands separators; what rounds to 0 has no sign."""
    text = f"{value:,.{digits}f}"
    return text if text.strip("-0.") else text.lstrip("-")


def three_digits(value: float) -> str:
    """Three significant digits without an exponent, of less than 0.1 two decimals: ``33.2``, ``1,234``."""
    magnitude = abs(value)
    return fixed(value, 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0)


def format_change(ratio: float, digits: int = 1) -> str:
    """A relative change with its sign: ``+8.8 %``, ``−0.4 %``; ``0.0 %`` where it rounds to that."""
    return with_sign(format_ratio(ratio, digits), ratio)


def with_sign(text: str, value: float) -> str:
    """The text of a change: what is more carries a plus, what is less a minus, what reads 0 neither."""
    size = text.removeprefix("-")
    sign = "+" if value > 0 else "−"
    return f"{sign}{size}" if re.search("[1-9]", size) else size


def format_ns(value: float | None) -> str:
    """Nanoseconds as s, ms, µs or ns: ``1234567`` -> ``1.23 ms``."""
    if value is None:
        return MISSING
    for size, unit in TIME_UNITS[:-1]:
        if abs(value) >= ROUNDED_UP * size:
            return f"{three_digits(value / size)} {unit}"
    return f"{fixed(value, 0)} ns" if value else "0 s"


def format_bytes(value: float | None) -> str:
    """Bytes in binary multiples: ``1536`` -> ``1.50 KiB``."""
    if value is None:
        return MISSING
    for size, unit in BINARY_UNITS[:-1]:
        if abs(value) >= size - size / 2048:  # 1,023.5 of the next smaller
            return f"{three_digits(value / size)} {unit}"
    return f"{fixed(value, 0)} B"


def format_si(value: float | None, unit: str) -> str:
    """A decimal-prefixed figure: ``format_si(2.5e9, "FLOP/s")`` -> ``2.50 GFLOP/s``."""
    if value is None:
        return MISSING
    for size, prefix in DECIMAL_PREFIXES[:-1]:
        if abs(value) >= ROUNDED_UP * size:
            return f"{three_digits(value / size)} {prefix}{unit}"
    return f"{three_digits(value)} {unit}"


def format_rate(bytes_per_s: float | None) -> str:
    """Bandwidth in decimal multiples, as network and memory vendors state it: ``1.20 GB/s``."""
    return format_si(bytes_per_s, "B/s")


def format_ratio(value: float | None, digits: int = 1) -> str:
    """A ratio as percent: ``0.123`` -> ``12.3 %``."""
    return MISSING if value is None else f"{fixed(100 * value, digits)} %"


def format_count(value: float | None) -> str:
    """A count with thousands separators."""
    return MISSING if value is None else fixed(value, 0)


def parse_ratio(text: str) -> float:
    """``1%``, ``0.5 %`` or ``0.01`` -> a ratio in [0, 1].

    Raises:
        ValueError: not a number, or outside [0, 1].
    """
    stripped = text.strip()
    value = float(stripped[:-1]) / 100 if stripped.endswith("%") else float(stripped)
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is not between 0 and 100 %")
    return value


def parse_ns(text: str) -> int:
    """``100ms``, ``1.5 s``, ``250 us`` or ``2min`` -> nanoseconds; a bare number is seconds.

    Raises:
        ValueError: not a time, or negative.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|min)?\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not a time")
    sizes = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000}
    return round(float(match[1]) * sizes[match[2] or "s"])
