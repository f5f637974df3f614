"""Schemes side by side: known winners, known ratios, and where the order turns."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analysis.bench import COUNTED
from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.crossover import FARTHEST, Modelled, turns_against
from perfscope.analysis.study.repeats import center_interval, permutation_p, ratio_interval
from perfscope.analysis.study.results import RunEntry, SchemeStudy, SchemeVerdict
from perfscope.analysis.study.schemes import inverse
from perfscope.messages.missing import figure_text
from perfscope.rundir.old_words import scales_with
from perfscope.vocabulary.traffic import ScalesWith
from tests.support.study_entries import communication, entry, finding, link, parts

CLUSTER = {"options": {"samples_per_step": 32, "cluster": "2x1@1gbit"}}


def compare(entries: list[RunEntry], **options: Any) -> SchemeStudy:
    (study,) = analyze_study(entries, **options).schemes
    return study


def verdict(entries: list[RunEntry], **options: Any) -> SchemeVerdict:
    found = compare(entries, **options).verdict
    assert found is not None
    return found


def repeats(scheme: str, speeds: tuple[float, ...], **options: Any) -> list[RunEntry]:
    return [entry(f"{scheme}-r{n}", scheme=scheme, speed=speed, **options) for n, speed in enumerate(speeds)]


def test_the_fastest_wins_by_a_known_ratio_with_an_interval_from_repeats() -> None:
    found = verdict([*repeats("a", (100, 101, 99)), *repeats("b", (150, 152, 148))])
    assert (found.winner, found.runner_up, found.level) == ("b", "a", False)
    assert found.ratio == pytest.approx(1.5)
    assert found.headline.startswith(
        "b wins: 150 against 100 samples/s, 50 % faster than a (ratio 1.50, 95 %"
    )


def test_schemes_whose_repeats_overlap_are_level() -> None:
    found = verdict([*repeats("a", (100, 120, 90)), *repeats("b", (101, 119, 92))])
    assert found.level is True
    assert "are level" in found.headline


def test_repeats_that_lie_too_far_apart_say_so_in_place_of_a_senseless_interval() -> None:
    found = verdict([*repeats("a", (100, 400)), *repeats("b", (150, 700))])
    assert found.level is True
    assert "the 2 repeats or more of each lie too far apart to say more" in found.headline


def test_one_repeat_gives_a_ratio_and_a_reason_in_place_of_an_interval() -> None:
    study = compare([entry("a", scheme="a", speed=100), entry("b", scheme="b", speed=250)])
    (pair,) = study.pairs
    assert (pair.a, pair.b, pair.ratio) == ("b", "a", 2.5)
    assert (pair.interval, pair.level, pair.p_value) == (None, None, None)
    assert "two repeats or more" in pair.reason
    assert study.verdict is not None
    assert "2.50 times as fast as a (no repeats" in study.verdict.headline


def test_why_names_the_part_that_is_saved_and_the_bytes() -> None:
    slow = entry(
        "a", scheme="a", speed=100, breakdown=parts(320, 0.5), bench={"links": (link("ethernet", 2**20),)}
    )
    fast = entry(
        "b", scheme="b", speed=150, breakdown=parts(213, 0.1), bench={"links": (link("ethernet", 2**18),)}
    )
    found = verdict([slow, fast])
    assert "b spends 21.3 ms on exposed communication, a 160 ms" in found.why
    assert "at the cost of 31.7 ms more on compute" in found.why
    assert "b sends 256 KiB a step over ethernet, a 1.00 MiB" in found.why


def test_why_is_missing_in_words_where_nothing_was_traced() -> None:
    found = verdict([entry("a", scheme="a", speed=100, traced=False), entry("b", scheme="b", speed=150)])
    assert found.why.startswith("Why is not known: no step of a was traced.")
    assert "not known" in found.turn


def test_where_the_order_turns_follows_from_bytes_and_link_speed() -> None:
    """Per batch: a computes 50 ms and sends 150 ms over the link, b computes 100 ms and sends 50 ms."""
    size = 0.150 * 125e6 * 2  # of both hosts together
    runs = [
        entry(
            "a",
            scheme="a",
            hosts=2,
            speed=32 / 0.200,
            breakdown=parts(200, 0.75),
            bench={"links": (link("ethernet", size),)},
            run=CLUSTER,
        ),
        entry(
            "b",
            scheme="b",
            hosts=2,
            speed=32 / 0.150,
            breakdown=parts(150, 1 / 3),
            bench={"links": (link("ethernet", size / 3),)},
            run=CLUSTER,
        ),
    ]
    study = compare(runs)
    (turn,) = study.turns
    assert turn.challenger == "a"
    assert turn.bandwidth_factor == pytest.approx(2.0, rel=1e-3)  # 50 + 150 / 2 = 100 + 50 / 2
    assert turn.bandwidth_bytes_per_s == pytest.approx(250e6, rel=1e-3)
    assert turn.step_ns == pytest.approx(125e6, rel=1e-3)
    assert study.verdict is not None
    assert "2.00 times as fast as here (250 MB/s per host)" in study.verdict.turn
    assert "modeled" in study.verdict.turn


def test_no_turn_is_claimed_on_one_host() -> None:
    found = verdict([entry("a", scheme="a", speed=100), entry("b", scheme="b", speed=150)])
    assert found.turn == (
        "Crossover with bandwidth is not known: b: all its ranks are on one host: no link between hosts "
        "whose bandwidth could change."
    )


def modelled(title: str, rest: float, wire: float) -> Modelled:
    return Modelled(
        title=title,
        unexposed=rest,
        exposed=wire,
        wire=wire,
        is_known=True,
        link_class="ethernet",
        link_bytes_per_s=None,
    )


def test_a_scheme_that_is_worse_in_both_never_turns_the_order() -> None:
    (turn,) = turns_against(modelled("w", 10, 10), [modelled("c", 11, 11)])
    assert turn.bandwidth_factor is None
    assert f"from {FARTHEST:.0f} times slower" in turn.reason


def test_the_one_that_sends_less_overtakes_on_slower_links() -> None:
    (turn,) = turns_against(modelled("w", 10, 10), [modelled("c", 18, 6)])
    assert turn.bandwidth_factor == pytest.approx(0.5, rel=1e-6)  # 10 + 20 = 18 + 12
    assert "2.00 times as slow" in turn.sentence


def test_the_batch_at_which_the_order_turns_follows_from_what_the_bytes_are() -> None:
    """mp: 120 ms of compute, 50 ms of activations. dp: 50 ms of compute, 170 ms of gradients."""

    def run(name: str, what: str, rest_ms: float, wire_ms: float) -> RunEntry:
        size = wire_ms / 1e3 * 125e6 * 2
        call = {"collective": "all_reduce", "axis": "dp", "num_ranks": 2, "bytes": 1, "by_library": False}
        call |= {"what": what, "count": 1, "every": 1, "links": {"ethernet": size}}
        sent: dict[str, float] = {}
        predicted = {"bytes_algorithmic_per_step": sent, "bytes_wire_per_step": sent}
        scheme = {"full_name": name, "predicted": {**predicted, "calls_of_rank": {"0": [call]}}}
        step = rest_ms + wire_ms
        return entry(
            name,
            scheme=name,
            hosts=2,
            speed=32 / (step / 1e3),
            breakdown=parts(step, wire_ms / step),
            bench={"links": (link("ethernet", size),)},
            run={**CLUSTER, "scheme": scheme},
        )

    study = compare([run("mp", "activations forward", 120, 50), run("dp", "gradients", 50, 170)])
    (turn,) = study.batch_turns
    assert (turn.challenger, turn.batch) == ("dp", round(32 * 170 / 120))  # 120 k + 50 k = 50 k + 170
    assert turn.step_ns == pytest.approx(170 * 170 / 120 * 1e6, rel=1e-3)
    assert study.verdict is not None
    assert study.verdict.turn.endswith(turn.sentence)
    unknown = compare([run("mp", "something", 120, 50), run("dp", "gradients", 50, 170)])
    assert unknown.batch_turns == ()


def test_what_calls_grow_with_is_recorded_and_old_records_say_it_in_words() -> None:
    assert scales_with("samples", "anything") is ScalesWith.SAMPLES
    assert scales_with(None, "gradient of the logits") is ScalesWith.SAMPLES
    assert scales_with(None, "bucket 3") is ScalesWith.WEIGHTS
    assert scales_with("of a later version", "running statistics") is None


def test_a_label_compares_any_runs() -> None:
    runs = [
        entry(name, scheme="", speed=speed, run={"labels": {"loader": name}})
        for name, speed in (("old", 100.0), ("new", 130.0))
    ]
    study = analyze_study(runs)
    assert (study.by, study.by_reason) == ("label:loader", "the runs differ in their label loader")
    assert study.schemes[0].verdict is not None
    assert (study.schemes[0].verdict.winner, study.schemes[0].verdict.runner_up) == ("new", "old")


def test_what_the_speed_leaves_out_is_said() -> None:
    runs = [
        entry("a", scheme="a", speed=100, bench={"held_out_loss": 1.0}),
        entry("b", scheme="b", speed=150, bench={"held_out_loss": 1.5, "effective_batch": 8}, clean=False),
    ]
    caution = verdict(runs).caution
    assert "One update averages 8 to 32 samples" in caution
    assert "b ends at held-out loss 1.500, a at 1.000" in caution
    assert "50 % of the runs were disturbed (b)" in caution


def test_two_meshes_of_one_scheme_are_two_rows_told_apart() -> None:
    runs = [
        entry("a", ranks=4, speed=200, bench={"mesh": "4 data"}),
        entry("b", ranks=4, speed=300, bench={"mesh": "2 data × 2 model"}),
    ]
    study = compare(runs, by="scheme")
    assert [row.title for row in study.rows] == ["dp.ddp (2 data × 2 model)", "dp.ddp (4 data)"]


def test_numbers_of_ranks_are_compared_apart() -> None:
    runs = [
        entry(f"{scheme}{ranks}", scheme=scheme, ranks=ranks, speed=speed)
        for scheme, ranks, speed in (("a", 2, 100), ("b", 2, 110), ("a", 4, 200), ("b", 4, 150))
    ]
    study = analyze_study(runs, by="scheme")
    assert [one.verdict.winner for one in study.schemes if one.verdict] == ["b", "a"]
    assert [one.title.split(", ")[2] for one in study.schemes] == ["2 ranks", "4 ranks"]
    (problem,) = [one for one in study.problems if one.id == "unequal_world_sizes"]
    assert problem.severity == "warn"
    assert "unequal numbers of ranks (a: 2, 4 ranks; b: 2, 4 ranks)" in problem.text


def test_memory_bytes_and_losses_of_repeats_stand_in_one_row() -> None:
    record = {
        "losses": [2.0, 1.0],
        "step_ends_ns": [10_000_000_000, 11_000_000_000, 12_500_000_000],
        "peak_rss_bytes": 300,
    }
    later = {**record, "losses": [4.0, None], "step_ends_ns": [0, 1_500_000_000, 2_000_000_000]}
    runs = [
        entry("a", scheme="a", speed=100, records={0: record, 1: {**later, "peak_rss_bytes": 500}}),
        entry("b", scheme="b", speed=90),
    ]
    study = analyze_study(runs)
    run = study.run("a")
    assert run.peak_memory == ((0, 300), (1, 500))
    assert run.peak_memory_bytes == 500
    assert run.loss_curve is not None
    assert run.loss_curve.losses == (3.0, 1.0)  # the mean over those that know theirs
    assert run.loss_curve.samples == (32, 64)
    assert run.loss_curve.seconds == (1.5, 2.5)
    assert study.run("b").loss_curve is None
    assert any(figure_text(one) == "loss curve" for one in study.run("b").missing)


SPEEDS = st.lists(st.floats(1, 1e5), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(SPEEDS, SPEEDS)
def test_pairs_are_antisymmetric(first: list[float], second: list[float]) -> None:
    """Renaming a and b turns every ratio and interval over, exactly as `inverse` does."""
    runs = [*repeats("a", tuple(first)), *repeats("b", tuple(second))]
    named = [*repeats("b", tuple(first)), *repeats("a", tuple(second))]
    (pair,) = compare(runs).pairs
    (other,) = compare(named).pairs
    assert math.isclose(pair.ratio, other.ratio, rel_tol=1e-9)
    turned = inverse(pair)
    assert (turned.a, turned.b) == (pair.b, pair.a)
    assert math.isclose(turned.ratio * pair.ratio, 1)
    if pair.interval is not None and turned.interval is not None:
        assert math.isclose(turned.interval.low * pair.interval.high, 1)
        assert pair.interval.low <= pair.ratio * (1 + 1e-9)
        assert pair.interval.high >= pair.ratio * (1 - 1e-9)
        assert pair.level == turned.level


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)))
def test_the_order_of_the_runs_changes_nothing(order: list[int]) -> None:
    runs = [*repeats("a", (100, 103)), *repeats("b", (150, 149)), *repeats("c", (90, 91))]
    study, turned = analyze_study(runs), analyze_study([runs[at] for at in order])
    assert study.schemes == turned.schemes
    assert (study.runs, study.problems, study.headline) == (turned.runs, turned.problems, turned.headline)


def test_equal_repeats_have_an_interval_of_no_width_and_two_are_wide() -> None:
    sure = ratio_interval((100, 100), (50, 50))
    assert sure is not None
    assert sure.low == pytest.approx(2)
    assert sure.high == pytest.approx(2)
    wide = center_interval((90, 110))
    assert wide is not None
    assert wide.low < 60
    assert wide.high > 160  # two runs say little: t with one degree of freedom


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """200 studies of four repeats with 5 % noise: 95 % intervals, widened for few repeats."""
    import numpy as np

    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        above, below = rng.normal(120, 6, 4).tolist(), rng.normal(100, 5, 4).tolist()
        interval = ratio_interval(above, below)
        assert interval is not None
        held += interval.low <= 1.2 <= interval.high
    assert held >= 182


def test_the_permutation_test_is_exact() -> None:
    assert permutation_p((1, 2, 3), (11, 12, 13)) == pytest.approx(2 / 20)
    assert permutation_p((1, 2), (1, 2)) == 1
    assert permutation_p((1,), (2, 3)) is None


def test_what_to_do_is_the_winner_with_the_advice_of_its_own_report() -> None:
    advice = {"findings": (finding("slow_link", "The link bounds b.", "Send less."),)}
    blame = {"findings": (finding("imbalance", "Ranks of a differ.", "Balance them."),)}
    found = verdict(
        [
            entry("a", scheme="a", speed=100, analysis=blame),
            entry("b", scheme="b", speed=150, analysis=advice),
        ]
    )
    assert found.action == "Use b. What the report of b advises: Send less."
    assert "On a perfscope's verdict: Ranks of a differ." in found.why


def test_settings_that_are_close_are_to_be_repeated_before_choosing() -> None:
    found = verdict([entry("a", scheme="a", speed=100), entry("b", scheme="b", speed=105)])
    assert found.action == "Repeat b and a three times each before choosing: they are close."


def test_exchanges_begun_before_the_window_are_footnoted_where_the_step_is_much_idle() -> None:
    def unseen(name: str, idle: float) -> str:
        runs = [
            entry("a", scheme="dp.ddp", breakdown=parts(100, 0.8)),
            entry("b", scheme=name, breakdown=parts(100, 0.4, idle=idle)),
        ]
        return analyze_study(runs).schemes[0].unseen

    assert unseen("dp.fwd_overlap", 0.31).startswith("dp.fwd_overlap: exchanges that began before the traced")
    assert "counts as idle (31 % of the step), not as exposed" in unseen("dp.fwd_overlap+bf16", 0.31)
    assert unseen("dp.fwd_overlap", 0.05) == ""
    assert unseen("dp.packed", 0.31) == ""


def test_a_warning_about_every_run_does_not_list_a_crowd() -> None:
    runs = [
        entry(name, scheme=name, speed=100 + at, bench={"traced_steps": COUNTED})
        for at, name in enumerate("abcd")
    ]
    text = next(one.text for one in analyze_study(runs).problems if one.id == "traced_speed")
    assert text.startswith("All 4 runs were too short")
    assert analyze_study(runs).action.startswith("Train more steps, so that untraced ones are counted; as")
    text = next(one.text for one in analyze_study(runs[:2]).problems if one.id == "traced_speed")
    assert text.startswith("a and b were too short")


HYBRID = {"communication": communication(tp=15, dp=5)}


def test_what_tells_each_scheme_from_the_fastest_adds_up_by_axis_and_layer() -> None:
    """Fastest: 100 ms with 20 exposed (tp 15, dp 5); the others 130 with 39 (tp 9, dp 30) and 200 with 40."""
    study = compare(
        [
            entry("a", scheme="hy.a", speed=300, breakdown=parts(100, 0.2), analysis=HYBRID),
            entry(
                "b",
                scheme="hy.b",
                speed=200,
                breakdown=parts(130, 0.3),
                analysis={"communication": communication(tp=9, dp=30)},
            ),
            entry(
                "c",
                scheme="dp.c",
                speed=100,
                breakdown=parts(200, 0.2, idle=0.3),
                analysis={"communication": communication(dp=40)},
            ),
        ]
    )
    assert [(one.before, one.after) for one in study.differences] == [("hy.a", "hy.b"), ("hy.a", "dp.c")]
    for one, row in zip(study.differences, study.rows[1:], strict=True):
        assert sum(part.ns for part in row.step_parts) == one.after_ns == row.composition.step  # type: ignore[union-attr]
        assert (
            sum(change.change_ns for change in one.changes) == one.change_ns == one.after_ns - one.before_ns
        )
        for axis, changed in one.by_axis.items():
            assert sum(change.change_ns for change in one.changes if change.axis == axis) == changed
    assert study.differences[0].by_axis == {"dp": 25_000_000, "tp": -6_000_000}
    assert study.differences[1].by_axis == {"dp": 35_000_000, "tp": -15_000_000}
    assert study.verdict is not None
    assert "hy.b against hy.a, exposed communication by axis: dp +25.0 ms, tp −6.00 ms" in study.verdict.why


def test_exposed_communication_that_is_not_known_by_axis_is_one_part_of_the_difference() -> None:
    study = compare(
        [
            entry("a", scheme="hy.a", speed=300, breakdown=parts(100, 0.2), analysis=HYBRID),
            entry("b", scheme="b", speed=200, breakdown=parts(130, 0.3)),
        ]
    )
    (one,) = study.differences
    assert one.by_axis == {}
    assert [(change.part, change.axis, change.change_ns) for change in one.changes] == [
        ("exposed_comm", None, 19_000_000),
        ("compute", None, 11_000_000),
    ]


@given(st.lists(st.integers(0, 40_000_001), min_size=4, max_size=4))
def test_repeats_add_up_to_their_mean_step(exposed: list[int]) -> None:
    """Repeats of one setting with other steps and other axes."""
    runs = [
        entry(
            f"a{number}",
            scheme="hy.a",
            breakdown=parts(100, (tp + dp) / 100e6),
            analysis={"communication": communication(tp=tp / 1e6, dp=dp / 1e6)},
        )
        for number, (tp, dp) in enumerate((exposed[:2], exposed[2:]))
    ]
    row = next(row for row in compare([*runs, entry("b", scheme="b")]).rows if row.scheme == "hy.a")
    assert row.composition is not None
    assert abs(sum(part.ns for part in row.step_parts) - row.composition.step) <= 1
    mean = sum(exposed) / 2
    assert abs(sum(part.ns for part in row.step_parts if part.part == "exposed_comm") - mean) <= 4
