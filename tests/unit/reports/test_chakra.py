"""Chakra execution traces, read again by protobuf's own classes, which are made of the documented schema."""

from __future__ import annotations

import json
import subprocess
import sys
from csv import DictReader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from perfscope.errors import PerfscopeError
from perfscope.reports.chakra import write_chakra
from perfscope.reports.export_source import TimelinePart
from perfscope.rundir.schema import EXPORTED

TRACES = Path(__file__).parents[2] / "data" / "traces" / "cpu_gloo_2ranks"
EPOCH = 1_790_000_000_123_456_000
COMPUTE, SEND, COLLECTIVE, METADATA = 4, 5, 7, 1
# Message -> field -> (number, type or message, repeated), of mlcommons/chakra's et_def.proto.
SCHEMA: dict[str, dict[str, tuple[int, str, bool]]] = {
    "AttributeProto": {
        "name": (1, "STRING", False),
        "int32_val": (7, "INT32", False),
        "int64_val": (9, "INT64", False),
        "bool_val": (27, "BOOL", False),
        "string_val": (29, "STRING", False),
    },
    "GlobalMetadata": {"version": (1, "STRING", False), "attr": (2, "AttributeProto", True)},
    "IOInfo": {
        "values": (1, "STRING", False),
        "shapes": (2, "STRING", False),
        "types": (3, "STRING", False),
    },
    "Node": {
        "id": (1, "UINT64", False),
        "name": (2, "STRING", False),
        "type": (3, "INT32", False),
        "ctrl_deps": (4, "UINT64", True),
        "data_deps": (5, "UINT64", True),
        "start_time_micros": (6, "UINT64", False),
        "duration_micros": (7, "UINT64", False),
        "inputs": (8, "IOInfo", False),
        "outputs": (9, "IOInfo", False),
        "attr": (10, "AttributeProto", True),
    },
}


def message_classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="chakra", syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            entry = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in SCHEMA:
                entry.type, entry.type_name = 11, f".chakra.{kind}"
            else:
                entry.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra.{name}")) for name in SCHEMA
    }


def read(path: Path) -> tuple[Any, list[Any]]:
    """(metadata, nodes) of a file: each message has its length before it."""
    from google.protobuf.internal.decoder import _DecodeVarint32

    classes, data, at, messages = message_classes(), path.read_bytes(), 0, []
    while at < len(data):
        size, at = _DecodeVarint32(data, at)
        messages.append(data[at : at + size])
        at += size
    metadata = classes["GlobalMetadata"].FromString(messages[0])
    nodes = [classes["Node"].FromString(message) for message in messages[1:]]
    assert all(not list(_unknown(node)) for node in nodes)
    return metadata, nodes


def _unknown(node: Any) -> Any:
    from google.protobuf.unknown_fields import UnknownFieldSet

    return UnknownFieldSet(node)


def values(node: Any) -> dict[str, Any]:
    found = {}
    for attribute in node.attr:
        (value,) = [value for field, value in attribute.ListFields() if field.name != "name"] or [0]
        found[attribute.name] = value
    return found


def part(rank: int, *rows: dict[str, Any]) -> TimelinePart:
    base = {
        "rank": rank,
        "window": 0,
        "step": 1,
        "device": -1,
        "lane": 7,
        "kind": "compute",
        "phase": "other",
    }
    whole = [{**base, **row, "start_ns": EPOCH + row["start_ns"]} for row in rows]
    table = pa.Table.from_pylist(
        [{name: row.get(name) for name in EXPORTED.names} for row in whole], EXPORTED
    )
    return TimelinePart(rank=rank, window=0, host="node01", lanes=(), load=lambda: table)


def span(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "start_ns": start * 1000, "dur_ns": (end - start) * 1000, **more}


REDUCE = {
    **{"kind": "comm", "collective": "all_reduce", "group": "0", "group_size": 2, "in_bytes": 4096},
    "lane": 9,
}


def test_nodes_have_times_types_sizes_and_groups(tmp_path: Path) -> None:
    rows = (
        span("step", 0, 100, kind="annotation"),
        span("mm", 0, 10, layer="fc", flops=2048),
        span("inside", 2, 5),
        span("gloo:all_reduce", 12, 40, **REDUCE),
        span("add", 15, 20),
        span("sgd", 45, 50, kind="optimizer"),
        span("send", 60, 61, kind="comm", collective="send", peer=1, in_bytes=8),
        span("?", 70, 71, kind="comm"),
    )
    assert write_chakra([part(0, *rows)], {"0": (0, 1), "other": (1, 2)}, tmp_path / "out") == 7
    metadata, (groups, *nodes) = read(tmp_path / "out" / "trace.0.et")
    assert (metadata.version, [attribute.int64_val for attribute in metadata.attr]) == ("0.0.4", [0])
    assert groups.type == METADATA
    assert json.loads(json.loads(groups.inputs.values)[0]) == [
        {"pg_name": "0", "ranks": [0, 1], "group_size": 2}
    ]
    assert [(node.name, node.type, node.start_time_micros, node.duration_micros) for node in nodes] == [
        ("mm", COMPUTE, 0, 10),
        ("gloo:all_reduce", COLLECTIVE, 12, 28),
        ("add", COMPUTE, 15, 5),
        ("sgd", COMPUTE, 45, 5),
        ("send", SEND, 60, 1),
        ("?", METADATA, 70, 1),
    ]
    by_name = {node.name: node for node in nodes}
    assert values(by_name["mm"]) == {
        **{"num_ops": 2048, "is_cpu_op": True, "duration_ns": 10_000, "step": 1, "layer": "fc"},
        **{"phase": "other", "device": -1, "lane": 7, "kind": "compute"},
    }
    reduce = values(by_name["gloo:all_reduce"])
    assert (reduce.get("comm_type", 0), reduce["comm_size"], reduce["pg_name"]) == (0, 4096, "0")
    send = values(by_name["send"])
    assert (send.get("comm_src", 0), send["comm_dst"], send["comm_size"]) == (0, 1, 8)


def test_a_node_depends_on_its_lane_and_on_what_other_lanes_had_finished(tmp_path: Path) -> None:
    rows = (
        span("mm", 0, 10),
        span("reduce", 12, 40, **REDUCE),
        span("add", 15, 20),
        span("sgd", 45, 50),
        span("next", 51, 52),
    )
    write_chakra([part(0, *rows)], {}, tmp_path / "out")
    _, nodes = read(tmp_path / "out" / "trace.0.et")
    name_of = {node.id: node.name for node in nodes}
    depends = {node.name: [name_of[number] for number in node.data_deps] for node in nodes[1:]}
    assert depends == {
        **{"mm": [], "reduce": ["mm"], "add": ["mm"], "sgd": ["add", "reduce"]},
        "next": ["sgd"],
    }


def test_a_folder_that_is_there_is_not_written_into(tmp_path: Path) -> None:
    with pytest.raises(PerfscopeError, match="is there already"):
        write_chakra([part(0, span("mm", 0, 1))], {}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_a_file_per_rank_with_every_collective_of_the_run(tmp_path: Path) -> None:
    def perfscope(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "perfscope", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    assert perfscope("import", str(TRACES), "-o", "run").returncode == 0
    done = perfscope("export", "run", "--format", "chakra", "-o", "traces")
    assert (done.returncode, done.stdout) == (0, "traces\n"), done.stderr
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["trace.0.et", "trace.1.et"]
    csv = perfscope("export", "run", "--format", "csv").stdout.strip()
    with (tmp_path / csv).open() as file:
        rows = [row for row in DictReader(file) if row["kind"] == "comm" and row["collective"]]
    for rank in (0, 1):
        _, nodes = read(tmp_path / "traces" / f"trace.{rank}.et")
        sized = [values(node) for node in nodes if node.type == COLLECTIVE]
        expected = [int(row["in_bytes"]) for row in rows if row["rank"] == str(rank)]
        assert sorted(one["comm_size"] for one in sized) == sorted(expected) and expected
        assert all(number < node.id for node in nodes for number in node.data_deps)
    again = perfscope("export", "run", "--format", "chakra", "-o", "traces")
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    table = perfscope("export", "run", "--format", "chakra", "--table", "layers", "-o", "x")
    assert table.returncode == 2


def test_steps_come_back_with_their_whole_span(tmp_path: Path) -> None:
    from perfscope.ingest.importing import import_traces

    rows = [span("mm", start, start + 10, step=start // 100) for start in (110, 150, 220)]
    steps = tuple((step, EPOCH + step * 100_000, EPOCH + (step + 1) * 100_000) for step in (1, 2))
    write_chakra([replace(part(0, *rows), steps=steps)], {}, tmp_path / "out")
    (found,) = import_traces([tmp_path / "out"], tmp_path / "run").summaries
    assert [(step, end - start) for step, start, end in found.steps] == [(1, 100_000), (2, 100_000)]
    # A file that is cut off has no whole last step.
    file = tmp_path / "out" / "trace.0.et"
    file.write_bytes(file.read_bytes()[:-80])
    (found,) = import_traces([tmp_path / "out"], tmp_path / "cut").summaries
    assert [step for step, *_ in found.steps] == [1]
    assert (found.ends_early, found.steps_cut) == (True, 1)
