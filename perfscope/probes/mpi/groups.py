"""Communicators by name: the same name on all of a communicator's ranks, and its ranks in MPI.COMM_WORLD.

A communicator is called as the program named it (Set_name), else by where it comes from: "world",
"world.split1" (what the first Split of the world gave this rank), "cart(2x2)", "world.dup1". Calls that make
a communicator are made by all ranks of the old one, so counting them gives one name; Create_group is not, and
its name lists the ranks: "world.group(0,2)".
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

_OWN_RANKS = frozenset(("group", "inter"))  # made by some ranks only: counting would differ among them


class Communicator:
    """One communicator.

    Attributes:
        name: as reports show it.
        family: where it comes from, without counts: alike for those made anew in every turn of a loop.
        ranks: global ranks by rank; None = not known.
        remote: of an intercommunicator: global ranks of the other side.
        size: number of ranks, both sides of an intercommunicator.
    """

    __slots__ = ("_children", "family", "name", "ranks", "remote", "size")

    def __init__(self, name: str, family: str, ranks: Optional[List[int]], size: int) -> None:
        self.name = name
        self.family = family
        self.ranks = ranks
        self.remote: Optional[List[int]] = None
        self.size = size
        self._children: Dict[str, int] = {}

    @property
    def everybody(self) -> List[int]:
        """Global ranks, of both sides of an intercommunicator: each side is to list them alike."""
        if self.remote is None:
            return [rank for rank in self.ranks or () if rank >= 0]
        return sorted(rank for rank in (*(self.ranks or ()), *self.remote) if rank >= 0)

    def count(self, label: str) -> int:
        """How many children of this label there are with the one being named."""
        number = self._children[label] = self._children.get(label, 0) + 1
        return number

    def global_rank(self, rank: Any) -> Optional[int]:
        """The global rank of the peer that a point-to-point call names; None for no particular one."""
        ranks = self.ranks if self.remote is None else self.remote
        if ranks is None or not isinstance(rank, int) or not 0 <= rank < len(ranks):
            return None
        return ranks[rank] if ranks[rank] >= 0 else None


class Places:
    """All communicators of this process that were met.

    Args:
        mpi: the module mpi4py.MPI.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._world_group: Any = None
        self._listed: Dict[str, Communicator] = {}

    def world(self, comm: Any) -> Communicator:
        size = comm.Get_size()
        return Communicator("world", "world", list(range(size)), size)

    def own(self) -> Communicator:
        """Of COMM_SELF."""
        return Communicator("self", "self", self.ranks_of(self._mpi.COMM_SELF.Get_group()), 1)

    def child(self, parent: Communicator, comm: Any, label: str) -> Communicator:
        """Of a communicator that a call on the parent's has just made.

        Args:
            label: "split", "dup", "cart(2x2)", ...
        """
        family = parent.family + "." + label.partition("(")[0]
        if label == "dup":  # of the same ranks; and one under way (Idup) is not to be asked yet
            child = Communicator("", family, parent.ranks, parent.size)
            child.remote = parent.remote
            child.name = self._name(parent, child, label)
            return child
        ranks = self.ranks_of(comm.Get_group())
        child = Communicator("", family, ranks, len(ranks or ()))
        if comm.Is_inter():
            child.remote = self.ranks_of(comm.Get_remote_group())
            child.size += len(child.remote or ())
        child.name = self._name(parent, child, label)
        return child

    def stranger(self, comm: Any) -> Communicator:
        """Of a communicator whose creation was not seen."""
        ranks = self.ranks_of(comm.Get_group())
        return Communicator("comm(%s)" % ranks_text(ranks or ()), "comm", ranks, len(ranks or ()))

    def ranks_of(self, group: Any) -> Optional[List[int]]:
        """Global ranks of a group, which is freed."""
        try:
            if self._world_group is None:
                self._world_group = self._mpi.COMM_WORLD.Get_group()
            size = group.Get_size()
            # Called on the class: an instance method in mpi4py 4, a class method of two groups in 3.
            translated = self._mpi.Group.Translate_ranks(group, list(range(size)), self._world_group)
            return [int(rank) for rank in translated]
        finally:
            group.Free()

    def _name(self, parent: Communicator, comm_place: Communicator, label: str) -> str:
        above = "" if parent.name == "world" and "(" in label else parent.name + "."
        if label in _OWN_RANKS:
            label = "%s(%s)" % (label, ranks_text(comm_place.everybody))
        number = parent.count(label)
        if "(" in label:
            above = parent.name + "." if label.startswith(tuple(_OWN_RANKS)) else above
            return above + label + ("#%d" % number if number > 1 else "")
        return "%s%s%d" % (above, label, number)

    def list(self, comm_place: Communicator) -> bool:
        """Remember a place for rank.json; True when it is new."""
        if self._listed.get(comm_place.name) is comm_place:
            return False
        self._listed[comm_place.name] = comm_place
        return True

    def rows(self) -> List[Dict[str, Any]]:
        """For rank.json."""
        return [
            {
                "name": name,
                "desc": group.family,
                "backend": "mpi",
                "ranks": group.everybody,
            }
            for name, group in self._listed.items()
        ]


def ranks_text(ranks: Sequence[int]) -> str:
    """ "0-3,8", at most three parts; of more, the first and the last and how many there are."""
    parts: List[List[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    if len(parts) > 3:
        return "%d..%d of %d" % (ranks[0], ranks[-1], len(ranks))
    return ",".join(str(low) if low == high else "%d-%d" % (low, high) for low, high in parts)
