"""One planted cause per emulated run: it must come first, nothing may be invented, what-ifs must come true.

The truth of a what-if is the same run, with the same random draw, without the thing that it removes.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import numpy as np
import pytest

from perfscope.analysis.results import Finding, RunAnalysis
from perfscope.analysis.run import analyze_run
from tests.planted.cases import CAUSES, Case, draw, true_step_s
from tests.planted.emulate import run, step_s
from tests.planted.recording import EmulatedRun

SEEDS = 30  # cases of each cause
CLEAN_SEEDS = 100
HIT_RATE = 0.95
WITHIN = 0.10  # median error of what-ifs
# The finding's own gain stands for what no replay removes.
WHAT_IFS = {
    "straggler": ("no_stragglers",),
    "slow_link": ("zero_transfer", "double_bandwidth"),
    "input_bound": ("no_input_wait",),
    "model_split": ("perfect_balance",),
    "small_collectives": ("one_bucket",),
    "numa_remote": (),
    "disturbed": (),
}


@dataclass(frozen=True, slots=True)
class Judged:
    case: Case
    analysis: RunAnalysis

    @property
    def verdict(self) -> Finding:
        return self.analysis.findings[0]

    @property
    def said(self) -> str:
        one = self.verdict
        return (
            f"{self.case.label} (rank {self.case.rank}, layer {self.case.layer}): {one.id}: {one.text.title}"
        )


def judged(seed: int, cause: str | None) -> Judged:
    case = draw(seed, cause)
    analysis = analyze_run(EmulatedRun(case.job, run(case.job)))
    assert all(check.ok for check in analysis.self_checks), (case.label, analysis.self_checks)
    return Judged(case, analysis)


def errors(one: Judged) -> dict[str, float]:
    """What-if -> |predicted - true| / true step; 1.0 for one that is not there."""
    case, found = one.case, {}
    assert case.cause is not None
    predicted = {what.id: what.step_ns for what in one.analysis.what_ifs}
    for name in WHAT_IFS[case.cause]:
        truth = true_step_s(case.without[name])[0] * 1e9
        found[name] = abs(predicted[name] - truth) / truth if name in predicted else 1.0
    if not WHAT_IFS[case.cause] and case.comparable:
        # A neighbor that comes and goes is judged by the mean step: the median knows one of the two states.
        place = 1 if case.cause == "disturbed" else 0
        (job,) = case.without.values()
        now, truth = true_step_s(case.job)[place] * 1e9, true_step_s(job)[place] * 1e9
        gain = next((f.gain_ns for f in one.analysis.findings if f.id == case.cause), None)
        found["gain"] = abs(now - gain - truth) / truth if gain is not None else 1.0
    return found


@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_comes_first_and_its_what_if_comes_true(cause: str) -> None:
    every = [judged(seed, cause) for seed in range(SEEDS)]
    misses = [one.said for one in every if one.verdict.id != cause]
    assert len(misses) <= (1 - HIT_RATE) * SEEDS, "\n".join(misses)
    placed = [one for one in every if one.case.rank is not None and one.verdict.id == cause]
    elsewhere = [one.said for one in placed if one.verdict.rank != one.case.rank]
    assert len(elsewhere) <= (1 - HIT_RATE) * SEEDS, "\n".join(elsewhere)
    layered = [one for one in every if one.case.layer is not None and one.verdict.id == cause]
    other = [one.said for one in layered if one.verdict.layer != one.case.layer]
    assert len(other) <= (1 - HIT_RATE) * SEEDS, "\n".join(other)
    off: dict[str, list[float]] = {}
    for one in every:
        for name, error in errors(one).items():
            off.setdefault(name, []).append(error)
    assert off
    medians = {name: statistics.median(values) for name, values in off.items()}
    assert all(error <= WITHIN for error in medians.values()), medians


def test_no_cause_is_invented_on_a_clean_run() -> None:
    invented = [
        one.said for one in (judged(seed, None) for seed in range(CLEAN_SEEDS)) if one.verdict.id in CAUSES
    ]
    assert not invented, "\n".join(invented)


# -- the emulator itself: a truth that is not true proves nothing ------------------------------------------


@pytest.mark.parametrize("cause", CAUSES)
def test_a_job_without_its_cause_meets_the_same_luck_and_is_faster(cause: str) -> None:
    case = draw(3, cause)
    for job in case.without.values():
        assert job.seed == case.job.seed and job.num_ranks == case.job.num_ranks
        assert true_step_s(job)[1] < 0.9 * true_step_s(case.job)[1]
    assert np.array_equal(step_s(case.job), step_s(replace(case.job)))


def test_a_step_of_one_layer_is_the_sum_that_can_be_done_by_hand() -> None:
    """Two ranks, one layer, no overlap possible: slowest forward and backward, ring, optimizer, input."""
    drawn = draw(0, None).job
    layer = replace(drawn.layers[0], forward_s=0.01, shapes=((1000, 1000),))
    ones = np.ones((2, 1))
    job = replace(
        drawn,
        shape="data",
        on_gpu=False,
        num_ranks=2,
        ranks_per_host=2,
        layers=(layer,),
        share=ones,
        slowdown=np.array([[1.0], [2.0]]),
        bucket_bytes=1,
        latency_s=1e-4,
        s_per_byte=1e-9,
        loader_s=np.array([0.004, 0.002]),
        prefetch=0,
        optimizer_s=0.001,
    )
    ring = 2 * (1e-4 / 2 + 4_000_000 / 2 * 1e-9)
    by_hand = 2 * 0.03 + ring + 0.001 + 0.002  # rank 0 loads longer, but then waits for rank 1 all the same
    assert step_s(job)[1].mean() == pytest.approx(by_hand, rel=0.03)
    assert step_s(job)[0].mean() == pytest.approx(by_hand, rel=0.03)
