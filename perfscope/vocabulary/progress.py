"""What dumps of a flight recorder show of a process group."""

from __future__ import annotations

from enum import Enum


class GroupState(str, Enum):
    """The value is in the JSON report."""

    DIFFERENT_CALLS = "different calls"  # ranks call different collectives, or with different sizes
    NOT_ENTERED = "not entered"  # some ranks wait in a collective that others have not called
    NOT_COMPLETED = "not completed"  # all ranks called it, and it did not end
    COMPLETED = "completed"

    __str__ = str.__str__
