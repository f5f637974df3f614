"""Chakra execution traces: what `perfscope export` writes comes back; files without times are structure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from perfscope.ingest.importing import import_traces
from perfscope.reports.chakra import write_chakra
from perfscope.reports.export_source import TimelinePart
from perfscope.rundir.schema import EXPORTED
from tests.unit.reports.test_chakra import message_classes

COLUMNS = ["name", "kind", "phase", "layer", "device", "lane", "dur_ns", "step", "collective", "in_bytes"]


def rows_of(run: Path) -> list[dict[str, Any]]:
    table = pq.read_table(run / "derived/timeline/rank-00000-window-000.parquet")
    found: list[dict[str, Any]] = table.select([*COLUMNS, "start_ns", "group", "peer"]).to_pylist()
    return found


def summary(run: Path) -> dict[str, Any]:
    path = run / "derived/ingest/rank-00000-window-000.json"
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def exported(folder: Path, *rows: dict[str, Any]) -> Path:
    base = {"rank": 0, "window": 0, "device": -1, "lane": 7, "phase": "other", "step": 1}
    spans = [{**base, **row} for row in rows]
    columns = [{name: span.get(name) for name in EXPORTED.names} for span in spans]
    table = pa.Table.from_pylist(columns, EXPORTED)
    part = TimelinePart(rank=0, window=0, host="n1", lanes=(), load=lambda: table)
    write_chakra([part], {"0": (0, 1)}, folder / "et")
    return folder / "et" / "trace.0.et"


def generated(path: Path, *nodes: dict[str, Any]) -> Path:
    """A file as generators write it, by protobuf's own classes."""
    classes = message_classes()
    messages = [classes["GlobalMetadata"](version="0.0.4"), *(classes["Node"](**node) for node in nodes)]
    data = b""
    for message in messages:
        body = message.SerializeToString()
        assert len(body) < 128
        data += bytes([len(body)]) + body
    path.write_bytes(data)
    return path


def test_an_export_comes_back(tmp_path: Path) -> None:
    rows = [
        {"name": "mm", "kind": "compute", "start_ns": 0, "dur_ns": 9_500, "layer": "fc", "phase": "forward"},
        {"name": "copy", "kind": "copy", "start_ns": 10_000, "dur_ns": 1_000, "device": 0, "lane": 20},
        {
            **{"name": "nccl:all_reduce", "kind": "comm", "start_ns": 12_000, "dur_ns": 30_000, "device": 0},
            **{"lane": 21, "collective": "all_reduce", "group": "0", "in_bytes": 4096},
        },
        {
            **{"name": "send", "kind": "comm", "start_ns": 50_000, "dur_ns": 1_000, "collective": "send"},
            **{"peer": 1, "in_bytes": 8},
        },
        {"name": "sgd", "kind": "optimizer", "start_ns": 60_000, "dur_ns": 5_000, "step": 2},
    ]
    run = import_traces([exported(tmp_path, *rows)], tmp_path / "run").run_dir
    base = {"device": -1, "lane": 7, "phase": "other", "step": 1, "layer": None, "collective": None}
    expected = [{**base, "in_bytes": None, **row} for row in rows]
    found = rows_of(run)
    assert [{key: row[key] for key in COLUMNS} for row in found] == [
        {key: row[key] for key in COLUMNS} for row in expected
    ]
    assert [row["start_ns"] for row in found] == [row["start_ns"] for row in rows]
    assert [(row["group"], row["peer"]) for row in found][2:4] == [("0", None), (None, 1)]
    assert [step for step, *_ in summary(run)["steps"]] == [1, 2]


def test_a_file_without_times_is_structure(tmp_path: Path) -> None:
    path = generated(
        tmp_path / "workload.0.et",
        {"id": 1, "name": "fc1", "type": 4, "duration_micros": 5},
        {"id": 2, "name": "fc2", "type": 4, "data_deps": [1], "duration_micros": 5},
        {"id": 3, "name": "other", "type": 4, "duration_micros": 5},
        {
            **{"id": 4, "name": "reduce", "type": 7, "data_deps": [2], "duration_micros": 5},
            "attr": [{"name": "comm_type", "int64_val": 0}, {"name": "comm_size", "int64_val": 1 << 20}],
        },
    )
    found = summary(import_traces([path], tmp_path / "run").run_dir)
    assert found["steps"] == [] and found["lanes"] == []
    assert any("no start times" in note for note in found["notes"])
    record = found["execution"]
    assert (record["num_nodes"], record["num_dependencies"], record["chain"]) == (4, 2, 3)
    assert record["chain_ns"] is None
    (collective,) = record["collectives"]
    assert (collective["name"], collective["bytes"]) == ("all_reduce", 1 << 20)


def test_circles_of_dependencies_end(tmp_path: Path) -> None:
    path = generated(
        tmp_path / "workload.0.et",
        {"id": 1, "name": "a", "type": 4, "ctrl_deps": [2]},
        {"id": 2, "name": "b", "type": 4, "ctrl_deps": [1]},
        {"id": 3, "name": "c", "type": 4},
    )
    assert summary(import_traces([path], tmp_path / "run").run_dir)["execution"]["chain"] == 1
