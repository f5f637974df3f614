"""`perfscope report` and `perfscope export` on real run directories: what is printed, written and refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import perfscope as package
from perfscope.ingest.importing import import_traces


def kineto(rank: int) -> dict[str, object]:
    """Two steps of a two-rank training as torch.profiler writes it; rank 1 is late for the all_reduce."""
    events: list[dict[str, object]] = []

    def span(name: str, cat: str, ts: float, dur: float, tid: int = 1, **args: object) -> None:
        events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    for step in range(2):
        at = 1_000_000 + step * 10_000
        late = 1_500 * rank
        span(f"ProfilerStep#{step}", "user_annotation", at, 9_990)
        span(
            "aten::conv2d", "cpu_op", at + 100, 3_000 + late, **{"Sequence number": step, "Fwd thread id": 0}
        )
        span("gloo:all_reduce", "user_annotation", at + 3_500 + late, 3_000 - late, tid=2)
        span("aten::add_", "cpu_op", at + 7_000, 500)
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2},
        "traceEvents": events,
        "traceName": "x",
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    traces = []
    for rank in range(2):
        path = tmp_path / f"trace{rank}.json"
        path.write_text(json.dumps(kineto(rank)))
        traces.append(path)
    import_traces(traces, tmp_path / "run")
    return tmp_path / "run"


def perfscope(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    return subprocess.run(
        [sys.executable, "-m", "perfscope", *map(str, words)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_without_options_a_summary_is_printed_and_both_files_are_in_the_run(run: Path) -> None:
    done = perfscope("report", run)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) <= 32 and "\nStep " in done.stdout
    assert f"HTML  {run / 'report.html'}" in done.stdout
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert (run / "report.pdf").read_bytes().startswith(b"%PDF-")
    assert done.stderr == ""
    assert not list(run.glob(".*.part"))


def test_full_prints_the_whole_text_and_sections_one_after_the_other(run: Path) -> None:
    whole = perfscope("report", run, "--full")
    assert "Where the step goes" in whole.stdout and "HTML  " in whole.stdout
    parts = perfscope("report", run, "--section", "layers", "--section", "run")
    assert parts.stdout.startswith("Layers\n") and "\nThe run\n" in parts.stdout
    assert "HTML  " not in parts.stdout
    wrong = perfscope("report", run, "--section", "layer")
    assert wrong.returncode == 2 and "did you mean 'layers'?" in wrong.stderr


def test_json_alone_prints_json_alone_and_writes_nothing(run: Path) -> None:
    done = perfscope("report", run, "--json")
    document = json.loads(done.stdout)
    assert document["schema_version"] == 3
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    assert document["collectives"][0]["collective"] == "all_reduce"
    for rank in document["ranks"]:
        parts = rank["breakdown_ns"]
        assert set(parts) == {"compute", "exposed_comm", "copy", "input_wait", "optimizer", "idle"}
        assert sum(parts.values()) == rank["breakdown_step_ns"]
    assert not (run / "report.html").exists()
    assert done.stderr == ""


def test_options_combine(run: Path, tmp_path: Path) -> None:
    html, pdf = tmp_path / "out.html", tmp_path / "out.pdf"
    done = perfscope("report", run, "--html", html, "--pdf", pdf, "--json", "--text")
    assert done.returncode == 0
    json.loads(done.stdout)
    assert "Where the step goes" in done.stderr
    assert html.stat().st_size > 10_000
    assert pdf.stat().st_size > 10_000
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("RUN", "--html", "--pdf"), ["report.html", "report.pdf"]),
        (("--pdf", "--html", "--", "RUN"), ["report.html", "report.pdf"]),
        (("--html", "--json", "RUN"), ["report.html"]),
        (("RUN", "--json", "--pdf"), ["report.pdf"]),
    ],
)
def test_a_document_without_a_file_goes_into_the_run(
    run: Path, tmp_path: Path, words: tuple[str, ...], names: list[str]
) -> None:
    done = perfscope("report", *(run if word == "RUN" else word for word in words), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [name for name in ("report.html", "report.pdf") if (run / name).exists()] == names
    assert list(tmp_path.glob("-*")) == []


def test_a_document_of_traces_needs_a_file(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')
    done = perfscope("report", trace, trace, "--html", "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--html needs a FILE" in done.stderr


@pytest.mark.parametrize("what", ["--text", "--json", None])
@pytest.mark.parametrize(
    ("redirect", "reason"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")]
)
def test_a_stdout_that_takes_nothing_is_one_line_and_exit_1(
    run: Path, what: str | None, redirect: str, reason: str
) -> None:
    words = [sys.executable, "-m", "perfscope", "report", str(run), *([what] if what else [])]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirect}', "sh", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"perfscope: cannot write to stdout: {reason}\n"


def test_help_on_a_full_disk_is_no_internal_error() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" >/dev/full', "sh", sys.executable, "-m", "perfscope", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr


def test_a_reader_that_goes_away_is_no_error_message(run: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = [sys.executable, "-m", "perfscope", "report", str(run), "--json"]
    done = subprocess.run(words, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_output_files_that_cannot_be_meant_are_refused(run: Path, tmp_path: Path) -> None:
    same = tmp_path / "same.x"
    for words in (
        ("report", run, "--html", same, "--pdf", tmp_path / "." / "same.x"),
        ("report", run, "--html", "-"),
        ("report", run, "--pdf", "-"),
        ("export", run, "--format", "csv", "-o", "-"),
    ):
        done = perfscope(*words, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), words
        assert "file" in done.stderr
    assert not same.exists() and not (tmp_path / "-").exists()


def test_an_interrupt_while_loading_is_one_line_and_130(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", "perfscope", "--help"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(package.__file__).parents[1]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "perfscope: interrupted\n")


def test_text_alone_writes_no_file(run: Path) -> None:
    done = perfscope("report", run, "--text")
    assert "Where the step goes" in done.stdout
    assert "Files" not in done.stdout
    assert not (run / "report.html").exists()


def test_an_output_that_cannot_be_written_is_one_line_and_exit_1(run: Path, tmp_path: Path) -> None:
    done = perfscope("report", run, "--html", tmp_path / "missing" / "out.html")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "cannot write" in done.stderr


def test_a_run_that_cannot_be_written_to_still_prints_its_report(run: Path) -> None:
    """report.html and report.pdf are directories: as unwritable for root as for anyone."""
    (run / "report.html").mkdir()
    (run / "report.pdf").mkdir()
    done = perfscope("report", run, "--full")
    assert "Where the step goes" in done.stdout
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "--html FILE and --pdf FILE" in done.stderr


def test_latest_is_the_default_and_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "perfscope-runs").mkdir()
    (tmp_path / "perfscope-runs" / "latest").symlink_to(run)
    done = perfscope("report", "--text", cwd=tmp_path)
    assert done.returncode == 0
    assert str(run) in done.stderr
    assert "latest" in done.stderr


@pytest.mark.parametrize("command", [("report",), ("export", "--format", "csv")])
def test_no_run_at_all_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    done = perfscope(*command, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no run named" in done.stderr
    assert done.stdout == ""


def test_a_newer_run_is_refused_in_one_line(run: Path) -> None:
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"schema_version": 999}))
    done = perfscope("report", run)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["perfetto", "speedscope", "parquet", "csv", "openmetrics"])
def test_exports_hold_every_span_and_are_not_overwritten_unasked(
    run: Path, tmp_path: Path, name: str
) -> None:
    target = tmp_path / f"out.{name}"
    done = perfscope("export", run, "--format", name, "-o", target)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{target}\n"
    first = target.read_bytes()
    again = perfscope("export", run, "--format", name, "-o", target)
    assert again.returncode == 1
    assert "--force" in again.stderr
    assert perfscope("export", run, "--format", name, "-o", target, "--force").returncode == 0
    assert target.read_bytes() == first


def test_openmetrics_has_the_figures_of_the_report(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "metrics.txt"
    done = perfscope("export", run, "--format", "openmetrics", "-o", target)
    assert done.returncode == 0, done.stderr
    parsed = text_string_to_metric_families(target.read_text())  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parsed}
    report = json.loads(perfscope("report", run, "--json").stdout)
    steps = {
        sample.labels["statistic"]: sample.value for sample in families["perfscope_step_seconds"].samples
    }
    assert steps == pytest.approx({key: report["step_ns"][key] / 1e9 for key in ("p10", "median", "p90")})
    parts = families["perfscope_rank_step_part_seconds"].samples
    of_first = {sample.labels["part"]: sample.value for sample in parts if sample.labels["rank"] == "0"}
    told = report["ranks"][0]["breakdown_ns"]
    assert of_first == pytest.approx({part: told[part] / 1e9 for part in of_first})
    known = [entry for entry in report["collectives"] if entry["busbw_bytes_per_s"] is not None]
    rates = families["perfscope_collective_bus_bytes_per_second"].samples if known else []
    assert sorted(sample.value for sample in rates) == sorted(entry["busbw_bytes_per_s"] for entry in known)


def test_openmetrics_holds_no_table(run: Path) -> None:
    done = perfscope("export", run, "--format", "openmetrics", "--table", "layers")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "leave --table out" in done.stderr


def test_report_loads_neither_matplotlib_nor_typst_for_text_or_json(run: Path) -> None:
    code = (
        "import sys; from perfscope.__main__ import main\n"
        f"sys.argv = ['perfscope', 'report', {str(run)!r}, '--json']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'matplotlib', 'typst', 'torch', 'pandas'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HEAVY []" in done.stderr


def test_help_of_both_commands_loads_nothing_heavy() -> None:
    for command in ("report", "export"):
        code = (
            "import sys; from perfscope.cli.main import cli\n"
            f"cli.main([{command!r}, '--help'], standalone_mode=False)\n"
            "print('HEAVY', sorted({'matplotlib', 'typst', 'pyarrow', 'numpy'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert "HEAVY []" in done.stdout


def test_progress_is_for_terminals_only(run: Path) -> None:
    done = perfscope("report", run, "--text")
    assert "reading traces" not in done.stderr
    assert "\r" not in done.stdout + done.stderr


def test_list_shows_runs_with_the_verdict_of_their_report(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copytree(run, folder / "one")
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{")
    (folder / "latest").symlink_to("one")
    before = json.loads(perfscope("list", folder, "--json").stdout)["runs"]
    assert [entry["name"] for entry in before if entry["state"] == "unreadable"] == ["broken"]
    assert len(before) == 2 and before[0]["verdict"] == ""
    assert perfscope("report", folder / "one").returncode == 0
    document = json.loads(perfscope("report", folder / "one", "--json").stdout)
    after = next(e for e in json.loads(perfscope("list", folder, "--json").stdout)["runs"] if e["ranks"])
    assert after["verdict"] == document["findings"][0]["title"]
    assert after["step_ns"] is not None and after["ranks"] == len(document["ranks"])
    assert "one" in perfscope("list", folder).stdout
    assert perfscope("list", tmp_path / "none").returncode == 1
