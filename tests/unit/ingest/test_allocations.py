"""Allocator events of a trace: a curve per device, and what ran at the peak."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.allocations import AllocatorWindow
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.ingest.allocations import MOST_POINTS
from perfscope.ingest.importing import import_traces
from perfscope.reports.model import Counters, Table
from perfscope.reports.sections.memory import memory_section
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.causes import Cause

TRACE = Path(__file__).parents[2] / "data" / "traces" / "h100_memory" / "trace.json.gz"


def events() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]
    return found


def analyzed(folder: Path, found: list[dict[str, Any]]) -> RunAnalysis:
    trace = folder / "trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": found}), encoding="utf-8")
    return analyze_run(RunReader(import_traces([trace], folder / "run").run_dir))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunAnalysis:
    return analyzed(tmp_path_factory.mktemp("recorded"), events())


def test_the_peaks_are_those_of_all_events_of_the_device(recorded: RunAnalysis) -> None:
    of_device = [e for e in events() if e["name"] == "[memory]" and e["args"]["Device Type"] == 1]
    [window] = recorded.allocations
    highest = max(of_device, key=lambda event: event["args"]["Total Allocated"])
    assert window.device == 0
    assert window.num_events == len(of_device)
    assert window.peak_allocated_bytes == highest["args"]["Total Allocated"] == max(window.allocated_bytes)
    assert window.peak_reserved_bytes == max(event["args"]["Total Reserved"] for event in of_device)
    first = min(event["ts"] for event in of_device)
    assert window.peak_at_ns == pytest.approx(1000 * (highest["ts"] - first), abs=500)
    assert list(window.t_ns) == sorted(window.t_ns) and len(window.t_ns) <= MOST_POINTS


def test_the_operator_and_the_layer_at_the_peak_are_named(recorded: RunAnalysis) -> None:
    [window] = recorded.allocations
    assert window.peak_operator == "aten::sum"
    assert window.peak_phase == "backward"
    assert window.peak_layer.endswith("Linear_5")


def test_the_section_draws_the_curve_marks_the_peak_and_names_what_ran(recorded: RunAnalysis) -> None:
    section = memory_section(recorded)
    assert section is not None
    assert "at most 461 MiB (device 0 of rank 0), in aten::sum of layer" in section.lead
    chart, table = section.blocks[-2:]
    assert isinstance(chart, Counters) and isinstance(table, Table)
    assert [line.label for line in chart.charts[0].lines] == ["allocated", "reserved"]
    [peak] = chart.windows
    [window] = recorded.allocations
    assert peak.start_ns <= window.peak_at_ns <= peak.end_ns
    assert "aten::sum of layer" in chart.caption
    assert len(table.rows) == 1


def test_a_trace_without_allocator_events_says_so(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, [event for event in events() if event["name"] != "[memory]"])
    assert analysis.allocations == ()
    assert Cause.NO_ALLOCATOR_EVENTS in {entry.cause for entry in analysis.missing}


def memory(ts: float, total: object, device: int = 0, kind: int = 1) -> dict[str, Any]:
    args = {"Device Type": kind, "Device Id": device, "Total Allocated": total, "Total Reserved": 0}
    event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1}
    return {**event, "ts": ts, "args": args}


def windows_of(folder: Path, found: list[dict[str, Any]]) -> tuple[AllocatorWindow, ...]:
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 0, "dur": 9e6}
    return analyzed(folder, [operator, *found]).allocations


def test_events_in_any_order_on_two_devices_make_two_curves_and_damaged_ones_are_left_out(
    tmp_path: Path,
) -> None:
    found = [memory(30, 7), memory(10, 5), memory(20, 9, device=1), memory(40, "?"), memory(50, None)]
    first, second = windows_of(tmp_path, [*found, memory(5, 1 << 40, device=-1, kind=0)])
    assert (first.t_ns, first.allocated_bytes, first.reserved_bytes) == ((0, 20_000), (5, 7), ())
    assert (second.device, second.allocated_bytes, second.peak_reserved_bytes) == (1, (9,), None)


def test_of_many_events_the_highest_are_kept(tmp_path: Path) -> None:
    found = [memory(1000 + step, step % 97) for step in range(5000)] + [memory(3500.5, 1_000_000)]
    [window] = windows_of(tmp_path, found)
    assert window.num_events == 5001
    assert len(window.t_ns) <= MOST_POINTS + 1
    assert max(window.allocated_bytes) == window.peak_allocated_bytes == 1_000_000
    assert window.peak_operator == "aten::add"
