"""Nodes of a Chakra execution trace, decoded by hand: a file is messages, each with its length before it.

Field numbers: schema/protobuf/et_def.proto of mlcommons/chakra, version 0.0.4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from perfscope.errors import TraceError
from perfscope.ingest.formats.xplane import message_fields, read_varint
from perfscope.ingest.inflate import read_whole

METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = 1, 2, 3, 4, 5, 6, 7  # NodeType
_VARINT, _BYTES = 0, 2
_SIGNED = (15, 17)  # fields of attributes with zigzag numbers
_TEXT, _DOUBLE, _FLOAT = 29, 3, 5
_FIXED = {_DOUBLE: struct.Struct("<d"), _FLOAT: struct.Struct("<f")}

Attribute = int | float | str


class ChakraNode(Struct):
    """One node; times in microseconds as the file has them, 0: none."""

    id: int = 0
    name: str = ""
    type: int = 0
    needs: list[int] = []  # control and data dependencies
    start_us: int = 0
    duration_us: int = 0
    inputs: str = ""  # their values, as text
    attributes: dict[str, Attribute] = {}

    def number(self, name: str) -> int | None:
        """A whole number of its attributes that a column holds."""
        value = self.attributes.get(name)
        return value if isinstance(value, int) and abs(value) < 1 << 61 else None

    def text(self, name: str) -> str:
        """A text of its attributes; "" where there is none."""
        value = self.attributes.get(name)
        return value if isinstance(value, str) else ""


class ChakraFile:
    """A file: iterate over its nodes.

    Attributes:
        version: of the schema, as the file states it.
        ends_early: its last message is not whole.

    Raises:
        TraceError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._data = read_whole(path, is_part_of_use=True)
        self.ends_early = False
        self.num_read = self.num_dropped = 0
        try:
            size, start = read_varint(self._data, 0)
            self._start = start + size
            fields = list(message_fields(self._data, start, self._start))
        except (ValueError, IndexError):
            raise TraceError(
                f"{path}: is no Chakra execution trace that can be read: it is damaged"
            ) from None
        texts = [
            self._data[first:last] for number, wire, first, last in fields if (number, wire) == (1, _BYTES)
        ]
        self.version = texts[0].decode("utf-8", "replace")[:64] if texts else ""

    def __iter__(self) -> Iterator[ChakraNode]:
        at = self._start
        while at < len(self._data):
            try:
                size, start = read_varint(self._data, at)
            except (ValueError, IndexError):
                size, start = len(self._data), at
            at = start + size
            if at > len(self._data):
                self.ends_early = True
                return
            self.num_read += 1
            try:
                yield _node(self._data, start, at)
            except (ValueError, IndexError, struct.error):
                self.num_dropped += 1


def _node(data: bytes, start: int, end: int) -> ChakraNode:
    node = ChakraNode()
    for number, wire, first, last in message_fields(data, start, end):
        if wire == _VARINT:
            _set_number(node, number, first)
        elif wire == _BYTES:
            _set_bytes(node, number, data, first, last)
    return node


def _set_number(node: ChakraNode, number: int, value: int) -> None:
    if number == 1:
        node.id = value
    elif number == 3:
        node.type = value
    elif number in (4, 5):
        node.needs.append(value)
    elif number == 6:
        node.start_us = value
    elif number == 7:
        node.duration_us = value


def _set_bytes(node: ChakraNode, number: int, data: bytes, first: int, last: int) -> None:
    if number == 2:
        node.name = data[first:last].decode("utf-8", "replace")
    elif number in (4, 5):  # packed
        while first < last:
            need, first = read_varint(data, first)
            node.needs.append(need)
    elif number == 8:
        for inner, wire, begin, end in message_fields(data, first, last):
            if (inner, wire) == (1, _BYTES):
                node.inputs = data[begin:end].decode("utf-8", "replace")
    elif number == 10:
        name, setting = _attribute(data, first, last)
        node.attributes[name] = setting


def _attribute(data: bytes, start: int, end: int) -> tuple[str, Attribute]:
    """(name, value); some writers leave out a value of 0."""
    name = ""
    value: Attribute = 0
    for number, wire, first, last in message_fields(data, start, end):
        if number == 1 and wire == _BYTES:
            name = data[first:last].decode("utf-8", "replace")
        elif number == _TEXT and wire == _BYTES:
            value = data[first:last].decode("utf-8", "replace")
        elif number in _FIXED:
            (value,) = _FIXED[number].unpack(data[first:last])
        elif wire == _VARINT:
            value = first >> 1 ^ -(first & 1) if number in _SIGNED else first - (first >> 63 << 64)
    return name, value
