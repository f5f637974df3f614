"""Records of NCCL Inspector, in sentences."""

from __future__ import annotations

from perfscope.messages.lists import counted


def communicators_headline(num_groups: int, collective: str, group: str) -> str:
    """What takes the most time."""
    return f"{counted(num_groups, 'communicator')}; most time in {collective} on {group}"


def no_match_sentence() -> str:
    """Why there is no split of the step."""
    return "NCCL Inspector records collectives only: there is no split of the step."


def bandwidth_sentence(group: str, collective: str, num_ranks: int, stated: tuple[int, int, float]) -> str:
    """Where the file states other bandwidths than its bytes and times give; "": they agree.

    Args:
        stated: calls compared, calls that deviate, stated / computed at worst.
    """
    compared, deviating, ratio = stated
    if not deviating:
        return ""
    why = ""
    for factor, meaning in ((num_ranks, "all ranks"), (1 / max(num_ranks, 1), "one rank")):
        if num_ranks > 1 and abs(ratio / factor - 1) < 0.01:
            why = f", as if its message size were the part of {meaning}"
    return (
        f"{collective} on {group}: in {deviating:,} of {compared:,} records, the bandwidth in the file is "
        f"not that of its bytes and time (factor {ratio:.3g}{why}). The table has bytes divided by time."
    )
