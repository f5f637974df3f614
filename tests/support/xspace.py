"""Writes XSpace messages, field by field, for tests of what reads them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = int | float | str | bytes


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(at: int, value: int) -> bytes:
    return varint(at << 3) + varint(value)


def message(at: int, body: bytes | str) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    return varint(at << 3 | 2) + varint(len(data)) + data


@dataclass
class Event:
    name: str
    offset_ps: int
    duration_ps: int
    stats: Mapping[str, Value] = field(default_factory=dict)


@dataclass
class Line:
    id: int
    name: str
    timestamp_ns: int
    events: Sequence[Event] = ()


@dataclass
class Plane:
    name: str
    lines: Sequence[Line] = ()
    stats: Mapping[str, Value] = field(default_factory=dict)

    def encoded(self) -> bytes:
        names: dict[str, int] = {}
        stat_names: dict[str, int] = {}
        body = b"".join(message(3, _line(line, names, stat_names)) for line in self.lines)
        body += b"".join(message(6, _stat(*item, stat_names)) for item in self.stats.items())
        # Metadata after what uses it, as protobuf allows: a reader must not rely on the order.
        body += b"".join(message(4, _entry(key, name)) for name, key in names.items())
        body += b"".join(message(5, _entry(key, name)) for name, key in stat_names.items())
        return message(2, self.name) + body


def space(*planes: Plane) -> bytes:
    return b"".join(message(1, plane.encoded()) for plane in planes) + message(4, "some-host")


def host(*lines: Line, started_ns: int) -> bytes:
    """The threads of one host, and the plane that says when the profile began."""
    return space(Plane("/host:CPU", lines), Plane("Task Environment", (), {"profile_start_time": started_ns}))


def _entry(key: int, name: str) -> bytes:
    return number(1, key) + message(2, number(1, key) + message(2, name))


def _line(line: Line, names: dict[str, int], stat_names: dict[str, int]) -> bytes:
    body = number(1, line.id) + message(2, line.name) + number(3, line.timestamp_ns)
    return body + b"".join(message(4, _event(event, names, stat_names)) for event in line.events)


def _event(event: Event, names: dict[str, int], stat_names: dict[str, int]) -> bytes:
    key = names.setdefault(event.name, len(names) + 1)
    body = number(1, key) + number(2, event.offset_ps) + number(3, event.duration_ps)
    return body + b"".join(message(4, _stat(*item, stat_names)) for item in event.stats.items())


def _stat(name: str, value: Value, stat_names: dict[str, int]) -> bytes:
    key = number(1, stat_names.setdefault(name, len(stat_names) + 1))
    if isinstance(value, float):
        return key + varint(2 << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return key + (number(4, value) if value < 0 else number(3, value))
    return key + message(5 if isinstance(value, str) else 6, value)
