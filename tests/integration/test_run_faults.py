"""Full disks, unwritable places, broken probes: the training neither notices nor changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.run_support import PERFSCOPE, TRAIN, read_manifest, run, said, user_environment


def _fill(directory: Path) -> str:
    """A shell command that leaves no byte free on the file system of `directory`."""
    return f'dd if=/dev/zero of="{directory}/filler" bs=4k 2>/dev/null; true > "{directory}/filler2" || true'


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    answer = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "perfscope-test", str(mounted)],
        capture_output=True,
        check=False,
    )
    if answer.returncode != 0:
        pytest.skip("a file system can be mounted by root only")
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_disk_that_fills_up_while_the_command_runs(tmp_path: Path, small_disk: Path) -> None:
    ended = run("sh", "-c", f"{_fill(small_disk)}; echo out; exit 7", cwd=small_disk)
    assert (ended.returncode, ended.stdout) == (7, b"out\n")
    trouble = [line for line in said(ended.stderr) if "No space left on device" in line]
    assert len(trouble) == 1
    # What was written before the disk was full is whole, and no half file is left beside it.
    assert read_manifest(small_disk / "run")["status"] == "running"
    assert not list((small_disk / "run").rglob("*.part"))


@pytest.mark.torch
def test_training_on_a_full_disk_is_the_same(tmp_path: Path, small_disk: Path) -> None:
    pytest.importorskip("torch")
    environment = user_environment(EXIT="5")
    plain = subprocess.run([sys.executable, TRAIN], env=environment, capture_output=True, check=False)
    script = f"{_fill(small_disk)}; exec {sys.executable} {TRAIN}"
    ended = run("sh", "-c", script, cwd=small_disk, environment=environment)
    assert ended.stdout == plain.stdout
    assert ended.returncode == plain.returncode == 5
    own_lines = [line for line in ended.stderr.splitlines(True) if not line.startswith(b"perfscope: ")]
    assert b"".join(own_lines) == plain.stderr


def test_directory_that_becomes_read_only_while_the_command_runs(tmp_path: Path, small_disk: Path) -> None:
    # The kernel refuses while a file there is open for writing, which a record may be at any moment.
    remount = f"until mount -o remount,ro '{small_disk}' 2>&-; do sleep 0.01; done; exit 4"
    ended = run("sh", "-c", remount, cwd=small_disk)
    assert ended.returncode == 4
    assert any("Read-only file system" in line for line in said(ended.stderr))


def test_unwritable_place_is_refused_before_the_command_starts(tmp_path: Path) -> None:
    started = tmp_path / "started"
    where = "/proc/perfscope-run"
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o555)
        where = str(locked / "run")
    ended = subprocess.run(
        [*PERFSCOPE, "run", "-o", where, "--", "touch", str(started)],
        env=user_environment(),
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 125
    assert len(ended.stderr.splitlines()) == 1
    assert not started.exists()


def test_run_directory_deleted_by_the_command(tmp_path: Path) -> None:
    ended = run("sh", "-c", "until rm -rf run; do :; done; echo done; exit 2", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, b"done\n")
    assert any("cannot write" in line for line in said(ended.stderr))


@pytest.mark.parametrize("agent", ["raise OSError('broken')", "def start(): 1/0", "x = (", None])
def test_broken_or_vanished_agent_leaves_the_program_alone(tmp_path: Path, agent: str | None) -> None:
    path = tmp_path / "agent.py"
    if agent is not None:
        path.write_text(agent)
    environment = user_environment(PERFSCOPE_AGENT=str(path))
    ended = run(sys.executable, "-c", "print('works')", cwd=tmp_path, environment=environment)
    assert (ended.returncode, ended.stdout) == (0, b"works\n")
    assert all(line.startswith(b"perfscope: ") for line in ended.stderr.splitlines())
    boot_errors = tmp_path / "run" / "boot-errors.txt"
    assert boot_errors.exists() == (agent is not None)
    assert any("the probe failed to start" in line for line in said(ended.stderr)) == (agent is not None)
