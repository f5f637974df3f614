"""Collectives of torch.distributed that are counted: what a scheme really sent, call by call.

The ledger takes its sizes from the tensors that are handed over, not from any formula, so that a
prediction can be compared with it. A group of one sends nothing and is not counted.

Sizes (S of a call, bytes): all_reduce, broadcast, reduce: the tensor; all_gather: the whole result;
reduce_scatter, all_to_all: the whole input of one rank; gather, scatter: the whole on the root; send: the
tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

# torch 2.13 renamed them and warns about the old names; older torch has only those.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Call(NamedTuple):
    """One kind of call: what, along which axis, among how many ranks, how much."""

    collective: str
    axis: str
    num_ranks: int
    bytes: int


@dataclass(slots=True)
class Ledger:
    """How often each kind of call was made by this rank."""

    calls: Counter[Call] = field(default_factory=Counter)

    def note(self, collective: str, axis: str, num_ranks: int, num_bytes: int) -> None:
        """One more call."""
        self.calls[Call(collective, axis, num_ranks, num_bytes)] += 1

    def clear(self) -> None:
        """Forget; set-up traffic does not belong to a step."""
        self.calls.clear()


@dataclass(frozen=True, slots=True)
class Group:
    """A process group along one axis, with the ledger that its calls are noted in.

    Attributes:
        axis: of the mesh (dp, tp, pp ...), world or a name of the scheme's own.
        ranks: global ranks in order.
        index: this rank's place among them; -1 if it is no member.
        handle: torch's group; None for a group of one, or when this rank is no member.
        ledger: this rank's.
    """

    axis: str
    ranks: tuple[int, ...]
    index: int
    handle: Any
    ledger: Ledger

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def note(self, collective: str, num_bytes: int) -> None:
        """Count a call that a library makes on this group by itself."""
        self.ledger.note(collective, self.axis, self.size, num_bytes)


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def all_reduce(tensor: torch.Tensor, group: Group, *, async_op: bool = False, op: Any = None) -> Any:
    """Sum (or `op`) in place; returns torch's work with async_op, else None. Group of one: nothing, None."""
    if group.size == 1:
        return None
    group.note("all_reduce", num_bytes(tensor))
    return dist.all_reduce(tensor, op=op or dist.ReduceOp.SUM, group=group.handle, async_op=async_op)


def all_gather(out: torch.Tensor, part: torch.Tensor, group: Group, *, async_op: bool = False) -> Any:
    """`out` = the parts of all ranks one behind the other along dim 0; both contiguous."""
    if group.size == 1:
        out.copy_(part.view_as(out))
        return None
    group.note("all_gather", num_bytes(out))
    return _all_gather_single(out, part, group=group.handle, async_op=async_op)


def reduce_scatter(out: torch.Tensor, full: torch.Tensor, group: Group, *, async_op: bool = False) -> Any:
    """`out` = this rank's part (along dim 0) of the sum of every rank's `full`; both contiguous."""
    if group.size == 1:
        out.copy_(full.view_as(out))
        return None
    group.note("reduce_scatter", num_bytes(full))
    return _reduce_scatter_single(out, full, group=group.handle, async_op=async_op)


def all_to_all(out: torch.Tensor, full: torch.Tensor, group: Group, *, async_op: bool = False) -> Any:
    """Part i (along dim 0) of `full` goes to rank i; `out` holds what came, by rank."""
    if group.size == 1:
        out.copy_(full.view_as(out))
        return None
    group.note("all_to_all", num_bytes(full))
    return dist.all_to_all_single(out, full, group=group.handle, async_op=async_op)


def broadcast(tensor: torch.Tensor, root: int, group: Group, *, async_op: bool = False) -> Any:
    """`tensor` of the `root`-th rank of the group to all."""
    if group.size == 1:
        return None
    group.note("broadcast", num_bytes(tensor))
    return dist.broadcast(tensor, group.ranks[root], group=group.handle, async_op=async_op)


def reduce(tensor: torch.Tensor, root: int, group: Group, *, async_op: bool = False) -> Any:
    """The sum over the group, in `tensor` of its `root`-th rank; elsewhere `tensor` is spoiled."""
    if group.size == 1:
        return None
    group.note("reduce", num_bytes(tensor))
    return dist.reduce(tensor, group.ranks[root], group=group.handle, async_op=async_op)


def send(tensor: torch.Tensor, to: int, group: Group, *, tag: int = 0, async_op: bool = False) -> Any:
    """To the `to`-th rank of the group."""
    group.note("send", num_bytes(tensor))
    call = dist.isend if async_op else dist.send
    return call(tensor, group.ranks[to], group=group.handle, tag=tag)


def receive(
    tensor: torch.Tensor, source: int | None, group: Group, *, tag: int = 0, async_op: bool = False
) -> Any:
    """From the `source`-th rank of the group, or (None) from whoever sends; returns its place in the group.

    With async_op (only with a source) torch's work is returned instead.
    """
    rank = None if source is None else group.ranks[source]
    if async_op:
        return dist.irecv(tensor, rank, group=group.handle, tag=tag)
    return group.ranks.index(dist.recv(tensor, rank, group=group.handle, tag=tag))


def flatten(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """Copies tensors one behind the other into the flat `out`, which is returned."""
    offset = 0
    for tensor in tensors:
        end = offset + tensor.numel()
        out[offset:end].copy_(tensor.reshape(-1))
        offset = end
    return out


def unflatten(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """The inverse of `flatten`: copies the pieces of `flat` into the tensors."""
    offset = 0
    for tensor in tensors:
        end = offset + tensor.numel()
        tensor.copy_(flat[offset:end].view_as(tensor))
        offset = end
