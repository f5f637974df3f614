"""One command at a time makes a run in a directory; `--force` never deletes a run that is being recorded."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfscope.errors import RunDirectoryError
from perfscope.rundir import recording
from perfscope.rundir.layout import host_name
from perfscope.rundir.recording import LOCK
from tests.integration.run_support import PERFSCOPE, num_steps, read_manifest, user_environment
from tests.support.ingest_traces import GLOO

# Steps until the file `stop` is there; says that it has begun by making `begun`.
TRAIN = """
import pathlib, time, perfscope
perfscope.step()
pathlib.Path("begun").touch()
while not pathlib.Path("stop").exists():
    perfscope.step()
    time.sleep(0.01)
"""


def started(cwd: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PERFSCOPE, *words],
        cwd=cwd,
        env=user_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(cwd: Path, *words: str) -> tuple[int, str]:
    process = started(cwd, *words)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


@contextmanager
def recording_run(cwd: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A `perfscope run` into <cwd>/run, in the middle of its training."""
    (cwd / "train.py").write_text(TRAIN)
    words = ("run", "--ceilings", "off", "-o", "run", *options, "--", sys.executable, "train.py")
    process = started(cwd, *words)
    try:
        await_file(cwd / "begun", process)
        yield process
    finally:
        (cwd / "stop").touch()
        process.communicate(timeout=120)


def await_file(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    assert path.exists()


@pytest.mark.parametrize("command", ["run", "import"])
def test_force_refuses_a_run_that_is_being_recorded(tmp_path: Path, command: str) -> None:
    words = {
        "run": ("run", "--ceilings", "off", "--force", "-o", "run", "--", "true"),
        "import": ("import", str(GLOO / "rank0.json.gz"), "--force", "-o", "run"),
    }[command]
    with recording_run(tmp_path) as process:
        before = num_steps(tmp_path / "run", 0)
        code, errors = ended(tmp_path, *words)
        (line,) = (line for line in errors.splitlines() if "warning" not in line)
        assert code == (125 if command == "run" else 1), errors
        assert line.startswith(f"perfscope: process {process.pid} on ")
        assert " since 20" in line and "choose another -o" in line
    assert process.returncode == 0
    assert num_steps(tmp_path / "run", 0) > before
    assert read_manifest(tmp_path / "run")["attached_ranks"] == 1
    assert not (tmp_path / "run" / LOCK).exists()
    code, errors = ended(tmp_path, *words)  # now it has ended
    assert code == 0, errors


def test_of_runs_that_start_at_once_exactly_one_has_the_directory(tmp_path: Path) -> None:
    words = ("run", "--ceilings", "off", "-o", "run", "--", "sh", "-c", "echo $$ >> ran; sleep 1")
    processes = [started(tmp_path, *words) for _ in range(4)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 125, 125, 125], errors
    assert len((tmp_path / "ran").read_text().split()) == 1
    assert read_manifest(tmp_path / "run")["status"] == "finished"


def test_a_killed_run_can_be_replaced_once_its_ranks_have_ended(tmp_path: Path) -> None:
    words = ("run", "--ceilings", "off", "--force", "-o", "run", "--", "true")
    with recording_run(tmp_path) as process:
        await_file(tmp_path / "run" / "hosts" / host_name() / "samples.jsonl", process)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        code, errors = ended(tmp_path, *words)
        assert code == 125, errors
        assert "still record into" in errors
    end = time.monotonic() + 60
    while code and time.monotonic() < end:  # its sampler notices within a moment
        code, errors = ended(tmp_path, *words)
    assert code == 0, errors


def test_what_a_killed_process_left_of_the_lock_is_no_obstacle(tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from perfscope.rundir.recording import claim; "
    code += "claim(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=user_environment(), check=False)
    assert done.returncode == -signal.SIGKILL
    assert json.loads((tmp_path / LOCK).read_bytes())["pid"] > 0
    recording.claim(tmp_path)
    assert json.loads((tmp_path / LOCK).read_bytes())["pid"] == os.getpid()
    recording.claim(tmp_path)  # ours already
    recording.release(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic link"):
        recording.claim(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"


def test_without_locks_the_process_in_the_file_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(handle: int, what: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)  # as a file system without locks answers
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        recording.claim(tmp_path)
        ours = json.loads((tmp_path / LOCK).read_bytes())
        recording.release(tmp_path)
        alive = {**ours, "pid": sleeper.pid, "started": recording._start_of(sleeper.pid)}
        for holder in (alive, {**ours, "host": "elsewhere"}):
            (tmp_path / LOCK).write_text(json.dumps(holder))
            with pytest.raises(RunDirectoryError, match=f"process {holder['pid']} on {holder['host']} has"):
                recording.claim(tmp_path)
        for dead in ({**alive, "started": 1}, {**ours, "pid": 1 << 30}):  # a number that is used again; none
            (tmp_path / LOCK).write_text(json.dumps(dead))
            recording.claim(tmp_path)
            recording.release(tmp_path)
    finally:
        sleeper.kill()
        sleeper.wait()
