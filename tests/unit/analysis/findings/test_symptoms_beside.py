"""What a training thread does besides training has below it what it makes appear in the traced steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscope.analysis.results import Finding
from perfscope.analysis.run import analyze_run
from perfscope.vocabulary.findings import COMMUNICATION
from perfscope.vocabulary.findings import FindingKind as Kind
from tests.support.synthetic_run import SyntheticRun, comm, span

MS = 1_000_000
S = 1_000 * MS
STEP = 100 * MS
NUM = 40
TRACED = range(20, 26)
OFFSET = 1_780_000_000 * S
COLUMNS = {Kind.GARBAGE_COLLECTION: "gc_ns", Kind.CHECKPOINT: "checkpoint_ns"}


def findings(
    path: Path, kind: Kind, taken_ms: Sequence[int], busy_ms: Sequence[int], *, is_traced: bool = True
) -> dict[Kind, Finding]:
    """Steps of 100 ms; every other one, and the traced ones, hold so much of the cause on each rank.

    Args:
        path: of the run.
        kind: the cause.
        taken_ms: of each rank, per step that holds it.
        busy_ms: computation of each rank; with several ranks, an all_reduce fills the rest of the step.
        is_traced: False: the traced steps hold none of it.
    """
    last = MS + NUM * STEP
    run = SyntheticRun(
        path,
        start_unix_ns=MS - S + OFFSET,
        end_unix_ns=last + S + OFFSET,
        exit={"code": 0},
        world_size=len(busy_ms),
    )
    window = [0 if k in TRACED else -1 for k in range(NUM)]
    for rank, (taken, busy) in enumerate(zip(taken_ms, busy_ms, strict=True)):
        held = [taken * MS if k % 2 or k in TRACED else 0 for k in range(NUM)]
        if not is_traced:
            held = [0 if k in TRACED else value for k, value in enumerate(held)]
        life = {"started_ns": 0, "ended_ns": last, "total": {COLUMNS[kind]: sum(held)}}
        run.rank(rank, anchors=[[MS, MS + OFFSET], [last, last + OFFSET]], life=life)
        run.steps(rank, [STEP] * NUM, window=window, **{COLUMNS[kind]: held})
        spans = []
        for number, k in enumerate(TRACED):
            begin = number * STEP
            spans.append(span(begin, busy * MS, "compute"))
            if len(busy_ms) > 1:
                enter = (busy + taken) * MS
                spans.append(comm(begin + enter, STEP - enter, k, in_bytes=10**6))
        run.window(rank, spans, [(k, n * STEP, (n + 1) * STEP) for n, k in enumerate(TRACED)])
    return {finding.id: finding for finding in analyze_run(run.read()).findings}


@pytest.mark.parametrize("kind", COLUMNS)
def test_idle_time_of_traced_steps_that_hold_the_cause_is_its_symptom(tmp_path: Path, kind: Kind) -> None:
    found = findings(tmp_path, kind, [60], [30])
    assert found[kind].symptoms == (Kind.HOST_BOUND,)
    assert found[Kind.HOST_BOUND].symptom_of is kind and not found[Kind.HOST_BOUND].text.action


@pytest.mark.parametrize("kind", COLUMNS)
def test_idle_time_of_traced_steps_without_the_cause_stands_for_itself(tmp_path: Path, kind: Kind) -> None:
    found = findings(tmp_path, kind, [60], [30], is_traced=False)
    assert found[kind].symptoms == ()
    assert found[Kind.HOST_BOUND].symptom_of is None and found[Kind.HOST_BOUND].text.action


def test_a_small_part_of_the_idle_time_does_not_explain_it(tmp_path: Path) -> None:
    found = findings(tmp_path, Kind.GARBAGE_COLLECTION, [15], [30])
    assert found[Kind.GARBAGE_COLLECTION].symptoms == ()
    assert found[Kind.HOST_BOUND].symptom_of is None


def test_the_rank_that_saves_is_late_because_of_it_and_the_others_wait_for_that(tmp_path: Path) -> None:
    found = findings(tmp_path, Kind.CHECKPOINT, [60, 0, 0, 0], [30, 30, 30, 30])
    slow = found[Kind.STRAGGLER]
    assert (slow.rank, slow.symptom_of) == (0, Kind.CHECKPOINT)
    waiting = [finding for kind, finding in found.items() if kind in COMMUNICATION]
    assert all(finding.symptom_of is Kind.CHECKPOINT for finding in waiting)


def test_a_rank_that_is_slow_although_another_saves_stands_for_itself(tmp_path: Path) -> None:
    found = findings(tmp_path, Kind.CHECKPOINT, [12, 0, 0, 0], [30, 30, 30, 85])
    slow = found[Kind.STRAGGLER]
    assert (slow.rank, slow.symptom_of) == (3, None) and slow.text.action
