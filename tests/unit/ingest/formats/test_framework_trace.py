"""Traces of other frameworks than torch as tables: steps, nesting, communication, calls beside a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.errors import TraceError
from perfscope.ingest.collectives import Collective
from perfscope.ingest.files import window_files
from perfscope.ingest.formats.calls import read_calls
from perfscope.ingest.formats.trace import FrameworkTrace, depths
from perfscope.ingest.run import ingest_run
from perfscope.rundir import layout
from perfscope.rundir.schema import TIMELINE

MS = 1_000_000


def test_spans_become_the_timeline_table_in_order_of_start_with_steps_and_depths() -> None:
    trace = FrameworkTrace(steps=[(3, 0, 90), (4, 100, 200)])
    main = trace.lane(7, "main", "main thread")
    trace.add(main, 150, 10, "compute", "inner", layer="conv1", phase="backward", flops=12)
    trace.add(main, 140, 50, "host", "outer")
    trace.add(main, 95, 2, "compute", "after the mark of step 3, before that of step 4")
    trace.add(main, 300, 1, "compute", "after all steps")
    table = trace.table(rank=2, window=1)
    assert table.schema.equals(TIMELINE)
    rows = table.to_pylist()
    assert [row["step"] for row in rows] == [3, 4, 4, -1]  # a step lasts until the next begins
    assert [row["depth"] for row in rows] == [0, 0, 1, 0]
    inner = rows[2]
    assert (inner["layer"], inner["phase"], inner["kind"], inner["flops"]) == (
        "conv1",
        "backward",
        "compute",
        12,
    )
    assert rows[0]["flops"] is None and rows[0]["layer"] is None
    assert {(row["rank"], row["window"], row["device"], row["lane"]) for row in rows} == {(2, 1, -1, 7)}


def test_collectives_are_numbered_per_group_and_kind_and_completed() -> None:
    trace = FrameworkTrace()
    lane = trace.lane(1, "backend", "MPI")
    for start, name, group in ((30, "all_reduce", "a"), (10, "all_reduce", "a"), (20, "broadcast", "a")):
        call = Collective(name=name, group=group, group_size=2, in_bytes=8)
        trace.add(lane, start, 5, "comm", name, collective=call)
    rows = trace.table(0, 0).to_pylist()
    assert [(row["collective"], row["seq"]) for row in rows] == [
        ("all_reduce", 0),
        ("broadcast", 0),
        ("all_reduce", 1),
    ]
    assert [row["out_bytes"] for row in rows] == [8, 8, 8]  # follows from what went in
    assert [row["step"] for row in rows] == [0, 0, 0]  # without marks the file is one step


def test_an_empty_trace_is_an_empty_table() -> None:
    table = FrameworkTrace().table(0, 0)
    assert table.schema.equals(TIMELINE) and table.num_rows == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 2)), max_size=30))
def test_depth_counts_the_spans_of_the_lane_that_are_open(spans: list[tuple[int, int, int]]) -> None:
    spans = sorted(spans, key=lambda one: one[0])
    start = np.array([one[0] for one in spans], np.int64)
    end = start + np.array([one[1] for one in spans], np.int64)
    ids = np.array([(-1, one[2]) for one in spans], np.int64).reshape(-1, 2)
    found = depths(ids, start, end)
    for at, (begin, _, lane) in enumerate(spans):
        open_ones = sum(
            other[2] == lane and max(other[0] + other[1], other[0] + 1) > begin for other in spans[:at]
        )
        assert found[at] == open_ones


def call(start: int, dur: int, kind: str = "comm", **more: Any) -> list[Any]:
    values = {
        "start_ns": start,
        "dur_ns": dur,
        "lane": 11,
        "kind": kind,
        "phase": "other",
        "name": "Allreduce",
    }
    values |= (
        {"collective": "all_reduce", "group": "world", "group_size": 2, "in_bytes": 64}
        if kind == "comm"
        else {}
    )
    return [(values | more).get(column) for column in layout.CALL_COLUMNS]


def calls_file(folder: Path, rows: list[list[Any]], **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"0{layout.CALLS}"
    document = {
        **{"version": 1, "monotonic_ns": 0, "unix_ns": 1_000_000 * MS, "main_tid": 11, "lanes": {}},
        **{"columns": list(layout.CALL_COLUMNS), "rows": rows, "steps": [], "num_lost": 0},
    }
    path.write_text(json.dumps(document | more))
    return path


def test_what_lies_between_calls_is_the_programs_own_computation(tmp_path: Path) -> None:
    rows = [call(2 * MS, 3 * MS), call(4 * MS, 2 * MS), call(12 * MS, MS)]
    path = calls_file(tmp_path, rows, steps=[[3, 0, 10 * MS], [4, 10 * MS, 20 * MS]], outside="outside MPI")
    table = read_calls(path).table(0, 0).to_pylist()
    own = [
        (row["start_ns"] - 1_000_000 * MS, row["dur_ns"], row["step"])
        for row in table
        if row["kind"] == "compute"
    ]
    assert own == [(0, 2 * MS, 3), (6 * MS, 4 * MS, 3), (10 * MS, 2 * MS, 4), (13 * MS, 7 * MS, 4)]


def test_torn_rows_are_counted_and_torn_files_are_one_line(tmp_path: Path) -> None:
    trace = read_calls(calls_file(tmp_path, [call(0, 1), [1, 2], call(5, 1, kind="magic")], num_lost=7))
    assert (len(trace), trace.num_dropped, trace.num_read) == (1, 2, 3)
    assert "7 calls" in trace.notes[0]
    for text in ("{", "[]", '{"rows": [], "version": 9, "columns": []}'):
        (tmp_path / "0.calls.json").write_text(text)
        with pytest.raises(TraceError):
            read_calls(tmp_path / "0.calls.json")


def kineto(path: Path) -> None:
    """A step of 10 ms with one operator."""
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "perfscope.step:3",
            "pid": 1,
            "tid": 11,
            "ts": 0,
            "dur": 10_000,
        },
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 11, "ts": 1000, "dur": 3000},
    ]
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 1_000_000 * MS}))


def make_run(tmp_path: Path) -> Path:
    windows = tmp_path / "ranks" / "0" / "windows"
    windows.mkdir(parents=True)
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": 1, "perfscope_version": "0"}))
    (tmp_path / "ranks" / "0" / "rank.json").write_text(json.dumps({"schema_version": 1, "rank": 0}))
    return windows


def test_calls_beside_a_trace_are_merged_into_its_timeline(tmp_path: Path) -> None:
    windows = make_run(tmp_path)
    kineto(windows / "0.json")
    calls_file(windows, [call(5 * MS, 2 * MS), call(6 * MS, MS, lane=99)], lanes={"99": "Horovod"})
    (summary,) = ingest_run(tmp_path)
    assert [lane.label for lane in summary.lanes if lane.lane == 99] == ["Horovod"]
    assert summary.events_kept == 4
    import pyarrow.parquet as pq

    (file,) = window_files(tmp_path)
    table = pq.read_table(file.table, partitioning=None)
    rows = table.to_pylist()
    assert [row["name"] for row in rows] == ["perfscope.step:3", "aten::mm", "Allreduce", "Allreduce"]
    assert [row["step"] for row in rows] == [3, 3, 3, 3]
    assert [row["depth"] for row in rows] == [0, 1, 1, 0]
    assert [row["seq"] for row in rows if row["kind"] == "comm"] == [0, 1]
    assert ingest_run(tmp_path) == [summary]  # fresh: nothing is done again
    (windows / "0.calls.json").unlink()
    (again,) = ingest_run(tmp_path)
    assert again.events_kept == 2


def test_calls_alone_are_a_window(tmp_path: Path) -> None:
    calls_file(make_run(tmp_path), [call(0, MS)], steps=[[3, 0, 2 * MS]], outside="outside MPI")
    (summary,) = ingest_run(tmp_path)
    assert summary.step_source == "perfscope" and summary.steps[0][0] == 3
    assert [lane.role for lane in summary.lanes] == ["main"]
