"""Which training processes live on this host. They say so themselves, in hosts/<host>/pids/<pid>.

The sampler lives exactly as long as they do, however they end: it holds a pidfd of each, which becomes
readable at the moment the process is gone, SIGKILL included.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from perfscope.rundir.sampler_call import is_alive


class LocalRanks:
    """The ranks of this host.

    Args:
        folder: hosts/<host>/pids of the run.
        first: pid that is known already, of the rank that started the sampler; None = none.
    """

    def __init__(self, folder: Path, first: int | None = None) -> None:
        self._folder = folder
        self._poll = select.poll()
        self._alive: dict[int, int] = {}  # pid -> pidfd, or -1 where there are none (old kernels)
        self._seen: set[int] = set()
        self._pids: tuple[int, ...] = ()
        if first is not None:
            self._add(first)

    def __call__(self) -> Sequence[int]:
        """Pids of the ranks that live, in order of appearance."""
        return self._pids

    def look(self) -> None:
        """Find ranks that have appeared since. One directory listing, of this host's ranks only."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - every second: no objects for each entry
        except OSError:
            return
        for name in names:
            if name.isdigit() and int(name) not in self._seen:
                self._add(int(name))

    def wait(self, timeout_s: float) -> None:
        """Sleep for that long, or until a rank ends."""
        gone = self._poll.poll(max(timeout_s, 0) * 1000)
        fds = {descriptor for descriptor, _ in gone}
        ended = [pid for pid, fd in self._alive.items() if fd in fds or (fd < 0 and not is_alive(pid))]
        for pid in ended:
            self._forget(pid)

    def close(self) -> None:
        for pid in list(self._alive):
            self._forget(pid)

    def _add(self, pid: int) -> None:
        self._seen.add(pid)
        descriptor = -1
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return  # an earlier attempt's, or gone already
        except OSError:  # no such call (Linux < 5.3), or not allowed: ask again and again instead
            if not is_alive(pid):
                return
        if descriptor >= 0:
            self._poll.register(descriptor, select.POLLIN)
        self._alive[pid] = descriptor
        self._pids = tuple(self._alive)

    def _forget(self, pid: int) -> None:
        descriptor = self._alive.pop(pid)
        if descriptor >= 0:
            with suppress(KeyError):
                self._poll.unregister(descriptor)
            os.close(descriptor)
        self._pids = tuple(self._alive)
