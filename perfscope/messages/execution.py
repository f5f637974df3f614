"""Execution traces of PyTorch, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.messages.lists import counted


def structure_headline(num_operators: int, num_ranks: int, chain: int) -> str:
    """Of execution traces alone."""
    return (
        f"Structure only: {counted(num_operators, 'operator')} on {counted(num_ranks, 'rank')}; the longest "
        f"chain of dependencies has {chain:,}"
    )


def no_times_sentence() -> str:
    """Why there is no step time."""
    return "An execution trace has no times: step time, its parts, kernels, bandwidths and waits are missing."


def no_times_action() -> str:
    """What would give times."""
    return "Import the Kineto trace of the same steps together with it."


def chain_sentence(rank: int, chain: int, num_operators: int, names: Sequence[tuple[str, int]]) -> str:
    """What the longest chain of a rank consists of."""
    listed = ", ".join(f"{name} ×{count:,}" for name, count in names)
    return (
        f"Rank {rank}: {chain:,} of {counted(num_operators, 'operator')} form the longest chain in which "
        f"each needs the result of the one before. Most frequent in it: {listed}."
    )


def filled_sentence(num_filled: int) -> str:
    """What a Kineto trace got from the execution trace."""
    return (
        f"The Kineto traces have no shapes of {counted(num_filled, 'operator call')}: these are from the "
        "execution traces, and so are the FLOPs and bytes modeled from them."
    )
