"""Ranks that the others wait for, and what was around them."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.messages.lists import counted
from perfscope.messages.sentences import in_sentence
from perfscope.units import format_count, format_ns

NO_TRACED_STEP = "No traced step shows which rank was last."


def too_few_steps(num: int) -> str:
    steps = "1 traced step is" if num == 1 else f"{num} traced steps are"
    return f"{steps} too few to distinguish a persistent straggler from chance."


def varying(num_ranks: int, num_steps: int, rank: int, times: int) -> str:
    """`rank` was last most often, `times` times."""
    return (
        f"No persistent straggler: {num_ranks} ranks were last in {num_steps} traced steps, rank {rank} most "
        f"often ({times} times). That is consistent with chance."
    )


def persistent(
    rank: int, times: int, num_steps: int, held_ns: float, always: tuple[int, str, int, float] | None
) -> str:
    """A rank that was the straggler in `times` of the traced steps.

    `always`: of its untraced steps how many there are, in what it spends most time, in how many of them, and
    by how much typically, ns.
    """
    text = (
        f"Rank {rank} is the straggler in {times} of {num_steps} traced steps, {format_ns(held_ns)} late per "
        "step on average"
    )
    if always is not None:
        num_untraced, what, often, excess_ns = always
        text += (
            f"; over all {format_count(num_untraced)} untraced steps it spends most time {what} in "
            f"{format_count(often)}, typically {format_ns(excess_ns)} more than the others"
        )
    return f"{text}."


def through(rank: int, hops: Sequence[tuple[int, str, str]], sentence: str) -> str:
    """A late rank had waited itself; `hops`: (rank, collective, group) it waited for, to the first cause."""
    way = " which waited for ".join(f"rank {late} in {name} on group {group}" for late, name, group in hops)
    return f"Rank {rank} had waited for {way}: {in_sentence(sentence)}"


def crowded(num_threads: int, num_ranks: int, where: str) -> str:
    return f"{counted(num_threads, 'thread')} of {counted(num_ranks, 'rank')} share {where}"


def remote_memory(local_ratio: float, nodes: Sequence[int], most: int | None) -> str:
    """Memory away from the rank's NUMA nodes; `most`: where most of it is."""
    on = "" if most is None else f", most of it on node {most}"
    node_list = ", ".join(map(str, nodes))
    return f"{100 * (1 - local_ratio):.0f} % of its memory is not on its NUMA node {node_list}{on}"
