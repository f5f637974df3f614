"""`perfscope import` as a user runs it: real processes, real traces, real damage."""

from __future__ import annotations

import gzip
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.ingest.formats.registry import FORMATS
from tests.support.ingest_traces import DLRM, GLOO, MI300, document, span, text_of
from tests.support.nsys_database import Database, training

GOOD = document([span("aten::mm", 1, 2)])


def run_import(*args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "perfscope", "import", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=120)


def manifest(run: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((run / "run.json").read_text())
    return loaded


def test_eight_ranks_become_a_run(tmp_path: Path) -> None:
    done = run_import(DLRM, "-o", tmp_path / "run", "--name", "dlrm")
    assert done.returncode == 0, done.stderr
    assert f"run: {tmp_path / 'run'}" in done.stdout
    assert done.stdout.count("events read") == 8
    assert f"{DLRM / 'rank3.json.gz'} is rank 3 (from distributedInfo)" in done.stderr
    run = manifest(tmp_path / "run")
    assert (run["origin"], run["name"], run["world_size"], run["attached_ranks"]) == ("import", "dlrm", 8, 8)
    assert run["status"] == "finished"
    sources = run["sources"]
    assert isinstance(sources, list)
    assert sources[2] == {
        "path": "rank2.json.gz",
        "format": "kineto",
        "rank": 2,
        "rank_source": "distributedInfo",
        "stored": "ranks/2/windows/0.json.gz",
    }
    for rank in range(8):
        stored = tmp_path / "run" / "ranks" / str(rank) / "windows" / "0.json.gz"
        assert stored.read_bytes() == (DLRM / f"rank{rank}.json.gz").read_bytes()
        meta = json.loads((tmp_path / "run" / "ranks" / str(rank) / "rank.json").read_text())
        assert (meta["schema_version"], meta["rank"], meta["world_size"]) == (1, rank, 8)
        assert (tmp_path / "run" / "derived" / "timeline" / f"rank-{rank:05d}-window-000.parquet").exists()


def test_json_says_what_was_counted(tmp_path: Path) -> None:
    done = run_import(MI300, "-o", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["run"] == str(tmp_path / "run")
    (trace,) = document["traces"]
    events = trace["events"]
    assert (events["read"], events["cut"], events["dropped"]) == (56_451, 968, 0)
    assert events["read"] == events["kept"] + events["skipped"] + events["dropped"]
    assert (trace["rank_source"], trace["step_source"], trace["num_steps"]) == (
        "distributedInfo",
        "ProfilerStep",
        3,
    )


def test_a_run_that_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    first = GLOO / "rank0.json.gz"
    assert run_import(first, "-o", tmp_path / "run").returncode == 0
    again = run_import(first, "-o", tmp_path / "run")
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1
    assert "--force" in again.stderr
    assert run_import(GLOO / "rank1.json.gz", "-o", tmp_path / "run", "--force").returncode == 0
    assert [path.name for path in (tmp_path / "run" / "ranks").iterdir()] == ["1"]


def test_two_files_of_one_rank_are_one_line_that_names_both(tmp_path: Path) -> None:
    copy = tmp_path / "again.json.gz"
    copy.write_bytes((DLRM / "rank1.json.gz").read_bytes())
    done = run_import(DLRM / "rank1.json.gz", copy, "-o", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert all(text in done.stderr for text in ("rank1.json.gz", "again.json.gz", "both claim rank 1"))
    assert not (tmp_path / "run").exists()


def test_what_is_of_use_is_imported_and_the_rest_named(tmp_path: Path) -> None:
    whole = text_of(DLRM / "rank0.json.gz")
    files = {
        "rank0.json": whole[: len(whole) // 2],
        "rank1.json.gz": (DLRM / "rank1.json.gz").read_bytes()[:30_000],
        "rank2.json": b"",
        "rank3.json": b"no JSON at all",
        "rank4.json": b'{"a": "no trace"}',
        "rank5.json": (
            GLOO / "rank0.json.gz"
        ).read_bytes(),  # a CPU rank, of another world, by its own word rank 0
        "rank6.json": GOOD,
    }
    del files["rank5.json"]
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    done = run_import(*sorted(tmp_path.iterdir()), "-o", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    left_out = {line.split(":")[1].strip().rsplit("/", 1)[-1] for line in lines if line.endswith("left out")}
    assert left_out == {"rank2.json", "rank3.json", "rank4.json"}
    assert any("rank0.json: " in line and "ends before" in line for line in lines)
    assert any("rank1.json.gz: " in line and "gzip data ends early" in line for line in lines)
    run = tmp_path / "run"
    assert sorted(path.name for path in (run / "ranks").iterdir()) == ["0", "1", "6"]
    rejected = manifest(run)["rejected"]
    assert isinstance(rejected, list)
    assert {entry["path"] for entry in rejected} == left_out
    assert not list((run / "derived").rglob("rank-00004*"))


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "the file is empty"), (b"text", "not JSON"), (b'{"x": 1}', "no trace"), (b"[]", "no event")],
)
def test_nothing_of_use_is_one_line_and_no_run(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "bad.json").write_bytes(data)
    done = run_import(tmp_path / "bad.json", "-o", tmp_path / "run")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "bad.json" in done.stderr
    assert words in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_cpu_only_rank_among_gpu_ranks_is_imported_beside_them(tmp_path: Path) -> None:
    cpu = json.loads(text_of(DLRM / "rank7.json.gz"))
    on_host = ("cpu_op", "user_annotation")
    cpu["traceEvents"] = [event for event in cpu["traceEvents"] if event.get("cat") in on_host]
    (tmp_path / "rank7.json").write_text(json.dumps(cpu))
    done = run_import(DLRM / "rank6.json.gz", tmp_path / "rank7.json", "-o", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    traces = json.loads(done.stdout)["traces"]
    assert [(trace["rank"], trace["has_device"]) for trace in traces] == [(6, True), (7, False)]


def test_no_output_option_is_a_usage_error() -> None:
    done = run_import(GLOO)
    assert done.returncode == 2
    assert "--output" in done.stderr


def test_help_shows_examples_and_loads_nothing_heavy(tmp_path: Path) -> None:
    done = run_import("--help")
    assert done.returncode == 0
    assert "Examples:" in done.stdout
    probe = (
        "import sys; sys.argv = ['perfscope', 'import', '--help']\n"
        "from perfscope.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numpy', 'pyarrow', 'msgspec', 'rich') if m in sys.modules], file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert found.stderr.strip() == "[]"


def test_a_progress_bar_only_on_a_terminal(tmp_path: Path) -> None:
    piped = run_import(GLOO, "-o", tmp_path / "a")
    assert "\x1b" not in piped.stderr
    reading, writing = pty.openpty()
    command = [sys.executable, "-m", "perfscope", "import", str(GLOO), "-o", str(tmp_path / "b")]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, env=environment)
    os.close(writing)
    seen = b""
    while True:
        try:
            piece = os.read(reading, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    output, _ = process.communicate(timeout=60)
    os.close(reading)
    assert process.returncode == 0
    assert b"reading traces" in seen
    assert b"rank 0:" in output


def test_peak_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    """Four times the events, the same memory give or take 12 MiB, and at most 100 MB."""
    events = json.loads(text_of(MI300))["traceEvents"]
    sizes = {}
    for copies in (1, 4):
        path = tmp_path / f"rank{copies}.json.gz"
        with gzip.open(path, "wt", compresslevel=1) as file:
            file.write('{"traceEvents": [\n')
            for copy in range(copies):
                for number, event in enumerate(events):
                    moved = event | {"ts": event["ts"] + 200_000 * copy}
                    file.write((",\n" if copy or number else "") + json.dumps(moved, indent=1))
            file.write("\n]}")
        code = (
            "import sys; from perfscope.cli.import_ import command\n"
            "try: command(sys.argv[1:])\n"
            "except SystemExit: pass\n"
            # Not ru_maxrss: that one starts with the memory of the process that forked this one.
            "print(*[line for line in open('/proc/self/status') if line.startswith('VmHWM')])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(path), "-o", str(tmp_path / f"run{copies}")],
            capture_output=True,
            text=True,
            check=True,
        )
        sizes[copies] = int(done.stdout.split()[-2]) * 1024
    assert sizes[4] <= 100e6, sizes
    assert sizes[4] - sizes[1] <= 12 << 20, sizes


def test_a_trace_nested_too_deep_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_bytes(b'{"traceEvents":' + b"[" * 200_000 + b"]" * 200_000 + b"}")
    done = run_import(tmp_path / "deep.json", "-o", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "nested too deep" in done.stderr
    assert "internal error" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_labels_and_samples_are_kept_and_give_a_throughput(tmp_path: Path) -> None:
    told = ("--label", "gpu=v100", "--label", "note=a=b", "--samples-per-step", "64")
    done = run_import(GLOO, "-o", tmp_path / "run", *told)
    assert done.returncode == 0, done.stderr
    run = manifest(tmp_path / "run")
    assert run["labels"] == {"gpu": "v100", "note": "a=b"}
    assert run["options"] == {"samples_per_step": 64}
    report = [sys.executable, "-m", "perfscope", "report", str(tmp_path / "run"), "--json"]
    shown = subprocess.run(report, capture_output=True, text=True, check=True, timeout=120)
    figures = json.loads(shown.stdout)
    per_second = 64 / (figures["step_ns"]["median"] / 1e9)
    assert figures["throughput_samples_per_s"] == pytest.approx(per_second, rel=0.01)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--label", "no-value", "KEY=VALUE"),
        ("--label", "1x=2", "KEY=VALUE"),
        ("--label", "k=" + "v" * 257, "longer than 256"),
        ("--samples-per-step", "0", "x>=1"),
        ("--samples-per-step", "many", "integer"),
        ("--name", " ", "--name is empty"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_made(
    tmp_path: Path, option: str, value: str, said: str
) -> None:
    done = run_import(GLOO, "-o", tmp_path / "run", option, value)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "run").exists()


def test_help_lists_the_formats() -> None:
    done = run_import("--help")
    assert done.returncode == 0
    for known in FORMATS:
        assert f"  {known.name} " in done.stdout


def test_an_nsight_systems_export_of_two_processes_gets_a_report(tmp_path: Path) -> None:
    database = Database()
    database.session()
    training(database, 3000, device=0)
    training(database, 3001, device=1)
    path = database.write(tmp_path / "node.sqlite")
    done = run_import(path, "-o", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert f"{path}, process 3001, is rank 1 (from the order of the files)" in done.stderr
    traces = json.loads(done.stdout)["traces"]
    assert [(trace["format"], trace["num_steps"], trace["step_source"]) for trace in traces] == [
        ("nsys", 3, "NVTX")
    ] * 2
    report = [sys.executable, "-m", "perfscope", "report", str(tmp_path / "run"), "--json"]
    shown = subprocess.run(report, capture_output=True, text=True, check=True, timeout=120)
    figures = json.loads(shown.stdout)
    assert {layer["layer"] for layer in figures["layers"]} == {"stem", "head"}
    assert [entry["collective"] for entry in figures["collectives"]] == ["all_reduce"]


def test_a_report_file_of_nsight_systems_says_how_to_export_it(tmp_path: Path) -> None:
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"\x03\x04")
    done = run_import(path, "-o", tmp_path / "run")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == (
        f"perfscope: {path}: a report of Nsight Systems: export it first (nsys export --type sqlite {path})"
    )
