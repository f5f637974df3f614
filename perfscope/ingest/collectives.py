"""What a collective moves and among whom, from kernel arguments, annotations or names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perfscope.ingest.events import Args
from perfscope.rundir import layout
from perfscope.vocabulary.communication import DEFAULT_GROUP, UNKNOWN_GROUP

# Spellings met in kernel names, annotations and `Collective name`, without case, `_` and a backend's prefix.
_CANONICAL = {
    "allreduce": "all_reduce", "allreducecoalesced": "all_reduce", "allreducebarrier": "barrier",
    "allgather": "all_gather", "allgatherbase": "all_gather", "allgatherintotensor": "all_gather",
    "allgathercoalesced": "all_gather", "allgatherintotensorcoalesced": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter", "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter", "reducescattertensorcoalesced": "reduce_scatter",
    "reducescattercoalesced": "reduce_scatter", "reducescatterv": "reduce_scatter",
    "broadcast": "broadcast", "bcast": "broadcast", "broadcastcoalesced": "broadcast",
    "broadcastoop": "broadcast", "reduce": "reduce", "reduceoop": "reduce",
    "alltoall": "all_to_all", "alltoallbase": "all_to_all", "alltoallv": "all_to_all",
    "alltoallsingle": "all_to_all",
    "gather": "gather", "scatter": "scatter", "send": "send", "recv": "recv", "receive": "recv",
    "recvanysource": "recv", "isend": "send", "irecv": "recv", "barrier": "barrier",
    "monitoredbarrier": "barrier", "crossdevicereduce": "all_reduce", "multimemallreduce": "all_reduce",
}  # fmt: skip
_KERNEL = re.compile(
    r"(?:nccl|rccl|hccl|msccl)\w*?_(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|AllToAll\w*?|Gather|Scatter)(?:_|\()"
    r"|(cross_device_reduce|multimem_all_reduce)"
)
_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "c10::half": "float16",
    "bfloat16": "bfloat16", "c10::bfloat16": "bfloat16", "long": "int64", "long int": "int64",
    "int": "int32", "short": "int16", "short int": "int16", "char": "int8", "signed char": "int8",
    "byte": "uint8", "unsigned char": "uint8", "bool": "bool", "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2", "c10::float8_e4m3fn": "float8_e4m3fn", "c10::float8_e5m2": "float8_e5m2",
    "complexfloat": "complex64", "complexdouble": "complex128",
    "float32": "float32", "float16": "float16", "float64": "float64", "int64": "int64", "int32": "int32",
    "int8": "int8", "uint8": "uint8",
}  # fmt: skip
_SIZES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


class Collective(Struct, frozen=True):
    """One call of a collective as far as the trace tells; None = it does not.

    in_bytes, out_bytes: of this rank's input and output tensors.
    in_rows, out_rows: of an all_to_all, the same in rows (extents of the first dimension).
    """

    name: str | None = None
    group: str | None = None
    group_size: int | None = None
    in_bytes: int | None = None
    out_bytes: int | None = None
    dtype: str | None = None
    peer: int | None = None  # global rank
    group_peer: int | None = None  # the same as a rank within the group
    elements: int | None = None  # of the input, to tell the calls of a CPU backend from each other
    in_rows: int | None = None
    out_rows: int | None = None

    def filled_from(self, outer: Collective | None) -> Collective:
        """This one, with what it lacks taken from `outer`, unless that is another collective."""
        if outer is None or (self.name and outer.name and self.name != outer.name):
            return self
        return Collective(
            *(getattr(self, f) if getattr(self, f) is not None else getattr(outer, f) for f in _FIELDS)
        )

    def completed(self) -> Collective:
        """With the size that follows from the other one and the group's size, or the group's from both."""
        name, size, given, taken = self.name, self.group_size, self.in_bytes, self.out_bytes
        size = size if size is not None else self.told_size
        if name in ("all_reduce", "broadcast", "all_to_all"):
            given = given if given is not None else taken
            taken = taken if taken is not None else given
        elif name == "all_gather" and size:
            given = given if given is not None or taken is None else taken // size
            taken = given * size if taken is None and given is not None else taken
        elif name == "reduce_scatter" and size:
            taken = taken if taken is not None or given is None else given // size
            given = taken * size if given is None and taken is not None else given
        return replace(self, in_bytes=given, out_bytes=taken, group_size=size)._that_fits()

    def _that_fits(self) -> Collective:
        """Without numbers that no column holds: a damaged trace may have any."""
        unfit = {
            name
            for bits, names in _BITS.items()
            for name in names
            if (number := getattr(self, name)) is not None and abs(number) >= 1 << bits
        }
        return replace(self, **dict.fromkeys(unfit)) if unfit else self

    @property
    def told_size(self) -> int | None:
        """Ranks of the group by input and output: an all_gather puts out what every rank put in."""
        parts = {
            "all_gather": (self.in_bytes, self.out_bytes),
            "reduce_scatter": (self.out_bytes, self.in_bytes),
        }
        part, total = parts.get(self.name or "", (None, None))
        return total // part if part and total and total % part == 0 else None


_SPANS = "gloo:"
_EXCHANGE = "c10d::alltoall_base_"  # (output, input, ...)
_EXCHANGE_SPANS = ("gloo:all_to_all",)
_NCCL_CALLS = "nccl:"
_FIELDS = tuple(Collective.__struct_fields__)
_BITS = {31: ("group_size", "peer"), 62: ("in_bytes", "out_bytes")}


def canonical(name: str) -> str | None:
    """The canonical name of `_allgather_base`, `gloo:all_reduce`, `c10d::broadcast_` and such, or None."""
    last = re.split(r"::|:", name)[-1]
    last = last.split(" ")[0]
    return _CANONICAL.get(last.replace("_", "").replace("-", "").lower())


def from_kernel_name(name: str) -> str | None:
    """The collective a kernel's name says of; None for generic kernels and `SendRecv`."""
    match = _KERNEL.search(name)
    return canonical(match[1] or match[2]) if match else None


def from_args(name: str, args: Args) -> Collective:
    """A collective from an event's name and arguments (host annotation or device kernel)."""
    if name.startswith(layout.MARK_GROUP):
        return _from_mark(name[len(layout.MARK_GROUP) :])
    recorded_name = _text(args.collective)
    dtype = plain_dtype(_text(args.dtype))
    size = _SIZES.get(dtype or "")
    elements_in, elements_out = _int(args.in_elements), _int(args.out_elements)
    collective = Collective(
        name=canonical(recorded_name) if recorded_name else (canonical(name) or from_kernel_name(name)),
        group=_text(args.group),
        group_size=_int(args.group_size),
        in_bytes=elements_in * size if size and elements_in is not None else None,
        out_bytes=elements_out * size if size and elements_out is not None else None,
        dtype=dtype,
    )
    if collective.name in ("send", "recv"):
        peer = _int(args.target_rank if collective.name == "send" else args.source_rank)
        collective = replace(collective, peer=peer if peer is not None and peer >= 0 else None)
        collective = replace(collective, group_peer=_group_peer(name, args))
    if name.startswith(_NCCL_CALLS):
        collective = _sized_by_message(collective, args)
    if collective.in_bytes is None and not recorded_name:
        collective = _sized_by_shapes(name, collective, args)
    if name in _INPUT or name.startswith(_SPANS):
        collective = replace(collective, elements=_elements(name, args))
    return _with_rows(name, collective, args) if collective.name == "all_to_all" else collective


def _with_rows(name: str, collective: Collective, args: Args) -> Collective:
    """Rows of an all_to_all: the sum of its splits, or the first dimension of a single input and output."""
    given, taken = (_sum_of_splits(splits) for splits in (args.in_splits, args.out_splits))
    shapes = _json(args.dims) if name in (_EXCHANGE, *_EXCHANGE_SPANS) else None
    rows = [shape[0] if _is_shape(shape) and shape else None for shape in shapes or ()]
    if name == _EXCHANGE and len(rows) > 1:
        taken, given = (
            length if length is not None else row for length, row in zip((taken, given), rows, strict=False)
        )
    elif name in _EXCHANGE_SPANS and len(rows) == 1:
        given = given if given is not None else rows[0]
    return replace(collective, in_rows=given, out_rows=taken)


def _sum_of_splits(raw: msgspec.Raw) -> int | None:
    """Of `[3, 5]` or `"[3, 5]"`. Without elements the splits are equal; a list that ends in `...` is cut."""
    splits = _json((_text(raw) or "").encode())
    return sum(splits) if splits and _is_shape(splits) else None


def _json(text: bytes | msgspec.Raw) -> Any:
    """Decoded; None where it is no JSON."""
    try:
        return msgspec.json.decode(bytes(text))
    except (ValueError, RecursionError):
        return None


def _sized_by_message(collective: Collective, args: Args) -> Collective:
    """NCCL's size of a message: of one rank's input, of a reduce_scatter or receive of its output."""
    size = _int(args.num_bytes)
    if size is None or collective.in_bytes is not None or collective.out_bytes is not None:
        return collective
    is_output = collective.name in ("reduce_scatter", "recv")
    return replace(collective, out_bytes=size) if is_output else replace(collective, in_bytes=size)


def _from_mark(text: str) -> Collective:
    """What the probe's mark around a call tells: `<group>` or `<group>:peer=<global rank>`."""
    group, has_peer, peer = text.rpartition(layout.MARK_PEER)
    if has_peer and peer.isdigit():
        return Collective(group=group, peer=int(peer))
    return Collective(group=text)


def _group_peer(name: str, args: Args) -> int | None:
    """The other end of `c10d::send(tensors, group, to, tag)` or `c10d::recv_`, as a rank within the group."""
    if name not in ("c10d::send", "c10d::recv_"):
        return None
    try:
        peer = int(msgspec.json.decode(bytes(args.concrete))[2])
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        return None
    return peer if peer >= 0 else None


def _sized_by_shapes(name: str, collective: Collective, args: Args) -> Collective:
    """Bytes from `Input Dims` and `Input type` of an operator, or an annotation such as `gloo:all_reduce`."""
    try:
        dims = msgspec.json.decode(bytes(args.dims))
        types = msgspec.json.decode(bytes(args.types))
    except (ValueError, RecursionError):
        return collective
    if not isinstance(dims, list) or not isinstance(types, list):
        return collective
    tensors = []
    for shape, kind in zip(dims, types, strict=False):
        dtype = plain_dtype(kind) if isinstance(kind, str) else None
        if dtype is not None and _is_shape(shape):
            tensors.append((prod(shape) * _SIZES[dtype], dtype))
    if not tensors:
        return collective
    sizes = [size for size, _ in tensors]
    if name in _OUTPUT_AND_INPUT and len(sizes) == 2:
        return replace(collective, out_bytes=sizes[0], in_bytes=sizes[1], dtype=tensors[1][1])
    return replace(collective, in_bytes=sum(sizes), dtype=tensors[0][1])


# Operators whose first two arguments are the output and the input, a tensor each.
_OUTPUT_AND_INPUT = frozenset(
    f"c10d::{name}" for name in ("_allgather_base_", "_reduce_scatter_base_", "alltoall_base_")
)
# With a list of outputs and a list of inputs; functional collectives call them with one of each.
_COALESCED = ("allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_")
# Which argument of an operator holds what gloo's span will show as its input.
_INPUT = {
    **{f"c10d::{name}": 0 for name in ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_")},
    **{f"c10d::{name}": 1 for name in ("_allgather_base_", "allgather_", "_reduce_scatter_base_")},
    **{f"c10d::{name}": 1 for name in ("alltoall_base_", *_COALESCED)},
}


def _elements(name: str, args: Args) -> int | None:
    """Elements of all tensors of the input of an operator, or of a backend's span; None if not known."""
    try:
        dims = msgspec.json.decode(bytes(args.dims))
        shapes = dims if name.startswith(_SPANS) else dims[_INPUT[name]]
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        return None
    shapes = [shapes] if _is_shape(shapes) else shapes
    if not isinstance(shapes, list) or not shapes or not all(_is_shape(shape) for shape in shapes):
        return None
    return sum(int(prod(shape)) for shape in shapes)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(extent, int) for extent in value)


def plain_dtype(text: str | None) -> str | None:
    """A data type by its usual name: `c10::Half` -> `float16`; None where it is not known."""
    return _DTYPES.get(text.strip().lower()) if text else None


def _text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw)
    if not text or text == b'""':
        return None
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None
    return str(value) if value is not None else None


def _int(raw: msgspec.Raw) -> int | None:
    try:
        return int(_text(raw) or "")
    except ValueError:
        return None


class ProcessGroups:
    """The process groups of a file, to name and size what an event leaves open.

    Args:
        groups: `distributedInfo.pg_config`.
        world_size: of `distributedInfo`.
        collectives: of the file. One among fewer ranks than the world shows that there are groups that the
            file does not list; then a call that names no group may be on any of them.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        world_size: int | None,
        collectives: Iterable[Collective] = (),
    ) -> None:
        named = [group for group in groups if "pg_name" in group]
        self._sizes = {str(group["pg_name"]): _size_of(group) for group in named}
        self._ranks = {str(group["pg_name"]): _ranks_of(group) for group in named}
        self._world_size = world_size
        sizes = {collective.group_size or collective.told_size for collective in collectives} - {None, 0, 1}
        self.are_unlisted = not named and bool(world_size) and bool(sizes - {world_size})

    @property
    def sizes(self) -> dict[str, int | None]:
        """Group -> number of its ranks."""
        return dict(self._sizes)

    def complete(
        self, collective: Collective, group: str | None = None, source: int | None = None
    ) -> Collective:
        """`collective` with group, group size, peer and the sizes that follow.

        Args:
            collective: what the event and those around it tell.
            group: what is known of its thread.
            source: the sender, as a rank within the group, of a receive from any source.

        Where the event names no group: the only group there is, or the only one of the size that input and
        output tell; "default" with the world's size if the file lists none and none shows; "unknown"
        without a size if there are several.
        """
        name, size = collective.group if collective.group is not None else group, collective.group_size
        if name is None:
            stated = collective.told_size if len(self._sizes) > 1 else None
            fitting = [
                candidate for candidate, ranks in self._sizes.items() if stated is None or ranks == stated
            ]
            name = fitting[0] if len(fitting) == 1 else None
        if name is None:
            is_default = not self._sizes and not self.are_unlisted
            name = DEFAULT_GROUP if is_default else UNKNOWN_GROUP
            size = self._world_size if size is None and is_default else size
        elif size is None:
            size = self._sizes.get(name)
        peer, inside = collective.peer, collective.group_peer if collective.group_peer is not None else source
        ranks = self._ranks.get(name, ())
        if peer is None and inside is not None and inside < len(ranks):
            peer = ranks[inside]
        return replace(collective, group=name, group_size=size, peer=peer).completed()


def _size_of(group: dict[str, Any]) -> int | None:
    size = group.get("pg_size")
    if isinstance(size, int):
        return size
    ranks = group.get("ranks")
    return len(ranks) if isinstance(ranks, list) else None


def _ranks_of(group: dict[str, Any]) -> tuple[int, ...]:
    ranks = group.get("ranks")
    return tuple(ranks) if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks) else ()
