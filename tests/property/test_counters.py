"""Counter arithmetic against the truth it was made from: nothing lost to wraps, nothing below zero."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analysis.machine.counters import counted_between, on_grid, rates, thin
from perfscope.rundir.metrics import COUNTER, QUALITIES, SATURATING
from perfscope.rundir.samples import SampleSeries

SATURATED = QUALITIES.index("saturated")
limits = st.sampled_from([2**8, 2**32, 262_143_328_850, 2**48])
gaps = st.lists(st.integers(1, 10**9), min_size=1, max_size=40)


def series(
    raw: list[int], steps: list[int], *, limit: int | None = None, kind: str = COUNTER, scale: float = 1.0
) -> SampleSeries:
    at = np.concatenate(([0], np.cumsum(steps))).astype(np.int64) + 7_000_000_000_000
    return SampleSeries(
        collector="made",
        metric="made",
        labels={},
        unit="bytes",
        kind=kind,
        source="",
        limit=limit,
        scale=scale,
        t_begin_ns=at,
        t_end_ns=at,
        values=np.array([(v + 2**63) % 2**64 - 2**63 for v in raw], dtype=np.int64),
        quality=np.zeros(len(raw), np.uint8),
        segment=np.zeros(len(raw), np.int32),
    )


@given(st.data(), limits, gaps)
def test_the_sum_of_differences_is_the_truth_however_often_the_counter_wraps(
    data: st.DataObject, limit: int, steps: list[int]
) -> None:
    start = data.draw(st.integers(0, limit - 1))
    counted = data.draw(st.lists(st.integers(0, limit - 1), min_size=len(steps), max_size=len(steps)))
    truth = start + np.concatenate(([0], np.cumsum(np.array(counted, dtype=object))))
    found = rates(series([int(value % limit) for value in truth], steps, limit=limit))
    assert found.total == float(sum(counted))
    assert found.delta.tolist() == [float(one) for one in counted]
    assert (found.per_s >= 0).all() and found.num_resets == 0


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
def test_unsigned_64_bit_counters_pass_both_2_63_and_2_64(start: int, counted: list[int]) -> None:
    truth = [start]
    for one in counted:
        truth.append((truth[-1] + one) % 2**64)
    found = rates(series(truth, [1] * len(counted), scale=0.5))
    assert found.total == sum(counted) * 0.5 and found.num_resets == 0


@given(st.lists(st.integers(0, 2**62), min_size=2, max_size=40))
def test_a_counter_that_goes_backwards_loses_that_interval_and_no_other(raw: list[int]) -> None:
    found = rates(series(raw, [10] * (len(raw) - 1)))
    rises = [b - a for a, b in itertools.pairwise(raw) if b >= a]
    assert found.num_resets == len(raw) - 1 - len(rises)
    assert found.total == float(sum(rises))
    assert (found.delta >= 0).all()


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 20_000))
def test_a_counter_that_sticks_gives_no_rate_from_its_top_on(counted: list[int], top: int) -> None:
    truth = np.minimum(np.concatenate(([0], np.cumsum(counted))), top)
    found = rates(series(truth.tolist(), [10] * len(counted), limit=top, kind=SATURATING))
    below = int((truth < top).sum())
    assert len(found.delta) == max(0, below - 1)
    assert found.num_saturated == len(counted) - len(found.delta)
    assert found.worst_quality == ("saturated" if found.num_saturated else "exact")


@given(
    st.lists(st.tuples(st.integers(1, 10**10), st.floats(-1e6, 1e6)), min_size=1, max_size=300),
    st.integers(2, 60),
)
def test_thinning_keeps_the_least_the_greatest_and_the_mean(
    points: list[tuple[int, float]], most: int
) -> None:
    at = np.cumsum([gap for gap, _ in points]).astype(np.int64) + 1_780_000_000_000_000_000
    values = np.array([value for _, value in points])
    weight = np.arange(1.0, len(points) + 1)
    found = thin(at, values, weight, most)
    shown = np.isfinite(found.mean)
    assert len(found.t_ns) <= most
    assert (np.diff(found.t_ns) >= 0).all()
    assert found.low[shown].min() == values.min() and found.high[shown].max() == values.max()
    assert (found.low[shown] <= found.mean[shown] + 1e-6).all()
    assert (found.mean[shown] <= found.high[shown] + 1e-6).all()
    mean = np.average(found.mean[shown], weights=found.weight[shown])
    assert mean == pytest.approx(np.average(values, weights=weight), rel=1e-9, abs=1e-6)


@given(gaps, st.data())
def test_what_was_counted_between_two_times_adds_up(steps: list[int], data: st.DataObject) -> None:
    counted = data.draw(st.lists(st.integers(0, 10**6), min_size=len(steps), max_size=len(steps)))
    found = rates(series(np.concatenate(([0], np.cumsum(counted))).tolist(), steps))
    start, end = int(found.start_ns[0]), int(found.end_ns[-1])
    cut = data.draw(st.integers(start, end))
    parts = [counted_between(found, a, b) for a, b in ((start - 5, cut), (cut, end + 5))]
    assert sum(part for part, _ in parts) == pytest.approx(found.total)
    assert abs(sum(covered for _, covered in parts) - (end - start)) <= 2
    grid = on_grid(found, start, end, max(1, (end - start) // 7))
    seconds = (grid.end_ns - grid.start_ns) / 1e9
    whole = counted_between(found, int(grid.start_ns[0]), int(grid.end_ns[-1]))[0]
    assert float((grid.per_s * seconds).sum()) == pytest.approx(whole, rel=1e-6, abs=1e-6)
