"""The device mesh: sizes of named axes, the coordinates of each rank, and the groups that follow.

Ranks are laid out as by torch's init_device_mesh with the axes in the order of `LAYOUT`: tensor-parallel
groups are consecutive ranks, so that they sit inside one host when ranks are packed. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from types import MappingProxyType

from perfscope.vocabulary.axes import BATCH_AXES, LAYOUT, OLD_MEANINGS, OLD_NAMES, POSITIONAL, Axis

WORLD = "world"  # the group of all ranks
_AXES: Mapping[str, Axis] = {**OLD_NAMES, **{axis.value: axis for axis in LAYOUT}}
_COUNT = re.compile(r"\s*0*[1-9][0-9]{0,8}\s*")  # isdigit() would take other scripts' digits, too


class Mesh:
    """Axis -> number of parts. Axes of size 1 are left out, so that equal meshes compare equal."""

    __slots__ = ("axes",)

    def __init__(self, axes: Mapping[Axis, int] = MappingProxyType({})) -> None:
        self.axes = {axis: axes[axis] for axis in LAYOUT if axes.get(axis, 1) != 1}

    @classmethod
    def parse(cls, value: object) -> Mesh:
        """`dp=2,tp=2`, or by position `2,2` or `2,1,2`: data, tensor and pipeline parts.

        The letters D, M and S stand for dp, tp and pp. A list or a table of the same is read, too.

        Raises:
            ValueError: it is not written like that, or an axis comes twice; says what is wanted.
        """
        if isinstance(value, Mapping):
            value = ",".join(f"{axis}={size}" for axis, size in value.items()) or "dp=1"
        sizes = [str(word) for word in value] if isinstance(value, list | tuple) else str(value).split(",")
        if 2 <= len(sizes) <= 3 and all(map(_COUNT.fullmatch, sizes)):
            return cls.positional(*map(int, sizes))
        axes: dict[Axis, int] = {}
        for name, _, size in (word.partition("=") for word in sizes):
            axis = _AXES.get(name.strip())
            if axis is None or axis in axes or not _COUNT.fullmatch(size):
                raise ValueError(
                    f"AXIS=PARTS,... such as dp=2,tp=2: numbers above 0, each once, axes {', '.join(LAYOUT)}"
                )
            axes[axis] = int(size)
        return cls(axes)

    @classmethod
    def positional(cls, *sizes: int) -> Mesh:
        """The spelling D,M,S: data, tensor and pipeline parts."""
        return cls(dict(zip(POSITIONAL, sizes, strict=False)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self.axes == other.axes

    def __hash__(self) -> int:
        return hash(tuple(self.axes.items()))

    def __repr__(self) -> str:
        return f"Mesh({self})"

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
        index = 0
        for axis in LAYOUT:
            if axis in BATCH_AXES:
                index = index * self.size(axis) + self.index(axis, rank)
        return index

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
