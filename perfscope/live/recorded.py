"""Where ranks of other hosts stand, by what `perfscope run` noticed there: the run directory is shared."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from perfscope.rundir.hangs import HangingRank, HangRecord


def with_recorded(
    ranks: Sequence[HangingRank], hangs_of: Callable[[str], Sequence[HangRecord]]
) -> list[HangingRank]:
    """Ranks of other hosts with the places that were recorded there, where it is the same hang.

    Args:
        ranks: that make no step, as this host knows them.
        hangs_of: host -> the hangs that were recorded there; each host is asked once.

    Returns:
        In the same order; a rank of this host, or of which no place is recorded, as it was.
    """
    elsewhere = {rank.host for rank in ranks} - {socket.gethostname(), ""}
    open_hangs = {
        host: [hang for hang in hangs_of(host) if hang.resumed_unix_ns is None] for host in elsewhere
    }
    return [_recorded(rank, open_hangs.get(rank.host, ())) for rank in ranks]


def _recorded(rank: HangingRank, hangs: Sequence[HangRecord]) -> HangingRank:
    """A place of the rank after as many steps as it has now: one from before them is past."""
    for hang in reversed(hangs):
        for entry in hang.ranks:
            if entry.rank == rank.rank and entry.steps == rank.steps and (entry.file or entry.call):
                return entry
    return rank
