"""One planted cause per emulated hybrid: it comes first with its axis or layer, and its what-if comes true.

The truth is the same run, with the same random draw, without the cause.
"""

from __future__ import annotations

import statistics

import pytest

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.analysis.study.analyze import analyze_study
from perfscope.analysis.study.results import RunEntry
from tests.planted.hybrid import CAUSES, HybridCase, draw, run, true_step_s
from tests.planted.recording import EmulatedRun

SEEDS = 20  # cases of each cause
HIT_RATE = 0.95
WITHIN = 0.10  # median error of what-ifs
NAMED = {
    "slow_tp_link": ("slow_link", "tp"),
    "slow_dp_link": ("slow_link", "dp"),
    "uneven_comm": ("uneven_comm", "tp"),
    "small_buckets": ("small_collectives", "dp"),
}


def judged(seed: int, cause: str | None) -> tuple[HybridCase, RunAnalysis]:
    case = draw(seed, cause)
    return case, analyze_run(EmulatedRun(case.job, run(case.job)))


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_along_an_axis_comes_first_and_its_what_if_comes_true(cause: str) -> None:
    misses, errors = [], []
    for seed in range(SEEDS):
        case, analysis = judged(seed, cause)
        verdict = analysis.findings[0]
        if (verdict.id, verdict.axis, verdict.layer) != (*NAMED[cause], case.layer):
            misses.append(f"seed {seed}: {verdict.id} {verdict.axis} {verdict.layer}: {verdict.text.title}")
            continue
        assert analysis.step_ns is not None and verdict.gain_ns is not None
        truth = true_step_s(case.without) * 1e9
        errors.append(abs(analysis.step_ns.median - verdict.gain_ns - truth) / truth)
    assert len(misses) <= (1 - HIT_RATE) * SEEDS, "\n".join(misses)
    assert statistics.median(errors) <= WITHIN, errors


def test_no_cause_is_invented_on_a_clean_hybrid() -> None:
    verdicts = [judged(seed, None)[1].findings[0] for seed in range(2 * SEEDS)]
    assert not [verdict.text.title for verdict in verdicts if verdict.axis is not None]


def test_the_parts_of_a_hybrid_add_up() -> None:
    """Axes, collectives of an axis, and axes of a layer."""
    _, analysis = judged(0, "slow_tp_link")
    communication = analysis.communication
    assert communication is not None
    assert sum(entry.exposed_ns for entry in communication.by_axis) == communication.exposed_ns
    for entry in communication.by_axis:
        assert sum(entry.collectives.values()) == entry.exposed_ns
    for row in communication.by_layer:
        assert row.bytes is not None and abs(sum(row.axis_bytes.values()) - row.bytes) <= 1


@pytest.mark.parametrize("cause", ["slow_tp_link", "slow_dp_link", "uneven_comm"])
def test_a_comparison_finds_the_axis_and_layer_that_make_the_difference(cause: str) -> None:
    """Of the same job with and without a cause, and it adds up."""
    axis = NAMED[cause][1]
    for seed in range(5):
        case = draw(seed, cause)
        runs = [(name, EmulatedRun(job, run(job))) for name, job in (("a", case.without), ("b", case.job))]
        diff = analyze_study([RunEntry(name=name, analysis=analyze_run(one)) for name, one in runs]).diff
        assert diff is not None and diff.difference is not None
        one = diff.difference
        assert sum(change.change_ns for change in one.changes) == one.change_ns > 0
        assert next(iter(one.by_axis)) == axis
        assert one.by_axis[axis] >= 0.8 * one.change_ns
        if case.layer is not None:
            assert (one.changes[0].axis, one.changes[0].layer) == (axis, case.layer)
