"""What could not be told of a critical path."""

from __future__ import annotations

NO_END = "the walk back did not come to an end"


def not_read_again(rank: int, error: Exception) -> str:
    return f"the timeline of rank {rank} cannot be read again ({error})"


def step_not_traced(rank: int) -> str:
    return f"rank {rank} was late, and has no such step in its trace"
