"""The exact tests, against enumeration and published values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.gate.sequential import fewest_pairs, looks
from perfscope.gate.settings import Settings
from perfscope.gate.statistics import (
    rank_sum_p,
    robust_spread,
    shift_interval,
    signed_rank_p,
    signed_rank_tail,
    visible_change,
    visible_shift,
    walsh_interval,
)
from perfscope.gate.stopping import sequential_rule, settled

finite = st.floats(-1, 1, allow_subnormal=False)


@pytest.mark.parametrize("num", [1, 2, 5, 8])
def test_the_signed_rank_distribution_is_that_of_all_sign_patterns(num: int) -> None:
    sums = [
        sum(rank for rank, above in zip(range(1, num + 1), signs, strict=True) if above)
        for signs in itertools.product((0, 1), repeat=num)
    ]
    for value in range(num * (num + 1) // 2 + 1):
        assert signed_rank_tail(num)[value] == pytest.approx(sum(s >= value for s in sums) / 2**num)


def test_eight_slower_pairs_have_p_one_in_256_and_three_faster_ones_prove_nothing() -> None:
    assert signed_rank_p([0.01 * k for k in range(1, 9)]) == pytest.approx(1 / 256)
    assert signed_rank_p([-0.01, -0.02, -0.03, 0.04, 0.05, 0.06, 0.07, 0.08]) == pytest.approx(14 / 256)
    assert signed_rank_p([]) == 1.0


@given(st.lists(finite, min_size=1, max_size=12))
def test_ties_and_zeros_never_make_a_p_value_smaller(values: list[float]) -> None:
    nudged = [value + 1e-9 * (position + 1) for position, value in enumerate(values)]
    assert signed_rank_p(values) >= signed_rank_p(sorted(abs(v) for v in values if v) or [1.0]) - 1e-12
    assert 0 < signed_rank_p(values) <= 1
    assert signed_rank_p([0.0] * len(values)) == 1.0
    assert signed_rank_p([abs(v) + 1 for v in nudged]) == pytest.approx(0.5 ** len(values))


@given(st.lists(finite, min_size=2, max_size=6, unique=True), st.lists(finite, min_size=2, max_size=6))
def test_the_rank_sum_p_value_is_the_share_of_all_ways_to_split_the_values(
    base: list[float], head: list[float]
) -> None:
    every = np.array(base + head)
    ranks = np.array([(every < v).sum() + (every == v).sum() / 2 for v in every])
    observed = ranks[len(base) :].sum()
    splits = [ranks[list(chosen)].sum() for chosen in itertools.combinations(range(len(every)), len(head))]
    expected = sum(value >= observed - 1e-9 for value in splits) / len(splits)
    assert rank_sum_p(base, head) == pytest.approx(expected)


def test_the_normal_approximation_of_many_runs_continues_the_exact_values() -> None:
    draw = np.random.default_rng(3)
    for shift in (0.0, 0.3, 0.6):
        base, head = draw.normal(0, 1, 30), draw.normal(shift, 1, 30)
        exact = rank_sum_p(base, head)
        more = rank_sum_p(np.append(base, -9.0), np.append(head, -9.5))  # 62 values: approximated
        assert more == pytest.approx(exact, abs=0.02)
    assert rank_sum_p([1.0] * 40, [1.0] * 40) == 1.0


def test_an_interval_of_pairs_covers_the_center_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        low, high = walsh_interval(draw.normal(0.03, 0.05, 8)) or (math.nan, math.nan)
        inside += low <= 0.03 <= high
    assert inside / 2000 >= 0.955, "exact: 96.1 % for 8 pairs"
    assert walsh_interval([0.1]) is None
    assert walsh_interval([1, 2, 3, 4, 5]) == (1.0, 5.0)


@pytest.mark.parametrize("num", [6, 8, 12])
def test_an_interval_of_pairs_is_the_narrowest_that_reaches_95_per_cent(num: int) -> None:
    values = np.arange(1.0, num + 1) ** 2  # Walsh averages without ties would do; the places are what counts
    low, _ = walsh_interval(values) or (0.0, 0.0)
    averages = np.sort([(a + b) / 2 for at, a in enumerate(values) for b in values[at:]])
    place = int(np.searchsorted(averages, low))
    tail = signed_rank_tail(num)
    total = num * (num + 1) // 2
    assert tail[total - place] <= 0.025, "P(W- <= place) must fit into half of 5 %"
    assert tail[total - place - 1] > 0.025


def test_an_interval_of_two_sides_covers_the_shift_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    inside = 0
    for _ in range(2000):
        low, high = shift_interval(draw.normal(0, 1, 7), draw.normal(1, 1, 9)) or (math.nan, math.nan)
        inside += low <= 1 <= high
    assert 0.94 <= inside / 2000 <= 0.985
    assert shift_interval([1.0], [1.0, 2.0]) is None


@pytest.mark.parametrize("spread", [0.03, 0.06, 0.09])
def test_the_visible_change_is_found_about_four_times_out_of_five(spread: float) -> None:
    draw = np.random.default_rng(5)
    at = looks(8, 16)
    change = visible_change(spread, at, 0.05, 0.01)
    ratios = np.exp(draw.normal(math.log1p(change), spread, (4000, 16)))
    found, _ = sequential_rule(ratios, at, 0.05, 0.01, 5)
    assert found.mean() == pytest.approx(0.8, abs=0.1)


def test_the_visible_shift_of_unpaired_runs_is_found_about_four_times_out_of_five() -> None:
    draw = np.random.default_rng(6)
    shift = visible_shift(0.03, 10, 0.06, 0.01)
    found = 0
    for _ in range(400):
        base, head = draw.normal(0, 0.03, 10), draw.normal(math.log1p(shift), 0.03, 10)
        is_proven = rank_sum_p(base, head) < 0.01
        found += bool(is_proven and np.median(head) - np.median(base) > math.log1p(0.06))
    assert found / 400 == pytest.approx(0.8, abs=0.1)


def test_one_outlier_hardly_widens_the_robust_spread() -> None:
    values = np.random.default_rng(2).normal(0, 1, 200)
    assert robust_spread(values) == pytest.approx(1, rel=0.15)
    assert robust_spread([*values, 1e6]) == pytest.approx(robust_spread(values), rel=0.05)
    assert robust_spread([1.0]) == 0.0


def final_only(ratios: np.ndarray, at: tuple[int, ...], threshold: float, alpha: float) -> bool:
    """The looks alone, one check at a time, as docs/check.md has them."""
    for look in at:
        so_far = ratios[:look]
        large = bool(np.median(so_far) > 1 + threshold)
        if large and signed_rank_p(np.log(so_far)) < alpha:
            return True
        if not large:
            return False
    return False


@given(
    st.lists(st.floats(0.8, 1.3), min_size=16, max_size=16),
    st.sampled_from([0.0, 0.03, 0.05, 0.1]),
    st.sampled_from([0.01, 0.05]),
)
def test_ending_early_for_a_pass_never_changes_the_verdict(
    ratios: list[float], threshold: float, alpha: float
) -> None:
    at = looks(8, 16)
    regression, used = sequential_rule(np.array([ratios]), at, threshold, alpha, 5)
    expected = final_only(np.array(ratios), at, threshold, alpha)
    if regression[0] and used[0] < 8:  # the one early end that is a judgment of its own
        assert min(ratios[: used[0]]) > 1 + 2 * threshold
    else:
        assert bool(regression[0]) == expected


@given(st.lists(st.floats(0.8, 1.3), min_size=16, max_size=16))
def test_pair_by_pair_and_all_at_once_end_at_the_same_pair(ratios: list[float]) -> None:
    at = looks(8, 16)
    _, used = sequential_rule(np.array([ratios]), at, 0.05, 0.02, 5)
    first = next(done for done in range(1, 17) if settled([(ratios[:done], 0.05)], at, 0.02, 5))
    assert first == used[0]


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.06])
def test_false_alarms_stay_below_two_per_cent_and_ten_per_cent_is_found(spread: float) -> None:
    draw = np.random.default_rng(11)
    noise = np.exp(draw.normal(0, spread * math.sqrt(2), (4000, 16)))
    at = looks(8, 16)
    wrong, used = sequential_rule(noise, at, 0.05, Settings().alpha, 5)
    found, _ = sequential_rule(1.1 * noise, at, 0.05, Settings().alpha, 5)
    clear, _ = sequential_rule(1.2 * noise, at, 0.05, Settings().alpha, 5)
    assert wrong.mean() <= 0.02
    assert found.mean() >= 0.80
    assert clear.mean() >= 0.97
    assert (used > 0).all() and used.mean() < 8


def test_a_check_looks_at_its_verdict_at_most_three_times() -> None:
    assert looks(8, 16) == (8, 12, 16)
    assert looks(8, 8) == (8,)
    assert looks(8, 9) == (8, 9)
    assert looks(8, 3) == (8,)


@pytest.mark.parametrize(("alpha", "fewest"), [(0.5, 2), (0.05, 5), (0.02, 6), (0.01, 7)])
def test_the_fewest_pairs_are_those_that_could_prove_something(alpha: float, fewest: int) -> None:
    assert fewest_pairs(alpha) == fewest
    assert 0.5**fewest < alpha <= 0.5 ** (fewest - 1)


def test_nothing_is_settled_before_the_fewest_pairs() -> None:
    at = (8, 12, 16)
    assert settled([([0.9] * 4, 0.05)], at, 0.02, 5) == ""
    assert "median can no longer" in settled([([0.9] * 5, 0.05)], at, 0.02, 5)
    assert settled([([1.2] * 5, 0.05)], at, 0.02, 5) == ""
    assert "more than twice the threshold" in settled([([1.2] * 6, 0.05)], at, 0.02, 5)
    assert settled([([1.07] * 7, 0.05)], at, 0.02, 5) == ""
    assert settled([([1.07] * 8, 0.05)], at, 0.02, 5) == "decided after 8 pairs"
    in_doubt = [1.09, 0.9, 1.08, 0.9, 1.1, 1.12, 0.9, 1.1]
    assert settled([(in_doubt, 0.05)], at, 0.02, 5) == ""
    assert settled([(in_doubt + [0.9] * 8, 0.05)], at, 0.02, 5) != ""


def test_a_check_goes_on_while_any_metric_that_can_fail_it_may_still_do_so() -> None:
    at = (8, 12, 16)
    calm, worse = [1.0] * 5, [1.3] * 5
    assert settled([(calm, 0.05)], at, 0.02, 5)
    assert settled([(calm, 0.05), (worse, 0.10)], at, 0.02, 5) == ""
    assert "twice the threshold" in settled([([1.0] * 6, 0.05), ([1.3] * 6, 0.10)], at, 0.02, 5)
    assert settled([], at, 0.02, 5) == ""
