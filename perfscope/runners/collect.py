"""Bringing a divided model together on rank 0, tensor by tensor; after training, not part of any step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from perfscope.runners import comm
from perfscope.runners.world import World


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One tensor of the undivided model's state.

    Attributes:
        shape, dtype: of the whole.
        owners: ranks that hold it; several hold equal parts along dim 0, in this order.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    owners: tuple[int, ...] = (0,)


def collect_state(
    layout: Mapping[str, StateEntry], own_state: Mapping[str, torch.Tensor], world: World
) -> dict[str, torch.Tensor] | None:
    """The whole state on rank 0, None elsewhere. Every rank calls it.

    Args:
        layout: the same on all ranks, in the same order.
        own_state: this rank's tensors or parts, by the whole model's names.
        world: of this rank.
    """
    group = world.groups("world", [tuple(range(world.size))])
    state: dict[str, torch.Tensor] = {}
    for name, entry in layout.items():
        if world.rank == 0:
            parts = [_part(rank, name, entry, own_state, world, group) for rank in entry.owners]
            state[name] = parts[0].clone() if len(parts) == 1 else torch.cat(parts)
        elif world.rank in entry.owners:
            comm.send(own_state[name].detach().contiguous(), 0, group)
    return state if world.rank == 0 else None


def layout_of(
    state: Mapping[str, torch.Tensor], owners: Mapping[str, Sequence[int]] | None = None
) -> dict[str, StateEntry]:
    """The layout of a whole model's state; names that `owners` leaves out are held by rank 0."""
    chosen = owners or {}
    return {
        name: StateEntry(tuple(value.shape), value.dtype, tuple(chosen.get(name, (0,))))
        for name, value in state.items()
    }


def _part(
    rank: int,
    name: str,
    entry: StateEntry,
    own_state: Mapping[str, torch.Tensor],
    world: World,
    group: comm.Group,
) -> torch.Tensor:
    if rank == 0:
        return own_state[name].detach()
    shape = entry.shape
    if len(entry.owners) > 1:
        shape = (shape[0] // len(entry.owners), *shape[1:])
    buffer = torch.empty(shape, dtype=entry.dtype, device=world.device)
    comm.receive(buffer, rank, group)
    return buffer
