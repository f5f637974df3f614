"""The times that calls of communication have a part in, where several are under way at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.intervals import Int64, distinct


def pieces(start: Int64, end: Int64, thread: Int64) -> tuple[Int64, Int64, Int64]:
    """Call, start and end of the times that calls have a part in.

    A CPU backend's span of a message ends when the thread has waited for it, perhaps long after it was sent.
    So of the messages of a thread that are under way at once, the thread waits for the one that ends first.

    Args:
        start, end: of the calls, shape (calls,).
        thread: of messages of CPU backends; -1 = any other call.
    """
    threadless = np.flatnonzero(thread < 0)
    parts: list[tuple[Int64, Int64, Int64]] = [(threadless, start[threadless], end[threadless])]
    for number in distinct(thread[thread >= 0]).tolist():
        calls = np.flatnonzero(thread == number)
        index, begins, ends = iv.first_ending(start[calls], end[calls])
        parts.append((calls[index], begins, ends))
    call, begin, stop = (np.concatenate([part[column] for part in parts]) for column in range(3))
    return call, begin, stop


def summed(call: Int64, parts: NDArray[np.float64], num_calls: int) -> NDArray[np.float64]:
    """Parts of calls, by call."""
    return np.bincount(call, parts, num_calls).astype(np.float64)
