"""Documents of a run directory as typed records: defaults, wrong types, facts that follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.rundir.host_records import CeilingsRecord, StacksRecord
from perfscope.rundir.records import RankRecord, RunRecord, decode_run, rank_record
from perfscope.rundir.scheme_records import BenchRecord, SchemeRecord
from perfscope.rundir.typed import Record, decode_record, read_as
from tests.support.records import run_record
from tests.support.synthetic_run import SyntheticRun

RANK: dict[str, Any] = {
    "host": "node0",
    "pid": 7,
    "world_size": 4,
    "framework": {"name": "keras", "version": "3.9", "backend": "jax"},
    "root": {"name": "Net", "data_parallel": True, "dp_size": 4},
    "memory": {"peak_rss_bytes": 100, "peak_device_bytes": None},
    "groups": [{"name": "0", "backend": "gloo", "ranks": [0, 1]}, {"name": "1", "ranks": None}],
    "anchors": [[1, 2], [3, 4]],
    "files": {"steps.jsonl": {"bytes": 1}},
}
RUN: dict[str, Any] = {
    "name": "demo",
    "status": "finished",
    "exit": {"code": 0, "signal": None},
    "world_size": 4,
    "command": ["python", "train.py"],
    "git": {"commit": "abc", "dirty": None},
    "labels": {"a": "b"},
    "options": {"windows": 3, "overhead": 0.01, "sampling": None, "something": [1]},
    "slurm": {"job_id": 3, "step_id": "batch", "neighbours": [{"node": "n", "busy_cpus": 1}]},
}
WRONG: tuple[object, ...] = (
    None,
    True,
    -1,
    2.5,
    "text",
    [],
    {},
    [None],
    [[]],
    {"a": 1},
    {"a": {"b": []}},
    [{"name": 5}],
    2**70,
)


CEILINGS: dict[str, Any] = {
    "entries": [
        {"kind": "stream_triad", "device": "cpu", "node": 0, "threads": 4, "value": 5e10},
        {"kind": "gemm", "device": "cuda:0", "node": None, "dtype": "float32", "value": 1e12, "runs": 3},
    ],
    "theoretical": [{"what": "DRAM", "where": "socket 0", "value": 1e11, "source": "s"}],
    "missing": [{"what": "device GEMM", "reason": "no torch"}],
    "pressure": {"cpu_some_ratio": 0.5},
    "how": "numpy",
    "measured_unix_ns": 5,
    "cached": True,
}
STACKS: dict[str, Any] = {
    "shared": {"frames": [{"name": "main", "file": "a.py", "line": 3}, {"name": "step"}]},
    "profiles": [{"type": "sampled", "samples": [[0, 1], [0]], "weights": [1.0, 2]}],
}

CALL: dict[str, Any] = {"collective": "all_reduce", "axis": "dp", "num_ranks": 2, "bytes": 8, "count": 1}
SCHEME: dict[str, Any] = {
    "full_name": "dp.ddp",
    "mesh": {"dp": 2},
    "num_ranks": 2,
    "model": "mlp",
    "batch": 8,
    "effective_batch": 8,
    "axes": {"parallelism": "data"},
    "groups": [{"axis": "server", "ranks": [0, 1]}],
    "places": [{"rank": 0, "host": "a"}],
    "predicted": {
        "bytes_algorithmic_per_step": {"ethernet": 8.0},
        "bytes_wire_per_step": {"ethernet": 8.0},
        "calls_of_rank": {
            "0": [{**CALL, "every": 1, "what": "gradients", "by_library": True, "links": {"ethernet": 8}}]
        },
    },
}
BENCH: dict[str, Any] = {
    "losses": [2.0, None, 1.0],
    "step_ends_ns": [1, 2, 3, 4],
    "calls": [CALL],
    "interfaces": {"eth0": {"tx_bytes": 5}},
    "held_out_loss": None,
    "peak_rss_bytes": 7,
    "details": {"a": 1},
}


def test_what_is_absent_or_null_has_its_default() -> None:
    assert rank_record({}) == RankRecord() == rank_record(dict.fromkeys(RANK))
    assert decode_run({})[0] == RunRecord()
    assert decode_record(RankRecord, {"unknown": 1, "host": None}) == (RankRecord(), ())


def test_a_record_has_what_was_written() -> None:
    record, damaged = decode_record(RankRecord, RANK)
    assert damaged == ()
    assert record.framework.full_name == "keras-jax"
    assert record.groups[0].ranks == (0, 1) and record.groups[1].ranks is None
    assert record.anchors == ((1, 2), (3, 4)) and record.memory.peak_device_bytes is None
    run, damaged = decode_run(RUN)
    assert damaged == () and run.document == RUN
    assert run.all_options["something"] == [1] and run.options.sampling is None
    assert run_record({"options": {}}).options.sampling is not None
    assert not run.is_open and run_record({"status": "running"}).is_open
    assert run_record({"status": "incomplete"}).is_open
    assert not run_record({"status": "incomplete", "incomplete": "time limit"}).is_open


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (RankRecord, RANK),
        (RunRecord, RUN),
        (SchemeRecord, SCHEME),
        (BenchRecord, BENCH),
        (CeilingsRecord, CEILINGS),
        (StacksRecord, STACKS),
    ],
)
def test_an_entry_of_a_wrong_type_loses_no_other(kind: type[Record], document: dict[str, Any]) -> None:
    whole, _ = decode_record(kind, document)
    for name in document:
        for value in WRONG:
            record, damaged = decode_record(kind, {**document, name: value})
            assert all(entry.split(".")[0] == name for entry in damaged)
            for other in kind.__struct_fields__:
                if other != name:
                    assert getattr(record, other) == getattr(whole, other)


def test_what_of_an_entry_is_usable_stays() -> None:
    hostile = {
        **RANK,
        "memory": {"peak_rss_bytes": "much", "peak_device_bytes": 5},
        "groups": [*RANK["groups"], {"name": "2", "ranks": [-1]}, 7],
        "anchors": [[1, 2], None, ["x", 3], [4], [True, 2]],
        "notes": ["one", 2],
    }
    record, damaged = decode_record(RankRecord, hostile)
    assert damaged == ("memory.peak_rss_bytes", "anchors", "groups", "notes")
    assert record.memory.peak_rss_bytes is None and record.memory.peak_device_bytes == 5
    assert [group.name for group in record.groups] == ["0", "1"]
    assert record.anchors == ((1, 2),) and record.notes == ("one",)
    run, damaged = decode_run(
        {**RUN, "labels": {"a": "b", "c": 5}, "options": {"sampling": None, "windows": "x"}}
    )
    assert damaged == ("labels", "options.windows")
    assert run.labels == {"a": "b"} and run.options.sampling is None


def test_the_reader_names_what_it_left_out(tmp_path: Path) -> None:
    synthetic = SyntheticRun(tmp_path / "run")
    synthetic.rank(0)
    for name, entry in (
        ("run.json", {"world_size": "four"}),
        ("ranks/0/rank.json", {"pid": [], "host": "h"}),
    ):
        document = json.loads((synthetic.path / name).read_text())
        document.pop("checksum", None)
        synthetic.write(name, {**document, **entry})
    reader = synthetic.read()
    assert reader.run.world_size is None and reader.rank_records[0].host == "h"
    reasons = {note.path: note.reason for note in reader.notes}
    assert reasons["run.json"] == "entries of a wrong type or an impossible value are left out: world_size"
    assert reasons["ranks/0/rank.json"] == "entries of a wrong type or an impossible value are left out: pid"


@pytest.mark.parametrize(
    ("name", "entry", "left_out"),
    [
        ("run.json", {"expected_ranks": 10**12}, "expected_ranks"),
        ("run.json", {"attached_ranks": -1}, "attached_ranks"),
        ("run.json", {"options": {"samples_per_step": 1e308}}, "options.samples_per_step"),
        ("run.json", {"options": {"overhead": -0.5}}, "options.overhead"),
        ("ranks/0/rank.json", {"overhead": {"windows_ns": -5}}, "overhead.windows_ns"),
        ("ranks/0/rank.json", {"overhead": {"always_on_ns": 10**18}}, "overhead.always_on_ns"),
        ("ranks/0/rank.json", {"world_size": 10**12}, "world_size"),
        ("ranks/0/rank.json", {"root": {"dp_size": 10**12}}, "root.dp_size"),
    ],
)
def test_an_impossible_value_is_left_out_and_named(
    tmp_path: Path, name: str, entry: dict[str, object], left_out: str
) -> None:
    synthetic = SyntheticRun(tmp_path / "run")
    synthetic.rank(0)
    document = json.loads((synthetic.path / name).read_text())
    document.pop("checksum", None)
    synthetic.write(name, {**document, **entry})
    (note,) = synthetic.read().notes
    assert (note.path, note.reason.rpartition(": ")[2]) == (name, left_out)


def test_a_measured_ceiling_that_cannot_be_read_is_left_out_whole() -> None:
    """Without its node or its device it would be the ceiling of something else."""
    entries = CEILINGS["entries"]
    for name, value in (("node", "0"), ("device", 3), ("threads", -0.5), ("value", "5e10")):
        record, damaged = decode_record(
            CeilingsRecord, {**CEILINGS, "entries": [{**entries[0], name: value}, entries[1]]}
        )
        assert [one.kind for one in record.entries] == ["gemm"] and damaged == ("entries",)
        assert record.missing[0].reason == "no torch"


def test_a_stack_that_cannot_be_read_takes_those_beside_it_along() -> None:
    """Samples name frames by their position, and weights name samples so: none may move."""
    shared = {"frames": [5, *STACKS["shared"]["frames"]]}
    record, damaged = decode_record(StacksRecord, {**STACKS, "shared": shared})
    assert record.shared.frames == () and damaged == ("shared.frames",)
    record, damaged = decode_record(StacksRecord, {**STACKS, "profiles": [{"samples": [[0], ["x"]]}]})
    assert record.profiles == () and damaged == ("profiles",)
    assert read_as(StacksRecord, STACKS).profiles[0].weights == (1.0, 2.0)


def test_a_prediction_that_cannot_be_read_is_none_at_all() -> None:
    """Without some of its calls a scheme would be predicted to send less than it does."""
    [call] = SCHEME["predicted"]["calls_of_rank"]["0"]
    for wrong in ({**call, "bytes": "8"}, {**call, "every": 0}, {"collective": "send"}, 3):
        predicted = {**SCHEME["predicted"], "calls_of_rank": {"0": [call, wrong]}}
        run, damaged = decode_run({"scheme": {**SCHEME, "predicted": predicted}})
        assert run.scheme is not None and run.scheme.lacking == ("predicted",)
        assert damaged == ("scheme.predicted.calls_of_rank", "scheme.predicted")
        assert run.scheme.groups[0].ranks == (0, 1) and run.scheme.document["predicted"] == predicted


def test_losses_of_a_rank_keep_their_steps_or_are_none() -> None:
    record, damaged = decode_record(BenchRecord, {**BENCH, "losses": [2.0, "much", 1.0]})
    assert record.losses == () and damaged == ("losses",) and record.step_ends_ns == (1, 2, 3, 4)


def test_tensors_of_no_bytes_are_measured_and_not_damage() -> None:
    """Plain SGD has no state, a model without normalization no buffers."""
    nothing = {"peak_rss_bytes": 1 << 20, "parameter_bytes": 40, "optimizer_bytes": 0, "buffer_bytes": 0}
    record, wrong = decode_record(RankRecord, {"rank": 0, "memory": nothing})
    assert wrong == () and (record.memory.optimizer_bytes, record.memory.buffer_bytes) == (0, 0)
