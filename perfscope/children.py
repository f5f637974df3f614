"""A run as a child process that ends when we do: waiting with a limit, and passing signals on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

GRACE_S = 20.0  # for a child that was told to end


def await_child(process: subprocess.Popen[bytes], timeout_s: float | None) -> tuple[bytes, bool]:
    """(stdout where it is a pipe, whether the child had to be ended because it took too long).

    The child must lead a process group of its own (start_new_session).
    """
    try:
        return process.communicate(timeout=timeout_s)[0] or b"", False
    except subprocess.TimeoutExpired:
        return end_child(process), True


def end_child(process: subprocess.Popen[bytes]) -> bytes:
    """Asks the child's group to end as Ctrl-C would, and kills what does not; returns its stdout."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=GRACE_S)[0] or b""
    return b""


class Signals:
    """SIGINT and SIGTERM end the current child, a second one kills it. `received`: the last one, or 0."""

    def __init__(self) -> None:
        self.received = 0
        self._process: subprocess.Popen[bytes] | None = None

    def handle(self, number: int, frame: object) -> None:
        again = bool(self.received)
        self.received = number
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL if again else signal.SIGINT)

    @contextmanager
    def passed_to(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """While inside, signals go to the child's group."""
        self._process = process
        if self.received:  # it came between the check and the start
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        try:
            yield
        finally:
            self._process = None


@contextmanager
def held_signals() -> Iterator[Signals]:
    """SIGINT and SIGTERM handled by a `Signals` until the block ends."""
    handler = Signals()
    before = {number: signal.signal(number, handler.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield handler
    finally:
        for number, old in before.items():
            signal.signal(number, old)
