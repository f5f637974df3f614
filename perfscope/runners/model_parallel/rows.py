"""Which rows of a map a rank holds, and which it needs for its rows of the next one: interval arithmetic.

Rows are half-open intervals [first, end) of the undivided map. Rank i of M holds rows H*i//M .. H*(i+1)//M
- 1 of every map, whatever its height, so that maps of equal height always lie alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from perfscope.runners.config import BenchError
from perfscope.runners.model_parallel.structure import Structure, is_container

WINDOWED = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)
_ROW_BY_ROW = (nn.BatchNorm2d, nn.ReLU, nn.Dropout, nn.Identity)


class RowRange(NamedTuple):
    """Rows first .. end - 1; empty if they are equal."""

    first: int
    end: int

    @property
    def num(self) -> int:
        """How many."""
        return self.end - self.first

    def common(self, other: RowRange) -> RowRange:
        """Rows in both; an empty interval has first == end."""
        first = max(self.first, other.first)
        return RowRange(first, max(first, min(self.end, other.end)))


class RowExtent(NamedTuple):
    """Vertical extent of a convolution or pool."""

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Rows from the first to the last that one output row sees."""
        return self.dilation * (self.kernel - 1) + 1

    def out_rows(self, num_rows: int) -> int:
        """Rows of the output."""
        return (num_rows + 2 * self.padding - self.reach) // self.stride + 1


def split_rows(num_rows: int, num_ranks: int) -> tuple[RowRange, ...]:
    """Who holds what of a map."""
    return tuple(
        RowRange(num_rows * rank // num_ranks, num_rows * (rank + 1) // num_ranks)
        for rank in range(num_ranks)
    )


@dataclass(frozen=True, slots=True)
class Halo:
    """What every rank needs of a map for its rows of the next one.

    Attributes:
        owned: rows held, by rank.
        needed: rows needed that exist, by rank.
        padding: rows of padding (above, below) that come on top of them, by rank.
    """

    owned: tuple[RowRange, ...]
    needed: tuple[RowRange, ...]
    padding: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, num_rows: int, window: RowExtent, num_ranks: int) -> Halo:
        """For a map of `num_rows` rows."""
        needed, padding = [], []
        for out in split_rows(window.out_rows(num_rows), num_ranks):
            first = out.first * window.stride - window.padding
            end = (out.end - 1) * window.stride - window.padding + window.reach
            above = min(max(0, -first), end - first)
            below = min(max(0, end - num_rows), end - first - above)
            start = min(max(first, 0), num_rows)
            needed.append(RowRange(start, start + end - first - above - below))
            padding.append((above, below))
        return cls(split_rows(num_rows, num_ranks), tuple(needed), tuple(padding))

    @property
    def is_nothing(self) -> bool:
        """Whether every rank has exactly what it needs."""
        return self.owned == self.needed and not any(map(any, self.padding))

    @property
    def moves(self) -> bool:
        """Whether any row has to go to another rank."""
        return self.owned != self.needed and any(
            self.sent(i, j).num for i in range(len(self.owned)) for j in range(len(self.owned)) if i != j
        )

    def sent(self, sender: int, receiver: int) -> RowRange:
        """Rows that one rank holds and the other needs."""
        return self.owned[sender].common(self.needed[receiver])


def window_of(module: nn.Module, path: str) -> RowExtent:
    """The vertical window of a convolution or pool.

    Raises:
        BenchError: its borders follow rules that halo rows do not reproduce.
    """
    if getattr(module, "ceil_mode", False) or not getattr(module, "count_include_pad", True):
        raise BenchError(
            f"mp.spatial: pool {path} rounds up or leaves padding out of its mean; it cannot be split"
        )
    if isinstance(module.padding, str) or getattr(module, "padding_mode", "zeros") != "zeros":
        raise BenchError(f"mp.spatial: {path} does not pad with a number of zeros; it cannot be split")
    values = (
        _vertical(getattr(module, name, 1)) for name in ("kernel_size", "stride", "padding", "dilation")
    )
    return RowExtent(*values)


def _vertical(value: int | Sequence[int]) -> int:
    return value if isinstance(value, int) else value[0]


def can_split(structure: Structure, path: str, module: nn.Module, num_ranks: int) -> bool:
    """Whether rows can stay split through a module: at least one row for every rank before and after."""
    if is_container(module):
        inner = ((name, module_) for name, module_ in module.named_modules() if not list(module_.children()))
        return all(can_split(structure, f"{path}.{name}", module_, num_ranks) for name, module_ in inner)
    shapes = (structure.in_shapes[path], structure.out_shapes[path])
    if not isinstance(module, WINDOWED + _ROW_BY_ROW) or any(len(shape) != 3 for shape in shapes):
        return False
    return min(shape[1] for shape in shapes) >= num_ranks
