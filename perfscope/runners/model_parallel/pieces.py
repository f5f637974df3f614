"""Which piece of which tensor of the undivided model a rank holds, and putting the pieces together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn


class TensorSlice(NamedTuple):
    """Part of one tensor."""

    value: torch.Tensor
    dim: int  # along which it was cut
    positions: torch.Tensor | None  # along dim; None: all of it


class Pieces:
    """A rank's pieces, by the names of the undivided model's state."""

    def __init__(self) -> None:
        self.held: dict[str, TensorSlice] = {}

    def keep(
        self, name: str, full: torch.Tensor, dim: int = 0, index: torch.Tensor | None = None
    ) -> nn.Parameter:
        """A parameter that holds positions `index` along `dim` of `full`."""
        parameter = nn.Parameter(_cut(full.detach(), dim, index))
        self.held[name] = TensorSlice(parameter, dim, index)
        return parameter

    def keep_buffer(
        self, name: str, full: torch.Tensor, dim: int = 0, index: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same for a tensor that is not trained."""
        buffer = _cut(full.detach(), dim, index)
        self.held[name] = TensorSlice(buffer, dim, index)
        return buffer

    def keep_rest(self, model: nn.Module) -> None:
        """Everything in the model's state that is not held yet is held whole, as it is."""
        for name, value in model.state_dict(keep_vars=True).items():
            if name not in self.held:
                self.held[name] = TensorSlice(value, 0, None)

    def values(self) -> dict[str, TensorSlice]:
        """Copies on the CPU, to be sent."""
        return {
            name: TensorSlice(piece.value.detach().cpu(), piece.dim, piece.positions)
            for name, piece in self.held.items()
        }


def assemble(
    shapes: Mapping[str, tuple[int, ...]], held: Sequence[Mapping[str, TensorSlice]]
) -> dict[str, torch.Tensor]:
    """The undivided state from what the ranks of one model group hold.

    Args:
        shapes: of every tensor of the undivided state.
        held: by rank, from `Pieces.values`.
    """
    state = {}
    for name, shape in shapes.items():
        first = held[0][name]
        if first.positions is None:
            state[name] = first.value
            continue
        state[name] = full = first.value.new_empty(shape)
        for mapping in held:
            piece = mapping[name]
            full.index_copy_(piece.dim, piece.positions, piece.value)
    return state


def _cut(full: torch.Tensor, dim: int, index: torch.Tensor | None) -> torch.Tensor:
    return full.clone() if index is None else full.index_select(dim, index.to(full.device))
