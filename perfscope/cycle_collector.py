"""Python's cycle collector is off during an analysis: it would look at every result again and again."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_stays_off = False


@contextmanager
def collector_off() -> Iterator[None]:
    """The results of an analysis hold no cycles. A fifth of the CPU time of merging thousands of ranks."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on and not _stays_off:
            gc.enable()


def in_one_command() -> None:
    """For a process that ends with its command: the collector stays off from its first analysis on.

    Switched on again, it would look at all results at once, and once more when Python ends: a tenth of the
    CPU time of a report on a trace (docs/performance.md).
    """
    global _stays_off  # noqa: PLW0603 - of the process
    _stays_off = True
    atexit.register(gc.freeze)  # the interpreter collects at its end, but not what is frozen
