"""Calls that keep the training thread from its work: syncs of files, collectives of Python objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.analysis.findings import host_calls
from perfscope.analysis.phases import PhaseResult, RankPhase
from perfscope.analysis.results import Finding
from perfscope.analysis.run import analyze_run
from perfscope.vocabulary.confidence import ConfidenceLevel
from perfscope.vocabulary.findings import COMMUNICATION, FindingKind
from tests.support.synthetic_run import SyntheticRun, comm, span

MS = 1_000_000
NUM, STEP, TRACED = 60, 40 * MS, (30, 31, 32, 33)
Calls = Sequence[Mapping[str, int]]  # by rank: phase -> ms per step; "a/b": b within a


def findings(path: Path, calls: Calls, comm_ms: int = 10, is_traced: bool = True) -> tuple[Finding, ...]:
    """Two ranks that compute for 14 ms of a step of 40, then communicate; then no operator runs."""
    run = SyntheticRun(path, world_size=2)
    for rank, of_rank in enumerate(calls):
        run.rank(rank)
        window = [0 if is_traced and step in TRACED else -1 for step in range(NUM)]
        run.steps(rank, [STEP] * NUM, window=window)
        run.write(f"ranks/{rank}/phases.jsonl", phase_lines(of_rank))
        if is_traced:
            spans = []
            for step in TRACED:
                spans.append(span(step * STEP, 14 * MS, "compute"))
                begin = step * STEP + 14 * MS
                spans.append(comm(begin, comm_ms * MS, step, in_bytes=10**6, out_bytes=10**6))
            run.window(rank, spans, [(step, step * STEP, (step + 1) * STEP) for step in TRACED])
    return analyze_run(run.read()).findings


def phase_lines(calls: Mapping[str, int]) -> str:
    """Each call once in each step."""
    numbers = {path: number for number, path in enumerate(calls)}
    lines: list[object] = []
    for path, number in numbers.items():
        above, _, name = path.rpartition("/")
        parent = numbers.get(above, -1)
        lines.append({"phase": number, "name": name, "source": "call", "parent": parent, "trains": True})
    for step in range(NUM):
        begin = MS + step * STEP
        rows = [[numbers[path], ms * MS, 1, 1] for path, ms in calls.items()]
        lines.append({"begin_ns": begin, "end_ns": begin + STEP, "phases": rows})
    return "".join(json.dumps(line) + "\n" for line in lines)


def of(found: Sequence[Finding], *kinds: FindingKind) -> Finding | None:
    return next((finding for finding in found if finding.id in kinds), None)


@pytest.mark.parametrize("is_traced", [True, False])
def test_syncs_of_files_are_named_and_taken_from_the_idle_time(tmp_path: Path, is_traced: bool) -> None:
    found = findings(tmp_path, [{"os.fsync": 12}, {"os.fsync": 12}], is_traced=is_traced)
    sync = of(found, FindingKind.FILE_SYNC)
    assert sync is not None and sync.rank is None
    assert "12.0 ms of 40.0 ms) the training thread waits in os.fsync" in sync.text.title
    assert "1.0 calls per step" in sync.text.detail and "`fsync`" in sync.text.action
    assert sync.gain_ns == pytest.approx(12 * MS, rel=0.01)
    assert sync.confidence is not None and sync.confidence.level is ConfidenceLevel.HIGH
    idle = of(found, FindingKind.HOST_BOUND)
    assert (idle is not None) is is_traced
    assert idle is None or idle.gain_ns == pytest.approx(4 * MS, rel=0.1)


def syncing(ns: int, num_steps: int, above: str = "", source: str = "call") -> Any:
    """Evidence of one rank with 60 steps of 50 ms on average, 40 in the median, and one sync in some of them.

    Args:
        ns: of all of the syncs.
        num_steps: that have one.
        above: name of the phase around them.
        source: of that one.
    """
    names = ("os.fsync",) if not above else (above, "os.fsync")
    of_rank = RankPhase(
        rank=0, count=num_steps, ns=ns, own_ns=ns, before_ns=0, in_steps_ns=ns, num_steps=num_steps,
        is_open=False,
    )  # fmt: skip
    phases = [
        PhaseResult(
            name=names[depth - 1], path=names[:depth], source="call" if depth == len(names) else source,
            is_training_thread=True, count=num_steps, ns=ns, own_ns=ns, before_ns=0, in_steps_ns=ns,
            per_step_ns=ns // NUM, ranks=(of_rank,),
        )
        for depth in range(1, len(names) + 1)
    ]  # fmt: skip
    ranks = [SimpleNamespace(rank=0, num_steps=NUM)]
    return SimpleNamespace(phases=phases, ranks=ranks, mean_step_ns=50.0 * MS)


def test_the_gain_of_syncs_is_of_the_mean_step_as_their_title_is() -> None:
    sync = host_calls.file_sync(syncing(NUM * 10 * MS, NUM))
    assert sync is not None and "20.0 % of the mean step (10.0 ms of 50.0 ms)" in sync.text.title
    assert sync.gain_ns == 10 * MS and sync.gain_ratio == pytest.approx(0.2) and sync.of_mean


@pytest.mark.parametrize(
    ("num_steps", "text", "in_gaps"), [(60, "1.0 calls per step", 0.2), (3, "One call in 20 steps", 0.0)]
)
def test_syncs_of_few_steps_are_counted_by_steps_and_not_expected_in_traced_ones(
    num_steps: int, text: str, in_gaps: float
) -> None:
    evidence = syncing(NUM * 10 * MS, num_steps)
    sync = host_calls.file_sync(evidence)
    assert sync is not None and sync.text.detail.startswith(text)
    assert host_calls.gap_ratio(evidence) == pytest.approx(in_gaps)


@pytest.mark.parametrize("source", ["perfscope", "nvtx"])
def test_a_phase_of_the_program_with_the_name_of_a_call_hides_none(source: str) -> None:
    assert host_calls.file_sync(syncing(NUM * 10 * MS, NUM, above="os.fsync", source=source)) is not None


def test_the_verdict_of_calls_does_not_rest_on_traced_steps(tmp_path: Path) -> None:
    first = findings(tmp_path, [{"os.fsync": 14}, {"os.fsync": 14}], comm_ms=1)[0]
    assert first.id is FindingKind.FILE_SYNC and "traced steps" not in first.text.detail


def test_the_one_rank_that_syncs_files_is_named(tmp_path: Path) -> None:
    sync = of(findings(tmp_path, [{}, {"os.fdatasync": 8}]), FindingKind.FILE_SYNC)
    assert sync is not None and sync.rank == 1 and sync.gain_ns == pytest.approx(8 * MS, rel=0.01)


def test_a_short_sync_is_no_finding(tmp_path: Path) -> None:
    assert of(findings(tmp_path, [{"os.fsync": 1}, {"os.fsync": 1}]), FindingKind.FILE_SYNC) is None


def objects(pickling_ms: int, total_ms: int) -> dict[str, int]:
    gather = "all_gather_object"
    return {gather: total_ms, f"{gather}/pickle": pickling_ms // 2, f"{gather}/unpickle": pickling_ms // 2}


def test_collectives_of_objects_are_the_cause_of_the_communication_within(tmp_path: Path) -> None:
    found = findings(tmp_path, [objects(8, 20), objects(8, 24)], comm_ms=12)
    assert found[0].id is FindingKind.OBJECT_COLLECTIVES and "all_gather_object" in found[0].text.title
    assert "pickle and unpickle for 8.00 ms on the CPU" in found[0].text.detail
    assert found[0].gain_ns == pytest.approx(20 * MS, rel=0.01)  # the other rank waited for 4 ms
    network = of(found, *COMMUNICATION)
    assert network is not None and network.symptom_of is FindingKind.OBJECT_COLLECTIVES
    idle = of(found, FindingKind.HOST_BOUND)
    assert idle is not None and idle.gain_ns == pytest.approx(6 * MS, rel=0.1)


def test_communication_beside_small_collectives_of_objects_stands_by_itself(tmp_path: Path) -> None:
    found = findings(tmp_path, [objects(8, 10), objects(8, 10)], comm_ms=20)
    network = of(found, *COMMUNICATION)
    assert network is not None and network.symptom_of is None
