"""Traces recorded on GPUs by other people, against figures computed from them by other means.

`expected.json` was made with float64 microseconds. For ns_v100, whose times are epoch microseconds with a
fraction, that grid is 0.25 us wide: its figures are reproduced exactly once our integer nanoseconds are
moved to the same grid, and differ from the exact ones by no more than the grid allows.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from perfscope.analysis import breakdown as bd
from perfscope.analysis.intervals import Int64
from perfscope.analysis.results import Breakdown, DeviceBreakdown
from perfscope.analysis.run import analyze_run
from perfscope.analysis.spans import Mask, whole_numbers, words
from perfscope.ingest.importing import import_traces
from perfscope.messages.missing import cause_text, figure_text
from perfscope.reports.document import build_document, to_plain
from perfscope.rundir.reader import RunReader

TRACES = Path(__file__).parents[2] / "data" / "traces"
GOLDEN = Path(__file__).parents[2] / "golden" / "analysis" / "dlrm_v100_8ranks.json"
COLUMNS = [*bd.DEVICE_COLUMNS, "name"]
GRID_NS = 250  # spacing of float64 at today's epoch in microseconds
SELECTIONS = ("every_gpu_event", "hta_selection")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunReader]:
    folder = tmp_path_factory.mktemp("runs")
    readers = {}
    for name in ("cpu_gloo_2ranks", "dlrm_v100_8ranks", "mi300_resnet", "ns_v100"):
        import_traces([TRACES / name], folder / name)
        readers[name] = RunReader(folder / name)
    return readers


def expected() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((TRACES / "expected.json").read_text())
    return loaded


def hta_selection(table: pa.Table) -> Mask:
    """As HolisticTraceAnalysis selects: without device work launched from the start of the last profiler step
    on, and without device work whose launch is not in the file.

    The last step is the last mark in the file, and a device's own copy of a mark counts as one: where the
    device lags behind, nothing was launched that late. A file with fewer than two marks is taken whole.

    Args:
        table: DEVICE_COLUMNS and `name` of one rank and window.
    """
    code, names = words(table, "name")
    is_mark = np.array([*(name.startswith("ProfilerStep#") for name in names), False])[code]
    marks = set(whole_numbers(table, "start_ns")[is_mark].tolist())
    if len(marks) < 2:
        return bd.every_gpu_event(table)
    launch = whole_numbers(table, "launch_ns")
    selected: Mask = bd.every_gpu_event(table) & (launch >= 0) & (launch < max(marks))
    return selected


def device_of(table: pa.Table, selection: str) -> DeviceBreakdown:
    mask = bd.every_gpu_event(table) if selection == "every_gpu_event" else hta_selection(table)
    device = bd.device_breakdown(table, mask)
    assert device is not None
    assert device.idle == device.idle_host_wait + device.idle_kernel_wait + device.idle_other
    return device


def differences(device: DeviceBreakdown, figures: dict[str, float | None]) -> dict[str, float]:
    """Ours less theirs, in ns; the two shares as a share."""
    ours: dict[str, float] = {
        "span_us": device.span,
        "idle_us": device.idle,
        "compute_us": device.compute,
        "exposed_other_us": device.span - device.idle - device.compute,
        "comm_us": device.comm,
        "exposed_comm_us": device.exposed_comm,
    }
    assert device.num_events == figures["gpu_events"]
    overlap, theirs = device.overlap_ratio, figures["overlap_pct"]
    assert (overlap is None) == (theirs is None)
    if overlap is not None and theirs is not None:
        assert overlap == pytest.approx(theirs / 100, abs=1e-6)
    return {name: value - 1000 * (figures[name] or 0) for name, value in ours.items()}


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("rank", range(8))
def test_integer_traces_agree_exactly(runs: dict[str, RunReader], selection: str, rank: int) -> None:
    reader = runs["dlrm_v100_8ranks"]
    device = device_of(reader.timeline(rank, 0, COLUMNS), selection)
    figures = expected()["dlrm_v100_8ranks"][selection][str(rank)]
    assert differences(device, figures) == dict.fromkeys(differences(device, figures), 0)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_nanosecond_traces_agree_within_a_microsecond(runs: dict[str, RunReader], selection: str) -> None:
    reader = runs["mi300_resnet"]
    device = device_of(reader.timeline(0, 0, COLUMNS), selection)
    found = differences(device, expected()["mi300_resnet"][selection]["0"])
    assert all(abs(value) <= 1000 for value in found.values()), found


@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_coarse_grid_of_the_other_figures_explains_every_difference(
    runs: dict[str, RunReader], selection: str
) -> None:
    reader = runs["ns_v100"]
    table = reader.timeline(0, 0, COLUMNS)
    figures = expected()["ns_v100"][selection]["0"]
    exact = device_of(table, selection)
    # Every edge of every event may be off by half the grid, and errors of edges add up at random.
    assert all(
        abs(value) <= GRID_NS * exact.num_events**0.5 * 4 for value in differences(exact, figures).values()
    )
    on_grid = device_of(_as_float64_microseconds(table), selection)
    found = differences(on_grid, figures)
    assert all(abs(value) <= 1000 for value in found.values()), found


def _as_float64_microseconds(table: pa.Table) -> pa.Table:
    """The same times as a reader sees them that parses JSON numbers into float64 and adds them there."""
    start = [float(Fraction(value, 1000)) for value in whole_numbers(table, "start_ns").tolist()]
    dur = [float(Fraction(value, 1000)) for value in whole_numbers(table, "dur_ns").tolist()]
    end = [a + b for a, b in zip(start, dur, strict=True)]
    begin_ns: Int64 = np.array([int(Fraction(value) * 1000) for value in start], dtype=np.int64)
    end_ns: Int64 = np.array([int(Fraction(value) * 1000) for value in end], dtype=np.int64)
    columns = {"start_ns": pa.array(begin_ns), "dur_ns": pa.array(end_ns - begin_ns)}
    for name, array in columns.items():
        table = table.set_column(table.column_names.index(name), name, array)
    return table


def test_steps_of_a_host_that_runs_ahead_last_as_long_as_their_work(runs: dict[str, RunReader]) -> None:
    """By the host's marks, the first two of five equal steps take 35 and 72 ms: the device is behind."""
    (summary,) = runs["ns_v100"].summaries()
    lengths = [(end - start) / 1e6 for _, start, end in summary.steps]
    assert summary.runs_ahead
    assert lengths[1:] == pytest.approx([95.7] * 4, rel=0.01)
    assert lengths[0] == pytest.approx(95.7, rel=0.06)  # warms up
    (rank,) = analyze_run(runs["ns_v100"]).ranks
    assert rank.breakdown_ns is not None and rank.device_ns is not None
    idle = rank.breakdown_ns.idle / rank.breakdown_ns.step
    assert idle == pytest.approx(rank.device_ns.idle / rank.device_ns.span, abs=0.02)


def test_waiting_and_transfer_of_eight_ranks(runs: dict[str, RunReader]) -> None:
    analysis = analyze_run(runs["dlrm_v100_8ranks"])
    truth = expected()["dlrm_v100_8ranks"]["collectives"]
    assert sum(call.transfer_ns for call in analysis.calls) == 217_000
    assert Counter(call.late_rank for call in analysis.calls) == {7: 5, 5: 2, 4: 1}
    calls = sorted(analysis.calls, key=lambda call: call.start_ns)
    assert [call.late_rank for call in calls] == [one["last_rank"] for one in truth]
    assert [call.start_skew_ns for call in calls] == [1000 * one["start_skew_us"] for one in truth]
    assert [call.end_skew_ns for call in calls] == [1000 * one["end_skew_us"] for one in truth]
    # Theirs ends when the last rank leaves, ours is the shortest stay: they lie within the ends' skew.
    for call, one in zip(calls, truth, strict=True):
        assert 0 <= 1000 * one["transfer_us"] - call.transfer_ns <= 1000 * one["end_skew_us"]
    assert analysis.clock_residual_ns is None
    by_rank = {rank.rank: rank.device_ns for rank in analysis.ranks}
    for device in by_rank.values():
        assert device is not None
        assert 0.875 < 1 - 217_000 / device.comm < 0.985  # the rest of each rank's communication is waiting


def test_the_verdict_on_eight_ranks_names_the_rank_that_comes_last(runs: dict[str, RunReader]) -> None:
    analysis = analyze_run(runs["dlrm_v100_8ranks"])
    findings = {finding.id.value: finding for finding in analysis.findings}
    verdict = analysis.findings[0]
    assert (verdict.id, verdict.rank) == ("late_start", 7)
    assert "it enters last in 5 of 8 calls" in verdict.text.title
    assert "the transfers themselves take 217 µs." in verdict.text.detail
    assert analysis.replay is not None and analysis.replay.error_ratio < 0.01
    launch = findings["launch_bound"].gain_ns  # what the slow ranks alone idle is laid at them
    assert launch is not None and 4_000_000 < launch < 6_790_000


def test_one_rank_of_eight_tells_no_transfer(runs: dict[str, RunReader]) -> None:
    analysis = analyze_run(runs["mi300_resnet"])
    assert [result.group_size for result in analysis.collectives] == [8, 8]
    assert all(result.transfer_ns is None and result.wait_ns is None for result in analysis.collectives)
    assert any("1 of the group's 8 ranks" in cause_text(missing) for missing in analysis.missing)


def test_layers_of_a_checkpointed_resnet_come_from_its_python_frames(runs: dict[str, RunReader]) -> None:
    layers = {layer.layer: layer for layer in analyze_run(runs["mi300_resnet"]).layers}
    convs = [layer for name, layer in layers.items() if name.startswith("ResNet_0.") and ".Conv2d_" in name]
    assert len(convs) == 20
    assert all(layer.forward_ns > 0 and layer.backward_ns > layer.forward_ns for layer in convs)


def test_two_cpu_ranks_with_a_known_network(runs: dict[str, RunReader]) -> None:
    """cpu_gloo_2ranks/train.py: conv (448 parameters), norm (32), conv (2,336), head (330), three steps."""
    analysis = analyze_run(runs["cpu_gloo_2ranks"])
    layers = {layer.layer: layer for layer in analysis.layers}
    assert list(layers) == [*(f"features.{k}" for k in range(6)), "pool.0", "pool.1", "head"]
    assert all(
        layer.calls == 1 and layer.forward_ns > 0 and layer.backward_ns > 0 for layer in layers.values()
    )
    [reduce, broadcast] = analysis.collectives
    assert (reduce.collective, reduce.count, reduce.num_matched) == ("all_reduce", 3, 3)
    assert reduce.bytes == 3 * 4 * (448 + 32 + 2336 + 330)
    assert (broadcast.collective, broadcast.num_matched) == ("broadcast", 6)  # two threads start them at once
    in_layers = sum(layer.forward_ns + layer.backward_ns for layer in layers.values())
    computing = [rank.breakdown_ns.compute for rank in analysis.ranks if rank.breakdown_ns is not None]
    # The rest of the computation: the loss, and gradients that DDP copies into its bucket.
    assert 0.9 * sum(computing) / 2 < in_layers <= sum(computing) / 2
    assert analysis.findings[0].id == "compute_bound"


def test_the_analysis_of_eight_ranks_is_as_kept(runs: dict[str, RunReader]) -> None:
    """To update: PERFSCOPE_UPDATE_GOLDEN=1 python -m pytest <this file>, and read the diff."""
    analysis = analyze_run(runs["dlrm_v100_8ranks"])
    kept = {name: to_plain(getattr(analysis, name)) for name in ("ranks", "collectives", "calls", "step_ns")}
    kept["findings"] = build_document(analysis)["findings"]
    kept["missing"] = [
        {"what": figure_text(one), "reason": cause_text(one), "affects": one.affects}
        for one in analysis.missing
    ]
    actual = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("PERFSCOPE_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(parents=True, exist_ok=True)
        GOLDEN.write_text(actual, encoding="utf-8")
    assert json.loads(GOLDEN.read_text(encoding="utf-8")) == json.loads(actual)


@pytest.mark.parametrize("name", ["cpu_gloo_2ranks", "dlrm_v100_8ranks", "mi300_resnet", "ns_v100"])
def test_parts_add_up_on_every_rank(runs: dict[str, RunReader], name: str) -> None:
    for rank in analyze_run(runs[name]).ranks:
        assert rank.breakdown_ns is not None
        assert sum(getattr(rank.breakdown_ns, part) for part in Breakdown.PARTS) == rank.breakdown_ns.step
