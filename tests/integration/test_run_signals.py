"""Signals and job control: the command sees each signal once, as if perfscope were not there."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.run_support import DATA, PERFSCOPE, user_environment

REPORTER = str(DATA / "report_signals.py")


class Wrapped:
    """`perfscope run` of the program that prints the signals it gets."""

    def __init__(self, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [*PERFSCOPE, "run", "-o", str(cwd / "run"), "--", sys.executable, "-u", REPORTER],
            cwd=cwd,
            env=user_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.start: list[str] = []
        while not self.start or not self.start[-1].startswith("ready"):
            self.start.append(self.line())
        self.child = int(self.start[-1].split()[1])

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def close(self) -> None:
        # Killing the wrapper alone would leave the command running: that is a feature of it.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def wrapped(tmp_path: Path) -> Iterator[Wrapped]:
    one = Wrapped(tmp_path)
    yield one
    one.close()


def test_signals_to_the_wrapper_reach_the_command_once_each(wrapped: Wrapped) -> None:
    names = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGINT", "SIGRTMIN", "SIGUSR2"]
    received = []
    for name in names:
        wrapped.process.send_signal(getattr(signal, name))
        received.append(wrapped.line())
    out, err = wrapped.process.communicate(timeout=60)
    assert received == [f"got {name}" for name in names]
    assert out == ""
    assert wrapped.process.returncode == 9
    assert "attached 0 ranks" in err


def test_the_command_starts_with_the_callers_mask(wrapped: Wrapped) -> None:
    plain = subprocess.run(
        [
            sys.executable,
            "-c",
            "import signal; print('masked', sorted(map(int, signal.pthread_sigmask(0, ()))))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert wrapped.start[0] == plain.stdout.strip()


def test_broken_pipe_kills_the_command_as_it_would_without_perfscope(tmp_path: Path) -> None:
    # Python ignores SIGPIPE in itself; a command that inherited that would print errors instead of ending.
    script = f'{sys.executable} -m perfscope run -o {tmp_path / "run"} -- sh -c "yes; echo $? >&2" | head -1'
    ended = subprocess.run(
        ["sh", "-c", script], env=user_environment(), capture_output=True, text=True, check=False
    )
    assert ended.stdout == "y\n"
    assert "write error" not in ended.stderr
    assert "Broken pipe" not in ended.stderr


def test_signal_to_the_whole_group_reaches_the_command_once(wrapped: Wrapped) -> None:
    # `kill %1`, `timeout` and batch systems do this; torchrun's shutdown breaks when it gets SIGTERM twice.
    received = []
    for name in ("SIGTERM", "SIGINT", "SIGTERM"):
        os.killpg(wrapped.process.pid, getattr(signal, name))
        received.append(wrapped.line())
        wrapped.process.send_signal(signal.SIGUSR1)  # a marker: a second delivery would come before it
        received.append(wrapped.line())
    wrapped.process.send_signal(signal.SIGUSR2)
    wrapped.process.communicate(timeout=60)
    assert received == [
        "got SIGTERM",
        "got SIGUSR1",
        "got SIGINT",
        "got SIGUSR1",
        "got SIGTERM",
        "got SIGUSR1",
    ]


def test_nothing_of_perfscope_outlives_a_killed_wrapper(wrapped: Wrapped) -> None:
    wrapped.process.kill()
    wrapped.process.wait()
    deadline = time.monotonic() + 30
    while (left := _group_members(wrapped.process.pid)) != [wrapped.child] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == [wrapped.child]
    os.kill(wrapped.child, signal.SIGUSR1)
    assert wrapped.line() == "got SIGUSR1"


def _group_members(group: int) -> list[int]:
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = path.read_text().rsplit(")", 1)[1].split()
            if int(words[2]) == group and words[0] != "Z":
                members.append(int(path.parent.name))
    return members


def test_command_that_dies_by_the_forwarded_signal_gives_128_plus_n(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PERFSCOPE, "run", "-o", str(tmp_path / "run"), "--", "sh", "-c", "echo up; exec sleep 100"],
        env=user_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    process.stdout.close()


def test_ignored_hangup_stays_ignored_for_the_command(tmp_path: Path) -> None:
    # As under nohup: perfscope inherits SIGHUP ignored, and the command must too.
    ended = subprocess.run(
        [
            *(
                "sh",
                "-c",
                'trap "" HUP; exec "$0" "$@"',
                *PERFSCOPE,
                "run",
                "-o",
                str(tmp_path / "run"),
                "--",
            ),
            *("sh", "-c", "kill -HUP $$; echo alive"),
        ],
        env=user_environment(),
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b"alive\n")


class Terminal:
    """A pseudo terminal with a session of its own, in which a small shell runs the command as a job."""

    def __init__(self, cwd: Path, *command: str) -> None:
        self.master, slave = pty.openpty()
        go_on, self.go_on = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, str(DATA / "job_control_shell.py"), str(go_on), *command],
            cwd=cwd,
            env=user_environment(),
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            pass_fds=[go_on],
        )
        os.close(slave)
        os.close(go_on)

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def wait_for(self, start: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line.rstrip("\n")
        raise AssertionError(f"no line {start!r}")

    def next_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(os.tcgetpgrp(self.master), signal.SIGKILL)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        os.close(self.master)
        os.close(self.go_on)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    command = [*PERFSCOPE, "run", "-o", str(tmp_path / "run"), "--", sys.executable, "-u", REPORTER]
    one = Terminal(tmp_path, *command)
    yield one
    one.close()


def test_each_ctrl_c_reaches_the_command_exactly_once(terminal: Terminal) -> None:
    child = int(terminal.wait_for("ready").split()[1])
    terminal.press(b"\x03")
    assert terminal.next_line() == "got SIGINT"
    # Had the wrapper forwarded it as well, the second one would come before this marker.
    wrapper = int(Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(wrapper, signal.SIGUSR1)
    assert terminal.next_line() == "got SIGUSR1"
    terminal.press(b"\x03")
    assert terminal.next_line() == "got SIGINT"
    os.kill(wrapper, signal.SIGUSR2)
    assert terminal.next_line() == "got SIGUSR2"
    assert terminal.wait_for("exit") == "exit 9"


def test_ctrl_z_stops_the_job_and_fg_continues_it(terminal: Terminal) -> None:
    child = int(terminal.wait_for("ready").split()[1])
    terminal.press(b"\x1a")
    assert terminal.next_line() == "stopped"  # the shell saw the wrapper stop, which waits for the command to
    assert Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    os.write(terminal.go_on, b"x")
    terminal.press(b"\x03")
    assert terminal.next_line() == "got SIGINT"
    terminal.press(b"\x1a")
    assert terminal.next_line() == "stopped"
    os.write(terminal.go_on, b"x")
    os.kill(child, signal.SIGUSR2)
    assert terminal.wait_for("exit") == "exit 9"
