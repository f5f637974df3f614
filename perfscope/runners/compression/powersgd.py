"""PowerSGD: one step of a power iteration gives the gradient's low-rank factors, which can be summed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import ceil, isqrt

import torch
from torch.nn import functional

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.compression.state import Later, Residuals, draw_seed
from perfscope.runners.exchange import Exchange, PendingExchange, Sent


class PowerSgdExchange(Exchange):
    """M ~ P Q^T of rank r, with warm start and error feedback (Vogels, Karimireddy, Jaggi, NeurIPS 2019).

    P = mean(M) Q; P orthonormal; Q = mean(M)^T P; the mean is P Q^T; the residual is M - P Q^T. Q starts the
    next step. Buffers for which r * (rows + columns) >= n go dense. Waiting makes a second call, so all ranks
    must wait for their exchanges in the same order.

    Args:
        rank: r, columns of P and Q.
        seed: of the first Q, which is the same on all ranks.
        shapes: (rows, columns) of the matrix that a buffer is, by key; others become as square as can be,
            filled up with zeros.
    """

    def __init__(
        self, rank: int, seed: int, shapes: Mapping[Hashable, tuple[int, int]] | None = None
    ) -> None:
        self._rank, self._seed = rank, seed
        self._shapes = dict(shapes or {})
        self.residuals = Residuals()
        self._starts: dict[Hashable, torch.Tensor] = {}
        self._generators: dict[Hashable, torch.Generator] = {}

    def _start_on(self, key: Hashable, flat: torch.Tensor, group: Group) -> PendingExchange:
        """See Exchange."""
        calls = self.sends(flat.numel(), flat.element_size(), group.size, key)
        if not calls:
            return Later(None, lambda: flat)
        if len(calls) == 1:
            return Later(comm.all_reduce(flat, group, async_op=True), lambda: flat.div_(group.size))
        residual = self.residuals.of(key, group, flat)
        flat.add_(residual)
        matrix = as_matrix(flat, self._shape(key, flat.numel()))
        name = (key, group.axis, group.ranks)
        left = matrix @ self._start(name, matrix)
        work = comm.all_reduce(left, group, async_op=True)

        def finish() -> torch.Tensor:
            base = torch.linalg.qr(left).Q
            right = matrix.T @ base
            comm.all_reduce(right, group)
            right /= group.size
            self._starts[name] = self._orthonormal(name, right)
            mean = (base @ right.T).view(-1)[: flat.numel()]
            torch.sub(flat, mean, out=residual)
            return flat.copy_(mean)

        return Later(work, finish)

    def sends(self, numel: int, element_size: int, num_ranks: int, key: Hashable = None) -> Sequence[Sent]:
        """See Exchange."""
        if num_ranks < 2 or not numel:
            return []
        sides = self._shape(key, numel)
        if self._rank * sum(sides) >= numel:
            return [Sent("all_reduce", numel * element_size)]
        return [Sent("all_reduce", self._rank * side * element_size) for side in sides]

    def _shape(self, key: Hashable, numel: int) -> tuple[int, int]:
        shape = self._shapes.get(key) or squarest(numel)
        if shape[0] * shape[1] < numel:
            raise ValueError(f"buffer {key!r} of {numel} elements does not fit into {shape[0]} x {shape[1]}")
        return shape

    def _start(self, name: Hashable, matrix: torch.Tensor) -> torch.Tensor:
        """Q (columns, r), orthonormal: the last step's, at first a random one."""
        if name not in self._starts:
            self._generators[name] = torch.Generator().manual_seed(draw_seed(self._seed, "powersgd", name))
            nothing = matrix.new_zeros(matrix.shape[1], self._rank)
            self._starts[name] = self._orthonormal(name, nothing)
        return self._starts[name]

    def _orthonormal(self, name: Hashable, factor: torch.Tensor) -> torch.Tensor:
        """The columns of (n, r) made orthonormal; random ones for those that depend on others.

        Without them a gradient that was once of lower rank would leave directions in which nothing is seen.
        """
        base, upper = torch.linalg.qr(factor)
        sizes = upper.diagonal().abs()
        weak = sizes <= sizes.max() * factor.shape[0] * torch.finfo(factor.dtype).eps
        drawn = torch.randn(factor.shape, generator=self._generators[name], dtype=torch.float64)
        filled = torch.where(weak, drawn.to(base), base)
        return torch.linalg.qr(filled).Q


def squarest(numel: int) -> tuple[int, int]:
    """(rows, columns) with rows = ceil(sqrt(n)) and just enough columns."""
    rows = isqrt(numel - 1) + 1
    return rows, ceil(numel / rows)


def as_matrix(flat: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """A copy of (n,) as a matrix, row by row, filled up with zeros."""
    missing = shape[0] * shape[1] - flat.numel()
    return functional.pad(flat, (0, missing)).view(shape) if missing else flat.clone().view(shape)
