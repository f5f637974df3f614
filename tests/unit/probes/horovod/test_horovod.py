"""Horovod's calls and its timeline, beside a stand-in of it (for real: tests/frameworks/test_horovod.py)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perfscope.ingest.formats.calls import read_calls
from perfscope.probes.horovod import torch as horovod_torch
from perfscope.probes.horovod.timeline import NEGOTIATION, TRANSFER, join_timeline, spans_of
from perfscope.probes.horovod.torch import TorchCalls
from perfscope.probes.process import Process
from perfscope.rundir import layout

GROUP = {"name": "global", "ranks": [0, 1], "backend": "horovod gloo"}


class Tensor:
    """As much of a tensor as is asked for."""

    dtype = "torch.float32"

    def __init__(self, length: int) -> None:
        self.length = length

    def numel(self) -> int:
        return self.length

    def element_size(self) -> int:
        return 4


class Horovod:
    """Hands out handles 0, 1, ...; those in `done` are finished."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: set[int] = set()
        self.num_calls = 0
        operations: Any = ModuleType("horovod.torch.mpi_ops")

        def enqueue(tensor: Any, output: Any, name: Any, op: Any = 0, process_set: Any = None) -> int:
            self.num_calls += 1
            return self.num_calls - 1

        def synchronize(handle: int) -> Tensor:
            self.done.add(handle)
            return Tensor(20)

        for name in ("_allreduce_async", "_allgather_async", "_broadcast_async"):
            setattr(operations, name, enqueue)
        operations.poll = lambda handle: handle in self.done
        operations.synchronize = synchronize
        package: Any = ModuleType("horovod.torch")
        package.synchronize = synchronize
        monkeypatch.setitem(sys.modules, "horovod.torch.mpi_ops", operations)
        monkeypatch.setitem(sys.modules, "horovod.torch", package)
        self.operations, self.package = operations, package


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [0]
    monkeypatch.setattr(horovod_torch, "_clock", lambda: now[0])
    return now


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch) -> Horovod:
    return Horovod(monkeypatch)


@pytest.fixture
def process(tmp_path: Path, horovod: Horovod) -> Process:
    made = Process(str(tmp_path), {})
    TorchCalls(made, lambda _: GROUP, dict).install(horovod.package)
    return made


def rows(process: Process, folder: Path) -> list[dict[str, Any]]:
    path = folder / "0.calls.json"
    process.calls.close(str(path), 1, True)
    document = json.loads(path.read_bytes())
    return [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]


def comm(found: list[dict[str, Any]]) -> list[tuple[str, int, int, int]]:
    return [(r["name"], r["start_ns"], r["dur_ns"], r["in_bytes"]) for r in found if r["kind"] == "comm"]


def test_a_blocking_call_lasts_from_the_hand_over_to_the_end_of_the_wait(
    process: Process, horovod: Horovod, clock: list[int], tmp_path: Path
) -> None:
    process.calls.open()
    clock[0] = 100
    handle = horovod.operations._allreduce_async(Tensor(10), None, "loss")
    clock[0] = 150
    assert horovod.package.synchronize(handle).length == 20  # wherever the name was imported to
    found = rows(process, tmp_path)
    assert comm(found) == [("all_reduce loss", 100, 50, 40)]
    assert [(r["kind"], r["name"]) for r in found if r["kind"] != "comm"] == [
        ("host", "synchronize all_reduce loss")
    ]
    assert (found[-1]["group"], found[-1]["group_size"], found[-1]["dtype"]) == ("global", 2, "float32")


def test_calls_found_done_together_share_the_time_by_their_bytes(
    process: Process, horovod: Horovod, clock: list[int], tmp_path: Path
) -> None:
    process.calls.open()
    clock[0] = 1000
    for length in (10, 30):
        horovod.operations._allreduce_async(Tensor(length), None, None)
    horovod.done = {0, 1}
    clock[0] = 1400  # the next call asks
    horovod.operations._allreduce_async(Tensor(10), None, None)
    clock[0] = 2000
    horovod.package.synchronize(2)
    assert comm(rows(process, tmp_path)) == [
        ("all_reduce", 1000, 100, 40),
        ("all_reduce", 1100, 300, 120),
        ("all_reduce", 1400, 600, 40),
    ]


def test_a_later_call_that_is_done_first_waits_for_its_turn(
    process: Process, horovod: Horovod, clock: list[int], tmp_path: Path
) -> None:
    # On every rank calls must follow each other in the order of the hand-over, or they could not be matched.
    process.calls.open()
    first = horovod.operations._allreduce_async(Tensor(10), None, "a")
    second = horovod.operations._allgather_async(Tensor(10), None, "b")
    clock[0] = 50
    horovod.package.synchronize(second)
    clock[0] = 80
    horovod.package.synchronize(first)
    found = rows(process, tmp_path)
    assert [name for name, *_ in comm(found)] == ["all_reduce a", "all_gather b"]
    assert [r["out_bytes"] for r in found if r["kind"] == "comm"] == [40, 80]  # as it was fetched


def test_outside_windows_nothing_is_kept(process: Process, horovod: Horovod, tmp_path: Path) -> None:
    process.calls.open()
    horovod.operations._allreduce_async(Tensor(10), None, "never waited for")
    process.calls.close(str(tmp_path / "early.calls.json"), 1, True)
    horovod.operations._allreduce_async(Tensor(10), None, "between")
    process.calls.open()
    horovod.done = {0, 1, 2}
    horovod.package.synchronize(horovod.operations._allreduce_async(Tensor(10), None, "inside"))
    assert [name for name, *_ in comm(rows(process, tmp_path))] == ["all_reduce inside"]


def test_a_fault_of_ours_does_not_reach_the_training(horovod: Horovod, tmp_path: Path) -> None:
    process = Process(str(tmp_path), {})

    def broken(process_set: Any) -> dict[str, Any]:
        raise OSError("no group")

    TorchCalls(process, broken, dict).install(horovod.package)
    process.calls.open()
    for _ in range(5):
        handle = horovod.operations._allreduce_async(Tensor(10), None, "gradient")
        assert horovod.package.synchronize(handle).length == 20
    assert process.guard.counts == {"horovod _enqueued": 3}  # then it is silent
    assert rows(process, tmp_path) == []


def test_a_horovod_without_the_known_functions_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package: Any = ModuleType("horovod.torch")
    monkeypatch.setitem(sys.modules, "horovod.torch", package)
    monkeypatch.setitem(sys.modules, "horovod.torch.mpi_ops", ModuleType("horovod.torch.mpi_ops"))
    process = Process(str(tmp_path / "run"), {})
    TorchCalls(process, lambda _: GROUP, dict).install(package)
    process.open()
    process.finish(os.getpid())
    meta = json.loads((tmp_path / "run" / "ranks" / "0" / "rank.json").read_bytes())
    assert [one["what"] for one in meta["missing"]] == ["Horovod's collectives"]


TIMELINE = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 5_000_000}},
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.conv.weight"}},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10, "pid": 1},
    {"ph": "X", "name": "0", "ts": 11, "pid": 1, "dur": 0},
    {"ph": "E", "ts": 15, "pid": 1},
    {"ph": "B", "name": "ALLREDUCE", "ts": 15, "pid": 1},
    {"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": 16, "pid": 1},
    {"ph": "E", "ts": 18, "pid": 1},
    {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 18, "pid": 1},
    {"ph": "E", "ts": 30, "pid": 1},
    {"ph": "E", "ts": 31, "pid": 1, "args": {"dtype": "float32"}},
]


def test_the_timeline_tells_negotiation_from_transfer() -> None:
    assert list(spans_of(TIMELINE)) == [
        (5_000_010_000, 5_000_015_000, "NEGOTIATE_ALLREDUCE allreduce.conv.weight", NEGOTIATION),
        (5_000_016_000, 5_000_018_000, "MEMCPY_IN_FUSION_BUFFER allreduce.conv.weight", TRANSFER),
        (5_000_018_000, 5_000_030_000, "GLOO_ALLREDUCE allreduce.conv.weight", TRANSFER),
    ]


@pytest.mark.parametrize("ending", ["]", "", ","])
def test_its_spans_are_joined_to_the_steps_they_lie_in(tmp_path: Path, ending: str) -> None:
    def calls(window: int, begin: int, end: int) -> Path:
        document = {
            **{"version": 1, "monotonic_ns": 1000, "unix_ns": 5_000_001_000, "main_tid": 1, "lanes": {}},
            **{"columns": list(layout.CALL_COLUMNS), "rows": [], "steps": [[3, begin, end]], "num_lost": 0},
        }
        path = tmp_path / f"{window}.calls.json"
        path.write_text(json.dumps(document))
        return path

    near, far = calls(0, 0, 17_000), calls(1, 1_000_000, 2_000_000)
    before = far.read_bytes()
    timeline = tmp_path / "timeline.json"
    timeline.write_text(json.dumps(TIMELINE)[:-1] + ending)
    assert join_timeline(str(tmp_path), str(timeline)) == 2
    trace = read_calls(near)
    table = trace.table(0, 0).to_pylist()
    assert [(row["kind"], row["start_ns"]) for row in table] == [
        ("annotation", 5_000_010_000),
        ("annotation", 5_000_016_000),
    ]
    assert {lane.label for lane in trace.lanes} >= {"Horovod: negotiation", "Horovod: transfer"}
    assert far.read_bytes() == before


def test_what_is_no_timeline_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "0.calls.json").write_text("{}")
    (tmp_path / "timeline.json").write_text('{"traceEvents": 5}')
    with pytest.raises(ValueError):
        join_timeline(str(tmp_path), str(tmp_path / "timeline.json"))
    assert (tmp_path / "0.calls.json").read_text() == "{}"
