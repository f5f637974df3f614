"""Causes with their symptoms below them: what the figures allow, and what waiting for a CPU costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.results import Finding, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.vocabulary.findings import COMMUNICATION, FindingKind
from perfscope.vocabulary.symptoms import SYMPTOMS
from tests.support.synthetic_run import comm, span
from tests.support.synthetic_samples import BOOT, SECOND, SampledRun, SampleFile, ticks, two_nodes

MS = 1_000_000
FAST, SLOW = ticks(0, 40), ticks(0, 40, 1.0)
TRACED = (20, 21, 22, 23, 24, 25)  # steps of half a second from second 10 on
CPUS = 8


def shared(threads: int, num_ranks: int = 4) -> list[dict[str, Any]]:
    """Ranks that compute with so many threads each on the machine's 8 CPUs."""
    return [
        {"pid": 100 + rank, "num_threads": threads, "affinity": list(range(CPUS))}
        for rank in range(num_ranks)
    ]


def samples(waits: Sequence[float], neighbor: float = 0.05) -> SampleFile:
    """40 s of readings; `waits`: seconds per second that the main thread of each rank waits for a CPU."""
    file = SampleFile()
    file.rate("neighbour_cpu", SLOW, neighbor * 100, scale=1e7)
    file.rate("pressure_some", FAST, 900_000, scale=1000, resource="cpu", scope="job")
    for rank, wait in enumerate(waits):
        file.rate("rank_main_thread_wait", FAST, wait * SECOND, pid=str(100 + rank))
    return file


def analyze(
    path: Path,
    file: SampleFile,
    spans: Sequence[Sequence[dict[str, Any]]],
    threads: int = 1,
    batches: Sequence[int] = (),
) -> RunAnalysis:
    """A run with one window: `spans` of each rank in each of its six steps of 500 ms, `batches` samples."""
    run = SampledRun(path, file, topology=two_nodes(), ranks=shared(threads, len(spans)))
    num, step = 40, SECOND // 2
    starts = [BOOT + 10 * SECOND + k * step for k in range(num)]
    for rank, own in enumerate(spans):
        window = [0 if k in TRACED else -1 for k in range(num)]
        more = {"samples": [batches[rank]] * num} if batches else {}
        run.run.steps(rank, [step] * num, start_ns=starts, window=window, **more)
        begins = [(k, 10 * SECOND + k * step) for k in TRACED]
        repeated = [
            {**one, "start_ns": one["start_ns"] + begin, "seq": k if "seq" in one else None}
            for k, begin in begins
            for one in own
        ]
        run.run.window(rank, repeated, [(k, begin, begin + step) for k, begin in begins])
    return analyze_run(run.read())


def waiting(busy_ms: Sequence[int], transfer_ms: int = 10) -> list[list[dict[str, Any]]]:
    """Ranks that compute for so long, and then wait for the slowest in an all_reduce."""
    end = max(busy_ms) + transfer_ms
    return [
        [span(0, busy * MS, "compute"), comm(busy * MS, (end - busy) * MS, 0, in_bytes=10**6)]
        for busy in busy_ms
    ]


def by_id(analysis: RunAnalysis) -> dict[str, Finding]:
    return {finding.id.value: finding for finding in analysis.findings}


ONE_SLOW = (300, 300, 300, 480)


def test_too_few_cpus_lead_with_what_waiting_costs_and_have_what_follows_below_them(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, samples([0.3, 0.3, 0.3, 0.7]), waiting(ONE_SLOW), threads=4)
    first, *others = analysis.findings
    assert first.id == "oversubscribed" and first.gain_ratio == pytest.approx(0.7)
    assert first.gain_ns == pytest.approx(350 * MS)
    below = [finding for finding in others if finding.symptom_of is not None]
    assert others[: len(below)] == below and {finding.symptom_of for finding in below} == {"oversubscribed"}
    assert "straggler" in first.symptoms and {finding.id for finding in below} == set(first.symptoms)
    assert all(finding.text.action == "" and finding.text.title for finding in below)
    assert first.text.detail.endswith("Caused by this job, not by other processes.")


def test_a_straggler_that_waits_for_cpus_no_more_than_its_peers_is_no_symptom(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, samples([0.3, 0.3, 0.3, 0.3]), waiting(ONE_SLOW), threads=4)
    straggler = by_id(analysis)["straggler"]
    assert straggler.symptom_of is None and straggler.rank == 3 and straggler.text.action
    assert "straggler" not in by_id(analysis)["oversubscribed"].symptoms


def test_a_rank_with_more_work_waits_longer_for_cpus_and_is_a_straggler_all_the_same(tmp_path: Path) -> None:
    """Everyone gets half a CPU: the rank with 1.6 times the work waits 1.6 times as long."""
    analysis = analyze(tmp_path, samples([0.3, 0.3, 0.3, 0.48], neighbor=4.0), waiting(ONE_SLOW))
    straggler = by_id(analysis)["straggler"]
    assert straggler.symptom_of is None and straggler.text.action


def test_a_rank_with_a_larger_batch_is_load_imbalance_beside_a_neighbor_too(tmp_path: Path) -> None:
    file = samples([0.12, 0.12, 0.12, 0.2], neighbor=2.0)
    first = analyze(tmp_path, file, waiting(ONE_SLOW), batches=(8, 8, 8, 16)).findings[0]
    assert first.id is FindingKind.IMBALANCE
    assert "rank 3 trains on 16 samples per step, the others on 8" in first.text.title
    assert "batch size" in first.text.action


def test_waiting_for_a_straggler_is_its_symptom(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, samples([0.0] * 4), waiting((250, 250, 250, 400), transfer_ms=50))
    first, second = analysis.findings[:2]
    assert (first.id, first.rank, first.symptoms) == ("straggler", 3, (second.id,))
    assert second.id in COMMUNICATION and second.symptom_of is FindingKind.STRAGGLER


def test_transfers_that_take_longer_than_the_waiting_stand_for_themselves(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, samples([0.0] * 4), waiting((100, 100, 100, 220), transfer_ms=200))
    sending = next(finding for finding in analysis.findings if finding.id in COMMUNICATION)
    assert sending.symptom_of is None and sending.text.action


def test_beside_a_neighbor_it_is_not_said_that_the_job_alone_is_to_blame(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, samples([0.6] * 4, neighbor=4.0), waiting([400] * 4), threads=4)
    found = by_id(analysis)
    assert "not by other processes" not in found["oversubscribed"].text.detail
    assert "Other processes took 4.0 CPUs meanwhile." in found["oversubscribed"].text.detail
    # 16 threads and 4 CPUs of others on 8 CPUs: 8 too many of its own, 4 of others.
    assert found["oversubscribed"].gain_ratio == pytest.approx(0.6 * 8 / 12, rel=0.02)
    assert found["disturbed"].gain_ratio == pytest.approx(0.6 * 4 / 12, rel=0.05)


def test_idle_time_on_a_busy_machine_stands_below_the_neighbor_with_a_gain(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, samples([0.7], neighbor=6.0), [[span(0, 100 * MS, "compute")]])
    first, second = analysis.findings[:2]
    assert (first.id, second.id, second.symptom_of) == ("disturbed", "preempted", "disturbed")
    assert first.gain_ratio == pytest.approx(0.7, rel=0.02)
    assert "Profile" not in first.text.action and second.text.action == ""


def test_a_neighbor_that_costs_little_explains_nothing_large(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, samples([0.02], neighbor=1.0), [[span(0, 100 * MS, "compute")]])
    assert analysis.findings[0].id == "host_bound"
    assert all(finding.symptom_of is None for finding in analysis.findings)


def test_no_cause_is_its_own_symptom_and_no_two_are_each_other_s() -> None:
    for cause, symptoms in SYMPTOMS.items():
        assert cause not in symptoms
        assert all(cause not in SYMPTOMS.get(symptom, ()) for symptom in symptoms)
