"""Scaling laws on planted parameters, on noise without a law, and their refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perfscope.analysis.scaling.fit import Fit
from perfscope.analysis.scaling.fits import fit_all, fit_amdahl, fit_gustafson, fit_usl
from perfscope.analysis.scaling.pmnf import exponents, fit_pmnf
from perfscope.analysis.scaling.points import ScalePoint
from perfscope.messages.scaling import note_text, refusal_text
from perfscope.vocabulary.scaling import FitNote, FitRefusal, RefusedFit

RANKS = (1, 2, 4, 8, 16, 32)


def _points(
    law: Callable[[int], float], noise: float = 0.0, repeats: int = 1, seed: int = 0
) -> list[ScalePoint]:
    random = np.random.default_rng(seed)
    return [
        ScalePoint(
            num_ranks=num,
            throughputs=tuple(law(num) * (1 + noise * random.standard_normal()) for _ in range(repeats)),
            samples_per_rank=32,
        )
        for num in RANKS
    ]


def _usl(num: int) -> float:
    return 100 * num / (1 + 0.02 * (num - 1) + 0.001 * num * (num - 1))


def _within(fit: Fit, name: str, truth: float) -> bool:
    interval = fit.intervals[name]
    return interval is not None and interval.low <= truth <= interval.high


def test_planted_laws_are_found_with_intervals_that_hold_them() -> None:
    held = 0
    for seed in range(20):
        amdahl = fit_amdahl(_points(lambda num: 100 / (0.05 + 0.95 / num), 0.01, 5, seed))
        gustafson = fit_gustafson(_points(lambda num: 100 * (num - 0.1 * (num - 1)), 0.01, 5, seed))
        usl = fit_usl(_points(_usl, 0.01, 5, seed))
        assert amdahl.parameters["f"] == pytest.approx(0.05, rel=0.1)
        assert gustafson.parameters["f"] == pytest.approx(0.1, rel=0.2)
        assert usl.parameters["N_peak"] == pytest.approx((0.98 / 0.001) ** 0.5, rel=0.1)
        held += _within(amdahl, "f", 0.05) + _within(gustafson, "f", 0.1) + _within(usl, "beta", 0.001)
    assert held >= 48  # of 60; a 95 % interval from six points


def test_a_prediction_carries_an_interval_that_widens_outwards() -> None:
    fit = fit_usl(_points(_usl, 0.02, 3))
    inside, outside = fit.predict(16), fit.predict(128)
    assert inside.value is not None and inside.low is not None and inside.high is not None
    assert outside.value is not None and outside.low is not None and outside.high is not None
    assert inside.value == pytest.approx(_usl(16), rel=0.03)
    assert inside.low <= inside.value <= inside.high
    assert (inside.high - inside.low) / inside.value < (outside.high - outside.low) / outside.value


def test_beyond_four_times_the_largest_n_nothing_is_said_unless_asked() -> None:
    fit = fit_amdahl(_points(lambda num: 100 / (0.05 + 0.95 / num)))
    assert fit.predict(128).value is not None
    assert fit.predict(129) == (None, None, None)
    too_far = fit.refusal_at(129)
    assert too_far is not None
    assert "4 times the largest measured N = 32" in refusal_text(too_far, fit.name)
    asked = fit.predict(1024, beyond=True)
    assert asked.value == pytest.approx(100 / (0.05 + 0.95 / 1024), rel=1e-6)
    assert asked.low is not None and asked.high is not None
    assert fit.predict(0) == (None, None, None)
    assert fit.predict(float("nan"), beyond=True) == (None, None, None)


@pytest.mark.parametrize(("fitter", "needed"), [(fit_amdahl, 3), (fit_gustafson, 3), (fit_usl, 4)])
def test_too_few_different_n_are_refused_in_words(
    fitter: Callable[[list[ScalePoint]], Fit], needed: int
) -> None:
    few = _points(_usl)[: needed - 1]
    fit = fitter([*few, *few])  # the same N again is no further N
    assert fit.refused is not None
    assert f"at least {needed} different numbers of ranks; there are {needed - 1}" in refusal_text(
        fit.refused, fit.name
    )
    assert fit.parameters == {} and fit.predict(2) == (None, None, None)
    assert fitter([]).refused is not None


@pytest.mark.parametrize("fitter", [fit_amdahl, fit_gustafson, fit_usl])
def test_throughput_that_does_not_follow_n_is_left_a_constant(
    fitter: Callable[[list[ScalePoint]], Fit],
) -> None:
    for seed in range(20):
        fit = fitter(_points(lambda _num: 100.0, 0.03, 3, seed))
        if fit.refused is None:  # noise may look like a law, never like one that leads anywhere
            value = fit.predict(128, beyond=True).value
            assert value is not None and 50 < value < 200
        else:
            assert fit.refused.kind is FitRefusal.CONSTANT_AS_GOOD


def test_an_exact_constant_is_never_a_law() -> None:
    assert all(
        fit.refused or fit.name == "constant"
        for fit in fit_all(_points(lambda _num: 100.0))
        if fit.name != "pmnf"
    )


def test_superlinear_series_stop_at_the_bound_and_say_so() -> None:
    fit = fit_amdahl(_points(lambda num: 100 * num**1.1))
    assert fit.parameters["f"] == 0
    assert [one.note for one in fit.notes] == [FitNote.ONE_REPEAT, FitNote.NO_SERIAL_PART]
    usl = fit_usl(_points(lambda num: 100.0 * num))
    assert usl.parameters["N_peak"] is None and FitNote.NO_PEAK in [one.note for one in usl.notes]


def test_hostile_points_do_not_reach_the_fit() -> None:
    clean = fit_usl(_points(_usl))
    dirty = fit_usl(
        [
            *reversed(_points(_usl)),
            ScalePoint(num_ranks=64, throughputs=(float("nan"), 0.0, -1.0)),
            ScalePoint(num_ranks=-1, throughputs=(5.0,)),
        ]
    )
    assert dirty.measured_ranks == RANKS
    assert dirty.parameters == clean.parameters


def test_usl_says_when_nothing_bounds_the_throughput_of_one_rank() -> None:
    falling = [ScalePoint(num_ranks=num, throughputs=(100 / (num - 1.5) ** 2,)) for num in (2, 4, 8, 16)]
    fit = fit_usl(falling)
    assert fit.refused is not None and "add N = 1" in refusal_text(fit.refused, fit.name)


def test_a_noisy_constant_does_not_blow_up_far_out() -> None:
    """1.05 s at p = 4..128 must stay about that at p = 4096, over hundreds of noises."""
    far = []
    for seed in range(300):
        random = np.random.default_rng(seed)
        noise, repeats = (0.02, 0.05, 0.1)[seed % 3], (1, 3, 5)[seed // 3 % 3]
        times = {
            num: [1.05 * (1 + noise * random.standard_normal()) for _ in range(repeats)]
            for num in (4, 8, 16, 32, 64, 128)
        }
        fit = fit_pmnf(times)
        assert fit.predict(4096) == (None, None, None)
        asked = fit.predict(4096, beyond=True)
        assert asked.value is not None and asked.low is not None and asked.high is not None
        assert asked.low <= asked.value <= asked.high
        far.append((asked.value, asked.low <= 1.05 <= asked.high))
    values = np.asarray([value for value, _ in far])
    assert values.max() < 10
    assert np.mean((values > 0.8) & (values < 1.4)) >= 0.99
    assert np.mean([held for _, held in far]) >= 0.95


@pytest.mark.parametrize(
    "medians", [(1.052, 1.046, 1.052, 1.051, 1.055, 1.077), (0.98, 1.002, 0.997, 1.018, 1.017, 1.117)]
)
def test_one_high_point_at_the_end_is_not_taken_for_a_steep_law(medians: tuple[float, ...]) -> None:
    """Constants with noise, the last point high by chance: p^2.25 fits the first and gives 112 s."""
    times = {num: [time] for num, time in zip((4, 8, 16, 32, 64, 128), medians, strict=True)}
    value = fit_pmnf(times).predict(4096, beyond=True).value
    assert value is not None and value < 3


@pytest.mark.parametrize(
    ("law", "term"),
    [
        (lambda num: 1 + 0.05 * np.log2(num), (0, 1)),
        (lambda num: 0.2 + 0.01 * num, (1, 0)),
        (lambda num: 2 * (num - 1) / num * 0.1, (-1, 0)),
        (lambda num: 0.1 + 8 / num, (-1, 0)),
        (lambda num: 1 + 1e-4 * num**2, (2, 0)),
        (lambda num: 1 + 0.002 * num * np.log2(num), (1, 1)),
    ],
)
def test_the_term_of_an_exact_series_is_found(law: Callable[[int], float], term: tuple[float, int]) -> None:
    fit = fit_pmnf({num: [float(law(num))] for num in (2, 4, 8, 16, 32, 64)})
    assert fit.name == "pmnf" and fit.term is not None
    assert (fit.term.power, fit.term.log_power) == term
    assert fit.predict(256).value == pytest.approx(law(256), rel=1e-6)


def test_growth_in_noise_is_seen_and_its_interval_holds_the_next_point() -> None:
    seen = held = 0
    for seed in range(30):
        random = np.random.default_rng(seed)
        times = {
            num: [(1 + 0.05 * np.log2(num)) * (1 + 0.02 * random.standard_normal()) for _ in range(3)]
            for num in (2, 4, 8, 16, 32, 64)
        }
        fit = fit_pmnf(times)
        low, high = fit.predict(128).low, fit.predict(128).high
        seen += fit.name == "pmnf"
        held += low is not None and high is not None and low <= 1.35 <= high
    assert seen >= 28
    assert held >= 24


def test_pmnf_takes_five_points_and_says_what_it_left_out() -> None:
    few = fit_pmnf({1: [1.0], 2: [1.1], 4: [0.0], 8: [float("nan")], 16: [1.2]})
    assert few.refused == RefusedFit(FitRefusal.TOO_FEW_SIZES, needed=5, available=3)
    fit = fit_pmnf({0: [1.0], 1: [0.0], **{num: [0.1 * num, float("inf")] for num in (2, 4, 8, 16, 32)}})
    assert fit.measured_ranks == (2, 4, 8, 16, 32)
    assert "7 figures" in note_text(fit.notes[0], fit.name)


def test_the_search_set_holds_every_term_once_and_no_constant() -> None:
    terms = exponents()
    assert len(set(terms)) == len(terms) == 7 + 2 + 19 * 3
    assert all(term.power or term.log_power for term in terms)


def test_every_law_of_a_series_is_given_and_the_same_twice() -> None:
    points = _points(_usl, 0.01, 3)
    first, second = fit_all(points), fit_all(list(reversed(points)))
    assert [fit.name for fit in first][:3] == ["amdahl", "gustafson", "usl"]
    assert first == second
    assert [fit.predict(64) for fit in first] == [fit.predict(64) for fit in second]
    assert first[3].what == "time per step (s)"
    bare = [ScalePoint(num_ranks=each.num_ranks, throughputs=each.throughputs) for each in points]
    assert fit_all(bare)[3].what == "time per sample (s)"
