"""Reads `.xplane.pb`, the profile of TensorFlow and JAX: plain protobuf, without their packages.

Field numbers: tsl/profiler/protobuf/xplane.proto. Only what a timeline needs is decoded; unknown fields are
passed over, as protobuf wants it. Events and their stats are most of a file, so those are decoded by hand;
everything else goes through `message_fields`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from perfscope.errors import TraceError
from perfscope.ingest.inflate import read_whole

Stat = int | float | str | bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_Field = tuple[int, int, int, int]  # number, wire type, value or start, end
_DOUBLE = struct.Struct("<d")
_WORD = (1 << 64) - 1


class XEvent(Struct):
    """One event. `offset_ps` counts from the line's `timestamp_ns`."""

    name: str
    offset_ps: int
    duration_ps: int
    stats: dict[str, Stat]


class XLine(Struct):
    """A thread or stream. `id` is the profiler's own number of it, no thread id of the system."""

    id: int
    name: str
    timestamp_ns: int
    events: list[XEvent]

    def start_ns(self, event: XEvent) -> int:
        return self.timestamp_ns + event.offset_ps // 1000


class XPlane(Struct):
    """`/host:CPU`, `/device:GPU:0`, `Task Environment`, ..."""

    name: str
    lines: list[XLine]
    stats: dict[str, Stat] = {}


def read_xspace(path: Path) -> list[XPlane]:
    """All planes of a file, gzipped or not.

    Raises:
        TraceError: it is no whole XSpace message.
    """
    data = read_whole(path)
    try:
        return [
            _plane(data, start, end)
            for number, wire, start, end in message_fields(data, 0, len(data))
            if number == 1 and wire == _BYTES
        ]
    except (IndexError, ValueError) as error:
        raise TraceError(
            f"{path}: is no whole XPlane profile ({' '.join(str(error).split())}); was it cut off?"
        ) from None


def message_fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    """Fields of one message: (number, wire type, start, end), or (number, wire type, value, 0) of varints.

    Raises:
        ValueError, IndexError: it is no whole message.
    """
    while at < end:
        key, at = read_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = read_varint(data, at)
            yield number, wire, value, 0
        else:
            start, at = _extent(data, at, end, wire)
            yield number, wire, start, at
    if at != end:
        raise ValueError("a field goes beyond its message")


def _extent(data: bytes, at: int, end: int, wire: int) -> tuple[int, int]:
    """(start, end) of the value of a field that is no varint."""
    if wire == _BYTES:
        size, at = read_varint(data, at)
    elif wire in _FIXED:
        size = _FIXED[wire]
    else:
        raise ValueError(f"unknown wire type {wire}")
    if at + size > end:
        raise ValueError("a field goes beyond its message")
    return at, at + size


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(a number, where it ends).

    Raises:
        ValueError, IndexError: there is none.
    """
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _WORD, at + 1
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _text(data: bytes, start: int, end: int) -> str:
    return data[start:end].decode("utf-8", "replace")


def _plane(data: bytes, start: int, end: int) -> XPlane:
    parts: dict[int, list[tuple[int, int]]] = {2: [], 3: [], 4: [], 5: [], 6: []}
    for number, wire, first, last in message_fields(data, start, end):
        if wire == _BYTES and number in parts:
            parts[number].append((first, last))
    names = dict(_entry(data, *part) for part in parts[4])
    stat_names = dict(_entry(data, *part) for part in parts[5])
    plane = XPlane(name=_text(data, *parts[2][-1]) if parts[2] else "", lines=[])
    for part in parts[6]:
        _add_stat(data, *part, stat_names, plane.stats)
    plane.lines = [_line(data, *part, names, stat_names) for part in parts[3]]
    return plane


def _entry(data: bytes, start: int, end: int) -> tuple[int, str]:
    """(id, name) of one entry of a map of metadata; the name is field 2 of both kinds of metadata."""
    key, own_key, name = None, 0, ""
    for number, wire, first, last in message_fields(data, start, end):
        if number == 1 and wire == _VARINT:
            key = first
        elif number == 2 and wire == _BYTES:
            for inner, inner_wire, begin, stop in message_fields(data, first, last):
                if inner == 2 and inner_wire == _BYTES:
                    name = _text(data, begin, stop)
                elif inner == 1 and inner_wire == _VARINT:
                    own_key = begin
    return own_key if key is None else key, name


def _line(data: bytes, start: int, end: int, names: dict[int, str], stat_names: dict[int, str]) -> XLine:
    line = XLine(id=0, name="", timestamp_ns=0, events=[])
    append = line.events.append
    for number, wire, first, last in message_fields(data, start, end):
        if number == 4 and wire == _BYTES:
            append(_event(data, first, last, names, stat_names))
        elif number == 1 and wire == _VARINT:
            line.id = _signed(first)
        elif number == 2 and wire == _BYTES:
            line.name = _text(data, first, last)
        elif number == 3 and wire == _VARINT:
            line.timestamp_ns = _signed(first)
    return line


def _event(data: bytes, at: int, end: int, names: dict[int, str], stat_names: dict[int, str]) -> XEvent:
    name, offset, duration = "", 0, 0
    stats: dict[str, Stat] = {}
    while at < end:
        key = data[at]
        at += 1
        if key >= 0x80:
            key, at = read_varint(data, at - 1)
        wire = key & 7
        if wire == _VARINT:
            value = data[at]
            at += 1
            if value >= 0x80:
                value, at = read_varint(data, at - 1)
            number = key >> 3
            if number == 1:
                name = names.get(value, "")
            elif number == 2:
                offset = _signed(value)
            elif number == 3:
                duration = _signed(value)
        else:
            begin, at = _extent(data, at, end, wire)
            if key == 34:  # field 4, a message
                _add_stat(data, begin, at, stat_names, stats)
    if at != end:
        raise ValueError("a field goes beyond its message")
    return XEvent(name, offset, duration, stats)


def _add_stat(data: bytes, at: int, end: int, names: dict[int, str], stats: dict[str, Stat]) -> None:
    """Put the stat of this message into `stats`, unless it has no name or no value."""
    name = ""
    stat: Stat | None = None
    while at < end:
        key = data[at]
        at += 1
        if key >= 0x80:
            key, at = read_varint(data, at - 1)
        if key & 7 == _VARINT:
            value = data[at]
            at += 1
            if value >= 0x80:
                value, at = read_varint(data, at - 1)
            if key == 1 << 3:
                name = names.get(value, "")
            elif key in _NUMBERS:
                stat = names.get(value, "") if key == _REFERENCE else _signed_if(value, key == _INT)
        else:
            begin, at = _extent(data, at, end, key & 7)
            decode = _STAT_VALUES.get(key)
            if decode is not None:
                stat = decode(data, begin, at)
    if at != end:
        raise ValueError("a field goes beyond its message")
    if name and stat is not None:
        stats[name] = stat


_UNSIGNED, _INT, _REFERENCE = (number << 3 | _VARINT for number in (3, 4, 7))
_NUMBERS = frozenset((_UNSIGNED, _INT, _REFERENCE))
_STAT_VALUES: dict[int, Callable[[bytes, int, int], Stat]] = {
    2 << 3 | _FIXED64: lambda data, start, end: float(_DOUBLE.unpack_from(data, start)[0]),
    5 << 3 | _BYTES: _text,
    6 << 3 | _BYTES: lambda data, start, end: data[start:end],
}


def _signed_if(value: int, signed: bool) -> int:
    return _signed(value) if signed else value


def _signed(value: int) -> int:
    """An int64 of protobuf: negative numbers are sent as their two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value
