"""Tables of kernels: each adds up to the sum over the events, by unions and sums of the JSON itself."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.kernels.results import Kernels
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.ingest.importing import import_traces
from perfscope.reports.model import Table
from perfscope.reports.sections.kernels import kernels_section
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.kernels import CopyKind, KernelType

TRACES = Path(__file__).parents[3] / "data" / "traces"
DEVICE = ("a100_8of16", "dlrm_v100_8ranks", "mi300_ddp_resnet18", "mi300_resnet", "ns_v100", "vllm_piecewise")
HOST = ("cpu_gloo_2ranks", "cpu_gloo_groups", "cpu_grad_hooks")
CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunAnalysis]:
    folder = tmp_path_factory.mktemp("kernels")
    results = {}
    for name in (*DEVICE, *HOST):
        import_traces([TRACES / name], folder / name)
        results[name] = analyze_run(RunReader(folder / name))
    return results


def kernels_of(analyses: dict[str, RunAnalysis], name: str) -> Kernels:
    found = analyses[name].kernels
    assert found is not None
    return found


def device_events(name: str) -> list[dict[str, Any]]:
    events = []
    for path in (TRACES / name).glob("*.json.gz"):
        events += json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("cat") in CATEGORIES and event.get("ph") == "X"]


@pytest.mark.parametrize("name", DEVICE)
def test_totals_are_those_of_the_events(analyses: dict[str, RunAnalysis], name: str) -> None:
    kernels, events = kernels_of(analyses, name), device_events(name)
    assert kernels.of_device
    assert kernels.calls == len(events)
    assert kernels.total_ns == sum(round(event["dur"] * 1000) for event in events)
    ranks = [rank.device_ns for rank in analyses[name].ranks if rank.device_ns is not None]
    assert kernels.busy_ns == sum(rank.compute + rank.exposed_comm + rank.copy for rank in ranks)
    assert kernels.total_ns == kernels.busy_ns + (kernels.concurrent_ns or 0)


@pytest.mark.parametrize("name", [*DEVICE, *HOST])
def test_every_table_adds_up_to_the_total(analyses: dict[str, RunAnalysis], name: str) -> None:
    kernels = kernels_of(analyses, name)
    tables: list[tuple[Any, ...]] = [kernels.by_type, kernels.by_name]
    tables += [table for table in (kernels.by_layer_class, kernels.by_operator) if table]
    for table in tables:
        assert sum(row.total_ns for row in table) == kernels.total_ns
        assert sum(row.calls for row in table) == kernels.calls
        assert sum(row.share for row in table) == pytest.approx(1)
    of_type = {row.type: row.total_ns for row in kernels.by_type}
    assert sum(row.total_ns for row in kernels.copies) == of_type.get(KernelType.COPY, 0)
    assert sum(row.total_ns for row in kernels.graphs) == kernels.graph_ns
    by_rank: dict[KernelType, int] = {}
    for rank in analyses[name].ranks:
        for kind, ns in rank.kernel_ns.items():
            by_rank[kind] = by_rank.get(kind, 0) + ns
    assert by_rank == {kind: ns for kind, ns in of_type.items() if ns}
    assert bool(kernels.by_operator) == kernels.of_device == (name in DEVICE)


def test_graphs_and_launches_that_are_not_in_the_file(analyses: dict[str, RunAnalysis]) -> None:
    vllm = kernels_of(analyses, "vllm_piecewise")
    assert vllm.graph_ns / vllm.total_ns == pytest.approx(0.9605, abs=0.001)
    assert [(graph.call, graph.replays, graph.kernels) for graph in vllm.graphs] == [
        ("hipGraphLaunch", 23, 15),
        ("hipGraphLaunch", 1, 12),
        ("hipGraphLaunch", 1, 4),
    ]
    assert vllm.by_operator[0].operator == "hipGraphLaunch", "kernels of graphs are laid at the call"
    launched = launch_ids("a100_8of16")
    absent = [event for event in device_events("a100_8of16") if event["args"]["correlation"] not in launched]
    a100 = kernels_of(analyses, "a100_8of16")
    assert a100.launches_absent == len(absent) == 872
    assert a100.launches_absent_ns == sum(round(event["dur"] * 1000) for event in absent)
    [row] = [row for row in a100.by_operator if row.launch_absent]
    assert (row.operator, row.calls) == (None, 872)


def launch_ids(name: str) -> set[int]:
    [path] = (TRACES / name).glob("*.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {event["args"]["correlation"] for event in events if event.get("cat") == "cuda_runtime"}


def test_copies_by_kind_with_their_rate(analyses: dict[str, RunAnalysis]) -> None:
    copies = {row.kind: row for row in kernels_of(analyses, "a100_8of16").copies}
    events = [event for event in device_events("a100_8of16") if "HtoD" in event["name"]]
    row = copies[CopyKind.HOST_TO_DEVICE]
    assert row.bytes is not None
    assert row.bytes == sum(event["args"]["bytes"] for event in events)
    assert row.bytes_per_s == pytest.approx(row.bytes * 1e9 / row.total_ns)
    unsized = {row.kind: row for row in kernels_of(analyses, "mi300_resnet").copies}
    assert (unsized[CopyKind.DEVICE_TO_DEVICE].num_unsized, unsized[CopyKind.SET].bytes) == (184, None)


def test_what_kernels_were_launched_with(analyses: dict[str, RunAnalysis]) -> None:
    events = [event for event in device_events("ns_v100") if event["name"] == "volta_sgemm_32x128_tn"]
    [row] = [row for row in kernels_of(analyses, "ns_v100").by_name if row.name == "volta_sgemm_32x128_tn"]
    times = [event["dur"] for event in events]
    occupancy = sum(event["args"]["est. achieved occupancy %"] * event["dur"] for event in events) / sum(
        times
    )
    assert row.occupancy == pytest.approx(occupancy, rel=1e-3)
    assert row.registers == max(event["args"]["registers per thread"] for event in events)
    assert row.grid in {"x".join(map(str, event["args"]["grid"])) for event in events}
    assert (row.type, row.matrix_units, row.operator) == (
        KernelType.GEMM,
        False,
        "aten::convolution_backward",
    )
    assert kernels_of(analyses, "mi300_resnet").occupancy is None, "the trace does not say"


def test_layers_by_class(analyses: dict[str, RunAnalysis]) -> None:
    rows = {row.layer_class: row for row in kernels_of(analyses, "mi300_ddp_resnet18").by_layer_class}
    assert rows["Conv2d"].layers == 20
    assert rows["BatchNorm2d"].layers == 20
    assert rows["BatchNorm2d"].backward_ns > 0


def test_streams(analyses: dict[str, RunAnalysis]) -> None:
    [rank] = analyses["a100_8of16"].ranks
    main = max(rank.streams, key=lambda stream: stream.launches)
    assert main.delay_median_ns / 1e6 == pytest.approx(164, abs=2)
    assert main.queue_max < 1100, "the queue of CUDA takes 1,024 launches"
    assert main.empty_ratio < 0.01


def test_host_operators_are_counted_without_those_inside_them(analyses: dict[str, RunAnalysis]) -> None:
    kernels = kernels_of(analyses, "cpu_gloo_2ranks")
    assert not kernels.of_device
    assert (kernels.busy_ns, kernels.copies, kernels.graphs) == (None, (), ())
    types = {row.type for row in kernels.by_type}
    assert {KernelType.COMMUNICATION, KernelType.OPTIMIZER} <= types


@pytest.mark.parametrize("name", [*DEVICE, *HOST])
def test_the_section_shows_the_total(analyses: dict[str, RunAnalysis], name: str) -> None:
    section = kernels_section(analyses[name])
    assert section is not None
    table = next(block for block in section.blocks if isinstance(block, Table))
    kernels = kernels_of(analyses, name)
    assert table.rows[-1][:4] == ("Total", kernels.total_ns, 1.0, kernels.calls)
    assert sum(int(row[1] or 0) for row in table.rows[:-1]) == kernels.total_ns
