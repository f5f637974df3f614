"""What a check prints and writes: the verdict first, and never at the verdict's cost."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from perfscope.cli.check.measure import last_word
from perfscope.cli.check.output import emit
from tests.support.synthetic_check import regression


class _Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class _Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def test_a_file_that_cannot_be_written_costs_neither_verdict_nor_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "check.md", tmp_path / "gone" / "check.xml"
    problems = emit(regression(), as_json=False, formats=(("junit", bad), ("markdown", good)))
    assert len(problems) == 1 and "check.xml" in problems[0]
    assert capsys.readouterr().out.lstrip().startswith("Regression")
    assert good.stat().st_size


def test_a_reader_that_went_away_is_no_problem_and_a_full_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "check.json"
    for stream, num in ((_Gone(), 0), (_Full(), 1)):
        monkeypatch.setattr("sys.stdout", stream)
        for as_json in (True, False):
            problems = emit(regression(), as_json=as_json, formats=(("json", file),))
            assert len(problems) == num
            assert json.loads(file.read_bytes())["outcome"] == "regression"
            file.unlink()


def test_annotations_stay_out_of_a_format_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for as_json, formats in ((True, ()), (False, (("json", Path("-")),))):
        emit(regression(), as_json=as_json, formats=formats)
        said = capsys.readouterr()
        assert json.loads(said.out)["outcome"] == "regression"
        assert "::error" in said.err
    emit(regression(), as_json=False, formats=())
    said = capsys.readouterr()
    assert "::error" in said.out and not said.err
    emit(regression(), as_json=False, formats=(("annotations", Path("-")),))
    said = capsys.readouterr()
    assert said.out.count("::error") == 1 and not said.err


def test_an_unwritable_summary_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    (problem,) = emit(regression(), as_json=False, formats=())
    assert "GITHUB_STEP_SUMMARY" in problem


def test_the_last_word_of_a_long_log_is_found_at_its_end(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(b"early words\n" + b"x" * 9 + b"\xff" * 200_000 + b"\nout of luck\nperfscope: ended\n\n")
    assert last_word(log) == "out of luck"
    log.write_text("early words\n" + "perfscope: said again\n" * 10_000)
    assert last_word(log) == "perfscope: said again", "only the end is read"
    log.write_text("")
    assert last_word(log) == "it said nothing"
