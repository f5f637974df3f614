"""Memory of ranks over the run, and what was left below the limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.results import Finding
from perfscope.analysis.run import analyze_run
from perfscope.reports.build import build_report
from perfscope.reports.model import Counters, Section, Table
from perfscope.vocabulary.confidence import ConfidenceLevel
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.memory import LimitOf
from tests.support.synthetic_samples import SampledRun, SampleFile, ticks, two_nodes

GIB = 1 << 30
SLOW = ticks(0, 40, 1.0)


def sampled(with_ranks: bool = True) -> SampleFile:
    """Rank 0 grows from 1 to 3 GiB in its steps (s 10 to 30), the group of 4 GiB and the host with it."""
    grown = [round(GIB * (1 + 2 * min(max(t - 10, 0), 20) / 20)) for t in SLOW]
    file = SampleFile()

    def gauge(metric: str, values: list[int], **labels: Any) -> None:
        file.add(metric, SLOW, values, kind="gauge", unit="bytes", **labels)

    if with_ranks:
        gauge("rank_resident_bytes", grown, pid="100")
        gauge("rank_shared_bytes", [GIB // 4] * len(SLOW), pid="100")
    gauge("host_memory_total", [16 * GIB] * len(SLOW))
    gauge("host_memory_available", [12 * GIB - held for held in grown])
    gauge("job_memory_used", grown, group="/job")
    gauge("job_memory_limit", [4 * GIB] * len(SLOW), group="/job")
    gauge("gpu_memory_used", [2 * GIB] * len(SLOW), gpu="0")
    gauge("gpu_memory_total", [8 * GIB] * len(SLOW), gpu="0")
    return file


def run_of(path: Path, file: SampleFile) -> SampledRun:
    return SampledRun(path, file, topology=two_nodes(), ranks=[{"pid": 100}])


def test_peak_growth_and_headroom_follow_from_the_samples(tmp_path: Path) -> None:
    machine = analyze_run(run_of(tmp_path, sampled()).read()).machine
    assert machine is not None
    (rank,) = machine.rank_memory
    assert (rank.rank, rank.peak_bytes, rank.shared_bytes) == (0, 3 * GIB, GIB // 4)
    assert rank.first_bytes is not None and rank.last_bytes is not None
    assert rank.first_bytes < 1.2 * GIB < 2.8 * GIB < rank.last_bytes
    limits = {limit.of: limit for limit in machine.memory_limits}
    assert limits[LimitOf.HOST].headroom_bytes == 9 * GIB
    assert limits[LimitOf.CONTROL_GROUP].headroom_ratio == 0.25
    assert limits[LimitOf.CONTROL_GROUP].name == "/job"
    assert limits[LimitOf.DEVICE].headroom_bytes == 6 * GIB
    assert not any(gap.figure is Figure.RANK_MEMORY for gap in machine.missing)


def test_ranks_that_were_not_read_are_missing_and_not_zero(tmp_path: Path) -> None:
    machine = analyze_run(run_of(tmp_path, sampled(with_ranks=False)).read()).machine
    assert machine is not None
    assert machine.rank_memory == ()
    (gap,) = [gap for gap in machine.missing if gap.figure is Figure.RANK_MEMORY]
    assert gap.ranks == (0,)


def test_the_section_draws_ranks_host_and_device_and_counters_do_not_repeat_them(tmp_path: Path) -> None:
    report = build_report(analyze_run(run_of(tmp_path, sampled()).read()), None)
    sections = {section.id: section for section in report.sections}
    chart, headroom, ranks = sections["memory"].blocks
    assert isinstance(chart, Counters) and isinstance(headroom, Table) and isinstance(ranks, Table)
    labels = [line.label for panel in chart.charts for line in panel.lines]
    assert labels == [
        "GPU 0 memory in use",
        "rank 0 resident memory",
        "host memory in use",
        "control group /job",
    ]
    sources = {line.label: line.peak_source for panel in chart.charts for line in panel.lines}
    # What the kernel says now: of a virtual machine it may be less than what is installed.
    assert sources["host memory in use"] == sources["GPU 0 memory in use"] == "total"
    assert sources["control group /job"] == "limit"
    assert [row[0] for row in headroom.rows] == [
        "control group /job of node0",
        "host node0",
        "device 0 of node0",
    ]
    assert (
        "control group /job of node0, 1.00 GiB of 4.00 GiB (25 %) were never used" in sections["memory"].lead
    )
    drawn = [line.label for block in _counters(sections) for panel in block.charts for line in panel.lines]
    assert not {*drawn} & {*labels}


def _counters(sections: dict[str, Section]) -> list[Counters]:
    return (
        [block for block in sections["counters"].blocks if isinstance(block, Counters)]
        if ("counters" in sections)
        else []
    )


def full_device(path: Path, used: float, tensors: float | None) -> list[Finding]:
    """80 GiB of which so much is in use; all but 1 GiB is the allocator's, `tensors` of it in tensors."""
    file = SampleFile()
    for metric, size in (("gpu_memory_used", used), ("gpu_memory_total", 80)):
        values = [round(size * GIB)] * len(SLOW)
        file.add(metric, SLOW, values, kind="gauge", unit="bytes", gpu="0")
    gpu = {"id": "gpu:0", "index": 0, "name": "NVIDIA H100", "vendor": "NVIDIA", "visibility": []}
    rank: dict[str, Any] = {"pid": 100, "device": "cuda:0 NVIDIA H100"}
    if tensors is not None:
        peaks = {"peak_device_bytes": tensors, "peak_reserved_bytes": used - 1}
        rank["memory"] = {name: round(size * GIB) for name, size in peaks.items()}
    run = SampledRun(path, file, topology=two_nodes(gpus=[gpu]), ranks=[rank])
    return [one for one in analyze_run(run.read()).findings if one.id is FindingKind.LOW_HEADROOM]


def test_a_device_that_tensors_fill_is_a_finding_with_its_evidence(tmp_path: Path) -> None:
    [finding] = full_device(tmp_path, used=76, tensors=73)
    assert finding.rank == 0
    assert "95.0 % of its memory in use (76.0 GiB of 80.0 GiB)" in finding.text.title
    assert "at most 73.0 GiB" in finding.text.detail
    assert "activation checkpointing" in finding.text.action
    assert finding.confidence is not None and finding.confidence.level is ConfidenceLevel.HIGH


def test_without_the_tensors_memory_the_finding_is_less_certain(tmp_path: Path) -> None:
    [finding] = full_device(tmp_path, used=76, tensors=None)
    assert "not measured" in finding.text.detail
    assert finding.confidence is not None and finding.confidence.level is ConfidenceLevel.MEDIUM


def test_a_device_that_the_allocators_cache_fills_or_with_room_is_none(tmp_path: Path) -> None:
    assert full_device(tmp_path / "cache", used=76, tensors=40) == []
    assert full_device(tmp_path / "room", used=72, tensors=69) == []


def test_memory_that_grows_to_the_end_of_the_steps_is_a_notice(tmp_path: Path) -> None:
    analysis = analyze_run(run_of(tmp_path, sampled()).read())
    assert analysis.machine is not None
    (rank,) = analysis.machine.rank_memory
    assert rank.growth_bytes_per_s == pytest.approx(GIB / 10, rel=0.02)
    finding = next(finding for finding in analysis.findings if finding.id is FindingKind.MEMORY_GROWS)
    assert finding.rank == 0 and "loss.item()" in finding.text.action
    assert any("Memory grows over the run" in note.text for note in build_report(analysis, None).notices)


@pytest.mark.parametrize("full_at", [11, 14])
def test_memory_that_fills_up_and_stays_does_not_grow(tmp_path: Path, full_at: int) -> None:
    file = SampleFile()
    values = [GIB + round(GIB * min(max(t - 10, 0), full_at - 10) / (full_at - 10)) for t in SLOW]
    file.add("rank_resident_bytes", SLOW, values, kind="gauge", unit="bytes", pid="100")
    machine = analyze_run(run_of(tmp_path, file).read()).machine
    assert machine is not None and machine.rank_memory[0].growth_bytes_per_s is None
