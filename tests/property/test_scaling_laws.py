"""The algebra of scaling laws: limits, inverses and planted parameters, for all parameters."""

from __future__ import annotations

import pytest
from first_principles import (
    efficiency_with_overhead,
    largest_overhead_ratio,
    most_workers,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analysis.predict.costs import LinkCost, algorithms, collective_time_s
from perfscope.analysis.scaling.fits import fit_all, fit_amdahl, fit_gustafson, fit_usl
from perfscope.analysis.scaling.points import ScalePoint, clean_points
from perfscope.analysis.scaling.speedup import (
    efficiency_of,
    karp_flatt_of,
    speedup_of,
)
from perfscope.volumes import bus_factor

SERIAL = st.floats(0.001, 0.9)
RATE = st.floats(0.01, 1e6)
RANKS = (1, 2, 3, 4, 8, 16, 64)
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather")


def _amdahl(serial: float, num: int) -> float:
    return 1 / (serial + (1 - serial) / num)


@given(serial=st.floats(1e-6, 1), num=st.integers(2, 100_000))
def test_amdahl_lies_between_one_and_its_limit_and_karp_flatt_gives_it_back(serial: float, num: int) -> None:
    speedup = _amdahl(serial, num)
    assert 1 - 1e-12 <= speedup <= min(num, 1 / serial) * (1 + 1e-12)
    assert karp_flatt_of(speedup, num) == pytest.approx(serial, rel=1e-6, abs=1e-9)


@given(speedup=st.floats(0.01, 1e4), num=st.integers(2, 10_000))
def test_karp_flatt_has_the_sign_of_what_is_lost(speedup: float, num: int) -> None:
    assert (karp_flatt_of(speedup, num) > 0) == (1 / speedup > 1 / num)


@settings(deadline=None, max_examples=40)
@given(serial=SERIAL, rate=RATE)
def test_amdahl_and_gustafson_recover_planted_parameters(serial: float, rate: float) -> None:
    strong = fit_amdahl(
        ScalePoint(num_ranks=num, throughputs=(rate * _amdahl(serial, num),)) for num in RANKS
    )
    if strong.refused is None:
        assert strong.parameters["f"] == pytest.approx(serial, rel=1e-6)
        assert strong.parameters["throughput_1"] == pytest.approx(rate, rel=1e-6)
    else:
        assert serial > 0.5  # nearly all serial is nearly a constant
    weak = fit_gustafson(
        ScalePoint(num_ranks=num, throughputs=(rate * (num - serial * (num - 1)),)) for num in RANKS
    )
    assert weak.refused is None
    assert weak.parameters["f"] == pytest.approx(serial, rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(alpha=st.floats(0, 0.3), beta=st.floats(1e-6, 0.01), rate=RATE)
def test_usl_recovers_planted_parameters_and_its_peak(alpha: float, beta: float, rate: float) -> None:
    fit = fit_usl(
        ScalePoint(
            num_ranks=num, throughputs=(rate * num / (1 + alpha * (num - 1) + beta * num * (num - 1)),)
        )
        for num in RANKS
    )
    assert fit.refused is None
    assert fit.parameters["gamma"] == pytest.approx(rate, rel=1e-6)
    assert fit.parameters["alpha"] == pytest.approx(alpha, rel=1e-5, abs=1e-8)
    assert fit.parameters["beta"] == pytest.approx(beta, rel=1e-5)
    peak = fit.parameters["N_peak"]
    assert peak == pytest.approx(((1 - alpha) / beta) ** 0.5, rel=1e-4)
    top = fit.predict(peak or 1, beyond=True).value or 0
    for beside in ((peak or 1) * 0.9, (peak or 1) * 1.1):
        if beside >= 1:
            assert (fit.predict(beside, beyond=True).value or 0) <= top * (1 + 1e-9)


@given(own=RATE, base=RATE, num=st.integers(1, 4096), reference=st.integers(1, 64))
def test_strong_efficiency_is_the_ratio_of_per_rank_throughputs(
    own: float, base: float, num: int, reference: int
) -> None:
    strong = efficiency_of(speedup_of(own, base), num, reference)
    assert strong == pytest.approx((own / num) / (base / reference), rel=1e-9)


@settings(deadline=None, max_examples=60)
@given(
    series=st.dictionaries(
        st.integers(-2, 40), st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=4), max_size=7
    )
)
def test_any_figures_give_sorted_points_above_zero(series: dict[int, list[float]]) -> None:
    points = clean_points(ScalePoint(num_ranks=num, throughputs=tuple(each)) for num, each in series.items())
    ranks = [point.num_ranks for point in points]
    assert ranks == sorted(set(ranks)) and all(num >= 1 for num in ranks)
    for point in points:
        assert speedup_of(point.throughput, points[0].throughput) >= 0


@settings(deadline=None, max_examples=80)
@given(
    series=st.dictionaries(
        st.sampled_from((1, 2, 3, 4, 6, 8, 16, 64, 1000, 10**12)),
        st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-6, 1e6), max_size=3),
        min_size=3,
    )
)
def test_any_figures_give_a_fit_within_its_interval_or_a_refusal(series: dict[int, list[float]]) -> None:
    for fit in fit_all(ScalePoint(num_ranks=num, throughputs=tuple(each)) for num, each in series.items()):
        for num in (1, 5, 64):
            value, low, high = fit.predict(num, beyond=True)
            if value is None or low is None or high is None:
                assert fit.refused
            else:
                assert low <= value <= high < float("inf")


@given(num=st.integers(2, 512), target=st.floats(0.01, 0.999))
def test_the_overhead_lemma_and_its_inverses_agree(num: int, target: float) -> None:
    ratio = largest_overhead_ratio(num, target)
    if ratio > 1e6:  # at targets of 1/G any overhead will do
        return
    assert efficiency_with_overhead(num, ratio) == pytest.approx(target, rel=1e-6)
    workers = most_workers(ratio, target)
    assert abs(workers - num) <= 1 and efficiency_with_overhead(int(workers), ratio) >= target * (1 - 1e-6)


@given(
    collective=st.sampled_from(COLLECTIVES),
    num=st.integers(2, 300),
    size=st.integers(0, 10**10).map(float),
    alpha=st.floats(0, 1e-3),
    beta=st.floats(1e-12, 1e-7),
)
def test_no_formula_is_faster_than_its_volume_or_its_latency(
    collective: str, num: int, size: float, alpha: float, beta: float
) -> None:
    factor = bus_factor(collective, num)
    assert factor is not None
    for algorithm in algorithms(collective):
        seconds = collective_time_s(collective, num, size, LinkCost(alpha, beta), algorithm)
        assert seconds >= (alpha + factor * size * beta) * (1 - 1e-9)
        more = collective_time_s(collective, num, 2 * size, LinkCost(alpha, beta), algorithm)
        assert seconds <= more <= 2 * seconds * (1 + 1e-9)
