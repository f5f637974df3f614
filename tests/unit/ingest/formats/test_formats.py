"""The registry of trace formats: which file is of which, and imports of formats other than Kineto's."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from perfscope.errors import TraceError
from perfscope.ingest.formats.registry import (
    FORMATS,
    format_of_file,
    format_of_window,
    is_trace_name,
    trace_stem,
)
from perfscope.ingest.importing import import_traces
from perfscope.rundir import layout

DATA = Path(__file__).parents[3] / "data" / "frameworks"
JAX = DATA / "jax-two-processes.jax.xplane.pb.gz"
TENSORFLOW = DATA / "tensorflow_fit" / "windows" / "0.tensorflow.xplane.pb.gz"
MXNET = [DATA / f"mxnet-dist-sync-{rank}.mxnet.json.gz" for rank in (0, 1)]


def test_every_window_suffix_of_the_run_directory_has_a_format() -> None:
    for suffix in (*layout.TRACE_FORMATS, layout.CALLS):
        assert suffix in format_of_window(suffix).suffixes
    names = [one.name for one in FORMATS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        (JAX, "host.xplane.pb.gz", ("xplane", ".jax.xplane.pb")),
        (TENSORFLOW, "host.xplane.pb.gz", ("xplane", ".tensorflow.xplane.pb")),
        (MXNET[0], "profile.json.gz", ("mxnet", ".mxnet.json")),
        (MXNET[1], "profile.json.gz", ("mxnet", ".mxnet.json")),
    ],
)
def test_a_format_is_detected_by_its_content(
    tmp_path: Path, source: Path, name: str, expected: tuple[str, str]
) -> None:
    path = Path(shutil.copy(source, tmp_path / name))
    found = format_of_file(path)
    assert (found.name, found.suffix_of(path)) == expected
    plain = tmp_path / name.removesuffix(".gz")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    found = format_of_file(plain)
    assert (found.name, found.suffix_of(plain)) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [(b"", "the file is empty"), (b"\x7fELF", "not JSON and no other trace that perfscope reads")],
)
def test_a_file_of_no_format_says_why(tmp_path: Path, text: bytes, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(TraceError, match=reason):
        format_of_file(path)
    with pytest.raises(TraceError, match="not a regular file"):
        format_of_file(tmp_path)


def test_names_of_traces() -> None:
    assert (
        is_trace_name("host.xplane.pb") and is_trace_name("host.xplane.pb.gz") and is_trace_name("t.json.gz")
    )
    assert not is_trace_name("t.json.zip") and not is_trace_name("model.pb")
    assert trace_stem("run.pt.trace.json.gz") == "run"
    assert trace_stem("host.xplane.pb") == "host"


def test_a_trace_that_is_stored_for_now_is_a_link_where_that_is_possible(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[]")
    trace_format, (rank,) = format_of_file(path), format_of_file(path).ranks(path)
    kept = trace_format.store(path, rank, tmp_path, 0)
    linked = trace_format.store(path, rank, tmp_path, 1, for_now=True)
    assert linked.samefile(path) and not kept.samefile(path)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:  # another file system
        copied = trace_format.store(path, rank, Path(elsewhere), 0, for_now=True)
        assert copied.read_bytes() == kept.read_bytes() == b"[]" and not copied.samefile(path)
    (tmp_path / "named.json").symlink_to(path)
    assert not trace_format.store(tmp_path / "named.json", rank, tmp_path, 2, for_now=True).is_symlink()


def test_profiles_of_several_tensorflow_workers_become_a_run(tmp_path: Path) -> None:
    for rank in (0, 1):
        source = DATA / "tensorflow_workers" / str(rank) / "windows" / "0.tensorflow.xplane.pb.gz"
        shutil.copy(source, tmp_path / f"worker{rank}.xplane.pb.gz")
    result = import_traces([tmp_path], tmp_path / "run")
    assert [(trace.rank, trace.format) for trace in result.traces] == [(0, "xplane"), (1, "xplane")]
    assert [trace.stored for trace in result.traces] == [
        f"ranks/{rank}/windows/0.tensorflow.xplane.pb.gz" for rank in (0, 1)
    ]
    assert [len(summary.steps) for summary in result.summaries] == [2, 2]
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [source["format"] for source in run["sources"]] == ["xplane", "xplane"]
    rank = json.loads((tmp_path / "run" / "ranks" / "1" / "rank.json").read_text())
    assert rank["framework"] == {"name": "tensorflow", "version": ""}


def test_traces_of_mxnet_become_a_run(tmp_path: Path) -> None:
    for rank, source in enumerate(MXNET):
        shutil.copy(source, tmp_path / f"profile_rank{rank}.json.gz")
    result = import_traces([tmp_path], tmp_path / "run")
    assert [(trace.rank, trace.format) for trace in result.traces] == [(0, "mxnet"), (1, "mxnet")]
    assert {summary.world_size for summary in result.summaries} == {2}


def test_threads_may_be_64_bit_hashes(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": (1 << 64) - 5, "ts": 1, "dur": 1}
    ]
    (tmp_path / "t.json").write_text(json.dumps(events))
    result = import_traces([tmp_path / "t.json"], tmp_path / "run")
    (lane,) = result.summaries[0].lanes
    assert (result.summaries[0].events_kept, lane.lane) == (1, -2)


def test_the_registry_is_light() -> None:
    code = "import sys, perfscope.ingest.formats.registry; print({'numpy', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
