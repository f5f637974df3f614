"""Comparisons that say nothing, and what was measured all the same."""

from __future__ import annotations

from perfscope.messages.study import ranks
from perfscope.vocabulary.comparison import CannotTell

REPEAT_QUIETLY = (
    "Record the runs again on a machine without other load, each three times, before drawing conclusions."
)


def cannot_tell(why: CannotTell, measured: str, reference: int | None = None) -> str:
    """``Cannot tell: ... Measured: ...``.

    Args:
        why: the reason.
        measured: the sentence that would stand here without it.
        reference: ranks of the reference; None: of two settings.
    """
    whose = "the reference" if reference is None else f"the reference on {ranks(reference)}"
    reason = {
        CannotTell.REFERENCE_DISTURBED: f"{whose} was disturbed by something outside the training",
        CannotTell.RUNS_DISTURBED: "the runs were disturbed by something outside the training",
        CannotTell.ONE_RUN_EACH: "of the fastest two one has a single run, and runs of one setting may be as "
        "far apart",
        CannotTell.IMPOSSIBLE_EFFICIENCY: "an efficiency above 105 % is not due to the ranks, so "
        f"{whose} was slower than usual, or did other work",
    }[why]
    return f"Cannot tell: {reason}. Measured: {measured}"
