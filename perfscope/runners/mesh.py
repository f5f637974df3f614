"""The mesh D x M x S: which part of data, model and pipeline a rank has, and the groups that follow.

Ranks are laid out as in MLSL and in torch's init_device_mesh with (dp, pp, mp): rank = (d * S + s) * M + m. A
model group is consecutive ranks, so that it sits inside one host when ranks are packed; a data group has
stride M * S. No torch here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from perfscope.runners.config import BenchError

DATA, MODEL, STAGE, WORLD = "data", "model", "stage", "world"
_WHOLE = re.compile(r"\s*[0-9]{1,9}\s*")  # isdigit() would take other scripts' digits, too


@dataclass(frozen=True, slots=True)
class Mesh:
    """D data x M model x S pipeline parts."""

    data: int = 1
    model: int = 1
    stage: int = 1

    @property
    def num_ranks(self) -> int:
        """P = D * M * S."""
        return self.data * self.model * self.stage

    def __str__(self) -> str:
        parts = (self.data, self.model) if self.stage == 1 else (self.data, self.model, self.stage)
        return ",".join(map(str, parts))

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """(d, m, s) of a rank."""
        rest, m = divmod(rank, self.model)
        d, s = divmod(rest, self.stage)
        return d, m, s

    def rank_of(self, d: int, m: int, s: int) -> int:
        """The inverse of `coordinates`."""
        return (d * self.stage + s) * self.model + m

    def group(self, axis: str, rank: int) -> tuple[int, ...]:
        """Ranks of the group along `axis` that holds `rank`, in order."""
        d, m, s = self.coordinates(rank)
        if axis == DATA:
            return _members(self.rank_of(0, m, s), self.stage * self.model, self.data)
        if axis == MODEL:
            return _members(self.rank_of(d, 0, s), 1, self.model)
        if axis == STAGE:
            return _members(self.rank_of(d, m, 0), self.model, self.stage)
        if axis == WORLD:
            return _members(0, 1, self.num_ranks)
        raise ValueError(f"no axis {axis!r}")

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Every group along `axis`, in the order of their first ranks."""
        place = {DATA: 0, MODEL: 1, STAGE: 2}.get(axis)
        if place is None:
            return (self.group(axis, 0),)
        firsts = (rank for rank in range(self.num_ranks) if self.coordinates(rank)[place] == 0)
        return tuple(self.group(axis, rank) for rank in firsts)


@lru_cache(maxsize=256)  # every member asks for its group: with thousands of ranks they would be gigabytes
def _members(first: int, stride: int, num: int) -> tuple[int, ...]:
    return tuple(range(first, first + stride * num, stride))


def parse_mesh(text: str) -> Mesh:
    """`2,2` or `2,1,2`.

    Raises:
        BenchError: it is not two or three whole numbers above 0.
    """
    words = text.split(",")
    if not 2 <= len(words) <= 3 or not all(_WHOLE.fullmatch(word) and int(word) > 0 for word in words):
        raise BenchError(f"mesh {text!r} is not D,M or D,M,S, whole numbers above 0 such as 2,2")
    return Mesh(*map(int, words))
