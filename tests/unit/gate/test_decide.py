"""Verdicts on two sides: proof and size, comparability, what is left out, and which exit code that is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfscope.gate.decide import judge
from perfscope.gate.metrics import METRICS, worse_by
from perfscope.gate.records import RunFigures, Surroundings
from perfscope.gate.results import CheckResult, ExcludedRun, Outcome, Side
from perfscope.gate.settings import Settings
from tests.support.gate_runs import MACHINE, noisy, run, side

DEFAULT = Settings()
STEADY = noisy(0, 8, 26.0, 0.01)


def judged(base: Side, head: Side, settings: Settings = DEFAULT, **more: object) -> CheckResult:
    return judge(base, head, settings, name="train", **more)  # type: ignore[arg-type]


def slower(share: float, seed: int = 1) -> list[float]:
    return [value * (1 + share) for value in noisy(seed, 8, 26.0, 0.01)]


def test_the_same_again_passes_and_says_how_small_a_change_it_would_have_seen() -> None:
    result = judged(side("base", STEADY), side("head", slower(0.0)))
    assert result.outcome is Outcome.PASS
    assert result.headline.startswith("Pass: no slow-down beyond 5.0 %")
    assert result.noise is not None and result.noise.visible is not None
    assert 0.05 < result.noise.visible < 0.08
    assert len(result.pairs) == 8


def test_ten_per_cent_slower_in_every_pair_is_a_regression_with_figures() -> None:
    result = judged(side("base", STEADY), side("head", slower(0.10)))
    assert result.outcome is Outcome.REGRESSION
    deciding = result.deciding
    assert deciding is not None and deciding.paired and deciding.p == pytest.approx(1 / 256)
    assert deciding.worse == pytest.approx(0.10, abs=0.02)
    assert deciding.low is not None and deciding.worse is not None and deciding.high is not None
    assert deciding.low < deciding.worse < deciding.high
    assert "ms →" in result.headline and "p = 0.004" in result.headline


def test_a_proven_change_below_the_threshold_passes() -> None:
    result = judged(side("base", STEADY), side("head", [v * 1.03 for v in STEADY]))
    assert result.deciding is not None and (result.deciding.p or 1) < 0.05
    assert result.outcome is Outcome.PASS


def test_a_large_change_that_is_not_proven_is_inconclusive_and_says_so() -> None:
    head = [v * r for v, r in zip(STEADY, (0.9, 0.89, 0.88, 1.1, 1.12, 1.1, 1.13, 1.11), strict=True)]
    result = judged(side("base", STEADY), side("head", head))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "not proven" in result.headline and "p = " in result.headline


def test_a_faster_head_is_better_not_just_a_pass() -> None:
    result = judged(side("base", STEADY), side("head", slower(-0.12)))
    assert result.outcome is Outcome.PASS
    assert result.deciding is not None and result.deciding.state == "better"
    assert "less time" in result.headline


def test_runs_of_other_times_need_more_than_twice_the_noise() -> None:
    base = side("base", noisy(2, 8, 26.0, 0.04), paired=False)
    head = side("head", [v * 1.07 for v in noisy(3, 8, 26.0, 0.04)], paired=False)
    result = judged(base, head)
    assert result.deciding is not None and not result.deciding.paired
    assert result.outcome is Outcome.INCONCLUSIVE
    calm = judged(
        side("base", noisy(2, 8, 26.0, 0.005), paired=False),
        side("head", [v * 1.07 for v in noisy(3, 8, 26.0, 0.005)], paired=False),
    )
    assert calm.outcome is Outcome.REGRESSION


def test_a_restless_head_does_not_hide_behind_its_own_noise() -> None:
    base = side("base", noisy(2, 8, 26.0, 0.01), paired=False)
    head = side("head", [v * 1.33 for v in noisy(3, 8, 26.0, 0.10)], paired=False)
    assert judged(base, head).outcome is Outcome.REGRESSION


def test_a_proven_change_within_the_bases_noise_is_not_called_a_pass() -> None:
    base = side("base", noisy(2, 12, 26.0, 0.08), paired=False)
    head = side("head", [v * 1.13 for v in noisy(7, 12, 26.0, 0.02)], paired=False)
    result = judged(base, head)
    assert result.outcome is not Outcome.PASS
    assert "no slow-down beyond" not in result.headline


def test_runs_too_few_to_prove_anything_are_inconclusive_whatever_fewest_says() -> None:
    base, head = side("base", STEADY[:3], paired=False), side("head", [60.0, 61.0, 62.0], paired=False)
    result = judged(base, head, replace(DEFAULT, fewest=3))
    assert result.outcome is Outcome.INCONCLUSIVE


def test_failed_runs_beside_sound_ones_are_no_pass() -> None:
    head = side("head", slower(0.0))
    runs = (replace(head.runs[0], problem="its command ended with exit code 1"), *head.runs[1:])
    result = judged(side("base", STEADY), replace(head, runs=runs))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "1 of 8 runs of head failed" in result.headline


def test_trainings_of_unlike_length_are_no_pass() -> None:
    result = judged(side("base", STEADY, num_steps=5000), side("head", slower(0.0), num_steps=20))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "5,000 steps in the base, 20 in the head" in result.headline


def test_other_batches_are_compared_by_the_time_per_sample() -> None:
    half = replace(MACHINE, batch=16)
    head = side("head", [v * 0.7 for v in slower(0.0)], fingerprint=half)
    result = judged(side("base", STEADY), head, replace(DEFAULT, allow=("batch",)))
    assert result.outcome is Outcome.REGRESSION, "30 % less time for half of the samples"
    assert result.deciding is not None and result.deciding.worse == pytest.approx(0.4, abs=0.03)
    assert "16 samples" in result.warnings[0]


def test_disturbed_runs_of_one_side_alone_point_to_its_own_code() -> None:
    head = side("head", slower(0.3))
    runs = tuple(replace(r, clean=False) if at < 6 else r for at, r in enumerate(head.runs))
    result = judged(side("base", STEADY), replace(head, runs=runs))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "only runs of head were disturbed" in result.headline


def test_runs_that_nobody_could_watch_are_counted() -> None:
    head = side("head", slower(0.0), clean=None, clean_reason="Not watched long enough to tell.")
    result = judged(side("base", STEADY), head)
    assert result.outcome is Outcome.PASS
    assert result.warnings == (
        "Whether something disturbed 8 of 16 runs is not known: Not watched long enough to tell.",
    )


def test_code_is_not_accused_where_the_other_side_was_not_watched() -> None:
    head = side("head", slower(0.3))
    runs = tuple(replace(r, clean=False) if at < 6 else r for at, r in enumerate(head.runs))
    result = judged(side("base", STEADY, clean=None), replace(head, runs=runs))
    assert "perhaps its own code" not in result.headline


def test_a_check_of_too_few_runs_claims_to_see_nothing() -> None:
    result = judged(side("base", STEADY[:4]), side("head", STEADY[:4]))
    assert result.noise is not None and result.noise.visible is None


def test_a_baseline_of_one_hour_of_another_day_is_said_to_know_nothing_of_days() -> None:
    hour = 3_600_000_000_000

    def at(label: str, start: int) -> Side:
        made = side(label, STEADY, paired=False)
        runs = tuple(
            replace(r, surroundings=Surroundings(start_unix_ns=start + n)) for n, r in enumerate(made.runs)
        )
        return replace(made, runs=runs)

    assert "day to day" in judged(at("base", hour), at("head", 30 * hour)).warnings[0]
    assert judged(at("base", hour), at("head", hour + 50)).warnings == ()


def test_five_pairs_that_nothing_settled_cannot_prove_anything() -> None:
    base, head = side("base", STEADY[:5]), side("head", [v * 1.5 for v in STEADY[:5]])
    result = judged(base, head)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "at least 7 pairs are needed" in result.headline
    settled = judged(base, side("head", STEADY[:5]), stopped="the median can no longer exceed the threshold")
    assert settled.outcome is Outcome.PASS


@pytest.mark.parametrize("paired", [True, False])
def test_fewer_than_five_runs_a_side_are_inconclusive_however_large_the_change(paired: bool) -> None:
    result = judged(
        side("base", STEADY[:4], paired=paired), side("head", [v * 2 for v in STEADY[:4]], paired=paired)
    )
    assert result.outcome is Outcome.INCONCLUSIVE
    assert f"at least {7 if paired else 5}" in result.headline


def test_another_fingerprint_is_inconclusive_and_named_and_can_be_allowed() -> None:
    other = replace(MACHINE, torch="2.14.0")
    base, head = side("base", STEADY), side("head", slower(0.2), fingerprint=other)
    result = judged(base, head)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "torch version differs, 2.13.0" in result.headline and "2.14.0" in result.headline
    assert judged(base, head, replace(DEFAULT, allow=("torch",))).outcome is Outcome.REGRESSION


def test_disturbed_runs_are_left_out_not_judged() -> None:
    head = side("head", slower(0.0))
    spoilt = (replace(head.runs[0], metrics={"step_p10": 90e6}, clean=False, clean_reason="a compiler"),)
    result = judged(side("base", STEADY), replace(head, runs=spoilt + head.runs[1:]))
    assert result.outcome is Outcome.PASS
    assert len(result.pairs) == 7
    assert result.left_out[0].reason == "disturbed: a compiler" and result.left_out[0].disturbed


def test_too_many_disturbed_runs_are_inconclusive_with_the_number() -> None:
    head = side("head", slower(0.0))
    runs = tuple(replace(r, clean=False) if at < 4 else r for at, r in enumerate(head.runs))
    result = judged(side("base", STEADY), replace(head, runs=runs))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "4 disturbed runs left out" in result.headline
    assert "at least 7 pairs are needed" in result.headline


def test_a_side_of_which_nothing_ran_well_has_failed() -> None:
    broken = tuple(
        RunFigures(name=f"0{n}-head", fingerprint=MACHINE, problem="its command ended with exit code 3")
        for n in range(3)
    )
    result = judged(side("base", STEADY), Side(label="head", runs=broken))
    assert result.outcome is Outcome.FAILED
    assert "exit code 3" in result.headline and "2 more" in result.headline
    told = judged(side("base", STEADY), side("head", slower(0.0)), failed="Measurement failed: no.")
    assert told.outcome is Outcome.FAILED and told.headline == "Measurement failed: no."


def test_runs_with_too_few_steps_are_not_judged() -> None:
    short = side("head", slower(0.5), num_steps=3)
    result = judged(side("base", STEADY), short)
    assert result.outcome is Outcome.FAILED
    assert "only 3 steps to judge by" in result.headline


def test_a_metric_of_severity_error_can_fail_the_check_alone() -> None:
    base = side("base", STEADY, metrics={"peak_memory": 1e9})
    head = side("head", slower(0.0), metrics={"peak_memory": 1.5e9})
    warned = judged(base, head)
    assert warned.outcome is Outcome.PASS
    memory = next(one for one in warned.metrics if one.metric.id == "peak_memory")
    assert memory.state == "worse" and memory.worse == pytest.approx(0.5) and not memory.fails
    strict = {**METRICS, "peak_memory": replace(METRICS["peak_memory"], severity="error")}
    failed = judged(base, head, replace(DEFAULT, metrics=strict))
    assert failed.outcome is Outcome.REGRESSION
    assert "peak memory" in failed.headline


def test_a_deciding_metric_that_was_not_measured_is_inconclusive() -> None:
    strict = {**METRICS, "energy": replace(METRICS["energy"], severity="error")}
    base = side("base", STEADY, absent={"energy": "no energy counter was readable"})
    result = judged(base, side("head", slower(0.0)), replace(DEFAULT, metrics=strict))
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "no energy counter was readable" in result.headline


def test_a_metric_that_is_off_says_nothing() -> None:
    off = {**METRICS, "step_mean": replace(METRICS["step_mean"], severity="off", threshold=0.001)}
    result = judged(side("base", STEADY), side("head", slower(0.02)), replace(DEFAULT, metrics=off))
    mean = next(one for one in result.metrics if one.metric.id == "step_mean")
    assert mean.state == "worse" and not mean.fails
    assert result.outcome is Outcome.PASS


def test_what_was_left_out_before_is_kept_beside_what_is_left_out_here() -> None:
    before = ExcludedRun(name="03-head", side="head", reason="disturbed (repeated): a compiler")
    result = judged(side("base", STEADY), side("head", slower(0.0)), left_out=[before])
    assert before in result.left_out


@pytest.mark.parametrize(
    ("id_", "base", "head", "worse"),
    [
        ("step_p10", 20e6, 22e6, 0.1),
        ("throughput", 1000.0, 500.0, 1.0),
        ("throughput", 500.0, 1000.0, -0.5),
        ("input_wait", 0.0, 2e6, 0.1),
        ("stalls", 0.01, 0.11, 0.1),
        ("peak_memory", 0.0, 5.0, None),
    ],
)
def test_worse_is_positive_whatever_the_direction(
    id_: str, base: float, head: float, worse: float | None
) -> None:
    found = worse_by(METRICS[id_], base, head, 20e6)
    assert found == (worse if worse is None else pytest.approx(worse))


def test_pairs_are_matched_by_number_and_not_by_order() -> None:
    base, head = side("base", STEADY), side("head", slower(0.1))
    mixed = replace(head, runs=tuple(reversed(head.runs)))
    assert judged(base, mixed).pairs == judged(base, head).pairs
    lonely = replace(head, runs=(*head.runs[1:], run("extra", 26.0)))
    unnumbered = judged(base, lonely)
    assert unnumbered.pairs == () and unnumbered.deciding is not None and not unnumbered.deciding.paired
