"""Collectives that are counted: what a scheme really sent, call by call.

The ledger takes its sizes from the tensors that are handed over, not from any formula, so that a
prediction can be compared with it. A group of one sends nothing and is not counted.

It also knows the layers that a call serves: of an exchange between layers the module that makes it
(`name_groups`), of a flat buffer (`Ledger.flat`) the layers whose parameters fill it, by bytes. In traced
windows a mark around the call says the same.

Sizes (S of a call, bytes): all_reduce, broadcast, reduce: the tensor; all_gather: the whole result;
reduce_scatter, all_to_all: the whole input of one rank; gather, scatter: the whole on the root; send: the
tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple
from urllib.parse import quote_plus

import torch
import torch.distributed as dist
from torch import nn

from perfscope.rundir import layout
from perfscope.rundir.served_layers import encoded
from perfscope.runners.carriers import carrier_of


class Call(NamedTuple):
    """One kind of call: what, along which axis, among how many ranks, how much."""

    collective: str
    axis: str
    num_ranks: int
    bytes: int


class ServedCall(NamedTuple):
    """A kind of call, and the layers that it serves (rundir.served_layers); "" = they are not known."""

    call: Call
    layers: str


class _Flat(NamedTuple):
    """A flat buffer: `layers[i]` fills it up to element `ends[i]`."""

    memory: torch.Tensor
    layers: tuple[str, ...]
    ends: tuple[int, ...]

    def part(self, first: int, end: int) -> dict[str, int]:
        """Layer -> bytes of elements first .. end - 1."""
        sizes: Counter[str] = Counter()
        for layer, begin, stop in zip(self.layers, (0, *self.ends), self.ends, strict=False):
            sizes[layer] += max(0, min(stop, end) - max(begin, first)) * self.memory.element_size()
        return {layer: size for layer, size in sizes.items() if size}


@dataclass(slots=True)
class Ledger:
    """How often each kind of call was made by this rank, and for which layers."""

    served: Counter[ServedCall] = field(default_factory=Counter)
    _flats: dict[int, _Flat] = field(default_factory=dict)  # by address of their memory

    @property
    def calls(self) -> Counter[Call]:
        """Whatever layers they serve."""
        return counted(self.served)

    def note(self, collective: str, axis: str, num_ranks: int, num_bytes: int, layers: str = "") -> None:
        """One more call."""
        self.served[ServedCall(Call(collective, axis, num_ranks, num_bytes), layers)] += 1

    def clear(self) -> None:
        """Forget; set-up traffic does not belong to a step."""
        self.served.clear()

    def flat(
        self, model: nn.Module, params: Iterable[nn.Parameter] | None = None, *, device: str | None = None
    ) -> torch.Tensor:
        """A flat buffer (elements,) of zeros for parameters of a model or their gradients, in their order.

        Args:
            model: names the layers.
            params: all of the model's if None.
            device: that of the parameters if None.
        """
        owners = {id(param): name for name, param in layer_params(model)}
        values = [*(model.parameters() if params is None else params)]
        parts = [local_part(value.detach()) for value in values]
        ends = tuple(accumulate(part.numel() for part in parts))
        memory = parts[0].new_zeros(ends[-1], device=device, requires_grad=False)
        self._flats[memory.untyped_storage().data_ptr()] = _Flat(
            memory, tuple(owners[id(value)] for value in values), ends
        )
        return memory

    def layers_of(self, tensor: torch.Tensor) -> str:
        """The layers that share a tensor, if it is (part of) a flat buffer; else ""."""
        flat = self._flats.get(tensor.untyped_storage().data_ptr())
        if flat is None:
            return ""
        first = tensor.storage_offset()
        return encoded(flat.part(first, first + tensor.numel()))


def counted(served: Mapping[ServedCall, int]) -> Counter[Call]:
    """The calls without their layers."""
    calls: Counter[Call] = Counter()
    for (call, _), count in served.items():
        calls[call] += count
    return calls


def layer_params(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """(layer that holds it, parameter), each once; the model itself is called by its class."""
    return [
        (name or type(model).__name__, param)
        for name, module in model.named_modules()
        for param in module.parameters(recurse=False)
    ]


@dataclass(frozen=True, slots=True)
class Group:
    """A process group along one axis, with the ledger that its calls are noted in.

    Attributes:
        axis: of the mesh (dp, tp, pp ...), world or a name of the scheme's own.
        ranks: global ranks in order.
        index: this rank's place among them; -1 if it is no member.
        handle: torch's group, or a Carrier; None for a group of one, or when this rank is no member.
        ledger: this rank's.
        layers: that all calls on it serve; "" = what is handed over decides.
    """

    axis: str
    ranks: tuple[int, ...]
    index: int
    handle: Any
    ledger: Ledger
    layers: str = ""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def serving(self, layer: str) -> Group:
        """The same group, for calls of one layer."""
        return replace(self, layers=encoded({layer: 1}))

    def shared(self, parts: Iterable[tuple[str, torch.Tensor]]) -> Group:
        """The same group, for calls with tensors of these layers together."""
        sizes: Counter[str] = Counter()
        for layer, tensor in parts:
            sizes[layer] += num_bytes(tensor)
        return replace(self, layers=encoded(sizes))

    def carrying(self, tensor: torch.Tensor) -> Group:
        """The same group, for calls with what becomes of a tensor: a copy, a compressed form."""
        layers = self.layers or self.ledger.layers_of(tensor)
        return replace(self, layers=layers) if layers != self.layers else self

    def note(self, collective: str, num_bytes: int) -> None:
        """Count a call that a library makes on this group by itself."""
        self.ledger.note(collective, self.axis, self.size, num_bytes, self.layers)

    def call(self, collective: str, tensor: torch.Tensor, call: Callable[[], Any]) -> Any:
        """Makes a call: notes it with the bytes and layers of a tensor, and marks it."""
        self.carrying(tensor).note(collective, num_bytes(tensor))
        with self.marked(tensor):
            return call()

    def marked(self, tensor: torch.Tensor) -> AbstractContextManager[Any]:
        """In a traced window, marks calls inside with the layers of a tensor."""
        if not torch.autograd._profiler_enabled():
            return nullcontext()
        layers = self.carrying(tensor).layers
        text = f"{layout.MARK_SERVES}{quote_plus(self.axis)}?{layers}"
        return torch.profiler.record_function(text) if layers else nullcontext()


def name_groups(model: nn.Module) -> None:
    """Tells the groups that the modules of a model hold in which of them they are."""
    for name, module in model.named_modules():
        for attribute, group in vars(module).items():
            if isinstance(group, Group):
                setattr(module, attribute, group.serving(name or type(model).__name__))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a distributed tensor (DTensor); any other tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    held: torch.Tensor = tensor if to_local is None else to_local()
    return held


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def all_reduce(tensor: torch.Tensor, group: Group, *, async_op: bool = False, op: Any = None) -> Any:
    """Sum (or `op`) in place; returns torch's work with async_op, else None. Group of one: nothing, None."""
    if group.size == 1:
        return None
    chosen = op or dist.ReduceOp.SUM
    return group.call(
        "all_reduce",
        tensor,
        lambda: carrier_of(group.handle).all_reduce(tensor, chosen, async_op=async_op),
    )


def all_gather(out: torch.Tensor, part: torch.Tensor, group: Group, *, async_op: bool = False) -> Any:
    """`out` = the parts of all ranks one behind the other along dim 0; both contiguous."""
    if group.size == 1:
        out.copy_(part.view_as(out))
        return None
    return group.call(
        "all_gather", out, lambda: carrier_of(group.handle).all_gather(out, part, async_op=async_op)
    )


def reduce_scatter(out: torch.Tensor, full: torch.Tensor, group: Group, *, async_op: bool = False) -> Any:
    """`out` = this rank's part (along dim 0) of the sum of every rank's `full`; both contiguous."""
    if group.size == 1:
        out.copy_(full.view_as(out))
        return None
    return group.call(
        "reduce_scatter",
        full,
        lambda: carrier_of(group.handle).reduce_scatter(out, full, async_op=async_op),
    )


def all_to_all(
    out: torch.Tensor,
    full: torch.Tensor,
    group: Group,
    *,
    splits: tuple[list[int], list[int]] = ([], []),
    async_op: bool = False,
) -> Any:
    """Part i (along dim 0) of `full` goes to rank i; `out` holds what came, by rank.

    Parts are equal, or as long as `splits` says: of `out` and of `full`.
    """
    if group.size == 1:
        out.copy_(full.view_as(out))
        return None
    return group.call(
        "all_to_all",
        full,
        lambda: carrier_of(group.handle).all_to_all(out, full, splits, async_op=async_op),
    )


def broadcast(tensor: torch.Tensor, root: int, group: Group, *, async_op: bool = False) -> Any:
    """`tensor` of the `root`-th rank of the group to all."""
    if group.size == 1:
        return None
    source = group.ranks[root]
    return group.call(
        "broadcast",
        tensor,
        lambda: carrier_of(group.handle).broadcast(tensor, source, async_op=async_op),
    )


def reduce(tensor: torch.Tensor, root: int, group: Group, *, async_op: bool = False) -> Any:
    """The sum over the group, in `tensor` of its `root`-th rank; elsewhere `tensor` is spoiled."""
    if group.size == 1:
        return None
    target = group.ranks[root]
    return group.call(
        "reduce", tensor, lambda: carrier_of(group.handle).reduce(tensor, target, async_op=async_op)
    )


def send(tensor: torch.Tensor, to: int, group: Group, *, tag: int = 0, async_op: bool = False) -> Any:
    """To the `to`-th rank of the group."""
    rank = group.ranks[to]
    return group.call(
        "send", tensor, lambda: carrier_of(group.handle).send(tensor, rank, tag, async_op=async_op)
    )


def receive(
    tensor: torch.Tensor, source: int | None, group: Group, *, tag: int = 0, async_op: bool = False
) -> Any:
    """From the `source`-th rank of the group, or (None) from any that sends; returns its place in the group.

    With async_op (only with a source) torch's work is returned instead.
    """
    rank = None if source is None else group.ranks[source]
    with group.marked(tensor):
        received = carrier_of(group.handle).receive(tensor, rank, tag, async_op=async_op)
    return received if async_op else group.ranks.index(received)


class Hop:
    """A message to the next rank of a ring, and one from the rank before."""

    def __init__(self, works: Sequence[Any], sent: torch.Tensor) -> None:
        self._works, self._sent = works, sent  # kept until it is sent

    def wait(self) -> None:
        """Until both are through."""
        for work in self._works:
            work.wait()


def start_hop(tensor: torch.Tensor, into: torch.Tensor, group: Group) -> Hop:
    """Starts sending to the next rank of the group, and receiving what the one before sends.

    Args:
        tensor: contiguous; not to be changed before the hop has ended.
        into: contiguous, shape and dtype of `tensor`.
        group: M > 1 ranks, the first behind the last.
    """
    after, before = (group.ranks[(group.index + way) % group.size] for way in (1, -1))
    works = group.call("send", tensor, lambda: carrier_of(group.handle).hop(tensor, after, into, before))
    return Hop(works, tensor)


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
