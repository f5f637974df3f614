"""A rank that the others wait for in the untraced steps, and what its training thread does meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.results import Finding
from perfscope.analysis.run import analyze_run
from perfscope.vocabulary.confidence import ConfidenceLevel
from perfscope.vocabulary.findings import FindingKind
from tests.support.synthetic_run import SyntheticRun, comm, span

MS = 1_000_000
NUM, STEP = 60, 40 * MS
TRACED = (30, 31)


def first_slow(
    path: Path,
    *,
    ran_ms: tuple[int, int] = (10, 30),
    backward_ms: tuple[int, int] = (35, 15),
    device: str = "cpu",
    is_traced: bool = True,
    batches: tuple[int, int] = (8, 8),
    input_ms: tuple[int, int] = (0, 0),
    compute_ms: tuple[int, int] = (34, 34),
) -> Finding | None:
    """The first finding, of two ranks whose traced steps are alike; None: it names no rank.

    Args:
        path: of the run.
        ran_ms: CPU time of each rank's training thread in an untraced step of 40 ms.
        backward_ms: of each rank's backward pass.
        device: of both.
        is_traced: there are traced steps.
        batches: samples of each rank's step.
        input_ms: that each rank waits for input in a step.
        compute_ms: of each rank in a traced step.
    """
    run = SyntheticRun(path, world_size=2)
    for rank in (0, 1):
        run.rank(rank, device=device)
        used: dict[str, Any] = {
            "forward_ns": [4 * MS] * NUM,
            "backward_ns": [backward_ms[rank] * MS] * NUM,
            "thread_user_ns": [ran_ms[rank] * MS] * NUM,
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
            spans = [
                one
                for step in TRACED
                for one in (
                    span(step * STEP, compute_ms[rank] * MS, "compute"),
                    comm(
                        step * STEP + compute_ms[rank] * MS,
                        (39 - compute_ms[rank]) * MS,
                        step,
                        in_bytes=10**6,
                    ),
                )
            ]
            run.window(rank, spans, [(step, step * STEP, (step + 1) * STEP) for step in TRACED])
    finding = analyze_run(run.read()).findings[0]
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
