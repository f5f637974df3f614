"""How hangs end."""

from __future__ import annotations

from enum import Enum


class HangEnd(str, Enum):
    """What became of a hang. The value is the code in the JSON report."""

    RESUMED = "resumed"  # its ranks made steps again
    RUN_FAILED = "run_failed"  # a signal or an error ended the run meanwhile
    RUN_EXITED = "run_exited"  # the command ended by itself, with exit code 0, without another step
    NOT_CLOSED = "not_closed"  # the run goes on, or perfscope was killed

    __str__ = str.__str__  # Python 3.11 and 3.12 differ in how they format a mixed-in enum
