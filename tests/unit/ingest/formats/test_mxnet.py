"""MXNet's traces: real ones of a worker of a distributed store, and what may be wrong with a file."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perfscope.errors import TraceError
from perfscope.ingest.formats.frameworks import reader_of
from perfscope.ingest.formats.mxnet import classify, read_mxnet, uncovered

DATA = Path(__file__).parents[2].parent / "data" / "frameworks"
FIRST = DATA / "mxnet-dist-sync-0.mxnet.json.gz"
SECOND = DATA / "mxnet-dist-sync-1.mxnet.json.gz"
# examples/train_mxnet.py: convolutions 3->16->32 with 3x3 kernels and biases, batch norms' scale and shift,
# dense layers 32->64->4.
NUM_PARAMS = (3 * 16 * 9 + 16) + 2 * 16 + (16 * 32 * 9 + 32) + 2 * 32 + (32 * 64 + 64) + (64 * 4 + 4)


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_mxnet(path).table(0, 0).to_pylist()
    return found


def text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def written(folder: Path, content: str) -> Path:
    path = folder / "0.mxnet.json"
    path.write_text(content)
    return path


@pytest.mark.parametrize(("path", "steps"), [(FIRST, [3, 4]), (SECOND, [14, 15])])
def test_each_operator_is_one_span_of_its_step(path: Path, steps: list[int]) -> None:
    trace = read_mxnet(path)
    assert [step for step, _, _ in trace.steps] == steps
    assert trace.num_dropped == 0
    table = trace.table(0, 0).to_pylist()
    for step in steps:
        inside = [row for row in table if row["step"] == step and row["kind"] == "compute"]
        names = Counter(row["name"] for row in inside)
        for operator, calls in (("Convolution", 2), ("BatchNorm", 2), ("Pooling", 3), ("FullyConnected", 2)):
            assert names[operator] == names["_backward_" + operator] == calls
        assert {row["phase"] for row in inside if row["name"] == "Convolution"} == {"forward"}
        assert {row["phase"] for row in inside if row["name"] == "_backward_Convolution"} == {"backward"}
    assert {row["layer"] for row in table} == {None}


def test_spans_stand_at_the_times_of_the_file() -> None:
    content = json.loads(text(FIRST))["traceEvents"]
    begun = sorted(one["ts"] for one in content if one.get("name") == "Convolution" and one["ph"] == "B")
    ended = sorted(one["ts"] for one in content if one.get("name") == "Convolution" and one["ph"] == "E")
    found = [row for row in rows(FIRST) if row["name"] == "Convolution"]
    assert [row["start_ns"] for row in found] == [1000 * when for when in begun]
    assert [row["start_ns"] + row["dur_ns"] for row in found] == [1000 * when for when in ended]


@pytest.mark.parametrize("path", [FIRST, SECOND])
def test_a_step_has_one_all_reduce_with_the_bytes_of_the_model(path: Path) -> None:
    trace = read_mxnet(path)
    comm = [row for row in trace.table(0, 0).to_pylist() if row["kind"] == "comm"]
    assert [row["step"] for row in comm] == [step for step, _, _ in trace.steps]
    messages = [one for one in json.loads(repaired(path))["traceEvents"] if is_message(one)]
    for row in comm:
        assert (row["collective"], row["group"], row["group_size"]) == ("all_reduce", "kvstore", 2)
        assert row["in_bytes"] == row["out_bytes"] == NUM_PARAMS * 4
        assert row["dtype"] == "float32"
        start, end = row["start_ns"] // 1000, (row["start_ns"] + row["dur_ns"]) // 1000
        inside = [one["ts"] for one in messages if start <= one["ts"] <= end]
        assert (min(inside), max(inside)) == (start, end)
    assert trace.groups == [{"name": "kvstore", "ranks": [0, 1], "backend": "ps-lite"}]
    assert trace.world_size == 2


def test_devices_are_named_in_a_process_s_first_window_for_all_of_them(tmp_path: Path) -> None:
    """A build for CPUs counts its places otherwise than one for GPUs, and names them once."""
    records = json.loads(text(FIRST))["traceEvents"]
    pinned = next(one["pid"] for one in records if one["ph"] == "M" and one["args"]["name"] == "cpu pinned/")
    later = [{**one, "pid": pinned} for one in records if one["ph"] != "M"]
    path = tmp_path / "1.mxnet.json"
    path.write_text(json.dumps({"traceEvents": later}))
    (tmp_path / "0.mxnet.json.gz").write_bytes(FIRST.read_bytes())
    assert {row["device"] for row in rows(path)} == {-1}


def repaired(path: Path) -> str:
    """MXNet begins the list of a second file with a comma."""
    head, _, rest = text(path).partition("[")
    return head + "[" + rest.lstrip().removeprefix(",")


def is_message(one: dict[str, Any]) -> bool:
    return one.get("cat") == "operator" and one["ph"] in "BE" and one["name"].startswith("KVStoreDist")


def test_the_engines_threads_run_the_operators_and_the_main_thread_waits_for_batches() -> None:
    trace = read_mxnet(FIRST)
    roles = {(lane.device, lane.lane): lane.role for lane in trace.lanes}
    by_role: dict[str, set[str]] = {}
    for row in trace.table(0, 0).to_pylist():
        by_role.setdefault(roles[row["device"], row["lane"]], set()).add(row["kind"])
    assert "compute" in by_role["executor"]
    assert "input" in by_role["main"]
    assert by_role["backend"] == {"comm"}
    assert sum(lane.role == "main" for lane in trace.lanes) == 1


def test_waiting_for_a_batch_is_only_what_the_engine_does_not_compute_meanwhile() -> None:
    table = rows(FIRST)
    computed = [
        (row["start_ns"], row["start_ns"] + row["dur_ns"]) for row in table if row["kind"] == "compute"
    ]
    for row in table:
        if row["kind"] == "input":
            start, end = row["start_ns"], row["start_ns"] + row["dur_ns"]
            assert not any(begin < end and start < stop for begin, stop in computed)


def test_uncovered_parts() -> None:
    assert uncovered([(0, 10), (20, 30)], [(2, 4), (3, 5), (8, 25)]) == [(0, 2), (5, 8), (25, 30)]
    assert uncovered([(0, 10)], []) == [(0, 10)]
    assert uncovered([(0, 10)], [(0, 10)]) == []


def test_a_file_cut_off_gives_what_it_has_and_says_so(tmp_path: Path) -> None:
    whole = text(FIRST)
    trace = read_mxnet(written(tmp_path, whole[: whole.rindex('"_backward_')]))
    assert 0 < len(trace) < len(read_mxnet(FIRST))
    assert trace.num_dropped > 0
    assert "could not be read" in trace.notes[0]


@pytest.mark.parametrize("content", ["", "no trace", "{}", '{"traceEvents": []}', '{"traceEvents": [1, 2]}'])
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    with pytest.raises(TraceError) as refused:
        read_mxnet(written(tmp_path, content))
    assert "\n" not in str(refused.value)


def test_records_with_strange_values_are_counted_and_left_out(tmp_path: Path) -> None:
    head, _, rest = text(FIRST).partition("[")
    strange = (
        '[{"name": 7, "ph": "B", "ts": "late"}, {"name": "lonely", "ph": "E", "ts": 5, "pid": 0, "tid": 1},'
    )
    trace = read_mxnet(written(tmp_path, head + strange + rest))
    assert trace.num_dropped == 2
    assert len(trace) == len(read_mxnet(FIRST))


def record(name: str, start: int, end: int, tid: int = 9, pid: int = 0) -> str:
    common = f'"name": "{name}", "cat": "operator", "pid": {pid}, "tid": {tid}'
    return f'{{{common}, "ph": "B", "ts": {start}}}, {{{common}, "ph": "E", "ts": {end}}}'


def mark(name: str, start: int, end: int) -> str:
    common = f'"name": "{name}", "cat": "perfscope", "pid": 77, "tid": 1, "id": 1'
    return f'{{{common}, "ph": "b", "ts": {start}}}, {{{common}, "ph": "e", "ts": {end}}}'


def trace_of(folder: Path, *records: str) -> Path:
    return written(folder, '{"traceEvents": [' + ", ".join(records) + "]}")


def test_an_asynchronous_store_sends_and_receives_in_the_same_time(tmp_path: Path) -> None:
    path = trace_of(
        tmp_path,
        mark("perfscope.thread:4711:2", 0, 0),
        mark("perfscope.step:0", 100, 200),
        record("KVStoreDistDefaultPush", 120, 130),
        record("KVStoreDistDefaultPull", 140, 160),
        mark("perfscope.comm:send:kvstore:4:1000:0:float32:1", 190, 190),
        mark("perfscope.comm:recv:kvstore:4:0:500:float32:1", 191, 191),
    )
    found = [
        (row["collective"], row["in_bytes"], row["out_bytes"], row["start_ns"], row["dur_ns"], row["peer"])
        for row in rows(path)
    ]
    assert sorted(found) == [
        ("recv", None, 500, 120_000, 40_000, None),
        ("send", 1000, None, 120_000, 40_000, None),
    ]


def test_messages_of_which_nothing_was_said_stay_one_by_one_without_bytes(tmp_path: Path) -> None:
    path = trace_of(
        tmp_path, record("KVStoreDistDefaultStoragePushPull", 1, 5), record("horovod_allgather", 2, 4)
    )
    found = [(row["kind"], row["collective"], row["in_bytes"]) for row in rows(path)]
    assert found == [("comm", "all_reduce", None), ("comm", "all_gather", None)]


def test_horovods_operators_carry_the_bytes_of_their_step(tmp_path: Path) -> None:
    path = trace_of(
        tmp_path,
        mark("perfscope.step:5", 0, 100),
        record("horovod_allreduce", 10, 20),
        record("horovod_allreduce", 15, 40),
        record("horovod_broadcast", 50, 60),
        mark("perfscope.comm:all_reduce:global:2:64:64:float32:2", 90, 90),
        mark("perfscope.comm:broadcast:global:2:8:8:float32:1", 91, 91),
    )
    found = [(row["collective"], row["in_bytes"], row["start_ns"], row["dur_ns"]) for row in rows(path)]
    assert found == [("all_reduce", 64, 10_000, 30_000), ("broadcast", 8, 50_000, 10_000)]


@pytest.mark.parametrize("named", [True, False])
def test_operators_of_a_gpu_stand_on_its_stream(tmp_path: Path, named: bool) -> None:
    name = '{"ph": "M", "args": {"name": "gpu/1"}, "pid": 3, "name": "process_name"}'
    others = ["perfscope.thread:4711:2"]  # two CPUs: devices 2, 3... are GPUs
    marks = [mark(one, 0, 0) for one in others]
    path = trace_of(tmp_path, *([name] if named else []), *marks, record("Convolution", 1, 5, pid=3))
    assert [(row["device"], row["kind"]) for row in rows(path)] == [(1, "compute")]


def test_the_main_thread_keeps_its_own_number(tmp_path: Path) -> None:
    path = trace_of(
        tmp_path, mark("perfscope.thread:4711:2", 0, 0), record("Naive", 1, 5, tid=1), record("Other", 2, 3)
    )
    lanes = {row["name"]: row["lane"] for row in rows(path)}
    assert lanes["Naive"] == 4711
    assert lanes["Other"] > 1 << 32  # no thread's number


@pytest.mark.parametrize(
    ("name", "kind", "phase"),
    [
        ("Convolution", "compute", "other"),
        ("_backward_Convolution", "compute", "backward"),
        ("sgd_mom_update", "compute", "optimizer"),
        ("multi_sgd_mom_update", "compute", "optimizer"),
        ("adam_update", "compute", "optimizer"),
        ("lamb_update_phase1", "compute", "optimizer"),
        ("_sparse_adagrad_update", "compute", "optimizer"),
        ("_grad_add", "compute", "backward"),
        ("CopyCPU2CPU", "copy", "other"),
        ("CopyGPU2CPU", "copy", "other"),
        ("KVStoreReduce", "comm", "other"),
        ("DeleteVariable", "host", "other"),
        ("WaitForVar", "host", "other"),
    ],
)
def test_operators_are_told_by_their_names(name: str, kind: str, phase: str) -> None:
    assert classify(name, "operator") == (kind, phase)


def test_the_registry_knows_the_format() -> None:
    assert reader_of(".mxnet.json") is read_mxnet
