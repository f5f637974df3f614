"""Real traces: figures of `expected.json`, recomputed here from the table by a small union of our own.

The figures were made with float64 microseconds. For ns_v100, whose times are epoch microseconds with
decimals, that grid is 0.25 µs wide, so the comparison moves our integer nanoseconds onto it; the exact
figures differ from the expected ones by what the grid does to thousands of kernels, a few µs.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.ingest_traces import DLRM, GLOO, MI300, NS_V100, TRACES, Ingested, ingest, text_of

EXPECTED = json.loads((TRACES / "expected.json").read_text())
DEVICE_KINDS = ("compute", "comm", "copy")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Ingested]:
    folder = tmp_path_factory.mktemp("real")
    files = {("mi300_resnet", "0"): MI300, ("ns_v100", "0"): NS_V100}
    files |= {("dlrm_v100_8ranks", str(rank)): DLRM / f"rank{rank}.json.gz" for rank in range(8)}
    return {key: ingest(folder / "-".join(key), path) for key, path in files.items()}


def selected(found: Ingested, selection: str) -> list[dict[str, Any]]:
    """Device rows of `every_gpu_event` or `hta_selection`, as the README of the traces defines them.

    HolisticTraceAnalysis takes a device's copy of a step mark for a step mark, and every row if it finds
    fewer than two.
    """
    rows = [row for row in found.rows if row["device"] >= 0 and row["kind"] in DEVICE_KINDS]
    marks = {row["start_ns"] for row in found.rows if row["name"].startswith("ProfilerStep#")}
    if selection == "every_gpu_event" or len(marks) < 2:
        return rows
    return [row for row in rows if row["launch_ns"] is not None and row["launch_ns"] < max(marks)]


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of a union of intervals, in exact integers if the intervals are."""
    total: float = 0
    reach = min((start for start, _ in spans), default=0)
    for start, end in sorted(spans):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def figures(rows: list[dict[str, Any]], *, float_us: bool = False) -> dict[str, float]:
    """The figures of `expected.json` but times in ns: from integers, or as floats of µs give them."""

    def moments(row: dict[str, Any]) -> tuple[float, float]:
        start, dur = row["start_ns"], row["dur_ns"]
        return (start / 1000, start / 1000 + dur / 1000) if float_us else (start, start + dur)

    spans = {kind: [moments(row) for row in rows if row["kind"] == kind] for kind in DEVICE_KINDS}
    everything = [span for kind in DEVICE_KINDS for span in spans[kind]]
    span = max(end for _, end in everything) - min(start for start, _ in everything)
    busy, compute, comm = covered(everything), covered(spans["compute"]), covered(spans["comm"])
    exposed = covered(spans["compute"] + spans["comm"]) - compute
    scale = 1000 if float_us else 1
    return {
        "gpu_events": len(rows),
        "span_us": span * scale,
        "idle_us": (span - busy) * scale,
        "compute_us": compute * scale,
        "exposed_other_us": (busy - compute) * scale,
        "comm_us": comm * scale,
        "exposed_comm_us": exposed * scale,
    }


CASES = [
    (name, selection, rank)
    for name, selections in EXPECTED.items()
    for selection, ranks in selections.items()
    if selection != "collectives"
    for rank in ranks
]


@pytest.mark.parametrize(("name", "selection", "rank"), CASES)
def test_device_figures_equal_the_expected_ones(
    tables: dict[tuple[str, str], Ingested], name: str, selection: str, rank: str
) -> None:
    expected = dict(EXPECTED[name][selection][rank])
    share = expected.pop("overlap_pct")
    found = figures(selected(tables[name, rank], selection), float_us=name == "ns_v100")
    assert found["gpu_events"] == expected.pop("gpu_events")
    tolerance = 0 if name.startswith("dlrm") else 1000
    for figure, value in expected.items():
        assert abs(found[figure] - 1000 * value) <= tolerance, figure
    if share is not None:
        assert 100 * (1 - found["exposed_comm_us"] / found["comm_us"]) == pytest.approx(share, abs=1e-3)


def test_exact_figures_differ_from_the_float_grid_by_what_the_grid_explains(
    tables: dict[tuple[str, str], Ingested],
) -> None:
    rows = selected(tables["ns_v100", "0"], "every_gpu_event")
    expected = EXPECTED["ns_v100"]["every_gpu_event"]["0"]
    difference = abs(figures(rows)["idle_us"] - 1000 * expected["idle_us"])
    assert 1000 < difference < 250 * len(rows)


def test_device_work_launched_before_the_first_step_is_cut(tables: dict[tuple[str, str], Ingested]) -> None:
    cut = {key: found.summary.events_cut for key, found in tables.items()}
    assert cut["mi300_resnet", "0"] == 968
    # Counted from the JSON itself: device events whose correlation id no runtime call has.
    for path, key in ((DLRM / "rank1.json.gz", ("dlrm_v100_8ranks", "1")), (NS_V100, ("ns_v100", "0"))):
        events = [event for event in json.loads(text_of(path))["traceEvents"] if event["ph"] == "X"]
        calls = {e["args"].get("correlation") for e in events if e["cat"] == "cuda_runtime"}
        work = [e for e in events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
        assert cut[key] == sum(event["args"]["correlation"] not in calls for event in work)


def test_every_event_is_accounted_for_and_classified(tables: dict[tuple[str, str], Ingested]) -> None:
    summary = tables["mi300_resnet", "0"].summary
    assert summary.events_read == 56_451
    assert (summary.events_dropped, summary.salvaged, summary.unclassified) == (0, False, ())
    assert summary.device_name == "AMD Instinct MI300X"
    assert [step for step, _, _ in summary.steps] == [15, 16, 17]


def test_kernels_follow_their_launch_to_step_phase_and_module(
    tables: dict[tuple[str, str], Ingested],
) -> None:
    rows = [r for r in tables["mi300_resnet", "0"].rows if r["device"] >= 0 and r["launch_ns"] is not None]
    assert Counter(row["launch_step"] for row in rows) == {15: 895, 16: 895, 17: 895}
    kernels = [row for row in rows if row["kind"] == "compute"]
    for step in (15, 16, 17):
        phases = Counter(row["phase"] for row in kernels if row["launch_step"] == step)
        assert phases["backward"] > phases["forward"] > 100
        assert phases["optimizer"] >= 1
    layers = {row["layer"] for row in kernels if row["layer"]}
    assert "ResNet_0.Sequential_0.BasicBlock_0.Conv2d_1" in layers
    # What activation checkpointing runs again in the backward pass has the name it had in the forward pass.
    again = [
        row for row in kernels if row["phase"] == "backward" and str(row["layer"]).endswith("BatchNorm2d_1")
    ]
    assert {row["layer"] for row in again} == {"ResNet_0.Sequential_0.BasicBlock_0.BatchNorm2d_1"}
    assert len(again) > 3 * 1  # more than the one backward kernel per step
    assert all(layer.startswith(("ResNet_0", "DistributedDataParallel_0")) for layer in layers)


def test_collectives_have_their_name_sizes_and_group(tables: dict[tuple[str, str], Ingested]) -> None:
    rccl = [r for r in tables["mi300_resnet", "0"].rows if r["kind"] == "comm" and r["launch_ns"] is not None]
    seen = Counter(
        (r["collective"], r["in_bytes"], r["out_bytes"], r["dtype"], r["group"], r["group_size"])
        for r in rccl
    )
    assert seen == {
        ("broadcast", 19_200, 19_200, "bfloat16", "0", 8): 3,
        ("broadcast", 160, 160, "int64", "0", 8): 3,
        ("all_reduce", 5_746_640, 5_746_640, "bfloat16", "0", 8): 3,
        ("all_reduce", 17_632_384, 17_632_384, "bfloat16", "0", 8): 3,
    }
    # `SendRecv` kernels: the annotation around their launch tells what they are part of.
    nccl = [r for r in tables["dlrm_v100_8ranks", "1"].rows if r["kind"] == "comm"]
    assert [(r["collective"], r["seq"], r["in_bytes"], r["group_size"]) for r in nccl] == [
        ("all_to_all", 0, 24_576, 8),
        ("all_to_all", 1, 192, 8),
        ("all_to_all", 2, 1_536, 8),
        ("all_to_all", 3, 13_568, 8),
        ("all_reduce", 0, 1_576_964, 8),
        ("all_to_all", 4, 24_576, 8),
        ("all_reduce", 1, 448, 8),
        ("all_reduce", 2, 907_840, 8),
    ]


def test_transfer_and_last_rank_of_the_eight_collectives_come_out(
    tables: dict[tuple[str, str], Ingested],
) -> None:
    calls: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    for rank in range(8):
        for row in tables["dlrm_v100_8ranks", str(rank)].rows:
            if row["kind"] == "comm":
                calls.setdefault((row["collective"], row["seq"]), {})[rank] = (row["start_ns"], row["dur_ns"])
    ordered = sorted(calls.values(), key=lambda by_rank: max(start for start, _ in by_rank.values()))
    assert len(ordered) == 8
    for call, expected in zip(ordered, EXPECTED["dlrm_v100_8ranks"]["collectives"], strict=True):
        assert max(call, key=lambda rank: call[rank][0]) == expected["last_rank"]
        starts = [start for start, _ in call.values()]
        assert max(starts) - min(starts) == 1000 * expected["start_skew_us"]
    assert sum(min(dur for _, dur in call.values()) for call in ordered) == 217_000


def test_cpu_trace_with_marks_gives_layers_input_optimizer_and_gloo(tmp_path: Path) -> None:
    found = ingest(tmp_path, GLOO / "rank0.json.gz")
    assert found.summary.step_source == "perfscope"
    steps = found.summary.steps
    assert [step for step, _, _ in steps] == [3, 4, 5]
    assert all(end == start for (_, _, end), (_, start, _) in pairwise(steps))
    roles = Counter(lane.role for lane in found.summary.lanes)
    assert roles["main"] == 1
    assert roles["backend"] >= 1
    compute = [row for row in found.rows if row["kind"] == "compute"]
    by_layer = Counter((row["layer"], row["phase"]) for row in compute if row["layer"])
    for layer in ("features.0", "features.1", "features.4", "features.5", "head"):
        assert by_layer[layer, "forward"] >= 3
        assert by_layer[layer, "backward"] >= 3
    convolutions = [row for row in compute if row["name"] == "aten::conv2d"]
    assert {(row["layer"], row["flops"]) for row in convolutions} == {
        ("features.0", 2 * 32 * 16 * 32 * 32 * 3 * 9),
        ("features.4", 2 * 32 * 32 * 7 * 7 * 8 * 9),
    }
    gloo = [row for row in found.rows if row["kind"] == "comm"]
    assert Counter(row["collective"] for row in gloo) == {"broadcast": 6, "all_reduce": 3}
    assert {row["group_size"] for row in gloo} == {2}
    parameters = sum([3 * 16 * 9 + 16, 16 + 16, 8 * 32 * 9 + 32, 32 * 10 + 10])
    assert {row["in_bytes"] for row in gloo if row["collective"] == "all_reduce"} == {4 * parameters}
    assert {row["phase"] for row in found.rows if row["kind"] == "optimizer"} == {"optimizer"}
    assert sum(row["kind"] == "input" for row in found.rows) == 3
