"""Process groups and peers of a CPU backend's calls, from the probe's marks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.ingest_traces import BACKEND, MAIN, TRACES, Ingested, Json, ingest, note, span, text_of

REAL = TRACES / "cpu_gloo_groups" / "rank0.json.gz"
ACCUMULATION = span(
    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 5, 30, Sequence_number=1
)
GROUPS = {"world": [0, 1, 2, 3], "a": [0, 1], "b": [0, 2]}
OTHER, THIRD = BACKEND + 1, BACKEND + 2


def made(tmp_path: Path, *events: Json, groups: Any = GROUPS, **fields: Any) -> Ingested:
    """One step of 1000 us on rank 0 of 4."""
    config = [{"pg_name": name, "ranks": ranks, "pg_size": len(ranks)} for name, ranks in groups.items()]
    trace = {
        "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 4, "pg_config": config},
        "traceEvents": [note("perfscope.step:3", 0, 1000), *events],
        **fields,
    }
    return ingest(tmp_path, json.dumps(trace).encode())


def asked(start: float, group: str | None, elements: int = 8, name: str = "allreduce_") -> list[Json]:
    """An operator that queues a collective, in its mark."""
    operator = span(f"c10d::{name}", start, 5, Input_Dims=[[[elements]], []], Input_type=["TensorList", ""])
    return [operator] if group is None else [span(f"perfscope.group:{group}", start - 1, 7), operator]


def ran(start: float, tid: int, elements: int = 8, name: str = "all_reduce", dur: float = 20) -> Json:
    """The backend's span of it."""
    return note(f"gloo:{name}", start, dur, tid=tid, Input_Dims=[[elements]], Input_type=["float"])


def groups_of(found: Ingested) -> list[tuple[float, str]]:
    first = min(row["start_ns"] for row in found.rows)
    return [((row["start_ns"] - first) / 1000, row["group"]) for row in found.rows if row["kind"] == "comm"]


def test_a_real_window_on_three_groups(tmp_path: Path) -> None:
    """Every call of the script beside the trace; only the functional one passes no Python."""
    found = ingest(tmp_path, REAL)
    calls = [row for row in found.rows if row["kind"] == "comm"]
    per_step = Counter((row["collective"], row["group"], row["in_bytes"], row["peer"]) for row in calls)
    assert per_step == {
        ("all_reduce", "1", 8 * 16 * 4, None): 2,
        ("all_gather", "0", 8 * 16 * 4, None): 2,
        ("all_reduce", "0", 32 * 16 * 4, None): 2,  # gloo's reduce-scatter
        ("all_reduce", "unknown", 8 * 16 * 4, None): 2,
        ("recv", "1", 5 * 4, 1): 2,  # from anybody: it was rank 1
        ("send", "3", 5 * 4, 2): 2,
        ("all_reduce", "3", (16 * 16 + 16 + 16 * 4 + 4) * 4, None): 2,  # DistributedDataParallel's
    }
    assert {row["group_size"] for row in calls if row["group"] in ("1", "3")} == {2}


def test_marks_are_no_rows_and_change_no_kind(tmp_path: Path) -> None:
    marked = ingest(tmp_path / "marked", REAL)
    assert not [row["name"] for row in marked.rows if "perfscope.group" in row["name"]]
    assert not [row["name"] for row in marked.rows if "perfscope.source" in row["name"]]
    plain = json.loads(text_of(REAL))
    plain["traceEvents"] = [
        event
        for event in plain["traceEvents"]
        if not str(event.get("name")).startswith(("perfscope.group:", "perfscope.source:"))
    ]
    bare = ingest(tmp_path / "bare", json.dumps(plain).encode())
    columns = ("start_ns", "dur_ns", "lane", "depth", "kind", "phase", "layer", "name", "in_bytes", "step")
    assert [[row[c] for c in columns] for row in bare.rows] == [
        [row[c] for c in columns] for row in marked.rows
    ]
    # Without marks only the reducer's calls have a group, and what a thread shares with them.
    assert Counter(row["group"] for row in bare.rows if row["kind"] == "comm") == {"unknown": 12, "3": 2}


def test_a_queue_on_two_groups_that_start_in_another_order(tmp_path: Path) -> None:
    """b was asked for last and begins first: counting alone would name them the wrong way round."""
    found = made(
        tmp_path,
        *asked(10, "a"),
        ran(20, BACKEND),
        *asked(50, "b"),
        ran(60, OTHER),
        *asked(100, "a"),
        *asked(110, "b"),
        ran(120, OTHER),
        ran(130, BACKEND),
    )
    assert groups_of(found) == [(20, "a"), (60, "b"), (120, "b"), (130, "a")]


def test_sizes_tell_apart_what_is_queued_together(tmp_path: Path) -> None:
    found = made(tmp_path, *asked(10, "a", 8), *asked(20, "b", 9), ran(30, OTHER, 9), ran(40, BACKEND, 8))
    assert groups_of(found) == [(30, "b"), (40, "a")]


def test_alike_calls_queued_together_on_two_groups_stay_unknown(tmp_path: Path) -> None:
    found = made(tmp_path, *asked(10, "a"), *asked(20, "b"), ran(30, OTHER), ran(40, BACKEND))
    assert groups_of(found) == [(30, "unknown"), (40, "unknown")]


def test_one_of_them_known_from_elsewhere_names_the_other(tmp_path: Path) -> None:
    found = made(
        tmp_path,
        *(*asked(10, "a"), *asked(20, "b"), ran(30, OTHER), ran(40, BACKEND)),
        *(*asked(100, "a", name="broadcast_"), ran(110, BACKEND, name="broadcast")),
        *(*asked(200, "b"), ran(210, OTHER)),
    )
    assert [group for _, group in groups_of(found)] == ["b", "a", "a", "b"]


def test_a_thread_that_contradicts_itself_gets_no_group(tmp_path: Path) -> None:
    found = made(
        tmp_path, *asked(10, "a"), ran(20, BACKEND), *asked(50, "b"), ran(60, BACKEND), *asked(100, "a")
    )
    assert {group for _, group in groups_of(found)} == {"unknown"}


def test_an_unmarked_operator_could_be_on_any_group(tmp_path: Path) -> None:
    found = made(tmp_path, *asked(10, None), *asked(20, "a"), ran(30, BACKEND), ran(40, OTHER))
    assert {group for _, group in groups_of(found)} == {"unknown"}


@pytest.mark.parametrize(("reducers", "expected"), [(["b"], "b"), (["a", "b"], "unknown"), ([], "unknown")])
def test_an_unmarked_operator_is_the_only_reducers(
    tmp_path: Path, reducers: list[str], expected: str
) -> None:
    fields = {"perfscope.reducer_groups": reducers}
    found = made(tmp_path, ACCUMULATION, *asked(10, None), ran(20, BACKEND), **fields)
    assert groups_of(found) == [(20, expected)]


def test_outside_an_accumulation_it_is_nobodys(tmp_path: Path) -> None:
    """A broadcast of buffers; or Python's own call, while compiled code runs and nothing is marked."""
    fields = {"perfscope.reducer_groups": ["b"]}
    found = made(tmp_path, *asked(10, None), ran(20, BACKEND), **fields)
    assert groups_of(found) == [(20, "unknown")]


def test_a_functional_operator_is_not_the_reducers(tmp_path: Path) -> None:
    outer = span("_c10d_functional::all_reduce", 8, 10)
    fields = {"perfscope.reducer_groups": ["b"]}
    found = made(tmp_path, ACCUMULATION, outer, *asked(10, None), ran(20, BACKEND), **fields)
    assert groups_of(found) == [(20, "unknown")]


def test_a_call_inside_a_send_still_under_way_takes_its_own_mark(tmp_path: Path) -> None:
    """A send's span lasts until somebody waits for it, over later calls of the same thread."""
    found = made(
        tmp_path,
        span("perfscope.group:a:peer=1", 10, 10),
        span("c10d::send", 11, 8),
        note("gloo:send", 15, 500, Input_Dims=[[4]], Input_type=["float"]),
        span("perfscope.group:b:peer=2", 30, 10),
        span("c10d::send", 31, 8),
        note("gloo:send", 35, 400, Input_Dims=[[4]], Input_type=["float"]),
    )
    calls = [row for row in found.rows if row["kind"] == "comm"]
    assert [(row["group"], row["peer"], row["lane"]) for row in calls] == [("a", 1, MAIN), ("b", 2, MAIN)]


def test_a_peer_without_marks_follows_from_the_only_group(tmp_path: Path) -> None:
    """An older run: the operator has the peer as a rank within its group."""
    found = made(
        tmp_path,
        span("c10d::send", 10, 8, Concrete_Inputs=["", "", "1", "0"], Input_Dims=[[[4]], [], [], []]),
        note("gloo:send", 15, 50, Input_Dims=[[4]], Input_type=["float"]),
        groups={"pair": [0, 3]},
    )
    (call,) = [row for row in found.rows if row["kind"] == "comm"]
    assert (call["group"], call["peer"], call["in_bytes"]) == ("pair", 3, 16)


def test_of_two_open_receives_from_anybody_neither_is_guessed(tmp_path: Path) -> None:
    events: list[Json] = []
    for start in (10, 40):
        events += [span("perfscope.group:a", start, 10), span("c10d::recv_any_source_", start + 1, 8)]
        events.append(note("gloo:recvAnySource", start + 5, 100, Input_Dims=[[4]], Input_type=["float"]))
    found = made(tmp_path, *events, span("perfscope.source:1", 200, 1), span("perfscope.source:1", 300, 1))
    calls = [row for row in found.rows if row["kind"] == "comm"]
    assert [(row["group"], row["peer"]) for row in calls] == [("a", None), ("a", None)]
