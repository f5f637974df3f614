"""What the process has used of the machine so far: page faults, CPU time, waits for a CPU, bytes written.

Read at every step boundary: two system calls and one read, a few µs.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from contextlib import suppress
from typing import Any, List, Optional, Tuple

from .files import out_of_the_way

# Columns of steps.jsonl: of all threads, then of the thread that trains.
COLUMNS = (
    *("minor_faults", "major_faults", "user_ns", "system_ns", "written_bytes"),
    *("thread_minor_faults", "thread_user_ns", "thread_system_ns", "thread_switches", "runqueue_ns"),
)
NONE: Tuple[Optional[int], ...] = (None,) * len(COLUMNS)
_OF_PROCESS = 5
_BLOCK = 512  # bytes; the kernel counts what dirties pages of files in these
_THREAD: Optional[int] = getattr(resource, "RUSAGE_THREAD", None)  # not on macOS

Reading = Tuple[Any, ...]  # thread identity, then cumulative values of COLUMNS


class RunQueue:
    """Reads how long a thread has waited for a CPU in all, from its schedstat.

    The descriptor may be closed and reused by the training: its inode is compared before each read.
    """

    def __init__(self) -> None:
        self._thread: Optional[int] = None
        self._fd = -1
        self._is: Tuple[int, int] = (0, 0)

    def waited_ns(self, thread: int) -> Optional[int]:
        """Of the calling thread, whose identity is `thread`; None: the kernel does not count it."""
        try:
            if thread != self._thread:
                self._open(thread)
            if self._fd < 0:
                return None
            state = os.fstat(self._fd)
            if (state.st_dev, state.st_ino) != self._is:
                self._thread, self._fd = None, -1  # the descriptor is the training's by now
                return None
            return int(os.pread(self._fd, 96, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self._fd = -1
            return None

    def _open(self, thread: int) -> None:
        self.close()
        self._thread = thread
        path = "/proc/self/task/%d/schedstat" % threading.get_native_id()
        with open(path, "rb", buffering=0) as file:
            self._fd = out_of_the_way(os.dup(file.fileno()))
        state = os.fstat(self._fd)
        self._is = (state.st_dev, state.st_ino)

    def close(self) -> None:
        fd, self._fd, self._thread = self._fd, -1, None
        if fd >= 0:
            state = os.fstat(fd)
            if (state.st_dev, state.st_ino) == self._is:
                os.close(fd)


class Usage:
    """What this process and its training thread have used."""

    def __init__(self) -> None:
        self._queue = RunQueue()

    def reset(self) -> None:
        """In a forked child: the descriptor is of the parent's thread."""
        with suppress(OSError):  # the training has closed it
            self._queue.close()
        self._queue = RunQueue()

    def read(self) -> Reading:
        """Now; call it in the thread that trains."""
        thread = threading.get_ident()
        of_all = resource.getrusage(resource.RUSAGE_SELF)
        of_thread = resource.getrusage(_THREAD) if _THREAD is not None else None
        return (thread, of_all, of_thread, self._queue.waited_ns(thread))


def between(first: Optional[Reading], last: Optional[Reading]) -> Tuple[Optional[int], ...]:
    """What was used from `first` to `last`, by COLUMNS. None: not known, as where another thread went on."""
    if first is None or last is None:
        return NONE
    _, before, own_before, waited_before = first
    _, after, own_after, waited_after = last
    used: List[Optional[int]] = [
        after.ru_minflt - before.ru_minflt,
        after.ru_majflt - before.ru_majflt,
        _ns(after.ru_utime - before.ru_utime),
        _ns(after.ru_stime - before.ru_stime),
        (after.ru_oublock - before.ru_oublock) * _BLOCK,
    ]
    if first[0] != last[0] or own_before is None:
        return (*used, *NONE[_OF_PROCESS:])
    used += [
        own_after.ru_minflt - own_before.ru_minflt,
        _ns(own_after.ru_utime - own_before.ru_utime),
        _ns(own_after.ru_stime - own_before.ru_stime),
        own_after.ru_nvcsw - own_before.ru_nvcsw,
        None if waited_before is None or waited_after is None else waited_after - waited_before,
    ]
    return tuple(used)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9 + 0.5) if seconds > 0 else 0


def process_started() -> Optional[int]:
    """When this process was started, ns on CLOCK_MONOTONIC (to 10 ms); None: not known."""
    if sys.platform != "linux":
        return None
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        since_boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, IndexError):
        return None
    return time.monotonic_ns() - since_boot + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
