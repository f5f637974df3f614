"""Communication of imported traces: groups, sizes, layers and axes, from what the files hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.ingest.importing import import_traces
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from tests.support.ingest_traces import TRACES, Json, document, kernel, launch, note, shapes, span

MEGABYTE = 1 << 20


def analyzed(folder: Path, *events: Json, **fields: object) -> RunAnalysis:
    """One rank's trace of these events."""
    trace = folder / "rank-0.json"
    trace.write_bytes(document(events, **fields))
    import_traces([trace], folder / "run", jobs=1)
    return analyze_run(RunReader(folder / "run"))


def device_call(name: str, at: float, stream: int, *, out: int, given: int) -> list[Json]:
    """An NCCL call as torch 2.0 records it: operator, launch, and a kernel that does not say which."""
    arguments = shapes([[out], [given], [], []], ["float", "float", "", ""])
    correlation = int(at) + 1
    return [
        span(f"c10d::{name}", at, 20, **arguments),
        launch(at + 5, correlation),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", at + 30, 50, correlation, stream=stream),
    ]


def test_sub_groups_have_the_size_that_input_and_output_tell(tmp_path: Path) -> None:
    """Figures of ../shared: 587,202,560 bytes, 107.6 and 135.3 GB/s on groups of 8 in a world of 16."""
    import_traces([TRACES / "a100_8of16"], tmp_path / "run", jobs=1)
    analysis = analyze_run(RunReader(tmp_path / "run"))
    calls = {(entry.collective, entry.group): entry for entry in analysis.collectives}
    gather = calls["all_gather", "unknown (stream 285)"]
    scatter = calls["reduce_scatter", "unknown (stream 285)"]
    assert (gather.group_size, gather.bytes, scatter.group_size, scatter.bytes) == (
        *(8, 587_202_560),
        *(8, 587_202_560),
    )
    assert gather.busbw_with_wait_bytes_per_s == pytest.approx(107.6e9, rel=1e-3)
    assert scatter.busbw_with_wait_bytes_per_s == pytest.approx(135.3e9, rel=1e-3)
    others = [entry for key, entry in calls.items() if key[1] != "unknown (stream 285)"]
    assert {entry.group for entry in others} == {"unknown (stream 84)", "unknown (stream 363)"}
    assert all(entry.group_size is None and entry.busbw_with_wait_bytes_per_s is None for entry in others)
    device = analysis.ranks[0].device_ns
    assert device is not None
    assert (device.span, device.compute, device.comm, device.exposed_comm, device.idle) == (
        *(1_231_461_000, 210_998_000, 187_870_000),
        *(185_317_000, 793_037_000),
    )


def test_a_file_whose_calls_all_span_the_world_has_one_group(tmp_path: Path) -> None:
    world = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 4}}
    events = [
        note("ProfilerStep#1", 0, 1000),
        *device_call("_allgather_base_", 100, 20, out=4 * MEGABYTE, given=MEGABYTE),
        *device_call("alltoall_base_", 300, 20, out=MEGABYTE, given=MEGABYTE),
    ]
    analysis = analyzed(tmp_path, *events, **world)
    assert {(entry.collective, entry.group, entry.group_size) for entry in analysis.collectives} == {
        ("all_gather", "default", 4),
        ("all_to_all", "default", 4),
    }


def test_a_group_of_the_list_is_known_by_its_size(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "0", "pg_size": 8, "ranks": [*range(8)]},
        {"pg_name": "1", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "2", "pg_size": 4, "ranks": [0, 2, 4, 6]},
    ]
    info = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8, "pg_config": groups}}
    events = [
        note("ProfilerStep#1", 0, 1000),
        *device_call("_allgather_base_", 100, 20, out=4 * MEGABYTE, given=MEGABYTE),
        *device_call("alltoall_base_", 300, 20, out=MEGABYTE, given=MEGABYTE),
    ]
    analysis = analyzed(tmp_path, *events, **info)
    assert {(entry.collective, entry.group, entry.group_size) for entry in analysis.collectives} == {
        ("all_gather", "2", 4),
        ("all_to_all", "unknown", None),
    }


def test_spans_without_a_name_are_communication(tmp_path: Path) -> None:
    events = [
        note("ProfilerStep#1", 0, 1000),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 100, 50, 7),
    ]
    missing = analyzed(tmp_path, *events).missing
    assert Figure.COMM_SPANS in {entry.figure for entry in missing}
    assert Cause.NO_COMMUNICATION not in {entry.cause for entry in missing}
