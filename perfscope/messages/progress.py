"""Who hangs where, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.messages.lists import joined, ranks_of
from perfscope.messages.sentences import capital
from perfscope.vocabulary.progress import GroupState


def group_words(name: str, title: str) -> str:
    """``group 3 (mesh_dp)``."""
    return f"group {name} ({title})" if title and title != "undefined" else f"group {name}"


def progress_sentence(
    group: str,
    state: GroupState,
    collective: tuple[int | None, Sequence[str]],
    waiting: Sequence[int],
    not_entered: Sequence[int],
) -> str:
    """What one process group is at.

    Args:
        group: see `group_words`.
        collective: number and names of the calls.
    """
    seq, names = collective
    what = f"collective {seq}{f' ({joined(names)})' if names else ''} of {group}"
    if state is GroupState.NOT_ENTERED:
        verb, wait = _has(not_entered), "waits" if len(waiting) == 1 else "wait"
        first = f"{capital(ranks_of(not_entered))} {verb} not entered {what}"
        return f"{first}; {ranks_of(waiting)} {wait} in it."
    if state is GroupState.DIFFERENT_CALLS:
        return f"Ranks do not make the same call as {what}: names or sizes differ."
    if state is GroupState.NOT_COMPLETED:
        return f"All ranks with a dump have entered {what}; it is not completed."
    return f"Every collective of {group} is completed."


def no_dump_sentence(ranks: Sequence[int]) -> str:
    """Of members whose dump is not among the files, or has no call of the group any more."""
    verb = "is" if len(ranks) == 1 else "are"
    return (
        f"How far {ranks_of(ranks)} {verb} is not in the files: there is no dump, or it has no call of this "
        "group any more."
    )


def _has(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


NO_HANG = "The dumps show no hang: every collective that was called is completed."
OPEN_ACTION = {
    GroupState.NOT_ENTERED: "Look at what the ranks that are missing did last: the column “Called from”.",
    GroupState.DIFFERENT_CALLS: "Compare the calls of the ranks: the column “Called from”.",
    GroupState.NOT_COMPLETED: "All ranks made the call: look at the network, the GPUs and their logs.",
}
