"""Nothing of a child process outlives the signals that end it, whatever sessions it has spread over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfscope import children
from perfscope.children import Signals, await_child, end_child, held_signals

# Like torchrun: what works leads a session of its own, so a signal to the group does not reach it.
STUBBORN = """
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
worker = subprocess.Popen(["sleep", "300"], start_new_session=True)
print(worker.pid, flush=True)
worker.wait()
"""
# The parent obeys, and leaves its worker behind.
CARELESS = STUBBORN.replace("signal.SIG_IGN", "lambda *_: sys.exit(0)")


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@contextmanager
def child(code: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A child, and the pid of its worker."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    try:
        yield process, worker
    finally:
        for pid in (process.pid, worker):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def test_a_second_signal_reaches_what_runs_in_a_session_of_its_own() -> None:
    signals = Signals()
    with child(STUBBORN) as (process, worker):
        with signals.passed_to(process):
            signals.handle(signal.SIGTERM, None)
            assert is_alive(process.pid) and is_alive(worker), "both ignore what the first one asks"
            signals.handle(signal.SIGTERM, None)
            await_child(process, None)
        assert process.returncode == -signal.SIGKILL
        assert not is_alive(worker)


def test_a_terminal_that_goes_away_sends_several_hangups_and_kills_nothing() -> None:
    signals = Signals()
    with child(STUBBORN) as (process, worker):
        with signals.passed_to(process):
            signals.handle(signal.SIGHUP, None)
            signals.handle(signal.SIGHUP, None)
            assert is_alive(process.pid) and is_alive(worker)
            signals.handle(signal.SIGINT, None)
            await_child(process, None)
        assert signals.received == signal.SIGINT
        assert not is_alive(worker)


def test_what_a_child_leaves_behind_when_it_is_told_to_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_REST_S", 0.2)
    signals = Signals()
    with child(CARELESS) as (process, worker):
        with signals.passed_to(process):
            signals.handle(signal.SIGINT, None)
            process.wait(timeout=30)
            assert is_alive(worker)
        assert not is_alive(worker)


def test_a_child_that_takes_too_long_is_ended_with_all_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "GRACE_S", 0.2)
    with child(STUBBORN) as (process, worker):
        _, late = await_child(process, 0.1)
        assert late
        assert not is_alive(process.pid) and not is_alive(worker)


def test_a_child_that_ends_when_asked_is_not_killed() -> None:
    with child(STUBBORN.replace("SIG_IGN", "SIG_DFL")) as (process, worker):
        os.kill(worker, signal.SIGKILL)  # so that the child's wait ends, too
        end_child(process)
        assert process.returncode in (0, -signal.SIGINT)


def test_others_are_left_alone() -> None:
    with child(STUBBORN) as (_, worker), child(STUBBORN) as (process, _):
        signals = Signals()
        with signals.passed_to(process):
            signals.handle(signal.SIGINT, None)
            signals.handle(signal.SIGINT, None)
            await_child(process, None)
        assert is_alive(worker)


def test_a_hangup_is_held_unless_it_was_ignored() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with held_signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert until(lambda: signals.received == signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
        with held_signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.received
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
