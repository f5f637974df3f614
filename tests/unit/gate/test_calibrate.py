"""What calibration says of noise that is known, and of real runs."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from perfscope.gate.calibrate import (
    Calibration,
    calibrate,
    describe,
)
from perfscope.gate.metrics import METRICS
from perfscope.gate.records import Fingerprint, RunFigures, Surroundings
from perfscope.gate.sequential import looks
from perfscope.gate.settings import Settings
from perfscope.gate.simulated_checks import EFFECTS, CheckTrial, draw_pairs, gate_judge, most_of, wilson
from perfscope.gate.statistics import signed_rank_p
from perfscope.gate.stopping import settled
from perfscope.reports.gate_calibration import calibration_document, render_calibration

Floats = NDArray[np.float64]
SETTINGS = Settings(alpha=0.02)
STEP_NS = 30e6
REAL = Path(__file__).parents[2] / "data" / "gate" / "nothing-p10.json"


def runs(values: Sequence[float] | Floats, **more: object) -> list[RunFigures]:
    run = RunFigures(name="run", fingerprint=Fingerprint(cpu="a CPU", world_size=2), num_steps=100)
    return [
        replace(
            run,
            name=f"run-{at}",
            metrics={"step_p10": float(value)},
            surroundings=Surroundings(start_unix_ns=at * 10_000_000_000),
            **more,  # type: ignore[arg-type]
        )
        for at, value in enumerate(values)
    ]


def gaussian(spread: float, num: int, seed: int = 7) -> Floats:
    result: Floats = STEP_NS * np.exp(np.random.default_rng(seed).normal(0, spread, num))
    return result


def trial(found: Calibration, pairs: int, threshold: float) -> CheckTrial:
    (one,) = [one for one in found.trials if (one.pairs, one.threshold) == (pairs, threshold)]
    return one


def one_check(ratios: Floats, planned: int, threshold: float, settings: Settings) -> tuple[bool, int]:
    """A check pair after pair, as it is conducted: whether it is a regression, and after how many pairs."""
    at = looks(planned, len(ratios))
    fewest = settings.fewest if settings.early_stop else planned
    for done in range(1, len(ratios) + 1):
        said = settled([(list(ratios[:done]), threshold)], at, settings.alpha, fewest)
        if said:
            if "slower by more" in said or "no longer" in said:
                return "slower by more" in said, done
            so_far = ratios[:done]
            proven = signed_rank_p(np.log(so_far)) < settings.alpha
            return bool(proven and np.median(so_far) > 1 + threshold), done
    raise AssertionError("the last look settles every check")


def written_down_again(ratios: Sequence[float], planned: int, threshold: float) -> tuple[bool, int]:
    """The rule in other words, without the gate's code: alpha 0.02, 5 pairs at least, looks as documented."""
    at = (planned, math.ceil(planned * 1.5), 2 * planned)
    for done in range(5, 2 * planned + 1):
        so_far = ratios[:done]
        if done in at:
            if statistics.median(so_far) <= 1 + threshold:
                return False, done
            ranked = sorted((math.log(one) for one in so_far), key=abs)
            above = sum(rank for rank, one in enumerate(ranked, start=1) if one > 0)
            if null_share(done, above) < 0.02:
                return True, done
            if done == at[-1]:
                return False, done
        elif 6 <= done < planned and min(so_far) > 1 + 2 * threshold:
            return True, done
        else:
            look = min(one for one in at if one > done)
            # Even if all that are to come were beyond the threshold, more than half would not be.
            if sum(one <= 1 + threshold for one in so_far) > look // 2:
                return False, done
    raise AssertionError("the last look settles every check")


@cache
def null_share(pairs: int, at_least: int) -> float:
    """P(W+ >= at_least) by counting subsets of the ranks."""
    ways = Counter({0: 1})
    for rank in range(1, pairs + 1):
        ways += Counter({total + rank: num for total, num in ways.items()})
    return float(sum(num for total, num in ways.items() if total >= at_least)) / float(2**pairs)


def by_hand(spread: float, planned: int, threshold: float, slower: float) -> tuple[float, float]:
    """Share of checks that call `slower` a regression, and their mean pairs; nothing is resampled."""
    draw = np.random.default_rng(11)
    logs = draw.normal(0, spread * math.sqrt(2), (1200, 2 * planned)) + math.log1p(slower)
    ends = [written_down_again(row.tolist(), planned, threshold) for row in np.exp(logs)]
    return float(np.mean([wrong for wrong, _ in ends])), float(np.mean([done for _, done in ends]))


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.06])
def test_known_noise_gives_the_power_and_the_cost_that_a_simulation_pair_by_pair_finds(spread: float) -> None:
    found = calibrate(runs(gaussian(spread, 2500)), SETTINGS, pairs=(6,))
    assert found.spread == pytest.approx(spread, rel=0.05)
    for pairs, threshold in ((6, 0.03), (8, 0.05)):
        own = trial(found, pairs, threshold)
        assert (own.most, own.wanted) == (2 * pairs, 2 * pairs)
        wrong, needed = by_hand(spread, pairs, threshold, 0.0)
        assert own.false_alarms == pytest.approx(wrong, abs=0.02)
        assert own.needed == pytest.approx(needed, abs=0.4)
        power, needed = by_hand(spread, pairs, threshold, 0.10)
        assert own.finds(0.10) == pytest.approx(power, abs=0.04)
        assert own.needed_slower == pytest.approx(needed, abs=0.6)
        assert own.visible is not None and own.sure is not None and own.visible < own.sure
        assert by_hand(spread, pairs, threshold, own.visible)[0] == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.06])
def test_a_check_as_it_comes_is_wrong_in_at_most_2_per_cent_of_gaussian_noise(spread: float) -> None:
    found = calibrate(runs(gaussian(spread, 2500)), SETTINGS, pairs=(), draws=4000)
    assert found.current is not None and found.current.false_alarms <= 0.02


def test_a_quiet_machine_gets_few_pairs_and_a_noisy_one_is_told_what_it_can_see() -> None:
    quiet = calibrate(runs(gaussian(0.01, 60)), SETTINGS, pairs=(6, 12))
    assert quiet.sees_target and quiet.suggestion is not None
    assert (quiet.suggestion.pairs, quiet.suggestion.threshold) == (6, 0.03)
    assert quiet.headline.startswith("Use 6 pairs at 3 %: a check is wrong less than 0.")
    noisy = calibrate(runs(gaussian(0.15, 60)), SETTINGS, pairs=(6, 12))
    best = noisy.suggestion
    assert best is not None and not noisy.sees_target and (best.visible is None or best.visible > 0.10)
    assert "cannot see +10 %" in noisy.headline or "too noisy" in noisy.headline
    middle = calibrate(runs(gaussian(0.05, 60)), SETTINGS, pairs=(6, 12)).suggestion
    assert middle is not None and middle.pairs >= 6
    assert middle.false_alarms <= 0.02 and middle.finds(0.10) >= 0.80


@pytest.mark.parametrize(
    ("pairs", "most", "threshold", "early_stop"),
    [
        (6, 12, 0.05, True),
        (8, 16, 0.05, True),
        (11, 14, 0.03, True),
        (8, 8, 0.05, True),
        (8, 16, 0.05, False),
    ],
)
def test_the_rule_is_what_a_check_does_pair_after_pair(
    pairs: int, most: int, threshold: float, early_stop: bool
) -> None:
    draw = np.random.default_rng(3)
    settings = replace(SETTINGS, pairs=pairs, most_pairs=most, early_stop=early_stop)
    # Slow-downs about the threshold, so that every way to end is met.
    ratios = np.exp(draw.normal(0, 0.10, (300, most)) + draw.uniform(-0.02, 0.15, (300, 1)))
    expected = [one_check(row, pairs, threshold, settings) for row in ratios]
    is_worse, needed = gate_judge(settings, pairs, most)(ratios, threshold)
    assert list(zip(is_worse.tolist(), needed.tolist(), strict=True)) == expected
    assert 0 < is_worse.sum() < len(expected)
    assert (needed.min() >= pairs) == (not early_stop) and needed.max() == most


def test_without_early_stop_a_check_takes_more_pairs() -> None:
    values = gaussian(0.03, 200)
    early = trial(calibrate(runs(values), SETTINGS, pairs=()), 8, 0.05)
    whole = trial(calibrate(runs(values), replace(SETTINGS, early_stop=False), pairs=()), 8, 0.05)
    assert early.needed < 7 < 8 <= whole.needed < 9
    assert whole.finds(0.10) == pytest.approx(early.finds(0.10), abs=0.02)


def test_what_each_check_finds_is_what_the_rule_says_of_every_slow_down() -> None:
    # Against trying each of EFFECTS: the search in between leaves most of them out.
    found = calibrate(runs(gaussian(0.06, 40)), SETTINGS, pairs=(), draws=300)
    logs = np.log([run.metrics["step_p10"] for run in runs(gaussian(0.06, 40))])
    ratios = np.exp(draw_pairs(logs, 16, 300, np.random.default_rng((0, 8))))
    for threshold in (0.03, 0.05, 0.075, 0.15):
        judge = gate_judge(SETTINGS, 8, 16)
        every = [judge(ratios * (1 + effect), threshold)[0].mean() for effect in EFFECTS]
        assert trial(found, 8, threshold).power == pytest.approx(every, abs=1e-9)


def test_how_far_a_check_in_doubt_goes_keeps_to_the_settings_and_to_the_runs() -> None:
    assert [most_of(SETTINGS, num) for num in (6, 8, 20)] == [12, 16, 40]
    half = replace(SETTINGS, pairs=8, most_pairs=12)
    assert [most_of(half, num) for num in (6, 8, 10)] == [9, 12, 15]
    assert most_of(replace(SETTINGS, pairs=16, most_pairs=10), 6) == 6
    found = calibrate(runs(gaussian(0.05, 40)), SETTINGS, draws=200)
    assert {one.pairs: one.most for one in found.trials if one.pairs in (8, 10, 12, 16)} == {
        8: 16,
        10: 20,
        12: 20,
        16: 20,
    }
    text = " ".join(render_calibration(found, width=100, color=False).split())
    assert "those of 11 pairs and more go on to 20 at most here" in text
    assert all(one.needed <= one.most for one in found.trials)


def test_pairs_that_can_prove_nothing_are_left_out() -> None:
    assert min(one.pairs for one in calibrate(runs(gaussian(0.02, 40)), SETTINGS, draws=100).trials) == 6
    lax = calibrate(runs(gaussian(0.02, 40)), replace(SETTINGS, alpha=0.05), draws=100)
    assert min(one.pairs for one in lax.trials) == 5
    strict = calibrate(runs(gaussian(0.02, 40)), replace(SETTINGS, alpha=0.003), draws=100)
    assert min(one.pairs for one in strict.trials) == 9 and strict.current is None
    assert any("8 pairs as configured can prove nothing at alpha 0.003" in one for one in strict.sentences)


def test_pairs_are_neighbours_and_no_run_is_used_twice_in_a_check() -> None:
    # Powers of 4 make every log ratio tell which two runs it is of.
    num, pairs = 16, 6
    logs = np.array([4.0**at for at in range(num)])
    of = {4.0**late - 4.0**early: (early, late) for early, late in itertools.combinations(range(num), 2)}
    drawn = draw_pairs(logs, pairs, 500, np.random.default_rng(0))
    assert drawn.shape == (500, pairs)
    for row in drawn:
        used = [at for ratio in row for at in of[abs(ratio)]]
        assert len(set(used)) == 2 * pairs
        assert all(late - early <= 6 for early, late in (of[abs(ratio)] for ratio in row))
    assert (drawn > 0).mean() == pytest.approx(0.5, abs=0.03)  # a coin says which one is the base
    assert {at for row in drawn for ratio in row for at in of[abs(ratio)]} == set(range(num))


def test_drift_is_measured_and_neither_alarms_nor_widens_the_spread() -> None:
    num = 80
    values = gaussian(0.01, num) * np.exp(np.linspace(0, math.log(1.4), num))
    found = calibrate(runs(values), SETTINGS, pairs=(5,))
    assert found.drift == pytest.approx(0.4, abs=0.02)
    assert found.drift_low is not None and found.drift_low > 0.35
    assert found.spread == pytest.approx(0.01, rel=0.3)
    assert trial(found, 8, 0.05).false_alarms == 0.0 and found.sees_target
    assert any("40" in one and "slower over the session" in one for one in found.sentences)
    assert found.session_s == pytest.approx((num - 1) * 10)
    still = calibrate(runs(gaussian(0.01, num)), SETTINGS, pairs=(), draws=200)
    assert not any("over the session" in one for one in still.sentences)


def test_the_order_is_that_of_time_not_that_of_names() -> None:
    values = gaussian(0.005, 40) * np.exp(np.linspace(0, 0.5, 40))
    shuffled = list(np.random.default_rng(1).permutation(np.array(runs(values), dtype=object)))
    assert calibrate(shuffled, SETTINGS, pairs=(), draws=200) == calibrate(
        runs(values), SETTINGS, pairs=(), draws=200
    )


def test_heavy_tails_do_not_make_a_gate_that_cries_wolf() -> None:
    values = gaussian(0.02, 120)
    hit = np.random.default_rng(5).random(120) < 0.12  # now and then somebody else takes a CPU
    values[hit] *= 1.8
    found = calibrate(runs(values), SETTINGS, pairs=())
    own = trial(found, 8, 0.05)
    assert own.false_alarms <= 0.02 and own.finds(0.10) < 1.0
    assert found.spread is not None and found.spread < 0.04
    assert any(f"{hit.sum()} of 120 runs lie far from the others" in one for one in found.sentences)


@pytest.mark.parametrize("num", [0, 1, 9])
def test_too_few_runs_give_a_reason_and_no_figures(num: int) -> None:
    found = calibrate(runs(gaussian(0.02, num)), SETTINGS)
    assert found.suggestion is None and found.trials == () and found.num_runs == num
    assert f"{num} run{'s' if num != 1 else ''} to judge by" in found.reason
    assert f"make {16 - num} more" in found.headline
    assert render_calibration(found, width=80, color=False).startswith("Not calibrated: ")


def test_pairs_that_need_more_runs_than_there_are_are_not_made_up() -> None:
    found = calibrate(runs(gaussian(0.02, 12)), SETTINGS)
    assert {one.pairs for one in found.trials} == {6} and found.current is None
    assert any("8 pairs as configured needs 16 runs" in one for one in found.sentences)
    assert "Not tried: 7 pairs and more" in render_calibration(found, width=80, color=False)


def test_runs_that_a_check_would_not_judge_are_left_out_with_their_reason() -> None:
    good = runs(gaussian(0.02, 20))
    odd = [
        replace(good[0], name="disturbed", clean=False, clean_reason="a neighbor"),
        replace(good[0], name="failed", problem="its command ended with exit code 1"),
        replace(good[0], name="short", num_steps=3),
        replace(good[0], name="untimed", metrics={}),
        replace(good[0], name="elsewhere", fingerprint=Fingerprint(cpu="another CPU", world_size=2)),
    ]
    found = calibrate([*odd, *good], SETTINGS, pairs=(), draws=200)
    assert found.num_runs == 20 and found.fingerprint == good[0].fingerprint
    reasons = {one.name: one.reason for one in found.left_out}
    assert reasons["disturbed"] == "disturbed: a neighbor" and "exit code 1" in reasons["failed"]
    assert set(reasons) == {one.name for one in odd} and "CPU model differs" in reasons["elsewhere"]
    assert calibrate([*odd, *good], replace(SETTINGS, allow=("cpu",)), pairs=(), draws=200).num_runs == 21


def test_a_threshold_and_pairs_of_ones_own_are_tried_too() -> None:
    metric = replace(METRICS["step_p10"], threshold=0.065)
    settings = replace(SETTINGS, pairs=18, metrics={**METRICS, "step_p10": metric})
    found = calibrate(runs(gaussian(0.03, 40)), settings, pairs=(), draws=200)
    assert found.current is trial(found, 18, 0.065)
    assert any("As configured, a check of 18 to 20 pairs at 6.5 % is wrong" in one for one in found.sentences)


def test_the_same_runs_and_seed_give_the_same_calibration() -> None:
    values = runs(gaussian(0.05, 40))
    first, again, other = (calibrate(values, SETTINGS, seed=seed, pairs=(), draws=200) for seed in (4, 4, 5))
    assert first == again != other


def test_another_rule_can_be_calibrated() -> None:
    def first_pair_decides(ratios: Floats, threshold: float, alpha: float) -> NDArray[np.bool_]:
        result: NDArray[np.bool_] = ratios[:, 0] > 1 + threshold
        return result

    noisy = calibrate(runs(gaussian(0.05, 60)), SETTINGS, pairs=(), rule=first_pair_decides)
    own = trial(noisy, 8, 0.05)
    assert own.false_alarms > 0.15 and (own.most, own.needed, own.needed_slower) == (8, 8.0, 8.0)


def test_real_runs_of_a_machine_that_others_use() -> None:
    recorded = json.loads(REAL.read_text())
    every = [
        replace(runs([p10])[0], name=f"{start}", clean=clean, surroundings=Surroundings(start_unix_ns=start))
        for start, p10, clean in recorded
    ]
    found = calibrate(every, SETTINGS, pairs=(12,))
    assert found.num_runs == sum(clean for _, _, clean in recorded)
    assert len(found.left_out) == len(recorded) - found.num_runs
    assert found.current is not None and found.current.low <= found.current.false_alarms <= 0.05
    assert found.current.finds(0.20) > 0.9 and found.spread is not None and 0.02 < found.spread < 0.08
    assert "8 to 14 pairs at 5 %" in describe(found.current)


def test_wilson_interval_of_textbook_cases() -> None:
    assert wilson(0, 10)[1] == pytest.approx(0.2775, abs=1e-4)
    assert wilson(5, 10)[0] == pytest.approx(0.2366, abs=1e-4)
    assert wilson(5, 10)[1] == pytest.approx(0.7634, abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_text_keeps_to_its_width_and_says_the_suggestion_first(width: int) -> None:
    found = calibrate(runs(gaussian(0.05, 40)), SETTINGS, pairs=(6, 10), draws=300)
    text = render_calibration(found, width=width, color=False)
    assert all(len(line) <= width for line in text.splitlines())
    assert text.split()[:2] == ["Use", str(found.suggestion.pairs if found.suggestion else None)]
    assert "* suggested" in " ".join(text.split()) and "\x1b" not in text
    painted = render_calibration(found, width=width, color=True)
    assert "\x1b[1m" in painted


def test_the_table_shows_what_was_found() -> None:
    found = calibrate(runs(gaussian(0.05, 40)), SETTINGS, pairs=(6, 10), draws=300)
    (row,) = [line for line in render_calibration(found, width=100, color=False).splitlines() if "=" in line][
        :1
    ]
    own = found.current
    assert own is not None and own.visible is not None and found.suggestion is not None
    assert row.split()[:2] == ["8", f"{trial(found, 8, found.suggestion.threshold).needed:.1f}"]
    assert f"{100 * own.false_alarms:.1f} / {100 * own.visible:.1f}=" in row


def test_hostile_names_stay_harmless_in_the_text() -> None:
    bad = replace(runs([STEP_NS])[0], name="::error::\x1b[2Jx\u202e", problem="::set-output\nname")
    text = render_calibration(calibrate([bad, *runs(gaussian(0.02, 12))], SETTINGS), width=80, color=False)
    assert "\x1b" not in text and "\u202e" not in text and "\\x1b[2J" in text
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())


def test_the_document_is_json_with_every_trial() -> None:
    found = calibrate(runs(gaussian(0.05, 40)), SETTINGS, pairs=(6, 10), draws=300)
    document = json.loads(json.dumps(calibration_document(found), allow_nan=False))
    assert (document["schema_version"], document["kind"]) == (1, "calibration")
    assert document["effects"] == list(EFFECTS) and len(document["trials"]) == len(found.trials)
    assert all(len(one["found"]) == len(EFFECTS) for one in document["trials"])
    (own,) = [one for one in document["trials"] if (one["pairs"], one["threshold"]) == (8, 0.05)]
    assert (
        own["most_pairs"] == 16 and 5 <= own["mean_pairs_unchanged"] <= 16 and own["mean_pairs_target"] <= 16
    )
    assert document["suggestion"] == {
        "pairs": found.suggestion.pairs if found.suggestion else None,
        "threshold": found.suggestion.threshold if found.suggestion else None,
    }
    assert document["fingerprint"]["cpu"] == "a CPU" and document["num_runs"] == 40
    empty = json.loads(json.dumps(calibration_document(calibrate([], SETTINGS)), allow_nan=False))
    assert empty["suggestion"] is None and empty["reason"] and empty["trials"] == []
