"""Pipelines of whole runs: stages, schedule, sums, and the reasons where they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.pipelines import Schedule
from tests.support.pipeline_run import pipeline_run, torch_range
from tests.support.pipelines import (
    Action,
    F,
    Simulated,
    gpipe,
    interleaved,
    one_f_one_b,
    simulated,
)

MS = 1_000_000


def times(action: Action) -> int:
    return MS if action[2] is F else 2 * MS


def steps_of(
    orders: list[list[Action]], duration: object = times, num: int = 3, **how: object
) -> list[Simulated]:
    length = simulated(orders, duration, **how).active_ns  # type: ignore[arg-type]
    return [
        simulated(orders, duration, begin=MS + number * (length + 10 * MS), step=number, **how)  # type: ignore[arg-type]
        for number in range(num)
    ]


def missing_of(analysis: RunAnalysis) -> list[Cause]:
    return [entry.cause for entry in analysis.missing if entry.figure is Figure.PIPELINE]


@pytest.mark.parametrize(
    ("schedule", "orders", "v", "ideal"),
    [
        (Schedule.GPIPE, gpipe(3, 4), 1, 2 / 6),
        (Schedule.ONE_F_ONE_B, one_f_one_b(4, 8), 1, 3 / 11),
        (Schedule.INTERLEAVED, interleaved(2, 4, 2), 2, 1 / 9),
    ],
)
def test_stages_and_bubble_of_a_run(
    tmp_path: Path, schedule: Schedule, orders: list[list[Action]], v: int, ideal: float
) -> None:
    p = len(orders)
    run = pipeline_run(tmp_path, {tuple(range(p)): steps_of(orders)})
    pipeline = analyze_run(run.read()).pipeline
    assert pipeline is not None
    assert (pipeline.schedule, pipeline.virtual_stages, pipeline.num_steps) == (schedule, v, 3)
    assert pipeline.pipelines == (tuple(range(p)),)
    assert pipeline.bubble.ideal_ratio == pytest.approx(ideal)
    assert pipeline.bubble.measured_ratio == pytest.approx(ideal)
    m = pipeline.microbatches
    assert [stage.compute_ns for stage in pipeline.stages] == [3 * m * MS] * (p * v)
    assert [stage.ranks for stage in pipeline.stages] == [(stage % p,) for stage in range(p * v)]
    assert sum(stage.bubble_ns for stage in pipeline.stages) == pytest.approx(
        p * pipeline.bubble.measured_ns, abs=p
    )
    assert len(pipeline.spans) == 2 * m * p * v


def test_replicas_are_two_pipelines_and_their_mean(tmp_path: Path) -> None:
    slow = steps_of(gpipe(2, 4), lambda action: 2 * times(action))
    run = pipeline_run(tmp_path, {(0, 1): steps_of(gpipe(2, 4)), (2, 3): slow})
    pipeline = analyze_run(run.read()).pipeline
    assert pipeline is not None
    assert pipeline.pipelines == ((0, 1), (2, 3))
    assert [stage.ranks for stage in pipeline.stages] == [(0, 2), (1, 3)]
    assert [stage.compute_ns for stage in pipeline.stages] == [18 * MS, 18 * MS]  # the mean of 12 and 24 ms


def test_the_causes_of_a_bubble_add_up_to_it(tmp_path: Path) -> None:
    orders = one_f_one_b(3, 6)
    steps = steps_of(
        orders, lambda a: times(a) * (3 if a[0] == 1 else 2) // 2, link_ns=300_000, pause=lambda a: 50_000
    )
    analysis = analyze_run(pipeline_run(tmp_path, {(0, 1, 2): steps}).read())
    assert analysis.pipeline is not None
    bubble = analysis.pipeline.bubble
    parts = (bubble.fill_ns, bubble.drain_ns, bubble.imbalance_ns, bubble.late_sends_ns, bubble.other_ns)
    assert sum(parts) == bubble.measured_ns
    assert min(parts) > 0


def test_ranges_of_torch_serve_where_the_probe_made_no_marks(tmp_path: Path) -> None:
    run = pipeline_run(tmp_path, {(0, 1): steps_of(gpipe(2, 4))}, mark=torch_range)
    pipeline = analyze_run(run.read()).pipeline
    assert pipeline is not None
    assert pipeline.schedule is Schedule.GPIPE
    assert pipeline.bubble.measured_ratio == pytest.approx(1 / 5)
    assert [stage.stage for stage in pipeline.stages] == [0, 1]


def test_without_marks_the_reason_is_given(tmp_path: Path) -> None:
    analysis = analyze_run(pipeline_run(tmp_path, {(0, 1): steps_of(gpipe(2, 4))}, mark=None).read())
    assert analysis.pipeline is None
    assert missing_of(analysis) == [Cause.NO_STAGE_MARKS]


def test_a_stage_without_some_microbatch_makes_no_pipeline(tmp_path: Path) -> None:
    steps = steps_of(gpipe(2, 4))
    for step in steps:
        step.ranks[1] = [work for work in step.ranks[1] if work.microbatch != 2]
    analysis = analyze_run(pipeline_run(tmp_path, {(0, 1): steps}).read())
    assert analysis.pipeline is None
    assert missing_of(analysis) == [Cause.STAGES_INCOMPLETE]


def test_a_run_without_a_pipeline_misses_nothing(tmp_path: Path) -> None:
    analysis = analyze_run(pipeline_run(tmp_path, {(0,): steps_of(gpipe(1, 2))}, mark=None).read())
    assert analysis.pipeline is None
    assert missing_of(analysis) == []


def test_a_slow_stage_is_named_with_what_balancing_would_bring(tmp_path: Path) -> None:
    orders = one_f_one_b(4, 8)
    steps = steps_of(orders, lambda action: times(action) * (2 if action[0] == 2 else 1))
    balanced = steps_of(orders, lambda action: times(action) * 5 // 4)
    analysis = analyze_run(pipeline_run(tmp_path, {(0, 1, 2, 3): steps}).read())
    finding = analysis.findings[0]
    assert finding.id is FindingKind.STAGE_IMBALANCE and finding.rank == 2
    assert "stage 2 computes 2 times" in finding.text.title
    assert finding.gain_ns == pytest.approx(steps[0].active_ns - balanced[0].active_ns, rel=0.01)
    assert not any(other.id is FindingKind.MODEL_SPLIT for other in analysis.findings)


def test_late_sends_make_the_bubble_larger_than_the_schedules(tmp_path: Path) -> None:
    orders = one_f_one_b(4, 8)
    steps = steps_of(orders, link_ns=MS)
    analysis = analyze_run(pipeline_run(tmp_path, {(0, 1, 2, 3): steps}).read())
    finding = next(one for one in analysis.findings if one.id is FindingKind.PIPELINE_BUBBLE)
    assert "the ideal of 1F1B is 27 %" in finding.text.title
    assert finding.gain_ns == pytest.approx(steps[0].active_ns - steps_of(orders)[0].active_ns, rel=0.01)
