"""`.ci/run` with a `make` that only notes what it was asked for."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"
MAKE = """#!/bin/sh
echo "$*" >> made.txt
echo "output of $*"
case "$*" in *"$FAILS"*) exit 2 ;; esac
"""
MEASURING = {"test", "test-slow", "test-vm", "check-overhead", "demo"}  # by themselves
WAITING = {"test-slurm", "test-exports", "docs .venv/ready"}


def run(folder: Path, fails: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The script in a folder, and the arguments of every `make`, in order."""
    for name, text in ((".ci/run", SCRIPT.read_text(encoding="utf-8")), ("bin/make", MAKE)):
        (folder / name).parent.mkdir()
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    variables = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FAILS": fails}
    ended = subprocess.run(
        ["bash", str(folder / ".ci/run")],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended, (folder / "made.txt").read_text(encoding="utf-8").splitlines()


def test_every_target_is_made_and_has_its_seconds(tmp_path: Path) -> None:
    ended, made = run(tmp_path, "nothing")
    assert ended.returncode == 0, ended.stdout
    assert set(made) == MEASURING | {"build/check"} | {f"-o build/check {target}" for target in WAITING}
    assert made[:2] == ["test", "test-slow"] and made[-2:] == ["check-overhead", "demo"]
    for target in MEASURING | WAITING:
        assert re.search(rf"^make {re.escape(target)}: \d+ s, \d+ s since the start$", ended.stdout, re.M)


@pytest.mark.parametrize("target", sorted(WAITING))
def test_a_target_that_fails_beside_others_fails_the_script_and_shows_every_output(
    tmp_path: Path, target: str
) -> None:
    ended, made = run(tmp_path, f"-o build/check {target}")
    assert ended.returncode == 1
    assert made[-1] not in {"check-overhead", "demo"}
    for other in WAITING:
        assert f"output of -o build/check {other}\n" in ended.stdout
    assert ended.stdout.endswith(f"failed: make {target}\n")


@pytest.mark.parametrize("target", ["test-slow", "demo"])
def test_a_target_that_fails_by_itself_ends_the_script(tmp_path: Path, target: str) -> None:
    ended, made = run(tmp_path, target)
    assert ended.returncode != 0
    assert made[-1] == target


def by_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    return subprocess.run(
        ["sh", str(SCRIPT.parents[1] / "tests" / "pytest.sh"), "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTEST_DEBUG_TEMPROOT": str(folder), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_pytest_has_files_of_its_own_and_leaves_none(tmp_path: Path) -> None:
    """Cleaning up what other runs left in a shared folder ended one with an error after its last test."""
    ended = by_script(tmp_path, "def test_it(tmp_path):\n    assert 'pytest-of-' not in str(tmp_path)\n")
    assert ended.returncode == 0, ended.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"test_it.py", "__pycache__"}


def test_an_error_of_pytest_without_a_failing_test_is_an_error(tmp_path: Path) -> None:
    ended = by_script(tmp_path, "import os\n\ndef test_it():\n    os._exit(1)\n")
    assert ended.returncode == 1
    assert ended.stderr == ""


def test_a_failing_test_runs_once_more(tmp_path: Path) -> None:
    flaky = """import pathlib

def test_it():
    ran = pathlib.Path(__file__).with_name("ran")
    again = ran.exists()
    ran.touch()
    assert again
"""
    ended = by_script(tmp_path, flaky)
    assert ended.returncode == 0, ended.stdout
    assert "1 failed: run once more by themselves" in ended.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_file_system_that_a_killed_test_left_mounted_is_unmounted(tmp_path: Path) -> None:
    leaving = """import os
import subprocess

import pytest

def test_it(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=False).returncode:
        pytest.skip("mount is not permitted here")
    os._exit(3)
"""
    ended = by_script(tmp_path, leaving)
    assert ended.stderr == ""
    assert str(tmp_path) not in Path("/proc/mounts").read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} <= {"test_it.py", "__pycache__"}
