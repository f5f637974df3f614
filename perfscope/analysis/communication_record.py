"""The communication of ranks, as they were read: here, or by tasks that leave it packed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from perfscope.analysis.communication import CommCell, CommSums, RankComm
from perfscope.analysis.group_axes import CommGroup, GroupUse
from perfscope.analysis.intervals import Float64

Kind = tuple[CommGroup, str]  # group and collective
_Content = tuple[dict[int, tuple[CommCell, ...]], list[tuple[int, int, bytes, int]]]  # as `_packed` has it
_NUM_VALUES = len(CommSums.__struct_fields__)


class ReadComm(NamedTuple):
    """Communication of one rank, all of whose windows are read.

    Attributes:
        cells: what is summed up; one object for all ranks that have the same.
        sums: over the windows, shape (cells, fields of CommSums).
        uses: what it calls on each group.
        num_steps: in the windows.
    """

    cells: tuple[CommCell, ...]
    sums: Float64
    uses: Mapping[CommGroup, GroupUse]
    num_steps: int


class RunComm(Struct):
    """Communication of ranks so far.

    Attributes:
        ranks: what this process read.
        packed: what tasks read.
        cells: those of `ranks`, each once.
    """

    ranks: dict[int, ReadComm] = {}
    packed: list[PackedComm] = []
    cells: dict[tuple[CommCell, ...], tuple[CommCell, ...]] = {}

    def add(self, rank: int, comm: RankComm, num_steps: int) -> None:
        """Takes in a rank of which all windows are read."""
        cells = tuple(comm.cells)
        sums = np.array([*comm.cells.values()], np.float64).reshape(len(cells), _NUM_VALUES)
        self.ranks[rank] = ReadComm(self.cells.setdefault(cells, cells), sums, comm.uses, num_steps)

    def merge(self, later: RunComm) -> None:
        """Takes in later ranks."""
        self.ranks.update(later.ranks)
        self.packed += later.packed

    def pack(self) -> None:
        """Makes all of it quick to send: it is next needed in another process."""
        part = PackedComm(tuple(self.ranks), self.uses, self.kinds, _packed(self.ranks))
        self.packed, self.ranks, self.cells = [*self.packed, part], {}, {}

    @property
    def kinds(self) -> frozenset[Kind]:
        """Of calls that this process read."""
        every = {id(comm.cells): comm.cells for comm in self.ranks.values()}
        return frozenset((cell.group, cell.collective) for cells in every.values() for cell in cells)

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
        for rank, comm in self.ranks.items():
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


def _packed(ranks: dict[int, ReadComm]) -> bytes:
    """As MessagePack: other processes are given data, never objects of Python's."""
    number = {id(comm.cells): at for at, comm in enumerate(ranks.values())}
    cells = {number[id(comm.cells)]: comm.cells for comm in ranks.values()}
    rows = [
        (rank, number[id(comm.cells)], comm.sums.tobytes(), comm.num_steps) for rank, comm in ranks.items()
    ]
    return msgspec.msgpack.encode((cells, rows))


def unpacked(content: bytes) -> dict[int, ReadComm]:
    """The sums and the number of steps of each rank of a PackedComm."""
    cells, rows = msgspec.msgpack.decode(content, type=_Content)
    return {
        rank: ReadComm(cells[number], np.frombuffer(sums).reshape(-1, _NUM_VALUES), {}, num_steps)
        for rank, number, sums, num_steps in rows
    }
