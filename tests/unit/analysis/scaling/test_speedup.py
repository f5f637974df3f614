"""Speedup, efficiency, Karp-Flatt and the mode, on series whose answer is known, and on hostile ones."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from perfscope.analysis.scaling.points import ScalePoint, clean_points
from perfscope.analysis.scaling.speedup import detect_mode, efficiency_of, karp_flatt_of, speedup_of
from perfscope.messages.scaling import mode_problem


def test_amdahl_series_gives_its_serial_part_at_every_n() -> None:
    speedups = {num: speedup_of(100 / (0.1 + 0.9 / num), 100) for num in (2, 4, 8)}
    assert [karp_flatt_of(speedup, num) for num, speedup in speedups.items()] == pytest.approx([0.1] * 3)
    assert efficiency_of(speedups[8], 8) == pytest.approx(1 / (0.1 + 0.9 / 8) / 8)


def test_without_one_rank_the_formulas_generalize() -> None:
    assert efficiency_of(speedup_of(600.0, 200.0), 8, reference_ranks=2) == pytest.approx(0.75)


def test_better_than_ideal_is_not_clipped() -> None:
    speedup = speedup_of(230.0, 100.0)
    assert efficiency_of(speedup, 2) == pytest.approx(1.15)
    assert karp_flatt_of(speedup, 2) < 0


@pytest.mark.parametrize(
    ("samples", "mode", "words"),
    [
        ({1: 32, 2: 32, 4: 32}, "weak", "stay the same"),
        ({1: 32, 2: 16, 4: 8}, "strong", "32 samples per step are divided"),
        ({1: 100, 3: 34, 7: 15}, "strong", "divided"),
        ({1: 32, 2: 32, 4: 8}, None, "neither"),
        ({1: 32, 2: None, 4: 8}, None, "N = 2"),
        ({1: 32, 2: float("nan")}, None, "N = 2"),
        ({2: 32}, None, "one number of ranks"),
        ({}, None, "one number of ranks"),
        ({1: 1, 2: 1}, "weak", "stay the same"),
    ],
)
def test_the_mode_is_read_from_samples_per_rank(
    samples: Mapping[int, float | None], mode: str | None, words: str
) -> None:
    told, reason = detect_mode(samples)
    text = mode_problem(reason, samples)
    assert told == mode
    assert words in text
    assert mode is not None or "--mode" in text


def test_impossible_throughputs_are_left_out() -> None:
    series = {4: (float("nan"), 380.0), 1: (100.0,), 2: (0.0, -5.0), 8: (), 0: (1.0,), -3: (1.0,)}
    clean = clean_points(ScalePoint(num_ranks=num, throughputs=each) for num, each in series.items())
    assert [(point.num_ranks, point.throughputs) for point in clean] == [(1, (100.0,)), (4, (380.0,))]


def test_the_same_n_twice_counts_as_repeats() -> None:
    points = [
        ScalePoint(num_ranks=2, throughputs=(200.0,), samples_per_rank=16),
        ScalePoint(num_ranks=1, throughputs=(100.0,), samples_per_rank=32),
        ScalePoint(num_ranks=2, throughputs=(190.0,), samples_per_rank=20),
    ]
    clean = clean_points(points)
    assert clean[1].throughputs == (200.0, 190.0)
    assert clean[1].samples_per_rank is None


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_the_formulas_refuse_what_is_no_throughput(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        speedup_of(bad, 1.0)
    with pytest.raises(ValueError, match="above 0"):
        karp_flatt_of(bad, 2)
    with pytest.raises(ValueError, match="two ranks"):
        karp_flatt_of(1.0, 1)
