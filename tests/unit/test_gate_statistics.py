"""The exact tests, against enumeration and published values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.gate.statistics import (
    paired_rule,
    rank_sum_p,
    robust_spread,
    shift_interval,
    signed_rank_p,
    signed_rank_tail,
    visible_change,
    walsh_interval,
)
from perfscope.gate.stopping import first_look, settled

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


def test_an_interval_of_pairs_covers_the_centre_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        low, high = walsh_interval(draw.normal(0.03, 0.05, 8)) or (math.nan, math.nan)
        inside += low <= 0.03 <= high
    assert 0.94 <= inside / 2000 <= 0.985
    assert walsh_interval([0.1]) is None
    assert walsh_interval([1, 2, 3, 4, 5]) == (1.0, 5.0)


def test_an_interval_of_two_sides_covers_the_shift_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    inside = 0
    for _ in range(2000):
        low, high = shift_interval(draw.normal(0, 1, 7), draw.normal(1, 1, 9)) or (math.nan, math.nan)
        inside += low <= 1 <= high
    assert 0.94 <= inside / 2000 <= 0.985
    assert shift_interval([1.0], [1.0, 2.0]) is None


@pytest.mark.parametrize(("spread", "num"), [(0.02, 8), (0.05, 8), (0.05, 12)])
def test_the_visible_change_is_found_about_four_times_out_of_five(spread: float, num: int) -> None:
    draw = np.random.default_rng(5)
    change = visible_change(spread, num, 0.05, paired=True)
    ratios = np.exp(draw.normal(math.log1p(change), spread, (4000, num)))
    assert paired_rule(ratios, 0.05, 0.05).mean() == pytest.approx(0.8, abs=0.09)


def test_one_outlier_hardly_widens_the_robust_spread() -> None:
    values = np.random.default_rng(2).normal(0, 1, 200)
    assert robust_spread(values) == pytest.approx(1, rel=0.15)
    assert robust_spread([*values, 1e6]) == pytest.approx(robust_spread(values), rel=0.05)
    assert robust_spread([1.0]) == 0.0


@pytest.mark.parametrize(("planned", "with_look", "without"), [(8, 0.0454, 10 / 256), (12, 0.05, 0.05)])
def test_the_early_look_keeps_false_proofs_below_five_per_cent(
    planned: int, with_look: float, without: float
) -> None:
    draw = np.random.default_rng(7)
    ratios = np.exp(draw.normal(0, 0.03, (20_000, planned)))
    plain = paired_rule(ratios, 0.0, 0.05)
    look = first_look(planned)
    early = (ratios[:, :look] > 1).all(axis=1)
    assert plain.mean() <= without + 0.004
    assert (plain | early).mean() <= with_look + 0.004
    assert with_look <= 0.05


@given(
    st.lists(st.floats(0.8, 1.3), min_size=8, max_size=8),
    st.sampled_from([0.0, 0.03, 0.05, 0.1]),
)
def test_ending_early_for_a_pass_never_changes_the_verdict(ratios: list[float], threshold: float) -> None:
    final = bool(paired_rule(np.array([ratios]), threshold, 0.05)[0])
    for done in range(5, 8):
        reason = settled(ratios[:done], 8, threshold, 0.05, 5)
        if reason and not reason.startswith("all of the first"):
            assert not final, (done, reason)


def test_nothing_is_settled_before_the_fewest_pairs_nor_after_the_last() -> None:
    assert settled([0.9] * 4, 8, 0.05, 0.05, 5) == ""
    assert settled([0.9] * 5, 8, 0.05, 0.05, 5) != ""
    assert settled([1.2] * 5, 8, 0.05, 0.05, 5) == ""
    assert "slower by more than the threshold" in settled([1.2] * 6, 8, 0.05, 0.05, 5)
    assert settled([1.2] * 8, 8, 0.05, 0.05, 5) == ""
