"""Speedup, efficiency, Karp-Flatt and the mode, on series whose answer is known, and on hostile ones."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from perfscope.analysis.scaling.points import ScalePoint, clean_points
from perfscope.analysis.scaling.speedup import detect_mode, karp_flatt_of, measure_scaling, speedup_of
from perfscope.messages.missing import cause_text, figure_text


def _points(
    series: Mapping[int, tuple[float, ...]], samples: Mapping[int, float] | None = None
) -> list[ScalePoint]:
    return [
        ScalePoint(num_ranks=num, throughputs=each, samples_per_rank=(samples or {}).get(num))
        for num, each in series.items()
    ]


def test_amdahl_series_gives_its_serial_part_at_every_n() -> None:
    series = {num: (100 / (0.1 + 0.9 / num),) for num in (1, 2, 4, 8)}
    scaling = measure_scaling(_points(series), mode="strong")
    assert [row.karp_flatt for row in scaling.rows[1:]] == pytest.approx([0.1, 0.1, 0.1])
    assert scaling.rows[3].speedup == pytest.approx(1 / (0.1 + 0.9 / 8))
    assert scaling.rows[3].efficiency == pytest.approx(1 / (0.1 + 0.9 / 8) / 8)
    assert scaling.karp_flatt_reading is not None and "level" in scaling.karp_flatt_reading


def test_overhead_that_grows_with_n_makes_karp_flatt_rise() -> None:
    series = {num: (100 / (1 / num + 0.005 * num),) for num in (1, 2, 4, 8)}
    reading = measure_scaling(_points(series), mode="strong").karp_flatt_reading
    assert reading is not None and "rises" in reading and "overhead" in reading


def test_without_one_rank_formulas_generalise_and_karp_flatt_is_missing_with_the_reason() -> None:
    scaling = measure_scaling(_points({2: (200.0,), 8: (600.0,)}), mode="strong")
    assert scaling.reference_ranks == 2
    assert scaling.rows[1].speedup == pytest.approx(3)
    assert scaling.rows[1].efficiency == pytest.approx(0.75)
    assert scaling.rows[1].karp_flatt is None and scaling.karp_flatt_reading is None
    assert any(figure_text(gap) == "Karp-Flatt" and "one rank" in cause_text(gap) for gap in scaling.missing)


def test_repeats_give_intervals_and_a_single_one_says_why_there_is_none() -> None:
    scaling = measure_scaling(_points({1: (100.0, 102.0, 98.0), 4: (360.0, 370.0, 350.0), 8: (700.0,)}))
    one, four, eight = scaling.rows
    assert four.efficiency_interval is not None and four.efficiency is not None
    assert four.efficiency_interval.low < four.efficiency < four.efficiency_interval.high
    assert four.efficiency_interval.low >= 350 / 102 / 4 and four.efficiency_interval.high <= 370 / 98 / 4
    assert one.speedup == 1 and one.speedup_interval is None and one.throughput_interval is not None
    assert eight.throughput_interval is None and eight.efficiency_interval is None
    assert any("N = 8" in figure_text(gap) and "one repeat" in cause_text(gap) for gap in scaling.missing)


def test_intervals_are_the_same_every_time() -> None:
    points = _points({1: (100.0, 103.0), 2: (190.0, 199.0)})
    assert measure_scaling(points) == measure_scaling(list(reversed(points)))


@pytest.mark.parametrize(
    ("two", "four"),
    [((190.0, 186.0, 194.0), (330.0, 250.0, 395.0)), ((180.0, 150.0, 198.0), (350.0, 340.0, 372.0))],
)
def test_a_trend_within_the_noise_of_repeats_is_no_trend(
    two: tuple[float, ...], four: tuple[float, ...]
) -> None:
    scaling = measure_scaling(_points({1: (100.0, 101.0, 99.0), 2: two, 4: four}), mode="strong")
    assert scaling.karp_flatt_reading is not None and "level" in scaling.karp_flatt_reading


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
    assert told == mode
    assert words in reason
    assert mode is not None or "--mode" in reason


def test_a_stated_mode_stands_and_is_said() -> None:
    points = _points({1: (1.0,), 2: (2.0,)}, {1: 32, 2: 32})
    assert measure_scaling(points, mode="strong").mode_reason == "strong scaling, as stated"
    assert measure_scaling(points).mode == "weak"


def test_impossible_throughputs_are_left_out_in_words() -> None:
    hostile = _points({4: (float("nan"), 380.0), 1: (100.0,), 2: (0.0, -5.0), 8: (), 0: (1.0,), -3: (1.0,)})
    scaling = measure_scaling(hostile)
    assert [row.num_ranks for row in scaling.rows] == [1, 4]
    said = " / ".join(f"{figure_text(gap)}: {cause_text(gap)}" for gap in scaling.missing)
    for words in (
        "nan samples/s",
        "0.0 samples/s",
        "-5.0 samples/s",
        "2 ranks: no repeat",
        "8 ranks: no repeat",
    ):
        assert words in said
    assert "0 is not a number of ranks" in said and "-3 is not a number of ranks" in said


def test_the_same_n_twice_counts_as_repeats_and_is_noted() -> None:
    points = [
        ScalePoint(num_ranks=2, throughputs=(200.0,), samples_per_rank=16),
        ScalePoint(num_ranks=1, throughputs=(100.0,), samples_per_rank=32),
        ScalePoint(num_ranks=2, throughputs=(190.0,), samples_per_rank=20),
    ]
    clean = clean_points(points)
    assert clean.points[1].throughputs == (200.0, 190.0)
    assert clean.points[1].samples_per_rank is None
    assert len(clean.notes) == 2 and "repeats" in clean.notes[0] and "do not agree" in clean.notes[1]


def test_one_point_or_none_says_there_is_nothing_to_compare() -> None:
    single = measure_scaling(_points({4: (100.0,)}))
    assert single.rows[0].speedup == 1 and any(
        "nothing to compare" in cause_text(gap) for gap in single.missing
    )
    empty = measure_scaling([])
    assert empty.rows == () and empty.reference_ranks is None
    assert any("no usable throughput" in cause_text(gap) for gap in empty.missing)


def test_a_reference_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"no usable point with 3 ranks.*N = 1, 2"):
        measure_scaling(_points({1: (1.0,), 2: (2.0,)}), reference_ranks=3)
    with pytest.raises(ValueError, match="no usable point with 1 ranks"):
        measure_scaling(_points({1: (0.0,)}), reference_ranks=1)


def test_better_than_ideal_is_shown_and_remarked_on_not_clipped() -> None:
    scaling = measure_scaling(_points({1: (100.0,), 2: (230.0,)}))
    assert scaling.rows[1].efficiency == pytest.approx(1.15)
    assert scaling.rows[1].karp_flatt is not None and scaling.rows[1].karp_flatt < 0
    assert any("above 100 %" in note for note in scaling.notes)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_the_formulas_refuse_what_is_no_throughput(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        speedup_of(bad, 1.0)
    with pytest.raises(ValueError, match="above 0"):
        karp_flatt_of(bad, 2)
    with pytest.raises(ValueError, match="two ranks"):
        karp_flatt_of(1.0, 1)
