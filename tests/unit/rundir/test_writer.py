"""Making run directories, and writing JSON that is whole or absent."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from perfscope.errors import RunDirectoryError
from perfscope.rundir.documents import read_document
from perfscope.rundir.recording import LOCK
from perfscope.rundir.writer import create_run_dir, holds_run, write_json


def _make_run(directory: Path) -> Path:
    create_run_dir(directory, name="x", force=False)
    write_json(directory / "run.json", {"schema_version": 1, "perfscope_version": "0"})
    for rank in range(2):
        (directory / "ranks" / str(rank)).mkdir(parents=True)
        (directory / "ranks" / str(rank) / "steps.jsonl").write_text("{}")
    return directory


def test_default_place_names_time_and_script_and_moves_latest(tmp_path: Path) -> None:
    first = create_run_dir(None, name="train_cnn", force=False, root=tmp_path)
    assert re.fullmatch(r"\d{8}T\d{6}Z-train_cnn-[0-9a-f]{4}", first.name)
    assert first.parent == tmp_path / "perfscope-runs"
    second = create_run_dir(None, name="train_cnn", force=False, root=tmp_path)
    assert first != second
    latest = tmp_path / "perfscope-runs" / "latest"
    assert latest.readlink() == Path(second.name)
    assert [path.name for path in latest.parent.iterdir() if path.name.startswith(".")] == [".gitignore"]


def test_git_does_not_see_the_default_place_unless_its_ignore_file_is_deleted(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)

    def untracked() -> str:
        asked = ["git", "-C", str(tmp_path), "status", "--porcelain"]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout

    (create_run_dir(None, name="x", force=False, root=tmp_path) / "run.json").write_text("{}")
    assert untracked() == ""
    (tmp_path / "perfscope-runs" / ".gitignore").unlink()
    create_run_dir(None, name="x", force=False, root=tmp_path)
    assert untracked() == "?? perfscope-runs/\n"


@pytest.mark.parametrize("name", ["../../etc", "a/b", "x" * 500, "", "...", "naïve name\n", "-rf"])
def test_names_cannot_leave_the_place_for_runs(tmp_path: Path, name: str) -> None:
    made = create_run_dir(None, name=name, force=False, root=tmp_path)
    assert made.parent == tmp_path / "perfscope-runs"
    assert made.is_dir()
    assert len(made.name) < 100


def test_a_file_called_latest_is_left_alone(tmp_path: Path) -> None:
    runs = tmp_path / "perfscope-runs"
    runs.mkdir()
    (runs / "latest").write_text("mine")
    create_run_dir(None, name="x", force=False, root=tmp_path)
    assert (runs / "latest").read_text() == "mine"


def test_empty_and_missing_directories_are_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert create_run_dir(tmp_path / "empty", name="x", force=False) == tmp_path / "empty"
    assert create_run_dir(tmp_path / "a" / "b", name="x", force=False).is_dir()


def test_relative_output_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert create_run_dir(Path("here"), name="x", force=False) == tmp_path / "here"


def test_a_run_is_replaced_only_with_force_and_other_files_survive(tmp_path: Path) -> None:
    directory = _make_run(tmp_path / "run")
    (directory / "notes.txt").write_text("mine")
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        create_run_dir(directory, name="x", force=False)
    assert holds_run(directory)
    create_run_dir(directory, name="x", force=True)
    assert {path.name for path in directory.iterdir()} == {"notes.txt", LOCK}


@pytest.mark.parametrize("content", [None, "not json", "[]", '{"schema_version": 1}'])
def test_force_never_deletes_what_is_no_run(tmp_path: Path, content: str | None) -> None:
    directory = tmp_path / "thesis"
    (directory / "ranks").mkdir(parents=True)
    (directory / "ranks" / "data.csv").write_text("precious")
    if content is not None:
        (directory / "run.json").write_text(content)
    with pytest.raises(RunDirectoryError, match="holds no perfscope run"):
        create_run_dir(directory, name="x", force=True)
    assert (directory / "ranks" / "data.csv").read_text() == "precious"


def test_force_removes_links_not_what_they_point_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    directory = tmp_path / "run"
    create_run_dir(directory, name="x", force=False)
    write_json(directory / "run.json", {"schema_version": 1, "perfscope_version": "0"})
    (directory / "derived").symlink_to(outside)
    create_run_dir(directory, name="x", force=True)
    assert (outside / "file").read_text() == "precious"


def test_a_file_in_the_way_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="is a file"):
        create_run_dir(tmp_path / "file", name="x", force=True)
    with pytest.raises(RunDirectoryError, match="Not a directory"):
        create_run_dir(tmp_path / "file" / "below", name="x", force=False)
    (tmp_path / "perfscope-runs").write_text("")
    with pytest.raises(RunDirectoryError, match="is a file"):
        create_run_dir(None, name="x", force=False, root=tmp_path)


def test_json_is_utf8_and_lone_surrogates_become_question_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"µ": "caf\udce9", "</script>": [1, None, True]})
    assert read_document(path) == {"µ": "caf?", "</script>": [1, None, True]}
    assert path.read_bytes().decode("utf-8").endswith("}\n")


def test_failed_write_keeps_the_old_file_and_no_half_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"new": float("nan")})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    assert read_document(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"]  # noqa: PTH208 - names only


def test_write_into_nowhere_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"cannot write .*/none/a\.json: No such file"):
        write_json(tmp_path / "none" / "a.json", {})
    (tmp_path / "dir").mkdir()
    with pytest.raises(RunDirectoryError, match="Is a directory"):
        write_json(tmp_path / "dir", {})
    assert [path.name for path in tmp_path.iterdir()] == ["dir"]


def test_file_mode_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {})
    finally:
        os.umask(old)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640
