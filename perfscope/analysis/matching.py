"""Which call on one rank is which call on another (METRICS §2: the k-th of its group and kind).

Counting alone goes wrong when a rank's trace starts or ends in another place than its neighbors', so a match
must also agree in bytes where sizes are known; else calls of one size are counted within each step that all
ranks traced, else from the end of the window. What fits none of these stays unmatched, and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64


class RankCalls(Struct, frozen=True, kw_only=True, eq=False):
    """One rank's calls of one collective on one group in one window, in order; arrays of shape (calls,)."""

    rank: int
    enter: Int64
    exit: Int64
    step: Int64  # -1 = outside every step
    seq: Int64
    size: Int64  # S of METRICS §2, bytes; -1 = not in the trace
    peer: Int64  # point to point: the other rank; -1 = none or unknown
    launch: Int64  # when the host asked for it; -1 = the trace does not say
    lane: Int64  # thread or stream it ran on


class MatchedCalls(Struct, frozen=True, kw_only=True, eq=False):
    """The same calls seen by several ranks; matrices of shape (ranks, calls)."""

    ranks: tuple[int, ...]
    enter: Int64
    exit: Int64
    size: Int64  # shape (calls,); -1 = unknown
    seq: Int64  # shape (calls,), of the first rank
    step: Int64  # -1 = outside every step
    launch: Int64  # -1 = the trace does not say
    lane: Int64
    num_unmatched: int  # calls of all ranks together that have no partner


# Kinds whose ranks may hand in different sizes.
_UNEVEN = frozenset({"all_to_all", "gather", "scatter"})


def match_calls(members: Sequence[RankCalls], collective: str) -> MatchedCalls:
    """Matches the calls of all members of one group in one window.

    Args:
        members: one entry per rank, at least one.
        collective: which kind; some may differ in size between ranks.
    """
    check_size = collective not in _UNEVEN
    by_count = _by_count(members)
    index = by_count
    if by_count is None or (check_size and not _sizes_agree(members, by_count)):
        index = _by_step(members, check_size=check_size)
        if not index.shape[1]:
            index = _from_end(members)
            if check_size and not _sizes_agree(members, index, must_know=by_count is None):
                index = index[:, :0]
    assert index is not None
    picked = [index[row] for row in range(len(members))]
    sizes = np.stack([member.size[at] for member, at in zip(members, picked, strict=True)])
    return MatchedCalls(
        ranks=tuple(member.rank for member in members),
        enter=np.stack([member.enter[at] for member, at in zip(members, picked, strict=True)]),
        exit=np.stack([member.exit[at] for member, at in zip(members, picked, strict=True)]),
        size=sizes.max(axis=0) if check_size else _mean_size(sizes),
        seq=members[0].seq[picked[0]],
        step=np.stack([member.step[at] for member, at in zip(members, picked, strict=True)]),
        launch=np.stack([member.launch[at] for member, at in zip(members, picked, strict=True)]),
        lane=np.stack([member.lane[at] for member, at in zip(members, picked, strict=True)]),
        num_unmatched=sum(len(member.enter) for member in members) - index.size,
    )


def _mean_size(sizes: Int64) -> Int64:
    sized = (sizes >= 0).all(axis=0)
    result: Int64 = np.where(sized, np.rint(sizes.mean(axis=0)).astype(np.int64), -1)
    return result


def _by_count(members: Sequence[RankCalls]) -> NDArray[np.int64] | None:
    """Call k with call k, if all ranks made as many."""
    counts = {len(member.enter) for member in members}
    if len(counts) != 1:
        return None
    return np.tile(np.arange(counts.pop(), dtype=np.int64), (len(members), 1))


def _by_step(members: Sequence[RankCalls], *, check_size: bool) -> NDArray[np.int64]:
    """Call k of a step (and size) with call k of it, for the steps and sizes of which all ranks have as many.

    Sizes keep apart what two threads of a backend start at the same moment, in another order on each rank.
    """
    keys = [np.stack((m.step, m.size if check_size else np.zeros_like(m.size)), axis=1) for m in members]
    kinds, kind_of = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    kinds_of_members = np.split(kind_of.ravel(), np.cumsum([len(key) for key in keys])[:-1])
    counts = np.stack(
        [np.bincount(kinds_of_member, minlength=len(kinds)) for kinds_of_member in kinds_of_members]
    )
    even = (counts == counts[0]).all(axis=0) & (kinds[:, 0] >= 0)
    rows = []
    for kinds_of_member in kinds_of_members:
        at = np.flatnonzero(even[kinds_of_member])
        rows.append(at[np.argsort(kinds_of_member[at], kind="stable")])
    index = np.stack(rows).astype(np.int64)
    return index[:, np.argsort(index[0], kind="stable")]


def _from_end(members: Sequence[RankCalls]) -> NDArray[np.int64]:
    """The last calls with the last calls, as many as the rank with the fewest has."""
    fewest = min(len(member.enter) for member in members)
    rows = [np.arange(len(member.enter) - fewest, len(member.enter)) for member in members]
    return np.stack(rows).astype(np.int64)


def _sizes_agree(members: Sequence[RankCalls], index: NDArray[np.int64], *, must_know: bool = False) -> bool:
    """Whether matched calls have one size; an unknown size contradicts nothing unless it must be known."""
    sizes = np.stack([member.size[index[row]] for row, member in enumerate(members)])
    if must_know and (sizes < 0).any():
        return False
    low = np.where(sizes < 0, np.iinfo(np.int64).max, sizes).min(axis=0, initial=np.iinfo(np.int64).max)
    high = sizes.max(axis=0, initial=-1)
    return bool(((high < 0) | (low == high)).all())
