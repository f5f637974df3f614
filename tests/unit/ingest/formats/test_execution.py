"""Execution traces of PyTorch: beside the Kineto traces of the same steps, and alone."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfscope.errors import TraceError
from perfscope.ingest.companions import TracePart, pair_executions
from perfscope.ingest.formats.format import TraceRank
from perfscope.ingest.formats.registry import FORMATS
from perfscope.ingest.importing import assign_ranks, import_traces

DATA = Path(__file__).parents[3] / "data" / "traces"
GLOO = [
    DATA / "execution_gloo" / f"gloo_rank{rank}{end}"
    for rank in (0, 1)
    for end in (".json.gz", ".et.json.gz")
]


def run_of(folder: Path, *paths: Path) -> Path:
    return import_traces(paths, folder / "run").run_dir


def summary(run: Path, rank: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (run / f"derived/ingest/rank-{rank:05d}-window-000.json").read_text()
    )
    return document


def rows(run: Path) -> list[dict[str, Any]]:
    table = pq.read_table(run / "derived/timeline/rank-00000-window-000.parquet")
    columns = ["name", "flops", "in_bytes", "dtype", "group", "dur_ns"]
    found: list[dict[str, Any]] = table.select(columns).to_pylist()
    return found


def report(run: Path, *words: str) -> str:
    command = [sys.executable, "-m", "perfscope", "report", str(run), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def unpacked(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def test_shapes_that_kineto_lacks_are_from_the_execution_trace(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = rows(run_of(tmp_path / "plain", *GLOO[::2]))
    joined = rows(run_of(tmp_path, *GLOO))
    assert not any(row["flops"] for row in plain)
    (first, *_) = [row for row in joined if row["name"] == "aten::linear"]
    assert first["flops"] == 2 * 16 * 32 * 64
    sent = [row["in_bytes"] for row in joined if row["name"] == "gloo:all_reduce"]
    assert sent == [4 * (32 * 64 + 64 + 64 * 8 + 8)] * 3
    assert [row["in_bytes"] for row in plain if row["name"] == "gloo:all_reduce"] == [None] * 3
    times = [row["dur_ns"] for row in plain if row["name"] == "aten::linear"]
    assert times == [row["dur_ns"] for row in joined if row["name"] == "aten::linear"]


def test_nodes_are_joined_by_id_name_and_process(tmp_path: Path) -> None:
    record = summary(run_of(tmp_path, *GLOO))["execution"]
    nodes = unpacked(GLOO[1])["nodes"]
    ids = {
        (attribute["value"], node["name"])
        for node in nodes
        for attribute in node["attrs"]
        if attribute["name"] == "rf_id"
    }
    recorded = {
        (event["args"]["Record function id"], event["name"])
        for event in unpacked(GLOO[0])["traceEvents"]
        if "Record function id" in event.get("args", {}) and event["args"]["Record function id"]
    }
    assert record["num_joined"] == len(ids & recorded) > 500
    assert record["collectives"] == [
        {"name": "all_reduce", "group": "", "dtype": "float32", "calls": 3, "bytes": 3 * 2632 * 4}
    ]
    (linear,) = [row for row in record["operators"] if row["shapes"] == "[16, 32] [64, 32] [64]"]
    spans = [event for event in unpacked(GLOO[0])["traceEvents"] if event["name"] == "aten::linear"]
    assert linear["host_ns"] == sum(round(1000 * event["dur"]) for event in spans[::2])


def test_an_execution_trace_of_another_process_is_not_joined(tmp_path: Path) -> None:
    document = unpacked(GLOO[1])
    document["pid"] += 1
    other = tmp_path / "rank0.et.json"
    other.write_text(json.dumps(document))
    found = summary(run_of(tmp_path, GLOO[0], other))
    assert not found["execution"]["is_joined"]
    assert any("another process" in note for note in found["notes"])
    assert not any(row["flops"] for row in rows(tmp_path / "run"))


def test_alone_it_has_structure_and_no_times(tmp_path: Path) -> None:
    run = run_of(tmp_path, *GLOO[1::2])
    found = json.loads(report(run, "--json"))
    assert found["step_ns"] is None
    structure = found["execution"]
    assert [row["chain_ns"] for row in structure["ranks"]] == [None, None]
    assert {row["host_ns"] for row in structure["operators"]} == {None}
    assert any(row["cause"] == "structure_only" for row in found["missing"])
    text = report(run)
    assert "Structure only" in text and "Import the Kineto trace" in text


def test_an_execution_trace_from_a_device_has_groups_and_a_chain_through_the_training(tmp_path: Path) -> None:
    run = run_of(tmp_path, *sorted((DATA / "execution_h100").iterdir(), reverse=True))
    record = summary(run)["execution"]
    assert record["collectives"] == [
        # Two steps, two buckets: 1,049,088 and 5,253,120 elements.
        {"name": "all_reduce", "group": "0", "dtype": "float32", "calls": 4, "bytes": 2 * 4 * 6_302_208}
    ]
    assert record["num_nodes"] == 1192
    names = dict(record["chain_names"])
    assert names["aten::linear"] == 12  # six of each step, one after the other
    assert record["chain_ns"] > 0


def test_an_execution_trace_cut_off_keeps_the_nodes_before(tmp_path: Path) -> None:
    data = gzip.decompress(GLOO[1].read_bytes())
    cut = tmp_path / "rank0.et.json"
    cut.write_bytes(data[: len(data) // 2])
    found = summary(run_of(tmp_path, cut))
    assert 200 < found["execution"]["num_nodes"] < 564
    assert found["notes"][0].startswith("the execution trace is cut off after ")


def test_a_compressed_one_cut_off_keeps_the_nodes_before(tmp_path: Path) -> None:
    cut = tmp_path / "rank0.et.json.gz"
    cut.write_bytes(GLOO[1].read_bytes()[:-3000])
    found = summary(run_of(tmp_path, cut))
    assert 100 < found["execution"]["num_nodes"] < 564
    assert found["notes"][0].startswith("the execution trace is cut off")


def test_one_cut_off_before_its_first_node_says_what_to_do(tmp_path: Path) -> None:
    cut = tmp_path / "rank0.et.json"
    cut.write_bytes(gzip.decompress(GLOO[1].read_bytes())[:300])
    with pytest.raises(TraceError, match=r"unregister_callback\(\) before the program ends"):
        run_of(tmp_path, cut)


def test_one_that_cannot_be_read_leaves_the_kineto_trace(tmp_path: Path) -> None:
    broken = tmp_path / "rank0.et.json"
    broken.write_text('{"schema": "1.1.1", "nodes": 7}')
    found = summary(run_of(tmp_path, GLOO[0], broken))
    assert found["execution"] is None and found["events_kept"] > 100
    assert any(note.startswith("its execution trace: ") for note in found["notes"])


def test_an_old_schema_is_one_line(tmp_path: Path) -> None:
    old = tmp_path / "et.json"
    old.write_text('{"schema": "1.0.1", "nodes": [{"id": 2, "name": "a", "parent": 1, "inputs": []}]}')
    command = [sys.executable, "-m", "perfscope", "import", "et.json", "-o", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and "schema 1.0.1, which is too old" in line


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("k_rank0", "k_rank1", "et_rank1", "et_rank0"), {"k_rank1": "et_rank1", "k_rank0": "et_rank0"}),
        (("k_rank0", "et"), {"k_rank0": "et"}),
        (("k_rank3", "et"), {"k_rank3": "et"}),
        (("k_rank0", "et_rank5"), {}),
        (("et_rank0", "et_rank1"), {}),
    ],
)
def test_each_goes_beside_the_kineto_trace_of_its_rank(
    names: tuple[str, ...], expected: dict[str, str]
) -> None:
    of_name = {each.name: each for each in FORMATS}
    parts = [
        TracePart(
            Path(name),
            of_name["execution" if name.startswith("et") else "kineto"],
            TraceRank(int(name[-1]), "file name") if name[-1].isdigit() else TraceRank(),
        )
        for name in names
    ]
    windows, beside = pair_executions(parts, assign_ranks)
    assert {path.name: part.path.name for path, part in beside.items()} == expected
    assert len(windows) + len(beside) == len(names)
    assert len({rank for _, rank in windows}) == len(windows)


def test_the_copy_in_the_run_is_the_file(tmp_path: Path) -> None:
    shutil.copy(GLOO[1], tmp_path / "rank0.et.json.gz")
    run = run_of(tmp_path, GLOO[0], tmp_path / "rank0.et.json.gz")
    assert (run / "ranks/0/windows/0.et.json.gz").read_bytes() == GLOO[1].read_bytes()
    sources = json.loads((run / "run.json").read_text())["sources"]
    assert [source["format"] for source in sources] == ["kineto", "execution"]
