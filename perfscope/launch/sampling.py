"""Starts the sampler of this host as soon as a rank says that it trains.

It is our child, not the training's: a training may wait for its children, or have a SIGCHLD handler. Ranks
on hosts without a `perfscope run` start their sampler themselves (probes/sampler_start.py).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from perfscope.rundir import layout
from perfscope.rundir.recording import is_held
from perfscope.rundir.sampler_call import (
    is_alive,
    is_stopped,
    mark_watched,
    python_path,
    sampler_argv,
    sampler_environment,
)

_LOOK_S = 0.05
_MOST_FAILURES = 3
_SETTLE_S = 1.0  # a new sampler needs some 0.1 s, on a busy host more, to take its lock


class SamplerKeeper(threading.Thread):
    """Looks for ranks of this host until stopped.

    Args:
        host_dir: hosts/<host> of the run; made if it is not there.
        sampling: as in PERFSCOPE_CONFIG.
        environment: of the training.
    """

    def __init__(
        self, host_dir: Path, sampling: Mapping[str, object], environment: Mapping[str, str]
    ) -> None:
        super().__init__(name="perfscope-sampling", daemon=True)
        self._host_dir = host_dir
        self._sampling = sampling
        self._environment = sampler_environment(environment)
        self._done = threading.Event()
        self._sampler: int | None = None  # pid of our child, until it is reaped

    def announce(self) -> None:
        """Tell the ranks that the sampler is started from here. Before the command starts.

        Raises:
            OSError: the run directory cannot be written.
        """
        self._host_dir.mkdir(parents=True, exist_ok=True)
        mark_watched(str(self._host_dir / layout.WATCHER))

    def stop(self) -> None:
        """Start no sampler any more; one that was stopped (SIGSTOP) goes on, to end with the last rank."""
        self._done.set()
        if self.is_alive():
            self.join()
        if self._sampler is not None:  # not reaped, so the number is still its own
            os.kill(self._sampler, signal.SIGCONT)

    def bury(self) -> None:
        """Kill a sampler that is stopped again although it was to end; one that reads ranks is left alone."""
        if self._sampler is not None and is_stopped(self._sampler):
            os.kill(self._sampler, signal.SIGKILL)
            os.waitpid(self._sampler, 0)
            self._sampler = None

    def run(self) -> None:
        failures = 0
        while failures < _MOST_FAILURES and not self._done.wait(_LOOK_S):
            if self._sampler is not None:
                has_ended, status = _ended(self._sampler)
                if not has_ended:
                    continue
                failures += status != 0  # killed, or broken: another one goes on in the same file
                self._sampler = None
            rank = self._rank()
            if rank is not None and not is_held(self._host_dir / layout.SAMPLER_LOCK):
                self._sampler = self._start(rank)
                self._done.wait(_SETTLE_S)

    def _rank(self) -> int | None:
        """A rank of this host that lives."""
        try:
            names = os.listdir(self._host_dir / layout.PIDS)  # noqa: PTH208 - twenty times a second
        except OSError:
            return None
        return next((int(name) for name in names if name.isdigit() and is_alive(int(name))), None)

    def _start(self, rank: int) -> int | None:
        run_dir = self._host_dir.parent.parent
        host = self._host_dir.name
        command = sampler_argv(sys.executable, python_path(), str(run_dir), host, rank, self._sampling)
        nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        try:
            return os.posix_spawn(
                command[0], command, self._environment, file_actions=nothing, setsid=True, setsigmask=[]
            )
        except OSError:  # no process to be had: the report says that no counters were sampled
            self._done.set()
            return None


def _ended(pid: int) -> tuple[bool, int]:
    """Whether our child has ended, and its wait status."""
    try:
        has_ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True, 0
    return has_ended != 0, status
