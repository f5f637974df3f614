"""What a Kineto trace says about itself, before or after its events."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from perfscope.ingest.metadata import Metadata
from perfscope.rundir import layout

# Looked up by themselves when the text around them is damaged.
_OBJECT_KEYS = ("distributedInfo",)
_NUMBER_KEYS = ("baseTimeNanoseconds",)
_LIST_TAIL = re.compile(rb'"traceEvents"\s*:\s*\[\s*$')


def parse_metadata(outside: list[bytes]) -> Metadata:
    """Top-level fields from the text before and after the events.

    Args:
        outside: as left by `EventReader`: text up to and including an opening `[`, then text after `]`.
    """
    fields: dict[str, Any] = {}
    for number, text in enumerate(outside):
        fields.update(_fields(text, first=number == 0))
    info = fields.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    groups = info.get("pg_config")
    devices = fields.get("deviceProperties")
    reducers = fields.get(layout.TRACE_REDUCERS)
    return Metadata(
        rank=_int(info.get("rank")),
        world_size=_int(info.get("world_size")),
        backend=str(info["backend"]) if info.get("backend") else None,
        groups=[g for g in groups if isinstance(g, dict)] if isinstance(groups, list) else [],
        reducers=[str(name) for name in reducers] if isinstance(reducers, list) else [],
        base_ns=_int(fields.get("baseTimeNanoseconds")) or 0,
        host=str(fields["host_name"]) if fields.get("host_name") else None,
        devices=_device_names(devices if isinstance(devices, list) else []),
    )


def _device_names(devices: list[Any]) -> dict[int, str]:
    names = {}
    for device in devices:
        if isinstance(device, dict) and isinstance(device.get("id"), int):
            names[device["id"]] = str(device.get("name", ""))
    return names


def _fields(text: bytes, *, first: bool) -> dict[str, Any]:
    """The JSON fields of one stretch of text outside the events."""
    body = text.strip().removeprefix(b"\xef\xbb\xbf")
    body = _LIST_TAIL.sub(b"", body).strip().rstrip(b",")
    body = body.removeprefix(b"{") if first else body.lstrip(b", \t\r\n")
    for closing in (b"", b"}"):
        try:
            value = msgspec.json.decode(b"{" + body.removesuffix(b"}" if not closing else b"") + b"}")
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else {}
    return _rescued(text)


def _rescued(text: bytes) -> dict[str, Any]:
    """Single fields out of text that is no JSON as a whole."""
    values: dict[str, Any] = {}
    for key in _NUMBER_KEYS:
        number = re.search(rb'"%b"\s*:\s*(\d+)' % key.encode(), text)
        if number:
            values[key] = int(number[1])
    for key in _OBJECT_KEYS:
        start = re.search(rb'"%b"\s*:\s*(?=\{)' % key.encode(), text)
        end = start.end() if start else len(text)
        while start and (end := text.find(b"}", end) + 1) > 0:
            try:
                values[key] = msgspec.json.decode(text[start.end() : end])
                break
            except (ValueError, RecursionError):
                continue
    return values


def _int(value: object) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(str(value))
    except ValueError:
        return None
