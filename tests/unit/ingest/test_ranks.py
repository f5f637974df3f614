"""Which file is which rank, and which files a path stands for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from perfscope.errors import TraceError
from perfscope.ingest.companions import TracePart
from perfscope.ingest.formats.registry import format_of_file
from perfscope.ingest.importing import RunFacts, assign_ranks, import_traces, trace_files


def trace(path: Path, rank: int | None = None, *, behind: bool = False, padding: int = 0) -> Path:
    fields: dict[str, object] = {"pad": "x" * padding}
    info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8}} if rank is not None else {}
    order = {**fields, "traceEvents": [], **info} if behind else {**info, **fields, "traceEvents": []}
    data = json.dumps(order).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def ranks_of(files: list[Path]) -> list[tuple[int, str]]:
    """(rank, where it comes from) of files that hold one rank each."""
    formats = [format_of_file(path) for path in files]
    parts = [
        TracePart(path, found, claim)
        for path, found in zip(files, formats, strict=True)
        for claim in found.ranks(path)
    ]
    return [(rank, part.claim.source) for rank, part in zip(assign_ranks(parts), parts, strict=True)]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("behind", [False, True])
def test_the_trace_itself_knows_best(tmp_path: Path, name: str, behind: bool) -> None:
    path = trace(tmp_path / f"rank7-{name}", 3, behind=behind, padding=3_000_000)
    assert ranks_of([path]) == [(3, "distributedInfo")]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank5.json", 5),
        ("rank-12.json.gz", 12),
        ("RANK_3.pt.trace.json", 3),
        ("worker4.1694128201556.pt.trace.json", 4),
        ("run2_rank6_step9.json", 6),
        ("trace_2.json", 2),
        ("t1.json", 1),
        ("9.json", 9),
    ],
)
def test_else_a_number_in_the_name(tmp_path: Path, name: str, rank: int) -> None:
    assert ranks_of([trace(tmp_path / name)]) == [(rank, "file name")]


@pytest.mark.parametrize("name", ["trace.json", "vm_2552.1790857026000.pt.trace.json", "resnet.json.gz"])
def test_a_time_or_process_id_is_no_rank(tmp_path: Path, name: str) -> None:
    assert ranks_of([trace(tmp_path / name)]) == [(0, "order")]


def test_order_fills_the_ranks_nobody_claims(tmp_path: Path) -> None:
    files = [trace(tmp_path / "x.json"), trace(tmp_path / "y.json", 0), trace(tmp_path / "z.json")]
    assert ranks_of(files) == [(1, "order"), (0, "distributedInfo"), (2, "order")]


def test_two_files_of_one_rank_are_named_both(tmp_path: Path) -> None:
    files = [trace(tmp_path / "a.json", 4), trace(tmp_path / "rank4.json")]
    with pytest.raises(TraceError) as caught:
        ranks_of(files)
    message = str(caught.value)
    assert "\n" not in message
    assert all(text in message for text in ("a.json", "rank4.json", "rank 4", "distributedInfo", "file name"))


def test_files_of_one_process_by_their_names_are_windows_of_one_rank(tmp_path: Path) -> None:
    names = [
        f"vm_{pid}.{time}.pt.trace.json"
        for pid in (25, 31)
        for time in (1795651288324829349, 1795651288995202481)
    ]
    assert [rank for rank, _ in ranks_of([trace(tmp_path / name) for name in names])] == [0, 0, 1, 1]
    claiming = [trace(tmp_path / name, 5 if "_25" in name else 2) for name in names]
    assert [rank for rank, _ in ranks_of(claiming)] == [5, 5, 2, 2]
    another = trace(tmp_path / "vm_77.1795651289995202481.pt.trace.json", 5)
    with pytest.raises(TraceError, match="both claim rank 5"):
        ranks_of([*claiming, another])


def test_a_directory_stands_for_its_traces_in_natural_order(tmp_path: Path) -> None:
    for name in ("rank10.json", "rank2.json.gz", "rank1.pt.trace.json", "notes.txt", "x.json.zip"):
        (tmp_path / name).touch()
    (tmp_path / "deeper.json").mkdir()
    names = [path.name for path in trace_files([tmp_path])]
    assert names == ["rank1.pt.trace.json", "rank2.json.gz", "rank10.json"]


def test_paths_that_stand_for_nothing_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="not there"):
        trace_files([tmp_path / "missing.json"])
    with pytest.raises(TraceError, match="holds no"):
        trace_files([tmp_path])


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("resnet_rank0.json", "resnet"),
        ("rank0.json", "traces"),
        ("my net.pt.trace.json", "my-net"),
        (".", "traces"),
    ],
)
def test_a_run_is_named_after_its_trace_or_directory(tmp_path: Path, file: str, name: str) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]
    (folder / ("rank0.json" if file == "." else file)).write_text(json.dumps(events))
    result = import_traces([folder / file], tmp_path / "run")
    assert json.loads((result.run_dir / "run.json").read_text())["name"] == name


def test_a_run_of_several_files_is_named_after_the_folder_they_lie_in(tmp_path: Path) -> None:
    folder = tmp_path / "bigger batch"
    folder.mkdir()
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]
    files = [folder / f"node{node}_worker{node}.json" for node in (0, 1)]
    for file in files:
        file.write_text(json.dumps(events))
    result = import_traces(files, tmp_path / "run")
    assert json.loads((result.run_dir / "run.json").read_text())["name"] == "bigger-batch"
    named = import_traces(files, tmp_path / "named", facts=RunFacts(name="mine"))
    assert json.loads((named.run_dir / "run.json").read_text())["name"] == "mine"
