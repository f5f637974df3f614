"""What is not known of a critical path."""

from __future__ import annotations

NO_END = "the walk back did not come to an end"

# Why what comes later on the path had to wait for a segment.
END_OF_STEP = "end of the step"
PROGRAM_ORDER = "program order"
TRANSFER = "waited for the transfer"
LAUNCHED_LATE = "launched late"
STREAM_ORDER = "stream order"
EVENT_WAIT = "event wait"
QUEUED = "queued behind another call"
DEVICE_DONE = "host waited for the device"


def waited_for(rank: int) -> str:
    """The reason of what a rank did before it entered a call last."""
    return f"waited for rank {rank}"


def not_read_again(rank: int, error: Exception) -> str:
    return f"the timeline of rank {rank} cannot be read again ({error})"


def step_not_traced(rank: int) -> str:
    return f"rank {rank} was late, and has no such step in its trace"
