"""Rows of maps between ranks: halo exchange, and all rows to everyone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.model_parallel.rows import Halo, RowRange


def exchange_rows(x: torch.Tensor, halo: Halo, group: Group) -> torch.Tensor:
    """The rows that this rank needs, from those that hold them.

    Args:
        x: (b, C, own rows, W).
        halo: of the group's ranks.
        group: M ranks.

    Returns:
        (b, C, needed rows, W), without padding. Forward a rank sends each other rank what that one needs;
        backward it sends the gradients of what it got. Only rows, only to ranks that need some.
    """
    return _ExchangeRows.apply(x, halo, group)


def gather_rows(x: torch.Tensor, owned: tuple[RowRange, ...], group: Group) -> torch.Tensor:
    """All rows on every rank; what follows is the same on all.

    (b, C, own rows, W) to (b, C, H, W). One all_gather of M times the largest share forward, nothing
    backward.
    """
    return _GatherRows.apply(x, owned, group)


class ExchangeHalo(nn.Module):
    """In front of a layer that looks beyond a rank's rows: gets others' rows, and padding at borders."""

    def __init__(self, group: Group, halo: Halo, fill: float) -> None:
        """`fill`: value of padding."""
        super().__init__()
        self.group, self.halo, self.fill = group, halo, fill

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, C, own rows, W) to (b, C, rows that the layer sees, W)."""
        if self.halo.moves:
            x = exchange_rows(x, self.halo, self.group)
        else:
            x = _slice(x, self.halo.needed[self.group.index], self.halo.owned[self.group.index])
        return pad_rows(x, self.halo.padding[self.group.index], self.fill)


class TakeRows(nn.Module):
    """The rows of the samples that a layer sees on this rank, which has them all; nothing is sent."""

    def __init__(self, rows: RowRange, padding: tuple[int, int], fill: float) -> None:
        super().__init__()
        self.rows, self.padding, self.fill = rows, padding, fill

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, C, H, W) to (b, C, rows that the layer sees, W)."""
        return pad_rows(x[:, :, self.rows.first : self.rows.end], self.padding, self.fill)


class GatherRows(nn.Module):
    """Where rows can no longer be split: all of them to everyone."""

    def __init__(self, group: Group, owned: tuple[RowRange, ...]) -> None:
        super().__init__()
        self.group, self.owned = group, owned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, C, own rows, W) to (b, C, H, W)."""
        return gather_rows(x, self.owned, self.group)


def pad_rows(x: torch.Tensor, padding: tuple[int, int], fill: float) -> torch.Tensor:
    """Rows of `fill` above and below (b, C, rows, W)."""
    if padding == (0, 0):
        return x
    if x.shape[2] == 0:
        # functional.pad refuses an empty dim; x stays in, or this rank would miss the exchange backward.
        return torch.cat([x, x.new_full((*x.shape[:2], sum(padding), x.shape[3]), fill)], dim=2)
    return functional.pad(x, (0, 0, *padding), value=fill)


def _slice(x: torch.Tensor, wanted: RowRange, held: RowRange) -> torch.Tensor:
    return x[:, :, wanted.first - held.first : wanted.end - held.first]


class _Transfer:
    """Rows on their way to and from all other ranks of the group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.arriving: dict[int, torch.Tensor] = {}
        self._works: list[Any] = []
        self._leaving: list[torch.Tensor] = []

    def swap(self, other: int, leaving: torch.Tensor, arriving: torch.Tensor) -> None:
        """Starts both ways. The lower rank sends first: NCCL runs the calls of a pair one after the other."""
        calls = [self._send, self._receive] if self.group.index < other else [self._receive, self._send]
        self.arriving[other] = arriving
        for call in calls:
            call(other, leaving if call == self._send else arriving)

    def _send(self, other: int, rows: torch.Tensor) -> None:
        if rows.numel():
            self._leaving.append(rows)  # must live until it is gone
            self._works.append(comm.send(rows, other, self.group, async_op=True))

    def _receive(self, other: int, rows: torch.Tensor) -> None:
        if rows.numel():
            self._works.append(comm.receive(rows, other, self.group, async_op=True))

    def wait(self) -> None:
        """All rows are here, and gone."""
        for work in self._works:
            work.wait()


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, halo: Halo, group: Group) -> torch.Tensor:
        ctx.halo, ctx.group = halo, group
        me, held = group.index, halo.owned[group.index]
        transfer = _Transfer(group)
        for other in range(group.size):
            if other != me:
                leaving = _slice(x, halo.sent(me, other), held).contiguous()
                arriving = x.new_empty((*x.shape[:2], halo.sent(other, me).num, x.shape[3]))
                transfer.swap(other, leaving, arriving)
        transfer.wait()
        transfer.arriving[me] = _slice(x, halo.sent(me, me), held)
        return torch.cat([transfer.arriving[rank] for rank in range(group.size)], dim=2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        halo, group = ctx.halo, ctx.group
        me, held, needed = group.index, halo.owned[group.index], halo.needed[group.index]
        transfer = _Transfer(group)
        for other in range(group.size):
            if other != me:
                leaving = _slice(grad, halo.sent(other, me), needed).contiguous()
                arriving = grad.new_empty((*grad.shape[:2], halo.sent(me, other).num, grad.shape[3]))
                transfer.swap(other, leaving, arriving)
        transfer.wait()
        transfer.arriving[me] = _slice(grad, halo.sent(me, me), needed)
        total = grad.new_zeros((*grad.shape[:2], held.num, grad.shape[3]))
        for other in range(group.size):
            if transfer.arriving[other].shape[2]:
                _slice(total, halo.sent(me, other), held).add_(transfer.arriving[other])
        return total, None, None


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, owned: tuple[RowRange, ...], group: Group) -> torch.Tensor:
        ctx.mine = owned[group.index]
        most = max(rows.num for rows in owned)
        part = pad_rows(x, (0, most - x.shape[2]), 0.0).movedim(2, 0).contiguous()
        full = part.new_empty((len(owned), *part.shape))
        comm.all_gather(full.view(-1, *part.shape[1:]), part, group)
        pieces = [full[rank, : rows.num] for rank, rows in enumerate(owned)]
        return torch.cat(pieces).movedim(0, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad[:, :, ctx.mine.first : ctx.mine.end].contiguous(), None, None
