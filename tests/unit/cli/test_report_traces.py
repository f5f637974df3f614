"""`perfscope report TRACE...`: what `perfscope import` and `perfscope report` give, with nothing kept."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.cli.main import cli

TRACES = Path(__file__).parents[2] / "data" / "traces"
TRACE = TRACES / "mi300_resnet" / "resnet_act_checkpoint.json.gz"
OF_THE_RUN = ("name", "start_unix_ns", "end_unix_ns", "sources")  # by name or time of the import


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, [str(word) for word in arguments])
    return result.exit_code, result.stdout, result.stderr


def figures(text: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(text)
    manifest = document.pop("run")
    assert isinstance(manifest, dict)
    return {**document, "run": {key: value for key, value in manifest.items() if key not in OF_THE_RUN}}


def test_a_traces_report_is_that_of_its_import_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(tmp_path)
    code, direct, errors = run("report", TRACE, "--json")
    assert (code, errors) == (0, "")
    assert run("import", TRACE, "-o", tmp_path / "run")[0] == 0
    assert figures(direct) == figures(run("report", tmp_path / "run", "--json")[1])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "scratch"]
    assert list(scratch.iterdir()) == []


def test_text_goes_to_the_terminal_and_documents_where_the_user_says(tmp_path: Path) -> None:
    code, text, errors = run("report", TRACE)
    assert code == 0 and len(text.splitlines()) <= 30 and "\nStep " in text
    assert "--html FILE" in errors and "perfscope import" in errors
    page = tmp_path / "traces.html"
    assert run("report", TRACE, "--html", page)[0] == 0 and page.stat().st_size > 10_000


def test_a_directory_of_traces_is_one_job_and_what_is_of_no_use_is_named(tmp_path: Path) -> None:
    shutil.copy(TRACE, tmp_path / "rank0.json.gz")
    (tmp_path / "rank1.json.gz").write_bytes(b"\x1f\x8bnothing")
    code, text, errors = run("report", tmp_path, "--json")
    assert code == 0 and len(json.loads(text)["ranks"]) == 1
    assert "rank1.json.gz" in errors and "left out" in errors


def test_what_is_neither_run_nor_trace_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no trace")
    for wrong in (tmp_path, tmp_path / "notes.txt", tmp_path / "gone"):
        command = [sys.executable, "-m", "perfscope", "report", str(wrong)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and done.stdout == ""
        assert len(done.stderr.splitlines()) == 1 and str(wrong) in done.stderr
