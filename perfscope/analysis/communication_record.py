"""The communication of ranks, as they were read: here, or by tasks that leave it packed."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import msgspec
from msgspec import Struct

from perfscope.analysis.communication import CommCell, CommSums, RankComm
from perfscope.analysis.group_axes import CommGroup, GroupUse

Kind = tuple[CommGroup, str]  # group and collective


class RunComm(Struct):
    """Communication of ranks so far.

    Attributes:
        ranks: what this process read: each one's sums over the windows, and the number of steps in these.
        packed: what tasks read.
    """

    ranks: dict[int, tuple[RankComm, int]] = {}
    packed: list[PackedComm] = []

    def merge(self, later: RunComm) -> None:
        """Takes in later ranks."""
        self.ranks.update(later.ranks)
        self.packed += later.packed

    def pack(self) -> None:
        """Makes all of it quick to send: it is next needed in another process."""
        part = PackedComm(tuple(self.ranks), self.uses, self.kinds, _packed(self.ranks))
        self.packed, self.ranks = [*self.packed, part], {}

    @property
    def kinds(self) -> frozenset[Kind]:
        """Of calls that this process read."""
        cells = (cell for comm, _ in self.ranks.values() for cell in comm.cells)
        return frozenset((cell.group, cell.collective) for cell in cells)

    @property
    def all_ranks(self) -> list[int]:
        """In order."""
        return [*(rank for part in self.packed for rank in part.ranks), *self.ranks]

    @property
    def uses(self) -> dict[CommGroup, GroupUse]:
        """What all ranks together call on each group."""
        uses: dict[CommGroup, GroupUse] = defaultdict(GroupUse)
        for part in self.packed:
            for group, use in part.uses.items():
                uses[group].add(use)
        for rank, (comm, _) in self.ranks.items():
            for group, use in comm.uses.items():
                uses[group].add(use)
            for cell in comm.cells:
                if cell.peer >= 0:
                    uses[cell.group].links.add((rank, cell.peer))
        return uses


class PackedComm(NamedTuple):
    """Communication of some ranks, of which this process need not know more than this."""

    ranks: tuple[int, ...]
    uses: dict[CommGroup, GroupUse]
    kinds: frozenset[Kind]
    content: bytes  # of RunComm.ranks, without what is known here; see `unpacked`


def _packed(ranks: dict[int, tuple[RankComm, int]]) -> bytes:
    """As MessagePack: other processes are given data, never objects of Python's."""
    rows = [(rank, steps, list(comm.cells.items())) for rank, (comm, steps) in ranks.items()]
    return msgspec.msgpack.encode(rows)


def unpacked(content: bytes) -> dict[int, tuple[RankComm, int]]:
    """The sums and the number of steps of each rank of a PackedComm."""
    rows = msgspec.msgpack.decode(content, type=list[tuple[int, int, list[tuple[CommCell, CommSums]]]])
    return {rank: (RankComm(cells=dict(cells)), steps) for rank, steps, cells in rows}
