"""Series of runs: when the newest level counts as slower, and which change is named for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from perfscope.gate.run_series import RunSeries, SeriesRun, series_of

DAY_NS = 86_400 * 10**9


def series_with(levels_ms: Sequence[float]) -> RunSeries:
    """A series of ten sessions on each level."""
    rng = np.random.default_rng(7)
    values = np.repeat(levels_ms, 10) * 1e6 * (1 + 0.002 * rng.standard_normal(10 * len(levels_ms)))
    (series,) = series_of(
        SeriesRun(
            key=("train",), name=f"{day}", started_unix_ns=day * DAY_NS, commit=f"{day:07x}", step_ns=value
        )
        for day, value in enumerate(values.tolist())
    )
    assert len(series.of_steps.changes) == len(levels_ms) - 1
    return series


@pytest.mark.parametrize(
    ("levels_ms", "session"),
    [
        ((40, 60), 10),
        ((40, 60, 56), 10),  # recovered in part
        ((40, 60, 63.5), 10),
        ((40, 60, 40, 44), 30),  # the larger rise was undone
        ((60, 40, 41.6, 43.4), 30),  # two small steps add up
    ],
)
def test_a_step_above_the_lowest_level_is_slower(levels_ms: tuple[float, ...], session: int) -> None:
    series = series_with(levels_ms)
    assert series.is_slower
    assert series.largest_rise is not None
    assert abs(series.largest_rise.index - session) <= 1


@pytest.mark.parametrize("levels_ms", [(60, 40), (40, 60, 40), (40, 41.2)])
def test_a_step_near_the_lowest_level_is_not_slower(levels_ms: tuple[float, ...]) -> None:
    series = series_with(levels_ms)
    assert not series.is_slower
    assert series.largest_rise is None
