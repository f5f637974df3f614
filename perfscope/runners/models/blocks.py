"""The containers a model may hold besides plain sequences; model-parallel surgery relies on them."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn import functional


class Branches(nn.Module):  # torch is Any here
    """Children that all see the same input; their outputs are concatenated along channels, in order.

    Each child takes (b, C, H, W) to (b, C_i, H', W'); the result is (b, sum of C_i, H', W').
    """

    def __init__(self, **branches: nn.Sequential) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All branches side by side."""
        return torch.cat([branch(x) for branch in self.children()], dim=1)


class Residual(nn.Module):  # torch is Any here
    """relu(body(x) + shortcut(x)); both give the same shape (He et al. 2016, arXiv 1512.03385)."""

    def __init__(self, body: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum, rectified."""
        return functional.relu(self.body(x) + self.shortcut(x))


class LinearResidual(nn.Module):  # torch is Any here
    """body(x) + x, not rectified (Sandler et al. 2018, arXiv 1801.04381)."""

    def __init__(self, body: nn.Sequential) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum."""
        return self.body(x) + x


class Pair(NamedTuple):
    """Linear layers of one child of a block that tensor parallelism cuts: outputs of the first, inputs of the
    second."""

    child: str
    columns: tuple[str, ...]
    row: str


class Block(nn.Module):  # torch is Any here
    """A block of a transformer, with the pairs of its linear layers in forward order.

    A child with a `head_width` is cut between heads; a layer named `qkv` holds queries, keys and values.
    """

    pairs: ClassVar[tuple[Pair, ...]] = ()
