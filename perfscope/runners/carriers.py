"""What carries the collectives of a group: torch.distributed, or MPI (perfscope.runners.mpi).

`perfscope.runners.comm` counts and marks calls; here they are made. Every call returns something to wait for
with async_op, else None. Shapes as in comm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

# torch 2.13 renamed them and warns about the old names; older torch has only those.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Carrier(ABC):
    """Calls among the ranks of one group; roots and peers are global ranks."""

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, op: Any, *, async_op: bool) -> Any:
        """In place; `op` of torch, SUM or MAX."""

    @abstractmethod
    def all_gather(self, out: torch.Tensor, part: torch.Tensor, *, async_op: bool) -> Any:
        """Parts one behind the other."""

    @abstractmethod
    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, *, async_op: bool) -> Any:
        """This rank's part of the sum."""

    @abstractmethod
    def all_to_all(
        self, out: torch.Tensor, full: torch.Tensor, splits: tuple[list[int], list[int]], *, async_op: bool
    ) -> Any:
        """Parts of dim 0, equal or as long as `splits` say, see comm.all_to_all."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, root: int, *, async_op: bool) -> Any:
        """The root's."""

    @abstractmethod
    def reduce(self, tensor: torch.Tensor, root: int, *, async_op: bool) -> Any:
        """The sum, on the root."""

    @abstractmethod
    def send(self, tensor: torch.Tensor, to: int, tag: int, *, async_op: bool) -> Any:
        """To one rank."""

    @abstractmethod
    def receive(self, tensor: torch.Tensor, source: int | None, tag: int, *, async_op: bool) -> Any:
        """From one rank, or from any. Without async_op the rank that sent."""

    @abstractmethod
    def hop(self, tensor: torch.Tensor, after: int, into: torch.Tensor, before: int) -> Sequence[Any]:
        """Starts sending to the rank `after` and receiving from the rank `before`."""


class TorchCarrier(Carrier):
    """A process group of torch.distributed."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def all_reduce(self, tensor: torch.Tensor, op: Any, *, async_op: bool) -> Any:
        """See Carrier."""
        return dist.all_reduce(tensor, op=op, group=self._handle, async_op=async_op)

    def all_gather(self, out: torch.Tensor, part: torch.Tensor, *, async_op: bool) -> Any:
        """See Carrier."""
        return _all_gather_single(out, part, group=self._handle, async_op=async_op)

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, *, async_op: bool) -> Any:
        """See Carrier."""
        return _reduce_scatter_single(out, full, group=self._handle, async_op=async_op)

    def all_to_all(
        self, out: torch.Tensor, full: torch.Tensor, splits: tuple[list[int], list[int]], *, async_op: bool
    ) -> Any:
        """See Carrier."""
        received, sent = (lengths or None for lengths in splits)
        return dist.all_to_all_single(out, full, received, sent, group=self._handle, async_op=async_op)

    def broadcast(self, tensor: torch.Tensor, root: int, *, async_op: bool) -> Any:
        """See Carrier."""
        return dist.broadcast(tensor, root, group=self._handle, async_op=async_op)

    def reduce(self, tensor: torch.Tensor, root: int, *, async_op: bool) -> Any:
        """See Carrier."""
        return dist.reduce(tensor, root, group=self._handle, async_op=async_op)

    def send(self, tensor: torch.Tensor, to: int, tag: int, *, async_op: bool) -> Any:
        """See Carrier."""
        call = dist.isend if async_op else dist.send
        return call(tensor, to, group=self._handle, tag=tag)

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int, *, async_op: bool) -> Any:
        """See Carrier."""
        call = dist.irecv if async_op else dist.recv
        return call(tensor, source, group=self._handle, tag=tag)

    def hop(self, tensor: torch.Tensor, after: int, into: torch.Tensor, before: int) -> Sequence[Any]:
        """See Carrier."""
        ends = [
            dist.P2POp(dist.isend, tensor, after, self._handle),
            dist.P2POp(dist.irecv, into, before, self._handle),
        ]
        works: Sequence[Any] = dist.batch_isend_irecv(ends)
        return works


def carrier_of(handle: Any) -> Carrier:
    """Of a group's handle: itself, or torch's behind it."""
    return handle if isinstance(handle, Carrier) else TorchCarrier(handle)
