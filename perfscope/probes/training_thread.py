"""Which thread of a process trains.

A process may train in several threads at once (a search over settings, Hogwild). The steps of one of them are
recorded: of the first that updates a model. Updates of the others are counted, and named as missing.

Training may also move: a pool runs each step in another worker, a program joins the thread that trained and
goes on by itself. The thread that trained has then ended, or waits for others, and the thread that updates
takes its place.

Threads that Python did not start (autograd's, RPC's) work for the thread that trains.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Callable, Optional, Set

from ..vocabulary.figures import Figure
from .process import Process

_POOLS = ("concurrent.futures", "asyncio", "multiprocessing.pool")


class TrainingThread:
    """The thread whose steps are recorded: until the first update, the one that made this.

    Args:
        moved: called when another thread takes its place, in that thread.
    """

    def __init__(self, moved: Callable[[], None]) -> None:
        self._moved = moved
        self.ident = threading.get_ident()
        self._updating: Set[int] = set()  # other threads that are inside an update
        self._num_elsewhere = 0

    def is_this(self) -> bool:
        return threading.get_ident() == self.ident

    def settle(self) -> None:
        """The calling thread is the one that trains."""
        self.ident = threading.get_ident()

    def has_work_here(self) -> bool:
        """Whether what the calling thread does belongs to the training that is recorded."""
        ident = threading.get_ident()
        return ident == self.ident or not _is_of_python(ident) or _has_ended_or_waits(self.ident)

    def update_begins(self) -> bool:
        """The calling thread begins an update; False: of another training than the recorded one."""
        ident = threading.get_ident()
        if ident == self.ident or not _is_of_python(ident):
            return True
        if _has_ended_or_waits(self.ident):
            self.ident = ident
            self._moved()
            return True
        if ident not in self._updating:
            self._updating.add(ident)
            self._num_elsewhere += 1
        return False

    def update_ends(self) -> bool:
        """The calling thread's update ends; False: it was of another training."""
        ident = threading.get_ident()
        if ident in self._updating:
            self._updating.discard(ident)
            return False
        return True

    def report(self, process: Process) -> None:
        """Name the other threads' steps as missing, if there were any."""
        if self._num_elsewhere:
            process.missing(
                Figure.OTHER_THREADS,
                "steps of other threads",
                "%d steps were made in other threads while the recorded thread trained; only its steps are "
                "recorded" % self._num_elsewhere,
            )


def _is_of_python(ident: int) -> bool:
    """Whether a `threading.Thread` runs under this identifier, or the program's main thread."""
    return any(
        thread.ident == ident and type(thread).__name__ != "_DummyThread" for thread in threading.enumerate()
    )


def _has_ended_or_waits(ident: int) -> bool:
    """Whether the thread has ended, starts or joins another one, or waits in a pool for something to do."""
    frame: Optional[FrameType] = sys._current_frames().get(ident)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_POOLS) or (name == "threading" and frame.f_code.co_name in ("join", "start")):
            return True
        if name not in ("threading", "queue", "selectors"):
            return False
        frame = frame.f_back
    return True
