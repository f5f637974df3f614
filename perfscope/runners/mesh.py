"""The device mesh: sizes of named axes, the coordinates of each rank, and the groups that follow.

Ranks are laid out as by torch's init_device_mesh with the axes in the order of `LAYOUT`: tensor-parallel
groups are consecutive ranks, so that they sit inside one host when ranks are packed. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from perfscope.vocabulary.axes import BATCH_AXES, LAYOUT, OLD_MEANINGS, POSITIONAL, Axis

WORLD = "world"  # the group of all ranks


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axis -> number of parts. Axes of size 1 are left out, so that equal meshes compare equal."""

    axes: Mapping[Axis, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {axis: self.axes[axis] for axis in LAYOUT if self.axes.get(axis, 1) != 1}
        object.__setattr__(self, "axes", sizes)

    @classmethod
    def positional(cls, *sizes: int) -> Mesh:
        """The spelling D,M,S: data, tensor and pipeline parts."""
        return cls(dict(zip(POSITIONAL, sizes, strict=False)))

    def __hash__(self) -> int:
        return hash(tuple(self.axes.items()))

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis, size in self.axes.items()) or "dp=1"

    def for_scheme(self, name: str) -> Mesh:
        """The same mesh with the axes that this scheme names otherwise than D,M,S did."""
        renamed = OLD_MEANINGS.get(name, {})
        if any(new in self.axes for new in renamed.values()):
            return self
        return Mesh({renamed.get(axis, axis): size for axis, size in self.axes.items()})

    def size(self, axis: Axis) -> int:
        """Number of parts along `axis`."""
        return self.axes.get(axis, 1)

    @property
    def num_ranks(self) -> int:
        """P, the product of all axes."""
        return prod(self.axes.values())

    @property
    def num_data_parts(self) -> int:
        """Parts of the batch: the product of the axes that divide it."""
        return prod(size for axis, size in self.axes.items() if axis in BATCH_AXES)

    def index(self, axis: Axis, rank: int) -> int:
        """Coordinate of `rank` along `axis`."""
        return rank // self._stride(axis) % self.size(axis)

    def data_index(self, rank: int) -> int:
        """Which part of the batch a rank has, of `num_data_parts`."""
        found = 0
        for axis in LAYOUT:
            if axis in BATCH_AXES:
                found = found * self.size(axis) + self.index(axis, rank)
        return found

    def rank_of(self, coordinates: Mapping[Axis, int]) -> int:
        """The rank at these coordinates; those left out are 0."""
        return sum(index * self._stride(axis) for axis, index in coordinates.items())

    def group(self, axis: Axis | str, rank: int) -> tuple[int, ...]:
        """Ranks of the group along `axis` (or WORLD) that holds `rank`, in order."""
        if axis == WORLD:
            return _members(0, 1, self.num_ranks)
        axis = Axis(axis)
        stride = self._stride(axis)
        return _members(rank - self.index(axis, rank) * stride, stride, self.size(axis))

    def groups(self, axis: Axis | str) -> tuple[tuple[int, ...], ...]:
        """Every group along `axis` (or WORLD), in the order of their first ranks."""
        if axis == WORLD:
            return (self.group(WORLD, 0),)
        firsts = (rank for rank in range(self.num_ranks) if self.index(Axis(axis), rank) == 0)
        return tuple(self.group(axis, rank) for rank in firsts)

    def _stride(self, axis: Axis) -> int:
        return prod(self.size(inner) for inner in LAYOUT[LAYOUT.index(axis) + 1 :])


@lru_cache(maxsize=256)  # every member asks for its group: with thousands of ranks they would be gigabytes
def _members(first: int, stride: int, num: int) -> tuple[int, ...]:
    return tuple(range(first, first + stride * num, stride))
