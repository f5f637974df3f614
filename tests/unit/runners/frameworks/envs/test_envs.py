"""`perfscope bench env`: what it refuses, what it says of pip's failures, and how it goes on."""

from __future__ import annotations

import fcntl
import json
import stat
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.cli.main import cli
from perfscope.runners.config import BenchError
from perfscope.runners.frameworks.envs import creation
from perfscope.runners.frameworks.envs.building import patch
from perfscope.runners.frameworks.envs.pins import PINS, Pins, find_pins
from perfscope.runners.frameworks.envs.store import (
    CREATING,
    MARKER,
    default_dir,
    find_environment,
    list_environments,
)
from perfscope.runners.frameworks.interpreters import find_interpreter
from perfscope.runners.frameworks.registry import FRAMEWORKS, find_framework

SMALL = Pins(
    name="torch",
    packages=("tiny==1.0",),
    oldest=(3, 8),
    newest=(3, 99),
    megabytes=1,
    imports=("tiny",),
)


def make(base: Path, name: str = "one", pins: Pins = SMALL, python: str = sys.executable) -> None:
    creation.create(name, pins, base, python=python, tell=lambda line: None)


def mark(folder: Path, state: str = CREATING, framework: str = "torch") -> None:
    folder.mkdir(parents=True)
    packages = list(find_pins(framework).packages)
    (folder / MARKER).write_text(
        json.dumps({"framework": framework, "state": state, "packages": packages, "python_version": "3.11.2"})
    )


def fake_python(folder: Path, version: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_every_framework_has_pins_of_exact_versions() -> None:
    assert {one.env for one in FRAMEWORKS} == {one.name for one in PINS}
    for pins in PINS:
        main = [
            package for package in pins.packages if package.startswith((pins.name, "tensorflow", "numpy"))
        ]
        assert main and all("==" in package for package in main)
    assert find_pins("keras-jax").name == "keras"
    with pytest.raises(BenchError, match="did you mean tensorflow"):
        find_pins("tensorflo")


def test_the_default_place_is_the_users_cache() -> None:
    assert default_dir({"XDG_CACHE_HOME": "/c"}) == Path("/c/perfscope/envs")
    assert default_dir({"HOME": "/home/a"}) == Path("/home/a/.cache/perfscope/envs")
    assert default_dir({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/perfscope/envs")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "-o", "x" * 80])
def test_names_that_are_no_folders_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot be the name"):
        make(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_what_perfscope_did_not_make_is_neither_filled_nor_deleted(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "thesis.tex").write_text("all of it")
    with pytest.raises(BenchError, match="was not made by perfscope"):
        make(tmp_path)
    with pytest.raises(BenchError, match="was not made by perfscope"):
        creation.remove(tmp_path / "one")
    with pytest.raises(BenchError, match="is not there"):
        creation.remove(tmp_path / "two")
    assert (tmp_path / "one" / "thesis.tex").exists()


def test_a_python_that_the_pins_do_not_run_on_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    python = fake_python(tmp_path, "3 13 1")
    with pytest.raises(BenchError, match=r"mxnet as pinned needs Python 3\.8 to 3\.11, but .* is 3\.13\.1"):
        make(tmp_path / "envs", pins=find_pins("mxnet"), python=python)
    with pytest.raises(BenchError, match="does not run as a Python"):
        make(tmp_path / "envs", python=fake_python(tmp_path, "hello"))
    assert not (tmp_path / "envs").exists()


def test_a_full_disk_is_said_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 9 * 10**8, 10**8))
    with pytest.raises(BenchError, match=r"has 100 MB left, but .* needs about"):
        make(tmp_path, pins=find_pins("jax"), python=fake_python(tmp_path, "3 11 2"))
    assert not (tmp_path / "one").exists()


def test_building_from_source_must_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="say so with --build"):
        make(tmp_path, pins=find_pins("horovod"))


def test_two_at_once_do_not_make_the_same_environment(tmp_path: Path) -> None:
    with (tmp_path / ".one.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BenchError, match="another perfscope is making"):
            make(tmp_path)


def test_an_environment_of_another_framework_is_not_turned_into_this_one(tmp_path: Path) -> None:
    mark(tmp_path / "one", framework="jax")
    with pytest.raises(BenchError, match="is for jax; choose another NAME"):
        make(tmp_path)


SAID = {
    "no network": (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError': "
        "Failed to establish a new connection: [Errno 111] Connection refused')': /simple/tiny/\n"
        "ERROR: Could not find a version that satisfies the requirement tiny==1.0 (from versions: none)\n"
        "ERROR: No matching distribution found for tiny==1.0\n",
        "index cannot be reached",
    ),
    "no such version": (
        "ERROR: Could not find a version that satisfies the requirement tiny==1.0 (from versions: 0.9)\n"
        "ERROR: No matching distribution found for tiny==1.0\n",
        "has no tiny==1.0 for this Python",
    ),
    "nothing found": (
        "ERROR: Could not find a version that satisfies the requirement tiny==1.0 (from versions: none)\n"
        "ERROR: No matching distribution found for tiny==1.0\n",
        "offers no version of tiny==1.0: it cannot be reached, or",
    ),
    "disk full": (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
        "the disk is full",
    ),
    "no venv": (
        "The virtual environment was not created successfully because ensurepip is not\navailable.\n",
        "apt-get install python3-venv",
    ),
    "something else": ("lots of words\nERROR: pip's dependency resolver broke\nbye\n", "resolver broke"),
}


@pytest.mark.parametrize("name", SAID)
def test_pips_failures_become_one_line_that_says_what_to_do(name: str) -> None:
    text, expected = SAID[name]
    line = creation._reason(text.splitlines(keepends=True), ["python", "-m", "pip", "install"])
    assert expected in line and "\n" not in line


def test_the_patch_changes_the_lines_that_ask_for_an_older_cpp(tmp_path: Path) -> None:
    (tmp_path / "horovod" / "torch").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "horovod" / "torch"):
        (place / "CMakeLists.txt").write_text("project(x)\nset(CMAKE_CXX_STANDARD 14)\n")
    assert patch(tmp_path) == 2
    assert "CMAKE_CXX_STANDARD 17" in (tmp_path / "CMakeLists.txt").read_text()
    with pytest.raises(BenchError, match="does not fit this release"):
        patch(tmp_path)


def test_an_unfinished_environment_is_listed_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mark(default_dir() / "mine", framework="mxnet")
    assert [(one.name, one.state) for one in list_environments()] == [("mine", CREATING)]
    assert find_environment("mine") is not None
    with pytest.raises(BenchError, match=r"was not finished; go on with: perfscope bench env create mine"):
        find_interpreter(find_framework("mxnet"), None, "mine")
    with pytest.raises(BenchError, match=r"no environment 'other' \(there are mine\)"):
        find_interpreter(find_framework("mxnet"), None, "other")
    listed = CliRunner().invoke(cli, ["bench", "env", "list"], catch_exceptions=False)
    assert "mine" in listed.output and "not finished" in listed.output


def test_a_python_without_the_framework_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mxnet = find_framework("mxnet")
    with pytest.raises(BenchError, match="bench env create mxnet"):
        find_interpreter(mxnet, None, None)
    with pytest.raises(BenchError, match=r"cannot import mxnet"):
        find_interpreter(mxnet, sys.executable, None)
    with pytest.raises(BenchError, match="cannot be run"):
        find_interpreter(mxnet, "/nowhere/python", None)
    with pytest.raises(BenchError, match="give one of them"):
        find_interpreter(mxnet, sys.executable, "mine")


def test_removing_takes_the_folder_away(tmp_path: Path) -> None:
    mark(tmp_path / "one")
    result = CliRunner().invoke(
        cli, ["bench", "env", "remove", "one", "--dir", str(tmp_path), "--json"], catch_exceptions=False
    )
    assert json.loads(result.stdout)["removed"] == str(tmp_path / "one")
    assert list(tmp_path.iterdir()) == []
