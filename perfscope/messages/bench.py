"""Figures of a bench run that are missing."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.messages.lists import counted
from perfscope.units import format_bytes

NO_MPI_IN_TRACES = "no call of MPI was traced: what MPI does counts as compute or idle time"
UNSEEN_CALLS = "ranks communicate in untraced threads"
NO_WINDOW = "no window was traced"
NO_STEP = "no step was recorded"
NO_LOSS = "no rank recorded a loss that is a number"
NO_HELD_OUT_LOSS = "rank 0 wrote none, or it is not a number"
NO_RECORD = "no rank has left its record"
LIBRARY_NOT_TRACED = "a library makes these calls itself: only traces show them, and no window was traced"


def entries_lacking(names: Sequence[str]) -> str:
    return f"its record lacks, or cannot give: {', '.join(names)}"


def calls_not_listed(num: int, num_ranks: int) -> str:
    return f"run.json does not list the calls of {num} of {num_ranks} ranks"


def calls_left_out(num: int) -> str:
    return f"{counted(num, 'call')} that no formula foresaw {'is' if num == 1 else 'are'} left out"


def library_not_sized(collective: str) -> str:
    return f"a library makes these calls itself, and no {collective} with a size is in the trace"


CHUNKS_AT_START = "+prio: chunks are set at the start, by a short measurement of the link"


def chunk_words(size_bytes: int, source: str) -> str:
    """The chunk of +prio; `source`: what it is from."""
    return f"+prio: chunks of at most {format_bytes(size_bytes)} ({source})"
