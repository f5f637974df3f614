"""What is wrong with runs that a check judges, and how its measurement ended."""

from __future__ import annotations

from perfscope.messages.lists import counted

MACHINE_NOT_RECORDED = "nothing of the machine was recorded"
STILL_OPEN = "it is still running, or perfscope was killed"
NO_RANK = "no rank was recorded"


def cut_short(why: str) -> str:
    return f"it is incomplete: {why}"


def exit_code(code: int) -> str:
    return f"its command ended with exit code {code}"


def ranks_missing(num_seen: int, num_expected: int) -> str:
    return f"only {num_seen} of {num_expected} ranks were recorded"


def unfinished(rank: int) -> str:
    return f"rank {rank} did not end its training"


def few_steps(num: int, needed: int) -> str:
    return (
        f"only {counted(num, 'step')} to judge by after warm-up, {needed:,} are needed: train longer, or set "
        "fewest_steps"
    )


def disturbed(why: str) -> str:
    return f"disturbed: {why}"


def disturbed_in_pair(why: str, *, is_repeated: bool) -> str:
    return f"disturbed ({'repeated' if is_repeated else 'no repeats left'}): {why}"


def measurement_failed(run: str, side: str, pair: int, problem: str) -> str:
    return f"Measurement failed: {run} ({side}, pair {pair}): {problem}."


def too_busy(num_lost: int, num_tried: int) -> str:
    """Why no further pair is run."""
    return f"{num_lost} of {num_tried} pairs were disturbed: the machine is too busy to go on"


def all_slower(num_pairs: int) -> str:
    """Why a check ended early."""
    return f"all of the first {num_pairs} pairs are slower by more than twice the threshold"


def decided(num_pairs: int) -> str:
    return f"decided after {num_pairs} pairs"


def cannot_fail(num_pairs: int) -> str:
    return f"after {num_pairs} pairs the median can no longer exceed the threshold"


def sessions_needed(num_needed: int, num_there: int) -> str:
    """Why a history was not searched for changes."""
    there = f"there {'is' if num_there == 1 else 'are'} {num_there}"
    return f"to tell a change from noise {num_needed} sessions are needed, {there}"


def sessions_searched(num: int) -> str:
    return f"only the last {num:,} sessions were searched for changes"


def between_sessions(number: int) -> str:
    return f"between sessions {number} and {number + 1}"


def between_commits(old: str, new: str) -> str:
    return f"between {old} and {new}" if old != new else f"within {new}"
