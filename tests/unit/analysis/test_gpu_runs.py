"""Trainings recorded on GPUs with a planted cause each, against what removing the cause really gained."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.gate.measure import measure_run
from perfscope.ingest.importing import import_traces
from perfscope.ingest.run import ingest_run
from perfscope.messages.findings.step import HostBlocked
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.findings import FindingKind

RUNS = Path(__file__).parents[2] / "data" / "gpu_runs"
TRUTH: dict[str, Any] = json.loads((RUNS / "truth.json").read_text())


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunAnalysis]:
    def analyze(cause: str) -> RunAnalysis:
        run = tmp_path_factory.mktemp(cause)
        with tarfile.open(RUNS / f"{cause}.tar.gz") as archive:
            archive.extractall(run, filter="data")
        ingest_run(run)
        return analyze_run(RunReader(run))

    return analyze


def test_a_busy_device_behind_a_host_that_runs_ahead_is_compute_bound(
    analyzed: Callable[[str], RunAnalysis],
) -> None:
    """By the host's marks the device idles for half of the step, in the profiler's own synchronization."""
    analysis = analyzed("clean")
    assert analysis.findings[0].id is FindingKind.COMPUTE_BOUND
    assert not any(finding.id is FindingKind.LONG_STEPS for finding in analysis.findings)
    assert analysis.step_ns is not None
    assert analysis.step_ns.median == pytest.approx(TRUTH["clean"]["with"]["mean_ns"], rel=0.02)
    (rank,) = analysis.ranks
    assert rank.breakdown_ns is not None and rank.breakdown_ns.idle < 0.1 * rank.breakdown_ns.step
    assert all(check.ok for check in analysis.self_checks)
    text = analysis.findings[0].text
    assert "By kind of kernel: GEMM 41 %, elementwise 38 % and optimizer 7 %." in text.detail
    assert text.action.startswith("Fuse elementwise operators")  # the products are on tensor cores


def test_blocking_copies_are_named_with_what_they_cost(analyzed: Callable[[str], RunAnalysis]) -> None:
    analysis = analyzed("copy")
    verdict, truth = analysis.findings[0], TRUTH["copy"]
    assert verdict.id is FindingKind.COPY_BOUND
    assert analysis.step_ns is not None and verdict.gain_ns is not None
    predicted = analysis.step_ns.median - verdict.gain_ns
    assert abs(predicted - truth["without"]["mean_ns"]) < 0.1 * truth["with"]["mean_ns"]


def test_calls_that_allocate_and_free_memory_are_one_cause(analyzed: Callable[[str], RunAnalysis]) -> None:
    verdict = analyzed("allocator").findings[0]
    assert verdict.id is FindingKind.HOST_BLOCKED
    assert verdict.gain_ratio is not None and 0.4 < verdict.gain_ratio < 1
    assert isinstance(verdict.facts, HostBlocked)
    assert verdict.facts.call.names == ("cudaMalloc", "cudaFree")


def test_idle_time_after_item_is_given_to_the_call_that_waited(
    analyzed: Callable[[str], RunAnalysis],
) -> None:
    """Reading a statistic of each layer lets the device run dry; the host then prepares the next layer."""
    analysis, truth = analyzed("item"), TRUTH["item"]
    [finding] = [finding for finding in analysis.findings if finding.id is FindingKind.HOST_BLOCKED]
    assert isinstance(finding.facts, HostBlocked)
    call = finding.facts.call
    assert (call.names, call.operator) == (("cudaStreamSynchronize",), "aten::item")
    assert call.after_ratio > 0.9
    gained = truth["with"]["mean_ns"] - truth["without"]["mean_ns"]  # with what computes the statistics
    assert finding.gain_ns is not None and 0.6 * gained < finding.gain_ns < 1.1 * gained


def test_throughput_of_steps_that_alternate_is_that_of_the_mean_step(
    analyzed: Callable[[str], RunAnalysis],
) -> None:
    """Two loader workers that are too slow: many steps wait for no batch, the others for several."""
    analysis, truth = analyzed("input"), TRUTH["input"]
    assert analysis.findings[0].id is FindingKind.INPUT_BOUND
    assert analysis.throughput_samples_per_s == pytest.approx(64e9 / truth["with"]["mean_ns"], rel=0.03)


@pytest.mark.parametrize(
    ("trace", "kind", "text"),
    [
        (
            "gpt2-vocabulary-50257",
            FindingKind.UNALIGNED_PRODUCTS,
            "fewer than 8 elements at a time; 100 % of their time is in layer head",
        ),
        ("resnet50-nchw", FindingKind.LAYOUT_CONVERSIONS, "converting tensors between NCHW and NHWC"),
    ],
)
def test_kernels_that_another_shape_or_layout_would_save_are_found(
    trace: str, kind: FindingKind, text: str, tmp_path: Path
) -> None:
    """Windows of bench runs on an H100: bfloat16, and TF32 with tensors in NCHW."""
    import_traces([RUNS / f"{trace}.json.gz"], tmp_path)
    findings = {finding.id: finding for finding in analyze_run(RunReader(tmp_path)).findings}
    assert text in findings[kind].text.title
    assert not {FindingKind.UNALIGNED_PRODUCTS, FindingKind.LAYOUT_CONVERSIONS} - {kind} & set(findings)


def test_gains_of_a_finding_are_on_the_scale_of_the_median_step(
    analyzed: Callable[[str], RunAnalysis],
) -> None:
    for cause in ("clean", "copy", "allocator", "item"):
        analysis = analyzed(cause)
        assert analysis.step_ns is not None
        for finding in analysis.findings:
            if finding.gain_ns is not None and finding.gain_ratio is not None:
                assert finding.gain_ns == pytest.approx(
                    finding.gain_ratio * analysis.step_ns.median, abs=0.01 * analysis.step_ns.median
                )


def test_a_gate_compares_the_steps_of_the_device(tmp_path: Path) -> None:
    """The host leaves a tenth of the steps after 12 ms, whatever the device takes for them."""
    with tarfile.open(RUNS / "clean.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    ingest_run(tmp_path)
    metrics = measure_run(tmp_path, "clean").metrics
    assert metrics["step_p10"] == pytest.approx(TRUTH["clean"]["with"]["mean_ns"], rel=0.02)
