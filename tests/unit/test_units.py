"""How numbers look: one rounding, one sign, and no unit that the rounding leaves."""

from __future__ import annotations

import pytest

from perfscope import units
from perfscope.reports.values import Unit, format_value


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("value", [-0.0, -1e-9, -0.0004])
def test_what_reads_zero_has_no_sign(unit: Unit, value: float) -> None:
    text = format_value(unit, value)
    small = unit is Unit.FACTOR and value
    assert bool(small) or not text.startswith("-"), text


@pytest.mark.parametrize(
    ("value", "text"),
    [(9.994, "9.99"), (9.996, "10.0"), (33.25, "33.2"), (99.96, "100"), (1234.5, "1,234"), (-0.001, "0.00")],
)
def test_three_digits_after_rounding(value: float, text: str) -> None:
    assert units.three_digits(value) == text
    assert format_value(Unit.SAMPLES, value) == text


def test_what_rounds_to_a_thousand_is_one_of_the_next_unit() -> None:
    assert units.format_ns(999_400) == "999 µs"
    assert units.format_ns(999_600) == "1.00 ms"
    assert units.format_bytes(1024**2 - 600) == "1,023 KiB"
    assert units.format_bytes(1024**2 - 400) == "1.00 MiB"
    assert units.format_si(999_600, "B/s") == "1.00 MB/s"


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.088, "+8.8 %"), (-0.0812, "−8.1 %"), (-0.0004, "0.0 %"), (0.0004, "0.0 %")]
)
def test_changes_have_a_sign_unless_they_read_zero(ratio: float, text: str) -> None:
    assert units.format_change(ratio) == text
