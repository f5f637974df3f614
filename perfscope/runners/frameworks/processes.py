"""Starts the processes of a framework run and watches over them: when one fails, all end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from perfscope.runners.frameworks.rendezvous import RankProcess
from perfscope.runners.starting import kernel
from perfscope.runners.starting.endings import RankEnding, cause, from_wait_status, say
from perfscope.runners.starting.guard import STOPPING, WATCHED

SAY_S = 1.0  # for processes that lose a peer, to say so themselves
STOP_S = 4.0  # from SIGTERM to SIGKILL
HELPERS_S = 10.0  # for a server or scheduler, once all that train have ended
_EXIT_NOT_FOUND = 127
_EXIT_NOT_EXECUTABLE = 126
_POLL_S = 0.5


class Processes:
    """The running processes. The caller must hold WATCHED back and have no other children.

    Args:
        tasks: what to start.
        environment: common to all.
        mask: of signals, for the processes.
        others_ended: file to make when only rank 0 is left of those that train.
    """

    def __init__(
        self,
        tasks: Sequence[RankProcess],
        environment: Mapping[str, str],
        mask: frozenset[int],
        others_ended: Path,
    ) -> None:
        self._tasks = tasks
        self._environment = environment
        self._mask = mask
        self._others_ended = others_ended
        self._alive: dict[int, RankProcess] = {}
        self._code = 0
        self._term_at: float | None = None
        self._kill_at: float | None = None

    def start(self) -> None:
        """Start them all."""
        for task in self._tasks:
            pid = kernel.run_as_child(partial(self._become, task, os.getpid()))
            self._alive[pid] = task

    def watch(self, parent: int) -> int:
        """Wait for all of them; the code to exit with: of the first that failed, else 0.

        Args:
            parent: the one who started us; without it all end at once.
        """
        while self._alive:
            self._act(time.monotonic())
            received = signal.sigtimedwait(WATCHED, _POLL_S)
            if os.getppid() != parent:
                self._send(signal.SIGKILL)
                return 128 + signal.SIGKILL
            if received is not None and received.si_signo in STOPPING:
                self._stop(received)
            failed = self._reap()
            if failed is not None and self._code == 0:
                self._fail(failed)
            self._look_at_rest()
        return self._code

    def _act(self, now: float) -> None:
        if self._term_at is not None and now >= self._term_at:
            self._send(signal.SIGTERM)
            self._term_at = None
        if self._kill_at is not None and now >= self._kill_at:
            self._send(signal.SIGKILL)

    def _stop(self, received: signal.struct_siginfo) -> None:
        # What the kernel sent (Ctrl-C) went to every process of the terminal already.
        if received.si_code <= 0:
            self._send(received.si_signo)
        self._term_at, self._kill_at = None, time.monotonic() + STOP_S
        self._code = self._code or 128 + received.si_signo

    def _fail(self, failed: tuple[str, RankEnding]) -> None:
        name, ending = failed
        self._code = ending.exit_code
        consequence = "; stopping the others" if self._alive else ""
        say(f"{name} {ending.how}{consequence}")
        self._term_at = time.monotonic() + SAY_S
        self._kill_at = self._term_at + STOP_S

    def _look_at_rest(self) -> None:
        """Rank 0 may leave when it is the last; helpers must when no process trains any more."""
        training = [task.rank for task in self._alive.values() if task.rank is not None]
        if training == [0]:
            with suppress(OSError):
                self._others_ended.touch()
        if not training and self._alive and self._kill_at is None:
            self._term_at = time.monotonic() + HELPERS_S
            self._kill_at = self._term_at + STOP_S

    def _reap(self) -> tuple[str, RankEnding] | None:
        """Take every child that has ended; of those that failed, the one the others followed from."""
        endings: dict[int, tuple[str, RankEnding]] = {}
        training = any(task.rank is not None for task in self._alive.values())
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self._alive:
                    task = self._alive.pop(pid)
                    if task.rank is not None or training:  # a server asked to end may end as it likes
                        endings[len(endings)] = (task.name, from_wait_status(len(endings), status))
        failed = cause([ending for _, ending in endings.values()])
        return None if failed is None else endings[failed.rank]

    def _become(self, task: RankProcess, parent: int) -> int:
        """In the child: become the command. Returns only when that fails."""
        try:
            kernel.die_with_parent(signal.SIGKILL, parent)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python has them ignored
                signal.signal(number, signal.SIG_DFL)
            os.dup2(2, 1)  # libraries greet on stdout (gloo below JAX), which is for our result
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            os.execvpe(task.command[0], list(task.command), {**self._environment, **task.environment})
        except FileNotFoundError:
            say(f"{task.command[0]}: command not found")
            return _EXIT_NOT_FOUND
        except OSError as error:
            say(f"{task.command[0]}: {error.strerror}")
        return _EXIT_NOT_EXECUTABLE

    def _send(self, number: int) -> None:
        for pid in self._alive:  # only _reap frees a pid, so these are still ours
            with suppress(ProcessLookupError):
                os.kill(pid, number)
