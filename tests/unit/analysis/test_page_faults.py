"""Page faults of every step are a finding; what a window changed is not taken for the training's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.findings.symptoms import SEVERE
from perfscope.analysis.results import Finding, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.confidence import ConfidenceLevel
from perfscope.vocabulary.findings import FindingKind
from tests.support.synthetic_run import SyntheticRun, span

MS = 1_000_000
STEP = 20 * MS


def analyzed(
    tmp_path: Path,
    faults: Sequence[int],
    system: Sequence[int],
    window: Sequence[int] | None = None,
    traced: tuple[list[Any], list[tuple[int, int, int]]] | None = None,
    **meta: str,
) -> RunAnalysis:
    run, count = SyntheticRun(tmp_path / "run"), len(faults)
    run.rank(0, **{"device": "cpu", **meta})
    run.steps(
        0,
        [STEP] * count,
        window=[-1] * count if window is None else window,
        minor_faults=faults,
        major_faults=[0] * count,
        user_ns=[STEP - value for value in system],
        system_ns=system,
        thread_minor_faults=faults,
        thread_system_ns=system,
        runqueue_ns=[0] * count,
    )
    if traced is not None:
        run.window(0, *traced)
    return analyze_run(RunReader(run.path))


def churn(analysis: RunAnalysis) -> Finding | None:
    return next((found for found in analysis.findings if found.id is FindingKind.PAGE_FAULT_CHURN), None)


def test_faults_of_every_step_cost_what_the_kernel_took_for_them(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, [3_000] * 40, [5 * MS] * 40)
    finding = churn(analysis)
    assert finding is not None and finding.gain_ratio == pytest.approx(0.25)
    assert "3,000 page faults per step" in finding.text.title and "25.0 %" in finding.text.title
    assert "MALLOC_TRIM_THRESHOLD_" in finding.text.action and "jemalloc" in finding.text.action
    (faults,) = analysis.page_faults
    assert (faults.minor_faults, faults.system_ns, faults.changed_by_windows) == (3_000, 5 * MS, None)


def test_system_time_for_other_reasons_is_not_laid_to_page_faults(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, [300] * 40, [5 * MS] * 40)
    assert analysis.page_faults[0].cost_ratio == pytest.approx(300 * 4_000 / STEP)


@pytest.mark.parametrize(("faults", "system"), [(10, 5 * MS), (3_000, MS // 4)])
def test_few_or_cheap_faults_are_no_finding(tmp_path: Path, faults: int, system: int) -> None:
    assert churn(analyzed(tmp_path, [faults] * 40, [system] * 40)) is None


def test_a_rank_on_a_gpu_has_no_such_finding(tmp_path: Path) -> None:
    assert churn(analyzed(tmp_path, [3_000] * 40, [5 * MS] * 40, device="cuda")) is None


def test_what_a_window_changed_is_said_and_steps_before_it_are_judged(tmp_path: Path) -> None:
    window = [-1] * 3 + [0] * 2 + [-1] * 35
    faults = [9_000, 3_100, 2_900, *[4_000] * 2, *[20] * 35]
    analysis = analyzed(tmp_path, faults, [5 * MS] * 5 + [0] * 35, window)
    (of_rank,) = analysis.page_faults
    assert of_rank.changed_by_windows and (of_rank.before_windows, of_rank.after_windows) == (3_000, 20)
    finding = churn(analysis)
    assert finding is not None and "measured before the first traced window" in finding.text.detail
    assert analysis.findings[0] is not finding
    assert finding.confidence is not None and finding.confidence.level is ConfidenceLevel.LOW  # of 2 steps


def test_faults_that_mostly_remain_after_a_window_may_lead(tmp_path: Path) -> None:
    window = [-1] * 3 + [0] * 4 + [-1] * 33
    faults = [9_000, 3_100, 2_900, *[2_200] * 37]
    steps = [(3 + k, k * STEP, (k + 1) * STEP) for k in range(4)]
    spans = [span(begin, 18 * MS, "compute") for _, begin, _ in steps]
    analysis = analyzed(tmp_path, faults, [8 * MS] * 3 + [7 * MS] * 37, window, (spans, steps))
    finding = churn(analysis)
    assert finding is analysis.findings[0]
    assert analysis.page_faults[0].changed_by_windows
    assert analysis.page_faults[0].minor_faults == pytest.approx(2_200)
    assert finding is not None and "Before it there are 3,000 page faults" in finding.text.detail


def test_computation_is_no_symptom_of_faults_that_the_traced_steps_no_longer_have(tmp_path: Path) -> None:
    window = [-1] * 3 + [0] * 4 + [-1] * 33
    faults = [9_000, 3_100, 2_900, *[20] * 37]
    system = [8 * MS] * 3 + [0] * 37
    steps = [(3 + k, k * STEP, (k + 1) * STEP) for k in range(4)]
    spans = [span(begin, 18 * MS, "compute") for _, begin, _ in steps]
    analysis = analyzed(tmp_path, faults, system, window, (spans, steps))
    finding = churn(analysis)
    assert finding is not None and (finding.gain_ratio or 0) > SEVERE
    first = analysis.findings[0]
    assert first.id is FindingKind.COMPUTE_BOUND and first.symptom_of is None and finding.symptoms == ()


def test_a_warm_up_that_maps_memory_is_no_change_by_the_window(tmp_path: Path) -> None:
    window = [-1] * 3 + [0] * 2 + [-1] * 35
    analysis = analyzed(tmp_path, [9_000, 5_000, 1_000, 500, 400, *[20] * 35], [0] * 40, window)
    assert analysis.page_faults[0].changed_by_windows is False and churn(analysis) is None


def test_alike_before_and_after(tmp_path: Path) -> None:
    window = [-1] * 3 + [0] * 2 + [-1] * 35
    analysis = analyzed(tmp_path, [3_000 + number % 7 * 50 for number in range(40)], [5 * MS] * 40, window)
    assert analysis.page_faults[0].changed_by_windows is False
    assert analysis.page_faults[0].minor_faults == pytest.approx(3_150, abs=30)


def test_faults_of_the_first_steps_are_no_cost_of_the_others(tmp_path: Path) -> None:
    """Ten steps, the first four of which map memory for the first time."""
    faults, system = [9_000, 9_000, 8_000, 7_000, *[0] * 6], [16 * MS] * 4 + [0] * 6
    assert churn(analyzed(tmp_path, faults, system)) is None


def test_faults_cost_no_larger_share_than_the_kernel_has_of_the_cpu_time(tmp_path: Path) -> None:
    """Waiting and CPU time are read at different instants: together they may exceed a step."""
    run = SyntheticRun(tmp_path / "run")
    run.rank(0, device="cpu")
    columns = {"minor_faults": 3_000, "thread_minor_faults": 3_000, "user_ns": 6 * MS, "system_ns": 2 * MS}
    columns |= {"thread_user_ns": 6 * MS, "thread_system_ns": 2 * MS, "runqueue_ns": 18 * MS}
    run.steps(0, [STEP] * 40, **{name: [value] * 40 for name, value in columns.items()})
    (of_rank,) = analyze_run(RunReader(run.path)).page_faults
    assert of_rank.cost_ratio == pytest.approx(0.25)  # 2 of 8 ms of CPU time


def test_faults_and_waits_of_checkpoints_are_no_cost_of_ordinary_steps(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.rank(0, device="cpu")
    is_long = [number % 5 == 4 for number in range(40)]
    faults = [50_000 if long else 1_000 for long in is_long]
    run.steps(
        0,
        [5 * STEP if long else STEP for long in is_long],
        checkpoint_ns=[4 * STEP if long else 0 for long in is_long],
        minor_faults=faults,
        thread_minor_faults=faults,
        thread_user_ns=[9 * MS] * 40,
        thread_system_ns=[40 * MS if long else MS for long in is_long],
        user_ns=[9 * MS] * 40,
        system_ns=[MS] * 40,
        runqueue_ns=[3 * STEP if long else 10 * MS for long in is_long],
    )
    (of_rank,) = analyze_run(RunReader(run.path)).page_faults
    assert of_rank.minor_faults == 1_000 and of_rank.cost_ratio == pytest.approx(0.1)  # 1 of 10 ms
