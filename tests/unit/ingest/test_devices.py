"""Devices of any vendor, by what the trace says; jobs whose device was not traced; steps of servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.results import RankResult, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.errors import TraceError
from perfscope.ingest.importing import import_traces
from perfscope.reports.build import build_report
from perfscope.reports.text import render_text
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.kernels import KernelType
from perfscope.vocabulary.workload import Workload
from tests.support.ingest_traces import Json, document, ingest

HOST = 100
STEP_US, KERNELS, KERNEL_US = 1000, 4, 200


def event(
    category: str, name: str, pid: int | str, tid: int | str, start: float, dur: float, **args: Any
) -> Json:
    span: Json = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    return {**span, "ts": start, "dur": dur, "args": args}


def label(pid: int | str, text: str) -> Json:
    return {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "ts": 0, "args": {"labels": text}}


def host(
    category: str = "cuda_runtime",
    call: str = "cudaLaunchKernel",
    *,
    marks: str = "ProfilerStep#{}",
    num_steps: int = 3,
    trains: bool = True,
) -> list[Json]:
    """Steps of 1 ms; each has operators that launch KERNELS kernels, and a backward pass if it trains."""
    events = []
    for step in range(num_steps):
        start = step * STEP_US
        if marks:
            events.append(event("user_annotation", marks.format(step), HOST, HOST, start, STEP_US - 1))
        for index in range(KERNELS):
            at = start + 10 + 20 * index
            correlation = step * KERNELS + index + 1
            events.append(event("cpu_op", "aten::mm", HOST, HOST, at, 15))
            events.append(event(category, call, HOST, HOST, at + 5, 5, correlation=correlation))
        if trains:
            node = "autograd::engine::evaluate_function: MmBackward0"
            events.append(event("cpu_op", node, HOST, HOST + 1, start + 200, 50))
    return events


def device(
    category: str = "kernel",
    name: str = "gemm_kernel",
    *,
    pid: int | str = 0,
    tid: int | str = 7,
    says_device: bool = False,
    correlates: bool = True,
    num_steps: int = 3,
) -> list[Json]:
    """What the host launches: 800 of 1,000 us."""
    events = []
    for number in range(num_steps * KERNELS):
        step, index = divmod(number, KERNELS)
        args: Json = {"device": pid, "stream": tid} if says_device else {}
        if correlates:
            args["correlation"] = number + 1
        start = step * STEP_US + 40 + index * (KERNEL_US + 10)
        events.append(event(category, name, pid, tid, start, KERNEL_US, **args))
    return events


def analyze(folder: Path, *traces: list[Json] | bytes, **fields: Any) -> RunAnalysis:
    paths = []
    for number, trace in enumerate(traces):
        path = folder / f"rank{number}.json"
        path.write_bytes(trace if isinstance(trace, bytes) else document(trace, **fields))
        paths.append(path)
    import_traces(paths, folder / "run")
    return analyze_run(RunReader(folder / "run"))


def rank_of(analysis: RunAnalysis) -> RankResult:
    [rank] = analysis.ranks
    return rank


def text_of(analysis: RunAnalysis) -> str:
    return render_text(build_report(analysis, None))


DEVICES = {
    "MTIA": host("mtia_runtime", "runFunction - job_prep_and_submit_for_execution")
    + device("mtia_ccp_events", "fba_gemm"),
    "XPU": host("xpu_runtime", "urEnqueueKernelLaunch") + device(says_device=True, tid=11),
    "HPU, by its label": host("hpu_op", "launch_recipe")
    + device("hpu_task", "gemm_fwd", pid=2, correlates=False)
    + [label(HOST, "CPU"), label(2, "HPU 2")],
    "NPU, known from the label alone": host("npu_runtime", "aclrtLaunchKernel")
    + device("ascend_task", "MatMulV2", pid=3, correlates=False)
    + [label(3, "NPU 3")],
    "any, by the launches": host("foo_driver", "fooEnqueueKernel")
    + device("foo_stuff", "conv_kernel", pid="Foo device", tid="queue 1"),
    "any, beside known work": host() + device(says_device=True) + device("new_stuff", correlates=False),
    "GCU": host("gcu_runtime", "gcuLaunchKernel") + device("gcu_kernel", pid=1),
    "ROCm": host("cuda_runtime", "hipExtModuleLaunchKernel") + device(says_device=True, pid=2, tid=0),
    "CUDA, extended launch": host(call="cudaLaunchKernelExC") + device(says_device=True),
    "CUDA, driver": host("cuda_driver", "cuLaunchKernelEx") + device(says_device=True),
}


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("backwards", [False, True])
def test_an_unknown_device_is_a_device(tmp_path: Path, name: str, backwards: bool) -> None:
    events = DEVICES[name][::-1] if backwards else DEVICES[name]
    analysis = analyze(tmp_path, events)
    rank = rank_of(analysis)
    assert rank.device_ns is not None
    assert rank.device_ns.compute == 3 * KERNELS * KERNEL_US * 1000
    assert rank.breakdown_ns is not None
    assert rank.breakdown_ns.compute / rank.breakdown_ns.step == pytest.approx(0.8, abs=0.01)
    assert analysis.findings[0].id is FindingKind.COMPUTE_BOUND
    assert analysis.kernels is not None and analysis.kernels.of_device


def test_an_unknown_category_of_the_host_stays_on_the_host(tmp_path: Path) -> None:
    others = [event("my_lib", "prepare", HOST, HOST, 5, 3), event("my_lib", "poll", HOST, 333, 5, 2900)]
    found = ingest(tmp_path, document([*others, *host(), *device(says_device=True)]))
    assert {row["device"] for row in found.named("poll") + found.named("prepare")} == {-1}
    alien = [event("stage", "compile", 1, 2, 0, 50), event("stage", "link", 1, 2, 60, 50)]
    assert {row["device"] for row in ingest(tmp_path / "alien", document(alien)).rows} == {-1}


@pytest.mark.parametrize(
    "signs",
    [[], [event("cuda_profiler_range", "gemm", 0, 7, 40, 2900, device=0, stream=7)]],
    ids=["plain", "ranges"],
)
def test_a_job_without_device_events_gets_no_verdict_on_host_time(tmp_path: Path, signs: list[Json]) -> None:
    analysis = analyze(tmp_path, host() + signs, deviceProperties=[{"id": 0, "name": "A100"}])
    rank = rank_of(analysis)
    assert (rank.breakdown_ns, rank.device_ns) == (None, None)
    assert [finding.id for finding in analysis.findings] == [FindingKind.NO_DEVICE_EVENTS]
    assert analysis.step_ns is not None, "steps are marked on the host"
    assert any(entry.figure is Figure.DEVICE_TIME for entry in analysis.missing)
    text = text_of(analysis)
    assert text.index("no device events") < text.index("Median step time")


def test_a_job_on_the_cpu_is_no_job_without_device_events(tmp_path: Path) -> None:
    operators = [one for one in host() if one["cat"] != "cuda_runtime"]
    analysis = analyze(tmp_path, operators, deviceProperties=[{"id": 0, "name": "A100"}])
    assert rank_of(analysis).breakdown_ns is not None


def test_traces_of_two_jobs_are_refused(tmp_path: Path) -> None:
    paths = []
    for rank, size in ((0, 8), (1, 2)):
        path = tmp_path / f"trace{rank}.json"
        info = {"backend": "nccl", "rank": rank, "world_size": size}
        path.write_bytes(document(host() + device(says_device=True), distributedInfo=info))
        paths.append(path)
    with pytest.raises(TraceError, match=r"different jobs: .*trace0.json is of 8 ranks, .*trace1.json of 2"):
        import_traces(paths, tmp_path / "run")
    assert not (tmp_path / "run").exists()


MARKS = (
    "execute_context_1(512)_generation_{}({})",
    "execute_new_{}",
    "step[EXTEND bs=1 toks={}]",
    "step[DECODE bs=8]",
)


@pytest.mark.parametrize("marks", MARKS)
def test_steps_of_inference_servers(tmp_path: Path, marks: str) -> None:
    steps = host(marks=marks.replace("{}({})", "{0}({0})"), trains=False)
    analysis = analyze(tmp_path, steps + device(says_device=True))
    assert analysis.breakdown_of == "step"
    assert rank_of(analysis).num_traced_steps == 3
    assert analysis.workload is Workload.INFERENCE
    words = text_of(analysis).lower()
    for word in ("training", "data loader", "backward", "optimizer"):
        assert word not in words


def test_inference_without_marks_has_words_of_inference(tmp_path: Path) -> None:
    frame = event("python_function", "nn.Module: RMSNorm_0", HOST, HOST, 1, 2900)
    analysis = analyze(tmp_path, [frame, *host(marks="", trains=False), *device(says_device=True)])
    assert analysis.breakdown_of == "file"
    assert analysis.layers
    assert "backward" not in text_of(analysis).lower()


def test_training_keeps_its_words(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, host() + device(says_device=True))
    assert analysis.workload is Workload.TRAINING


def cut(events: list[Json], share: float) -> bytes:
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=1)
    return text[: round(len(text) * share)].encode()


def test_a_truncated_trace_is_judged_by_its_whole_steps(tmp_path: Path) -> None:
    events = sorted(host(num_steps=5) + device(says_device=True, num_steps=5), key=lambda one: one["ts"])
    analysis = analyze(tmp_path, cut(events, 0.7))
    rank = rank_of(analysis)
    assert rank.breakdown_ns is not None
    assert rank.breakdown_ns.num_steps == 3
    assert rank.breakdown_ns.compute == KERNELS * KERNEL_US * 1000
    [source] = analysis.provenance
    assert (source.ends_early, source.steps_cut, source.salvaged) == (True, 1, True)
    text = text_of(analysis)
    assert text.index("ends early") < text.index("Compute-bound")
    assert any(entry.figure is Figure.STEPS_LEFT_OUT for entry in analysis.missing)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.8, 0.95])
@pytest.mark.parametrize("order", ["by time", "devices last", "later steps first"])
def test_no_step_of_a_truncated_trace_lacks_work(tmp_path: Path, share: float, order: str) -> None:
    on_host, on_device = host(num_steps=6), device(says_device=True, num_steps=6)
    calls = [one for one in on_host if one["cat"] == "cuda_runtime"]
    operators = [one for one in on_host if one["cat"] != "cuda_runtime"]
    events = operators + calls + on_device
    if order == "by time":
        events.sort(key=lambda one: one["ts"])
    elif order == "later steps first":
        beside = sorted(calls + on_device, key=lambda one: (-(one["ts"] // (3 * STEP_US)), one["ts"]))
        events = operators + beside
    analysis = analyze(tmp_path, cut(events, share))
    breakdown = rank_of(analysis).breakdown_ns
    if breakdown is None:
        assert analysis.findings[0].id in (FindingKind.NO_DEVICE_EVENTS, FindingKind.NOT_TRACED)
    else:
        assert breakdown.compute == KERNELS * KERNEL_US * 1000


def test_a_trace_that_ends_before_its_device_events(tmp_path: Path) -> None:
    events = host(num_steps=5) + device(says_device=True, num_steps=5)
    analysis = analyze(tmp_path, cut(events, 0.4))
    assert analysis.findings[0].id is FindingKind.NO_DEVICE_EVENTS
    assert "ends early" in analysis.findings[0].text.action


def test_a_control_character_loses_nothing_and_the_note_says_so(tmp_path: Path) -> None:
    text = document(host() + device(says_device=True)).replace(b"aten::mm", b"aten::m\tm", 1)
    found = ingest(tmp_path, text)
    assert found.summary.events_dropped == 0
    assert not found.summary.salvaged
    assert any("were read all the same" in note for note in found.summary.notes)


def test_communication_without_a_name_is_not_absent(tmp_path: Path) -> None:
    names = (
        "void deep_ep::internode::dispatch<true>(int)",
        "void deep_ep::layout::get_dispatch_layout<256>(int)",
    )
    kernels = [one for name in names for one in device(name=name, says_device=True, tid=len(name))]
    analysis = analyze(tmp_path, host() + kernels)
    figures = {entry.figure for entry in analysis.missing}
    assert Figure.COMM_SPANS in figures
    assert Figure.COLLECTIVES not in figures
    rank = rank_of(analysis)
    assert rank.kernel_ns[KernelType.COMMUNICATION] == 3 * KERNELS * KERNEL_US * 1000, (
        "the layout is local work"
    )
