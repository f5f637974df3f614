"""Compiled XLA modules as JAX's profile carries them: names, sizes and costs of their instructions.

The profile's `/host:metadata` plane holds one HloProto for each module that was run. Field numbers:
xla/service/hlo.proto, xla/xla_data.proto and tsl/profiler/protobuf/xplane.proto. Unknown fields are passed
over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from msgspec import Struct

from perfscope.ingest.formats.op_names import OperatorName, place_of

Message = dict[int, list[int | bytes]]
Group = tuple[int, ...]

NOWHERE = OperatorName(None, "other", "")
_METADATA_PLANE = "/host:metadata"
# What touches a part of an array.
_PARTIAL = frozenset(
    ("slice", "dynamic-slice", "dynamic-update-slice", "gather", "scatter", "while", "conditional")
)
_WITH_ID = re.compile(r"^(.*?)(?:\((\d+)\))?$")
# PrimitiveType: number -> (name, bits)
_TYPES = {
    1: ("bool", 8), 2: ("int8", 8), 3: ("int16", 16), 4: ("int32", 32), 5: ("int64", 64), 6: ("uint8", 8),
    7: ("uint16", 16), 8: ("uint32", 32), 9: ("uint64", 64), 10: ("float16", 16), 11: ("float32", 32),
    12: ("float64", 64), 15: ("complex64", 64), 16: ("bfloat16", 16), 18: ("complex128", 128),
    19: ("float8_e5m2", 8), 20: ("float8_e4m3fn", 8), 21: ("int4", 4), 22: ("uint4", 4),
}  # fmt: skip


class ArrayShape(Struct, frozen=True):
    """An array, or a tuple of them in `parts`."""

    dtype: str | None = None
    dims: tuple[int, ...] = ()
    bits: int = 0
    parts: tuple[ArrayShape, ...] = ()

    @property
    def elements(self) -> int:
        return prod(self.dims)

    @property
    def arrays(self) -> tuple[ArrayShape, ...]:
        """The arrays it is made of, in order."""
        return tuple(array for part in self.parts for array in part.arrays) if self.parts else (self,)

    @property
    def num_bytes(self) -> int:
        return sum(array.elements * array.bits // 8 for array in self.arrays)


class Instruction(Struct, frozen=True):
    """One instruction.

    Attributes:
        scope: layer and phase. Of a fusion that of its heaviest product or convolution, else its own. XLA's
            own instructions (copied layouts, split convolutions) have no name: they get what they feed.
        named: JAX named it, or what it is made of; else `scope` was inferred, or nothing is known.
        operand_bytes: of all its operands.
        groups: of a collective, positions in the device assignment; () = all devices.
        flops: multiplications and additions of its products and convolutions; None: it has none.
        is_complete: it reads all of its operands and writes all of its result, as far as is known: these are
            then the bytes that must cross the memory. A slice reads a part, an update in place writes one.
    """

    name: str
    opcode: str
    shape: ArrayShape
    operand_bytes: int
    scope: OperatorName = NOWHERE
    is_named: bool = False
    groups: tuple[Group, ...] = ()
    flops: int | None = None
    is_complete: bool = False


class Module(Struct):
    """A compiled module.

    Attributes:
        instructions: by name, of every computation.
        devices: global device ids in order of their positions; () = not known.
    """

    name: str
    instructions: dict[str, Instruction] = {}
    devices: tuple[int, ...] = ()


class Modules:
    """The modules of a profile; each is decoded when it is first asked for.

    Args:
        data: an XSpace message.

    Raises:
        ValueError, IndexError: the message is damaged.
    """

    def __init__(self, data: bytes) -> None:
        self._protos: dict[tuple[str, int], bytes] = {}
        self._decoded: dict[tuple[str, int], Module] = {}
        for plane in _messages(data, 1):
            if _METADATA_PLANE in _texts(plane, 2):
                for entry in _bytes(plane, 4):
                    for metadata in _messages(entry, 2):
                        self._note(metadata)

    def _note(self, metadata: Message) -> None:
        match = _WITH_ID.match(_text(metadata, 2))
        name, number = match.groups() if match else ("", None)
        program = int(number) if number else _number(metadata, 1)
        for stat in map(decode, _bytes(metadata, 5)):
            for proto in _bytes(stat, 6):
                self._protos[name, program] = proto

    def __len__(self) -> int:
        return len(self._protos)

    def find(self, name: str, program: int | None) -> Module | None:
        """The module of this name and number; of this name, where the trace tells no number.

        Raises:
            ValueError, IndexError: it is damaged.
        """
        key = (name, -1 if program is None else program)
        if key not in self._protos:
            key = next(
                (program_key for program_key in self._protos if program_key[0] == name and program is None),
                key,
            )
        if key not in self._protos:
            return None
        if key not in self._decoded:
            self._decoded[key] = _module(self._protos[key])
        return self._decoded[key]


# -- protobuf ---------------------------------------------------------------------------------------------


def decode(data: int | bytes) -> Message:
    """One message, its sub-messages undecoded: field number -> values in order."""
    if isinstance(data, int):
        raise ValueError("a number where a message was expected")
    message: Message = {}
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        wire = key & 7
        value: int | bytes
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > end:
                raise ValueError("cut off")
            value = data[at : at + size]
            at += size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value = data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {wire}")
        message.setdefault(key >> 3, []).append(value)
    return message


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")


def _bytes(message: Message, number: int) -> list[bytes]:
    return [value for value in message.get(number, ()) if isinstance(value, bytes)]


def _messages(data: int | bytes, number: int) -> list[Message]:
    return [decode(value) for value in _bytes(decode(data), number)]


def _texts(message: Message, number: int) -> list[str]:
    return [value.decode("utf-8", "replace") for value in _bytes(message, number)]


def _text(message: Message, number: int) -> str:
    return next(iter(_texts(message, number)), "")


def _number(message: Message, number: int) -> int:
    return next((value for value in message.get(number, ()) if isinstance(value, int)), 0)


def _numbers(message: Message, number: int) -> list[int]:
    """A repeated integer, packed or not."""
    numbers: list[int] = []
    for value in message.get(number, ()):
        if isinstance(value, int):
            numbers.append(value)
            continue
        at = 0
        while at < len(value):
            number_read, at = _varint(value, at)
            numbers.append(number_read)
    return numbers


# -- HLO --------------------------------------------------------------------------------------------------


def _module(proto: bytes) -> Module:
    message = next(iter(_messages(proto, 1)), {})
    computations = map(decode, _bytes(message, 3))
    drafts = {
        _number(computation, 5): [_Draft(decode(part)) for part in _bytes(computation, 2)]
        for computation in computations
    }
    module = Module(name=_text(message, 1), devices=_devices(message))
    shapes = {draft.id: draft.shape for group in drafts.values() for draft in group}
    for group in drafts.values():
        for draft in group:
            draft.settle(drafts, shapes)
    for group in drafts.values():
        _infer(group)
        for draft in group:
            module.instructions[draft.name] = draft.finished(shapes)
    return module


def _devices(module: Message) -> tuple[int, ...]:
    """Ids in the order of `replica * computations + computation`; JAX leaves one of the two at 1."""
    for assignment in map(decode, _bytes(module, 15)):
        rows = [_numbers(decode(computation), 1) for computation in _bytes(assignment, 3)]
        replicas = max((len(row) for row in rows), default=0)
        return tuple(row[replica] for replica in range(replicas) for row in rows if replica < len(row))
    return ()


def _infer(group: list[_Draft]) -> None:
    """Give instructions of one computation that have no name the place that all they feed agree on.

    Where these say nothing, of what feeds them. Operands come before their users in the list.
    """
    users: dict[int, list[_Draft]] = {}
    by_id = {draft.id: draft for draft in group}
    for draft in group:
        for operand in draft.operands:
            users.setdefault(operand, []).append(draft)
    for draft in reversed(group):
        _agree(draft, users.get(draft.id, ()))
    for draft in group:
        _agree(draft, [by_id[number] for number in draft.operands if number in by_id])


def _agree(draft: _Draft, related: Iterable[_Draft]) -> None:
    if draft.scope is NOWHERE:
        locations = {other.scope for other in related if other.scope.layer is not None}
        if len({location[:2] for location in locations}) == 1:
            draft.scope = next(iter(locations))


class _Draft:
    """An instruction that is not yet put together with those it refers to."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.name = _text(message, 1)
        self.opcode = _text(message, 2)
        self.shape = next((_shape(part) for part in _bytes(message, 3)), ArrayShape())
        self.op_name = next((_text(decode(part), 2) for part in _bytes(message, 7)), "")
        self.id = _number(message, 35)
        self.operands = _numbers(message, 36)
        self.called = _numbers(message, 38)
        self.scope = NOWHERE
        self.is_named = False
        self.flops: int | None = None
        self.is_complete = False

    def settle(self, drafts: dict[int, list[_Draft]], shapes: dict[int, ArrayShape]) -> None:
        """Work and place, from its own name and, of a fusion, from what it is made of."""
        inside = self._inside(drafts, 0) if self.opcode in ("fusion", "call") else []
        self.is_complete = not any(draft.opcode in _PARTIAL for draft in (self, *inside))
        work = [(draft._own_flops(shapes), draft.op_name) for draft in (self, *inside)]
        counted = [(amount, name) for amount, name in work if amount]
        self.flops = sum(amount for amount, _ in counted) if counted else None
        heaviest = max(counted, key=lambda item: item[0], default=(0, ""))[1]
        name = heaviest or self.op_name
        if name:
            self.scope, self.is_named = place_of(name), True
            return
        locations = {
            place_of(draft.op_name)[:2]: place_of(draft.op_name) for draft in inside if draft.op_name
        }
        if len(locations) == 1:
            self.scope, self.is_named = next(iter(locations.values())), True

    def finished(self, shapes: dict[int, ArrayShape]) -> Instruction:
        return Instruction(
            name=self.name,
            opcode=self.opcode,
            shape=self.shape,
            operand_bytes=sum(shapes[operand].num_bytes for operand in self.operands if operand in shapes),
            scope=self.scope,
            is_named=self.is_named,
            groups=self._groups(),
            flops=self.flops,
            is_complete=self.is_complete,
        )

    def _inside(self, drafts: dict[int, list[_Draft]], depth: int) -> list[_Draft]:
        drafts_inside = []
        for number in self.called:
            for draft in drafts.get(number, ()):
                drafts_inside.append(draft)
                if draft.opcode in ("fusion", "call") and depth < 4:
                    drafts_inside += draft._inside(drafts, depth + 1)
        return drafts_inside

    def _own_flops(self, shapes: dict[int, ArrayShape]) -> int | None:
        """2 x output elements x what is summed for each (a convolution's padding counts as work)."""
        operands = [shapes[operand] for operand in self.operands[:2] if operand in shapes]
        if len(operands) < 2:
            return None
        if self.opcode == "dot":
            numbers = next(iter(_bytes(self.message, 30)), b"")
            summed = prod(operands[0].dims[axis] for axis in _numbers(decode(numbers), 1))
            return 2 * self.shape.elements * summed
        if self.opcode == "convolution":
            numbers = next(iter(_bytes(self.message, 16)), b"")
            features = operands[1].dims[_number(decode(numbers), 4)] if operands[1].dims else 1
            return 2 * self.shape.elements * operands[1].elements // max(1, features * self._dilation())
        return None

    def _dilation(self) -> int:
        """By how much a convolution's input was spread with zeros (the gradient of a strided one)."""
        spread = 1
        for window in map(decode, _bytes(self.message, 15)):
            for dimension in map(decode, _bytes(window, 1)):
                spread *= max(1, _number(dimension, 6))
        return spread

    def _groups(self) -> tuple[Group, ...]:
        groups = [tuple(_numbers(decode(part), 1)) for part in _bytes(self.message, 49)]
        for devices in map(decode, _bytes(self.message, 87)):
            groups = groups or [tuple(_numbers(decode(part), 1)) for part in _bytes(devices, 1)]
            groups = groups or [group for part in _bytes(devices, 2) for group in _iota(decode(part))]
        return tuple(group for group in groups if group)


def _iota(message: Message) -> list[Group]:
    """Groups written as `[groups, size] <= [reshape] T(permutation)`."""
    num, size = _number(message, 1), _number(message, 2)
    dims, order = _numbers(message, 3), _numbers(message, 4)
    total = num * size
    if not dims or prod(dims) != total:
        dims, order = [total], []
    order = order or list(range(len(dims)))
    strides = [prod(dims[axis + 1 :]) for axis in range(len(dims))]
    flat = [0]
    for axis in order:
        flat = [base + position * strides[axis] for base in flat for position in range(dims[axis])]
    return [tuple(flat[at : at + size]) for at in range(0, total, size)] if size else []


def _shape(data: bytes) -> ArrayShape:
    message = decode(data)
    parts = tuple(_shape(part) for part in _bytes(message, 4))
    dtype, bits = _TYPES.get(_number(message, 2), (None, 0))
    return ArrayShape(dtype=dtype, dims=tuple(_numbers(message, 3)), bits=bits, parts=parts)
