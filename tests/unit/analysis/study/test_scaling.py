"""Scaling of a study from runs whose speedup, factors and growth are known."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.results import RunEntry, ScalingSeries, StudyAnalysis
from tests.support.study_entries import efficiency, entry, finding, parts


def series(entries: list[RunEntry], **options: Any) -> ScalingSeries:
    study = analyze_study(entries, by="world_size", **options)
    assert study.scaling is not None
    (only,) = study.scaling.series
    return only


def strong(speeds: dict[int, float], **options: Any) -> list[RunEntry]:
    return [entry(f"p{ranks}", ranks=ranks, speed=speed, **options) for ranks, speed in speeds.items()]


def ids(study: StudyAnalysis) -> set[str]:
    return {problem.id for problem in study.problems}


def test_strong_scaling_is_read_from_the_batches_and_gives_known_figures() -> None:
    found = series(strong({1: 100, 2: 180, 4: 250}))
    assert (found.mode, found.refused) == ("strong", "")
    assert "32 samples per step are divided" in found.mode_reason
    assert [point.speedup for point in found.points] == [1, pytest.approx(1.8), pytest.approx(2.5)]
    assert [point.efficiency for point in found.points] == [1, pytest.approx(0.9), pytest.approx(0.625)]
    assert found.points[2].karp_flatt == pytest.approx((1 / 2.5 - 1 / 4) / (1 - 1 / 4))
    assert found.points[0].karp_flatt is None
    assert [point.ideal_speedup for point in found.points] == [1, 2, 4]
    assert "4 ranks train 2.50 times as fast as 1 rank" in found.sentence


def test_weak_scaling_is_read_from_the_samples_per_rank() -> None:
    found = series([entry(f"p{p}", ranks=p, speed=90.0 * p**0.9, batch=8 * p) for p in (1, 2, 4)])
    assert found.mode == "weak"
    assert found.points[2].efficiency == pytest.approx(4**0.9 / 4)


def test_a_batch_that_neither_mode_explains_is_refused_not_guessed() -> None:
    found = series([entry("a", ranks=1, batch=32), entry("b", ranks=2, batch=48)])
    assert found.mode is None
    assert found.points == ()
    assert "neither strong nor weak" in found.refused


def test_a_stated_mode_that_the_batches_contradict_is_refused() -> None:
    found = series([entry("a", ranks=1, batch=32), entry("b", ranks=2, batch=64)], mode="strong")
    assert found.points == ()
    assert "strong scaling means equal samples per step" in found.refused
    assert "32 on 1 rank, 64 on 2 ranks" in found.refused


def test_two_batches_at_every_number_of_ranks_are_two_strong_series() -> None:
    runs = [
        entry(f"p{p}b{b}", ranks=p, batch=b, speed=50.0 * p) for p, b in itertools.product((1, 2), (16, 32))
    ]
    study = analyze_study(runs)
    assert study.scaling is not None
    assert [one.name for one in study.scaling.series] == [
        "dp.ddp, 16 samples per step",
        "dp.ddp, 32 samples per step",
    ]
    assert all(one.mode == "strong" and len(one.points) == 2 for one in study.scaling.series)


def test_serial_training_is_every_schemes_single_rank() -> None:
    runs = [entry("s", ranks=1, scheme="serial", speed=100)]
    runs += [entry(f"{name}2", ranks=2, scheme=name, speed=speed) for name, speed in (("a", 150), ("b", 120))]
    study = analyze_study(runs)
    assert study.scaling is not None
    told = {one.name: (one.points[-1].speedup, one.reference) for one in study.scaling.series}
    assert told == {"a": (1.5, "s"), "b": (pytest.approx(1.2), "s")}
    assert "the runs of serial" in study.scaling.series[0].reference_reason
    assert "both are compared" in study.by_reason
    assert study.schemes[0].verdict is not None


def test_serial_training_of_another_batch_is_left_out_and_it_is_said() -> None:
    runs = [entry("s", ranks=1, scheme="serial", batch=64, speed=100), *strong({2: 150, 4: 250})]
    found = series(runs)
    assert [point.world_size for point in found.points] == [2, 4]
    assert found.mode_reason.endswith("the runs of serial have other batches and are left out")


def test_one_rank_without_the_emulated_cluster_is_on_the_clusters_curve() -> None:
    def on(cluster: str) -> dict[str, Any]:
        return {"options": {"samples_per_step": 32, "cluster": cluster}}

    runs = [
        entry("s", ranks=1, scheme="serial", speed=100),
        entry("p2", ranks=2, speed=150, run=on("2x1@1gbit")),
        entry("p4", ranks=4, speed=200, run=on("2x2@1gbit")),
    ]
    study = analyze_study(runs)
    assert study.scaling is not None
    assert [point.world_size for point in study.scaling.series[0].points] == [1, 2, 4]
    assert "other_machine" not in ids(study)
    slow = entry("p2slow", ranks=2, speed=90, run=on("2x1@100mbit"))
    both = analyze_study([*runs, slow])
    assert both.scaling is not None
    assert {len(one.points) for one in both.scaling.series} == {2, 3}
    assert len({one.name for one in both.scaling.series}) == 2
    assert "links of 100mbit (p2slow)" in next(one.text for one in both.problems if one.id == "other_machine")


def test_without_a_single_rank_run_the_fewest_ranks_are_the_reference_and_it_is_said() -> None:
    study = analyze_study(strong({2: 100, 4: 150}))
    (found,) = study.scaling.series if study.scaling else ()
    assert found.reference_world_size == 2
    assert found.points[1].efficiency == pytest.approx(0.75)
    assert found.points[1].karp_flatt is None
    (problem,) = [one for one in study.problems if one.id == "no_reference"]
    assert "no run on 1 rank" in problem.text
    assert "Karp–Flatt is missing" in problem.text


def test_the_reference_can_be_stated() -> None:
    found = series(strong({1: 100, 2: 160, 4: 240}), reference="p2")
    assert [point.efficiency for point in found.points] == [pytest.approx(1.25), 1, pytest.approx(0.75)]
    assert found.reference_reason == "stated with --reference"


def test_a_reference_that_is_none_of_the_runs_is_an_error_that_names_them() -> None:
    with pytest.raises(ValueError, match="reference nope is none of the runs: p1 and p2"):
        analyze_study(strong({1: 100, 2: 160}), reference="nope")


def test_one_run_each_gives_no_interval_but_a_reason() -> None:
    found = series(strong({1: 100, 2: 180}))
    assert found.points[1].speedup_interval is None
    assert "two repeats or more" in found.points[1].no_interval


def test_intervals_come_from_repeats_and_hold_the_speedup() -> None:
    runs = [entry(f"1-{n}", ranks=1, speed=speed) for n, speed in enumerate((99.0, 100.0, 101.0))]
    runs += [entry(f"2-{n}", ranks=2, speed=speed) for n, speed in enumerate((178.0, 180.0, 182.0))]
    point = series(runs).points[1]
    assert point.speedup_interval is not None
    assert point.efficiency_interval is not None
    assert 1.6 < point.speedup_interval.low < 1.8 < point.speedup_interval.high < 2.0
    assert point.efficiency_interval.low == pytest.approx(point.speedup_interval.low / 2)
    assert point.speedup_interval.num_repeats == 3


def test_what_grew_is_the_part_that_ideal_scaling_would_have_shrunk() -> None:
    runs = [
        entry("p1", ranks=1, speed=100, breakdown=parts(100, 0.0)),
        entry("p4", ranks=4, speed=200, breakdown=parts(50, 0.5)),
    ]
    found = series(runs)
    worst = found.what_grew[0]
    assert (worst.part, worst.expected_ns) == ("exposed_comm", 0)
    assert worst.excess_ns == pytest.approx(25e6)
    assert worst.excess_share == pytest.approx(0.5)
    compute = next(one for one in found.what_grew if one.part == "compute")
    assert compute.excess_ns == pytest.approx(0)
    assert "exposed communication grew most: 50 %" in found.sentence


def test_what_grew_is_missing_with_a_reason_where_nothing_was_traced() -> None:
    found = series([entry("p1", ranks=1, speed=100), entry("p2", ranks=2, speed=150, traced=False)])
    assert found.what_grew == ()
    assert found.what_grew_missing == "the runs on 2 ranks have no traced step"


def test_pop_factors_multiply_and_computation_scaling_is_against_the_reference() -> None:
    runs = [
        entry("p1", ranks=1, speed=100, analysis={"efficiency": efficiency(1, 90, 100)}),
        entry("p2", ranks=2, speed=160, analysis={"efficiency": efficiency(2, 50, 62)}),
    ]
    pop = series(runs).pop
    assert pop is not None
    assert pop.world_sizes == (1, 2)
    rows = {row.factor.value: row for row in pop.rows}
    assert list(rows["computation_scaling"].values) == [1, pytest.approx(90 / 100)]
    for column in range(2):
        product = 1.0
        for factor in ("load_balance", "serialisation", "transfer"):
            product *= rows[factor].values[column] or 0
        assert rows["parallel_efficiency"].values[column] == pytest.approx(product)
    assert rows["global_efficiency"].values[1] == pytest.approx(0.9 * 50 / 62)
    assert rows["lb_out"].values == (None, None)
    assert all("one host" in reason for reason in rows["lb_out"].reasons)


def test_one_rank_has_the_factors_of_its_definition() -> None:
    """A run on one rank has no efficiency of its own: U = compute and optimizer, T_id = T."""
    runs = [
        entry("p1", ranks=1, speed=100, breakdown=parts(100, 0.0, optimizer=0.1, input_wait=0.2)),
        entry("p2", ranks=2, speed=160, analysis={"efficiency": efficiency(2, 50, 62)}),
    ]
    pop = series(runs).pop
    assert pop is not None
    rows = {row.factor.value: row.values for row in pop.rows}
    assert rows["parallel_efficiency"][0] == pytest.approx(0.8)
    assert (rows["load_balance"][0], rows["transfer"][0]) == (1, 1)
    assert list(rows["computation_scaling"]) == [1, pytest.approx(80 / 100)]


def test_more_ranks_that_are_slower_are_said_to_be() -> None:
    found = series(strong({1: 100, 2: 40}))
    told = "2 ranks are slower than 1 rank: 40 % of its speed (ideal 2, efficiency 20 %);"
    assert found.sentence.startswith(told)


def test_weak_scaling_counts_the_larger_problem_in_computation_scaling() -> None:
    runs = [
        entry("p1", ranks=1, batch=8, speed=100, analysis={"efficiency": efficiency(1, 90, 100)}),
        entry("p2", ranks=2, batch=16, speed=160, analysis={"efficiency": efficiency(2, 90, 110)}),
    ]
    pop = series(runs).pop
    assert pop is not None
    assert {row.factor.value: row.values[1] for row in pop.rows}["computation_scaling"] == pytest.approx(1.0)


def test_negative_efficiency_is_missing_and_said() -> None:
    broken = efficiency(2, 50, 62, serialisation=-0.3)
    runs = [
        entry("p1", ranks=1, speed=100, analysis={"efficiency": efficiency(1, 90, 100)}),
        entry("p2", ranks=2, speed=160, analysis={"efficiency": broken}),
    ]
    study = analyze_study(runs)
    (problem,) = [one for one in study.problems if one.id == "negative_efficiency"]
    assert "p2: serialization -0.3 cannot be a share" in problem.text
    assert study.run("p2").efficiency is None
    assert study.scaling is not None
    pop = study.scaling.series[0].pop
    assert pop is not None
    assert all(row.values[1] is None and "p2 has factors" in row.reasons[1] for row in pop.rows)


def test_more_than_ideal_is_said_not_hidden() -> None:
    study = analyze_study(strong({1: 100, 2: 260}))
    assert study.scaling is not None
    assert study.scaling.series[0].points[1].efficiency == pytest.approx(1.3)
    (problem,) = [one for one in study.problems if one.id == "superlinear"]
    assert "above 100 % on 2 ranks" in problem.text


def test_amdahls_serial_part_is_found_and_its_curve_goes_no_further_than_it_may() -> None:
    def amdahl(p: int) -> float:
        return 100 / (0.1 + 0.9 / p)

    runs = [
        entry(f"{p}-{n}", ranks=p, speed=amdahl(p) * (1 + 0.002 * (n - 1)))
        for p in (1, 2, 4, 8)
        for n in range(3)
    ]
    fit = next(one for one in series(runs).fits if one.law == "amdahl")
    (serial,) = [one for one in fit.parameters if one.name == "f"]
    assert serial.value == pytest.approx(0.1, abs=0.01)
    assert serial.low is not None
    assert serial.high is not None
    assert serial.low <= serial.value <= serial.high
    assert max(one.world_size for one in fit.curve) == 32
    at_8 = next(one for one in fit.curve if one.world_size == 8)
    assert at_8.speedup == pytest.approx(amdahl(8) / 100, rel=0.02)
    assert not at_8.extrapolated


def test_laws_with_too_few_points_say_so() -> None:
    fits = series(strong({1: 100, 2: 180})).fits
    assert {fit.law for fit in fits} == {"amdahl", "usl", "pmnf"}
    assert all("at least" in fit.refused and not fit.parameters for fit in fits)


def test_two_meshes_on_as_many_ranks_are_not_taken_for_repeats() -> None:
    runs = [
        entry("p1", ranks=1, speed=100),
        entry("a", ranks=4, speed=200, bench={"mesh": "4 data"}),
        entry("b", ranks=4, speed=300, bench={"mesh": "2 data × 2 model"}),
    ]
    study = analyze_study(runs, by="world_size")
    assert study.scaling is not None
    assert study.scaling.series[0].points == ()
    assert "not repeats of one setting" in study.scaling.series[0].refused
    assert "mixed_settings" in ids(study)


@pytest.mark.parametrize(
    ("other", "problem", "words"),
    [
        ({"bench": {"model": "resnet50"}}, "other_model", "models differ: resnet50"),
        ({"cpu": "Xeon"}, "other_machine", "machines differ: Epyc"),
    ],
)
def test_another_model_or_machine_is_on_no_common_curve(
    other: dict[str, Any], problem: str, words: str
) -> None:
    study = analyze_study([entry("p1", ranks=1, speed=100), entry("p2", ranks=2, **other)], by="world_size")
    assert study.refused
    assert problem in ids(study)
    assert any(words in one.text for one in study.problems)
    assert study.scaling is not None
    assert all(not one.points for one in study.scaling.series)
    assert study.missing


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(1, 1e4), min_size=3, max_size=3),
    st.permutations(range(6)),
)
def test_the_order_of_the_runs_changes_nothing_and_the_reference_is_exactly_one(
    speeds: list[float], order: list[int]
) -> None:
    runs = [
        entry(f"p{p}-{n}", ranks=p, speed=speed * (1 + 0.01 * n))
        for p, speed in zip((1, 2, 4), speeds, strict=True)
        for n in range(2)
    ]
    study = analyze_study(runs)
    turned = analyze_study([runs[at] for at in order])
    assert study.scaling is not None
    assert study.scaling == turned.scaling
    assert (study.runs, study.problems, study.headline) == (turned.runs, turned.problems, turned.headline)
    reference = study.scaling.series[0].points[0]
    assert (reference.speedup, reference.efficiency) == (1, 1)


def test_runs_of_any_program_scale_by_their_samples() -> None:
    runs = [entry(f"p{p}", ranks=p, scheme="", speed=80.0 * p**0.8) for p in (1, 2, 4)]
    study = analyze_study(runs)
    assert study.by_reason == "the runs differ in their number of ranks"
    assert study.scaling is not None
    assert study.scaling.series[0].points[2].efficiency == pytest.approx(4**-0.2)


def test_a_run_without_samples_per_second_is_left_out_and_named() -> None:
    runs = strong({1: 100, 2: 180})
    bare = entry("p4", ranks=4, speed=None)
    study = analyze_study([*runs, bare])
    (problem,) = [one for one in study.problems if one.id == "no_speed"]
    assert problem.text.startswith("p4 has no samples/s")
    assert study.scaling is not None
    assert [point.world_size for point in study.scaling.series[0].points] == [1, 2]
    assert structs.replace(study.run("p4")).samples_per_s is None


def found_in(*ids_: str) -> dict[str, Any]:
    return {"analysis": {"findings": tuple(finding(id_, f"{id_} it is.", f"Mend {id_}.") for id_ in ids_)}}


def test_the_largest_runs_own_verdict_says_why_it_does_not_scale() -> None:
    runs = [
        entry("p1", ranks=1, speed=100, **found_in("compute_bound")),
        entry("p2", ranks=2, speed=150, **found_in("slow_link")),
        entry("p4", ranks=4, speed=200, **found_in("oversubscribed", "disturbed")),
    ]
    found = series(runs)
    assert found.verdict == "At 4 ranks perfscope's verdict: oversubscribed it is."
    assert found.action == "Mend oversubscribed."
    assert analyze_study(runs).action == "Mend oversubscribed."


def test_a_disturbance_is_not_why_it_does_not_scale_where_the_run_tells_more() -> None:
    runs = [
        entry("p1", ranks=1, speed=100),
        entry("p2", ranks=2, speed=60, **found_in("disturbed", "slow_link")),
    ]
    found = series(runs)
    assert found.verdict == "At 2 ranks perfscope finds, beside what disturbed the run: slow_link it is."
    assert found.action == "Mend slow_link. Until then 1 rank trains fastest of those measured."


def test_of_repeats_the_cause_that_most_have_is_told() -> None:
    runs = [entry("p1", ranks=1, speed=100)]
    causes = ("imbalance", "slow_link", "slow_link")
    runs += [entry(f"p2-{at}", ranks=2, speed=150 + at, **found_in(cause)) for at, cause in enumerate(causes)]
    assert series(runs).action == "Mend slow_link."


def test_without_findings_the_fastest_number_of_ranks_is_still_told() -> None:
    assert series(strong({1: 100, 2: 150, 4: 120})).action == (
        "Use fewer ranks: 2 ranks train fastest of those measured."
    )
    assert series(strong({1: 100, 2: 180, 4: 250})).action == ""


def test_one_rank_against_a_larger_reference_is_said_in_the_singular_and_is_no_surprise() -> None:
    study = analyze_study(strong({1: 114, 2: 71}), by="world_size", reference="p2")
    assert study.scaling is not None
    assert "1 rank trains 1.61 times as fast as 2 ranks" in study.scaling.series[0].sentence
    assert "superlinear" not in ids(study)
    text = next(one.text for one in study.problems if one.id == "no_reference")
    assert text.startswith("dp.ddp: the reference has 2 ranks")
    alone = analyze_study([entry("p2", ranks=2, scheme=""), entry("p4", ranks=4, scheme="", speed=50)])
    assert any(one.text.startswith("There is no run on 1 rank") for one in alone.problems)
    slower = series(strong({2: 100, 4: 50}))
    assert "4 ranks are slower than 2 ranks: 50 % of their speed" in slower.sentence


def test_a_throughput_that_falls_is_said_to_fall_and_laws_have_their_names() -> None:
    refused = {fit.law: fit.refused for fit in series(strong({1: 1141, 2: 707, 4: 354})).fits}
    assert refused["amdahl"] == (
        "throughput falls as ranks are added (1,141 samples/s on 1 rank, 354 on 4): this law knows growth "
        "alone"
    )
    assert refused["usl"].startswith("the USL needs at least 4 different numbers of ranks")
    level = {fit.law: fit.refused for fit in series(strong({1: 100, 2: 101, 4: 100})).fits}
    assert "fits nearly as well as Amdahl's law" in level["amdahl"]


def test_the_step_shown_is_the_one_that_the_throughput_is_of() -> None:
    """The slowest rank's, not the median over all: batch over it is the samples/s."""
    point = series(strong({1: 100, 2: 160})).points[1]
    assert point.step_ns == pytest.approx(32 / 160 * 1e9)
    own = [entry(f"p{p}", ranks=p, speed=32 * p, scheme="") for p in (1, 2)]
    assert series(own).points[1].step_ns == 100e6
