"""A rank that the others wait for in the untraced steps, and what its training thread does meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.results import Finding, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.vocabulary.confidence import ConfidenceLevel
from perfscope.vocabulary.findings import FindingKind
from tests.support.synthetic_run import SyntheticRun, comm, span

MS = 1_000_000
NUM, STEP = 60, 40 * MS
TRACED = (30, 31)


def analyzed(
    path: Path,
    *,
    ran_ms: tuple[int, int] = (10, 30),
    backward_ms: tuple[int, int] = (35, 15),
    device: str = "cpu",
    is_traced: bool = True,
    batches: tuple[int, int] = (8, 8),
    input_ms: tuple[int, int] = (0, 0),
    compute_ms: tuple[int, int] = (34, 34),
    turns_ms: int = 0,
    begins_ms: int = 0,
    sleeps_ms: int = 0,
) -> RunAnalysis:
    """Two ranks whose traced steps are alike.

    Args:
        path: of the run.
        ran_ms: CPU time of each rank's training thread in an untraced step of 40 ms.
        backward_ms: of each rank's backward pass.
        device: of both.
        is_traced: there are traced steps.
        batches: samples of each rank's step.
        input_ms: that each rank waits for input in a step.
        compute_ms: of each rank in a traced step.
        turns_ms: that one rank or the other computes longer in each step, traced or not, in turn.
        begins_ms: that rank 1 begins the first traced step after rank 0.
        sleeps_ms: of rank 1 in each traced step, before it computes.
    """
    run = SyntheticRun(path, world_size=2)
    for rank in (0, 1):
        run.rank(rank, device=device)
        used: dict[str, Any] = {
            "forward_ns": [4 * MS] * NUM,
            "backward_ns": [backward_ms[rank] * MS] * NUM,
            "thread_user_ns": [(ran_ms[rank] + turns_ms * (step % 2 == rank)) * MS for step in range(NUM)],
            "thread_system_ns": [0] * NUM,
            "user_ns": [ran_ms[rank] * MS] * NUM,
            "system_ns": [0] * NUM,
            "runqueue_ns": [0] * NUM,
            "samples": [batches[rank]] * NUM,
            "input_ns": [input_ms[rank] * MS] * NUM,
        }
        window = [0 if is_traced and step in TRACED else -1 for step in range(NUM)]
        run.steps(rank, [STEP] * NUM, window=window, **used)
        if is_traced:
            spans, marks = [], []
            for step in TRACED:
                begin = step * STEP + begins_ms * MS * (rank == 1 and step == TRACED[0])
                compute = (compute_ms[rank] + turns_ms * (step % 2 == rank)) * MS
                end = (step + 1) * STEP - MS
                marks.append((step, begin, end + MS))
                awake = begin + sleeps_ms * MS * (rank == 1)
                spans.append(span(awake, compute, "compute"))
                spans.append(comm(awake + compute, end - awake - compute, step, in_bytes=10**6))
            run.window(rank, spans, marks)
    return analyze_run(run.read())


def first_slow(path: Path, **of_ranks: Any) -> Finding | None:
    """The first finding of such ranks; None: it names no rank as slow."""
    finding = analyzed(path, **of_ranks).findings[0]
    return finding if finding.id is FindingKind.STRAGGLER else None


@pytest.mark.parametrize("is_traced", [True, False])
def test_a_rank_that_computes_in_untraced_steps_is_named_whatever_the_traced_ones_show(
    tmp_path: Path, is_traced: bool
) -> None:
    finding = first_slow(tmp_path, is_traced=is_traced)
    assert finding is not None and finding.rank == 1
    assert "20.0 ms more per step outside the backward pass than the others" in finding.text.title
    assert "runs for 20.0 ms of it on a CPU" in finding.text.detail
    assert "Python code, logging" in finding.text.action
    assert finding.gain_ns == pytest.approx(20 * MS, rel=0.05)
    assert finding.confidence is not None and finding.confidence.level is ConfidenceLevel.HIGH


def test_a_rank_that_sleeps_outside_the_backward_pass_runs_no_longer_than_the_others(tmp_path: Path) -> None:
    # It may sleep during its own transfers of 15 ms: the others sleep 30 ms, so that 15 ms are certain.
    finding = first_slow(tmp_path, ran_ms=(10, 10))
    assert finding is not None and finding.rank == 1
    assert "on a CPU" not in finding.text.detail and "sleeps" in finding.text.action
    assert finding.gain_ns == pytest.approx(15 * MS, rel=0.05)


def test_nothing_is_waited_for_where_the_others_compute_meanwhile(tmp_path: Path) -> None:
    assert first_slow(tmp_path, ran_ms=(38, 38)) is None


def test_ranks_alike_in_untraced_steps_name_none(tmp_path: Path) -> None:
    assert first_slow(tmp_path, ran_ms=(10, 10), backward_ms=(30, 30)) is None


def test_a_host_that_runs_ahead_of_its_device_is_not_judged_by_its_calls(tmp_path: Path) -> None:
    assert first_slow(tmp_path, device="cuda:0") is None


def test_a_rank_with_more_samples_does_other_work(tmp_path: Path) -> None:
    assert first_slow(tmp_path, batches=(8, 16)) is None


def test_a_rank_that_waits_for_input_is_no_slow_rank(tmp_path: Path) -> None:
    assert first_slow(tmp_path, ran_ms=(10, 10), input_ms=(0, 20)) is None


@pytest.mark.parametrize("compute_ms", [(24, 34), (20, 36)])
def test_a_rank_that_only_a_few_traced_steps_show_as_slow_is_not_named(
    tmp_path: Path, compute_ms: tuple[int, int]
) -> None:
    alike = first_slow(tmp_path / "alike", ran_ms=(30, 30), backward_ms=(20, 20), compute_ms=compute_ms)
    assert alike is None
    named = first_slow(tmp_path / "slower", ran_ms=(20, 30), backward_ms=(20, 20), compute_ms=compute_ms)
    assert named is not None and named.rank == 1


def gain_of(analysis: RunAnalysis, what_if: str) -> int:
    return next((entry.gain_ns for entry in analysis.what_ifs if entry.id == what_if), 0)


def test_imbalance_of_a_few_traced_steps_counts_as_far_as_untraced_steps_show_it(tmp_path: Path) -> None:
    alike = analyzed(tmp_path / "alike", ran_ms=(30, 30), backward_ms=(20, 20), compute_ms=(20, 36))
    assert gain_of(alike, "perfect_balance") == 0
    assert all(finding.id is not FindingKind.IMBALANCE for finding in alike.findings)
    some = analyzed(tmp_path / "some", ran_ms=(28, 30), backward_ms=(20, 20), compute_ms=(20, 36))
    assert gain_of(some, "perfect_balance") == pytest.approx(MS, rel=0.01)


def test_ranks_that_take_turns_in_untraced_steps_are_imbalanced(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, ran_ms=(16, 16), backward_ms=(20, 20), compute_ms=(16, 16), turns_ms=16)
    assert gain_of(analysis, "perfect_balance") == pytest.approx(8 * MS, rel=0.05)
    assert any(finding.id is FindingKind.IMBALANCE for finding in analysis.findings)


@pytest.mark.parametrize(("ran_ms", "is_late"), [((30, 30), False), ((20, 30), True)])
def test_a_rank_that_begins_traced_steps_late_has_more_to_do_in_untraced_ones(
    tmp_path: Path, ran_ms: tuple[int, int], is_late: bool
) -> None:
    late = analyzed(tmp_path, ran_ms=ran_ms, backward_ms=(20, 20), compute_ms=(20, 20), begins_ms=16)
    assert (gain_of(late, "equal_start") > 0) is is_late


def test_a_rank_that_is_late_because_it_sleeps_needs_no_cpu_time_in_untraced_steps(tmp_path: Path) -> None:
    alike: dict[str, Any] = {"ran_ms": (30, 30), "backward_ms": (20, 20), "compute_ms": (8, 8)}
    late = analyzed(tmp_path, **alike, begins_ms=6, sleeps_ms=16)
    assert gain_of(late, "equal_start") > 0
