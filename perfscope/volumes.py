"""What collectives move: the one table of volume formulas, for predictions and for analyses.

S is a call's payload in bytes: all_reduce, broadcast, reduce, send: the tensor; all_gather: the whole result;
reduce_scatter and all_to_all: the whole input of one rank; gather and scatter: the whole on the root.

Sources: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005 (bandwidth-optimal volumes); factors of gloo measured
on torch 2.13 with 2 and 4 ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from math import ceil

_TWICE = frozenset({"all_reduce"})
_ONCE = frozenset({"reduce_scatter", "all_gather"})
_CHAIN = frozenset({"broadcast", "reduce"})
_GLOO_SEGMENT = 1 << 20


def bus_factor(collective: str, num_ranks: int) -> float | None:
    """What turns algbw into busbw: bytes_algorithmic that one rank sends per byte of S.

    None for kinds without payload, or that are not known.
    """
    if num_ranks < 1:
        return None
    if collective in _TWICE:
        return 2 * (num_ranks - 1) / num_ranks
    if collective in _ONCE or collective in {"all_to_all", "gather", "scatter"}:
        return (num_ranks - 1) / num_ranks
    return 1.0 if collective in _CHAIN or collective in {"send", "recv"} else None


def payload_bytes(collective: str, message_bytes: int, num_ranks: int) -> int:
    """S, where a message of all_gather or reduce_scatter is one rank's part, as NCCL counts it."""
    return message_bytes * num_ranks if collective in _ONCE else message_bytes


def edges(collective: str, members: Sequence[int]) -> Iterator[tuple[int, int, float]]:
    """(sender, receiver, bytes per byte of S) of every link that a call uses; none where no formula applies.

    Rings and chains run in the order of `members`, so that a host's consecutive ranks stay on it. `members`
    of a send are (sender, receiver).
    """
    num = len(members)
    if num < 2:
        return
    if collective in _TWICE or collective in _ONCE:
        share = (2 if collective in _TWICE else 1) * (num - 1) / num
        yield from ((*pair, share) for pair in zip(members, (*members[1:], members[0]), strict=True))
    elif collective in _CHAIN:
        yield from ((*pair, 1.0) for pair in pairwise(members))
    elif collective == "all_to_all":
        yield from ((*pair, 1 / num) for pair in permutations(members, 2))
    elif collective == "gather":
        yield from ((other, members[0], 1 / num) for other in members[1:])
    elif collective == "scatter":
        yield from ((members[0], other, 1 / num) for other in members[1:])
    elif collective == "send":
        yield members[0], members[1], 1.0


def edges_from(collective: str, members: Sequence[int], index: int) -> Iterator[tuple[int, float]]:
    """(receiver, bytes per byte of S) of the links that the `index`-th member sends over, of `edges`.

    Takes a time that does not grow with the group, unless this member sends to all others.
    """
    num = len(members)
    if num < 2:
        return
    if collective in _TWICE or collective in _ONCE:
        yield members[(index + 1) % num], (2 if collective in _TWICE else 1) * (num - 1) / num
    elif collective in _CHAIN:
        if index + 1 < num:
            yield members[index + 1], 1.0
    elif collective == "all_to_all" or (collective == "scatter" and index == 0):
        yield from ((other, 1 / num) for position, other in enumerate(members) if position != index)
    elif collective == "gather":
        if index:
            yield members[0], 1 / num
    elif collective == "send" and index == 0:
        yield members[1], 1.0


def backend_factor(backend: str, collective: str, num_ranks: int, num_bytes: float = 0) -> float:
    """bytes_wire / bytes_algorithmic over the whole group: how much more a backend moves than it must.

    gloo makes an all_reduce of a reduce_scatter: twice the bytes. Its reduce is a ring reduce_scatter and a
    gather to the root, and moves more again when a rank has more than two segments of 1 MiB:
    (P-1) + (P-1)/P + (k-2)/k of S for k = max(2, S / (P MiB)) segments per rank. Fitted to interface counters
    of torch 2.13 for 2 to 4 ranks and 0.1 to 64 MiB; within 2 % of each, within 0.5 % where S is a multiple
    of P MiB.

    Args:
        backend: gloo, nccl, mpi.
        collective: canonical name.
        num_ranks: P.
        num_bytes: S of one call.
    """
    if backend != "gloo" or num_ranks < 2:
        return 1.0
    if collective == "reduce_scatter":
        return 2.0
    if collective == "reduce":
        segments = max(2, ceil(num_bytes / (num_ranks * _GLOO_SEGMENT)))
        num_other = num_ranks - 1
        return 1 + 1 / num_ranks + (segments - 2) / segments / num_other
    return 1.0
