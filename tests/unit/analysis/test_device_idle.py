"""What the host was in while a device idled, against unions of the JSON and by brute force."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.device_idle import DeviceIdleRecord, _innermost, _innermost_of_any
from perfscope.analysis.results import RankResult, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.analysis.spans import COMPUTE, HOST, PYTHON, RUNTIME, Spans
from perfscope.ingest.importing import import_traces
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.host_activity import HostActivity

TRACES = Path(__file__).parents[2] / "data" / "traces"
GPU_TRACES = ("a100_8of16", "mi300_ddp_resnet18", "mi300_resnet", "ns_v100", "vllm_piecewise")
# In the order in which an instant counts.
CALLS = (
    ("copy", "Memcpy|Memset"),
    ("synchronize", "Synchronize"),
    ("allocation", "Malloc|Free"),
    ("launch", "Launch"),
)


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunAnalysis]:
    folder = tmp_path_factory.mktemp("idle")
    results = {}
    for name in GPU_TRACES:
        import_traces([TRACES / name], folder / name)
        results[name] = analyze_run(RunReader(folder / name))
    return results


def union(spans: Iterable[tuple[int, int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def without(spans: list[list[int]], taken: list[list[int]]) -> list[list[int]]:
    left = []
    for start, end in spans:
        now = start
        for begin, stop in taken:
            if stop <= now or begin >= end:
                continue
            if begin > now:
                left.append([now, begin])
            now = max(now, stop)
        if now < end:
            left.append([now, end])
    return left


def total(spans: list[list[int]]) -> int:
    return sum(end - start for start, end in spans)


def independent_shares(name: str) -> dict[str, float]:
    """Share of the idle time by activity, from the JSON itself."""
    [path] = (TRACES / name).glob("*.json.gz")
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    first = min(event["ts"] for event in events)

    def spans(categories: set[str], pattern: str = "", *, gaps: list[list[int]]) -> list[list[int]]:
        chosen = (e for e in events if e.get("cat") in categories and re.search(pattern, e["name"]))
        times = (
            (round(1000 * (e["ts"] - first)), round(1000 * (e["ts"] - first + e["dur"]))) for e in chosen
        )
        lo, hi = (gaps[0][0], gaps[-1][1]) if gaps else (-(2**62), 2**62)
        return union((start, end) for start, end in times if end > lo and start < hi)

    busy = spans({"kernel", "gpu_memcpy", "gpu_memset"}, gaps=[])
    idle = [[before[1], after[0]] for before, after in itertools.pairwise(busy)]
    whole = total(idle)
    shares: dict[str, float] = {}
    sources = [(kind, {"cuda_runtime"}, pattern) for kind, pattern in CALLS]
    for kind, categories, pattern in [
        *sources,
        ("operator", {"cpu_op"}, ""),
        ("python", {"python_function"}, ""),
    ]:
        left = without(idle, spans(categories, pattern, gaps=idle))
        shares[kind] = (total(idle) - total(left)) / whole
        idle = left
    shares["untraced"] = total(idle) / whole
    return shares


def rank_of(analysis: RunAnalysis) -> RankResult:
    [rank] = analysis.ranks
    return rank


@pytest.mark.parametrize("name", GPU_TRACES)
def test_shares_of_real_traces_are_those_of_an_independent_union(
    analyses: dict[str, RunAnalysis], name: str
) -> None:
    rank = rank_of(analyses[name])
    assert rank.device_ns is not None and rank.device_idle is not None
    assert sum(entry.ns for entry in rank.device_idle) == rank.device_ns.idle
    sums: Counter[str] = Counter()
    for entry in rank.device_idle:
        sums[entry.kind] += entry.ns
    for kind, share in independent_shares(name).items():
        assert sums[kind] / rank.device_ns.idle == pytest.approx(share, abs=0.01), kind


def test_a_blocking_call_is_named_by_the_verdict(analyses: dict[str, RunAnalysis]) -> None:
    analysis = analyses["mi300_ddp_resnet18"]
    entries = rank_of(analysis).device_idle or ()
    assert (entries[0].kind, entries[0].name) == (HostActivity.ALLOCATION, "hipFree")
    operators = {entry.name: entry.operator for entry in entries if entry.kind is HostActivity.COPY}
    assert operators["hipMemcpyWithStream"] == "aten::item"
    verdict = analysis.findings[0]
    assert verdict.id == FindingKind.HOST_BLOCKED
    assert "hipFree" in verdict.text.title and "caching allocator" in verdict.text.action


def test_a_trace_without_step_marks_has_the_idle_time_of_its_device(analyses: dict[str, RunAnalysis]) -> None:
    analysis = analyses["vllm_piecewise"]
    rank = rank_of(analysis)
    assert rank.breakdown_ns is not None and rank.device_ns is not None
    assert rank.breakdown_ns.step == rank.device_ns.span
    assert rank.breakdown_ns.idle <= rank.device_ns.idle
    assert analysis.findings[0].id == FindingKind.COMPUTE_BOUND


def spans_of(rows: list[tuple[int, int, int, int, int, str]]) -> tuple[pa.Table, Spans]:
    """Start, end, device (-1: host), lane, kind and name of each."""
    start, end, device, lane, kind, names = zip(*rows, strict=True)
    spans = Spans(
        start=np.array(start, np.int64),
        end=np.array(end, np.int64),
        device=np.array(device, np.int64),
        lane=np.array(lane, np.int64),
        kind=np.array(kind, np.int32),
        phase=np.zeros(len(rows), np.int32),
    )
    return pa.table({"name": pa.array(names), "layer": pa.nulls(len(rows), pa.string())}), spans


def test_idle_time_after_a_call_that_waited_for_the_device_follows_it() -> None:
    us = 1000
    table, spans = spans_of(
        [
            (0, 10 * us, -1, 0, RUNTIME, "cudaLaunchKernel"),
            (10 * us, 130 * us, -1, 0, RUNTIME, "cudaStreamSynchronize"),  # returns 10 us after the kernel
            (300 * us, 310 * us, -1, 0, RUNTIME, "cudaLaunchKernel"),
            (310 * us, 400 * us, -1, 1, RUNTIME, "cudaEventSynchronize"),  # of a thread that launches nothing
            (390 * us, 401 * us, -1, 0, RUNTIME, "cudaMemcpyAsync"),  # began just before the device was done
            (20 * us, 120 * us, 0, 7, COMPUTE, "kernel"),
            (320 * us, 395 * us, 0, 7, COMPUTE, "kernel"),
            (600 * us, 610 * us, 0, 7, COMPUTE, "kernel"),
        ]
    )
    record = DeviceIdleRecord()
    record.add_window(table, spans, spans.device >= 0, [0], iv.empty())
    after = {entry.name: entry.after_ns for entry in record.results() if entry.after_ns}
    assert after == {"cudaStreamSynchronize": 190 * us}


KINDS = (RUNTIME, HOST, PYTHON)
span = st.tuples(st.integers(0, 60), st.integers(1, 30), st.sampled_from((0, 1)), st.integers(0, 5))
NAMES = ("cudaMemcpyAsync", "cudaFree", "cudaLaunchKernel", "aten::add", "aten::mm", "main.py(1): main")
ACTIVITIES = ("copy", "allocation", "launch", "operator", "operator", "python")
KIND_OF_NAME = (RUNTIME, RUNTIME, RUNTIME, HOST, HOST, PYTHON)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(span, max_size=12),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=4),
)
def test_any_spans_divide_the_idle_time_instant_by_instant(
    host: list[tuple[int, int, int, int]], kernels: list[tuple[int, int]], queue: list[tuple[int, int]]
) -> None:
    rows = [(start, start + dur, -1, lane, KIND_OF_NAME[name], name) for start, dur, lane, name in host]
    rows += [(start, start + dur, 0, 7, COMPUTE, -1) for start, dur in kernels]
    start, end, device, lane, kind, name = (np.array(column) for column in zip(*rows, strict=True))
    spans = Spans(
        start=start.astype(np.int64),
        end=end.astype(np.int64),
        device=device.astype(np.int64),
        lane=lane.astype(np.int64),
        kind=kind.astype(np.int32),
        phase=np.zeros(len(rows), np.int32),
    )
    table = pa.table(
        {
            "name": pa.array([NAMES[code] if code >= 0 else None for code in name.tolist()], pa.string()),
            "layer": pa.nulls(len(rows), pa.string()),
        }
    )
    record = DeviceIdleRecord()
    times = np.array(queue, np.int64).reshape(-1, 2)
    record.add_window(table, spans, device >= 0, [0], iv.union(times[:, 0], times.sum(axis=1)))
    sums: Counter[str] = Counter()
    empty: Counter[str] = Counter()
    for entry in record.results():
        sums[entry.kind] += entry.ns
        empty[entry.kind] += entry.queue_empty_ns or 0
    expected: Counter[str] = Counter()
    expected_empty: Counter[str] = Counter()
    for instant in range(min(s for s, _ in kernels), max(s + d for s, d in kernels)):
        if any(s <= instant < s + d for s, d in kernels):
            continue
        here = [ACTIVITIES[code] for s, d, _, code in host if s <= instant < s + d]
        order = ("copy", "allocation", "launch", "operator", "python")
        what = next((activity for activity in order if activity in here), "untraced")
        expected[what] += 1
        expected_empty[what] += not any(s <= instant < s + d for s, d in queue)
    assert +sums == +expected
    assert +empty == +expected_empty


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Spans (start, end) of which each is in another or apart, some twice and some of no length."""
    spans: list[tuple[int, int]] = []
    waiting = [(0, 24)]
    while waiting and len(spans) < 12:
        low, high = waiting.pop()
        start = draw(st.integers(low, high))
        end = draw(st.integers(start, high))
        spans.append((start, end))
        waiting += [(start, end), (end, high)] if draw(st.booleans()) else [(end, high)]
    return spans


@given(nested(), st.lists(st.tuples(st.integers(0, 24), st.integers(0, 9)), max_size=2))
def test_what_is_innermost_at_each_time(
    spans: list[tuple[int, int]], crossing: list[tuple[int, int]]
) -> None:
    """By arrays where spans nest, span by span where they do not: the same where both can say it."""
    spans += [(start, start + length) for start, length in crossing]
    spans.sort(key=lambda span: (span[0], -span[1]))
    start, end = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    rows = np.arange(len(spans))
    kind = np.full(len(spans), HOST, np.int32)
    table = Spans(start=start, end=end, device=rows, lane=rows, kind=kind, phase=kind)
    assert _owners(*_innermost(table, rows)) == _owners(*_innermost_of_any(rows, start, end))


def _owners(rows: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> dict[int, int]:
    """Time -> the row that is innermost."""
    pieces = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return {time: row for row, start, end in pieces for time in range(start, end)}
