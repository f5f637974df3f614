"""Differentiable collectives: what happens to activations forward happens, transposed, to gradients backward.

Every rank of the group must call the same operators in the same order; autograd then runs their backward
passes in one order on every rank, too. Rank i holds the i-th part along `dim`; parts are of equal size.
"Partial" means that the true value is the sum over the ranks of the group.

Sources: the conjugate pairs of Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, fig. 3) and MLSL's edges
between operations (intel/MLSL, InitPeerConnection).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from perfscope.runners import comm
from perfscope.runners.comm import Group

_Exchange = Callable[[torch.Tensor, int, Group], torch.Tensor]


def gather_partial(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """The whole from the parts; each rank's gradient of the whole is partial.

    Args:
        x: this rank's part, n along `dim`.
        dim: of x.
        group: M ranks.

    Returns:
        M * n along `dim`. Forward all_gather, backward reduce_scatter, both with S = bytes of the whole.
    """
    return _GatherPartial.apply(x, dim, group)


def gather_replicated(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """The whole from the parts; what follows is the same on all ranks, and so is the gradient of the whole.

    Shapes as in `gather_partial`. Forward all_gather; backward this rank's slice, nothing is sent.
    """
    return _GatherReplicated.apply(x, dim, group)


def scatter_sum(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """This rank's part of the sum of partial wholes.

    Args:
        x: partial, M * n along `dim`.
        dim: of x.
        group: M ranks.

    Returns:
        n along `dim`. Forward reduce_scatter, backward all_gather, both with S = bytes of the whole.
    """
    return _ScatterSum.apply(x, dim, group)


def take_part(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """This rank's part of a whole that all ranks hold; before it, gradients are the same on all ranks again.

    Shapes as in `scatter_sum`. Forward this rank's slice, nothing is sent; backward all_gather.
    """
    return _TakePart.apply(x, dim, group)


def sum_forward(x: torch.Tensor, group: Group) -> torch.Tensor:
    """The sum of partial x, on every rank; what follows is the same on all ranks.

    Forward all_reduce, backward identity. Megatron's g.
    """
    return _SumForward.apply(x, group)


def sum_backward(x: torch.Tensor, group: Group) -> torch.Tensor:
    """x itself, the same on all ranks; gradients of what follows are partial and are summed.

    Forward identity, backward all_reduce. Megatron's f.
    """
    return _SumBackward.apply(x, group)


def exchange_rows(x: torch.Tensor, sent: list[int], received: list[int], group: Group) -> torch.Tensor:
    """Rows for other ranks against rows of other ranks, along dim 0.

    Args:
        x: (sum of `sent`, ...); the first sent[0] rows go to the first rank of the group.
        sent: rows for each rank.
        received: rows from each rank.
        group: M ranks.

    Returns:
        (sum of `received`, ...). Forward and backward an all_to_all, with S = bytes of x and of the result.
    """
    return _ExchangeRows.apply(x, sent, received, group)


def gather_parts(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """The whole from the parts along `dim`, contiguous; one all_gather. Not differentiable."""
    if group.size == 1:
        return x.clone()
    part = x.movedim(dim, 0).contiguous()
    full = part.new_empty((group.size * part.shape[0], *part.shape[1:]))
    comm.all_gather(full, part, group)
    return full.movedim(0, dim).contiguous()


def scatter_parts(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """This rank's part along `dim` of the sum over ranks; one reduce_scatter. Not differentiable."""
    if group.size == 1:
        return x.clone()
    full = x.movedim(dim, 0).contiguous()
    part = full.new_empty((full.shape[0] // group.size, *full.shape[1:]))
    comm.reduce_scatter(part, full, group)
    return part.movedim(0, dim).contiguous()


def own_part(x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
    """This rank's part of x along `dim`, contiguous."""
    length = x.shape[dim] // group.size
    return x.narrow(dim, group.index * length, length).contiguous()


def _sum(x: torch.Tensor, group: Group) -> torch.Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    comm.all_reduce(total, group)
    return total


def _operator(name: str, forward: _Exchange, backward: _Exchange) -> type[torch.autograd.Function]:
    """The autograd function of one exchange of a tensor (along `dim`, in `group`) and of its gradient."""

    def run(ctx: Any, x: torch.Tensor, dim: int, group: Group) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return forward(x, dim, group)

    def turn(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return backward(grad, ctx.dim, ctx.group), None, None

    methods = {"forward": staticmethod(run), "backward": staticmethod(turn)}
    return type(name, (torch.autograd.Function,), methods)


_GatherPartial = _operator("_GatherPartial", gather_parts, scatter_parts)
_GatherReplicated = _operator("_GatherReplicated", gather_parts, own_part)
_ScatterSum = _operator("_ScatterSum", scatter_parts, gather_parts)
_TakePart = _operator("_TakePart", own_part, gather_parts)


class _SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _sum(grad, ctx.group), None


def _rows_exchanged(x: torch.Tensor, sent: list[int], received: list[int], group: Group) -> torch.Tensor:
    result = x.new_empty((sum(received), *x.shape[1:]))
    comm.all_to_all(result, x.contiguous(), group, splits=(received, sent))
    return result


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, sent: list[int], received: list[int], group: Group
    ) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _rows_exchanged(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _rows_exchanged(grad, ctx.received, ctx.sent, ctx.group), None, None, None
