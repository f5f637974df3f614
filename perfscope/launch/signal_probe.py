"""Telling a signal sent to the whole process group from one sent to perfscope alone.

`kill %1`, `timeout` and batch systems signal the group: the command has the signal already, and
passing it on would give it twice, which ends torchrun's orderly shutdown half way. The kernel does
not say to whom a signal was sent. So a small process, the witness, sits in the same group and tells
what it receives: a signal that both get went to the group.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

# How long the witness may take to tell. It needs some microseconds, on a busy machine more; a signal that
# was really ours alone is passed on so much later. A SIGCONT passed on by mistake would wake a command
# that Ctrl-Z has stopped again in the meantime, so there the wait is long.
_PATIENCE_S = 0.1
_PATIENCE_CONTINUE_S = 1.0
_SAME_EVENT_S = 0.25  # `timeout` signals its child and then the group: one event


class Witness:
    """The witness process, seen from perfscope. Without one (fork failed) every signal is ours alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_seen: dict[int, float] = {}
        self._pid = 0
        self._told, telling = os.pipe()
        gone, self._alive = os.pipe()  # closes with us, however we end
        os.set_blocking(self._told, False)
        with suppress(OSError):
            self._pid = os.fork()
            if self._pid == 0:
                _be_witness(telling, gone)
        os.close(telling)
        os.close(gone)

    def saw(self, number: int) -> bool:
        """Whether the group got signal `number` just now."""
        deadline = self._clock() + (_PATIENCE_CONTINUE_S if number == signal.SIGCONT else _PATIENCE_S)
        while True:
            self._listen()
            if self._clock() - self._last_seen.get(number, float("-inf")) < _SAME_EVENT_S:
                return True
            left = deadline - self._clock()
            if left <= 0 or not select.select([self._told], [], [], left)[0]:
                return False
            if self._pid == 0:  # end of file: the writer is gone
                return False

    def dismiss(self) -> None:
        """End the witness."""
        os.close(self._alive)
        os.close(self._told)
        if self._pid:
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)

    def _listen(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._told, 4096)
            if not data and self._pid:
                with suppress(OSError):
                    os.waitpid(self._pid, os.WNOHANG)
                self._pid = 0
            self._last_seen |= dict.fromkeys(data, self._clock())


def _be_witness(telling: int, gone: int) -> None:
    """The witness's whole life; ends when perfscope does. Never returns."""
    try:
        # Keep no file of the user's open: a reader waiting for the end of a pipe must see it.
        for low, high in _gaps(telling, gone):
            os.closerange(low, high)
        watched = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        # SIGIO comes when the last writer of `gone`, perfscope, has closed it.
        fcntl.fcntl(gone, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(gone, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        while not select.select([gone], [], [], 0)[0]:
            received = signal.sigwaitinfo(watched)
            # Terminal signals (si_code > 0) need no witness; CHLD and IO are not the group's.
            if received.si_code <= 0:
                os.write(telling, bytes([received.si_signo]))
    finally:
        os._exit(0)


def _gaps(*kept: int) -> list[tuple[int, int]]:
    """Ranges of file descriptors that contain none of `kept`."""
    edges = [-1, *sorted(kept), os.sysconf("SC_OPEN_MAX")]
    return [(low + 1, high) for low, high in pairwise(edges)]
