"""Pieces of Chrome's JSON trace format, as bytes."""

from __future__ import annotations

import json


def metadata_event(kind: str, pid: int, tid: int, **arguments: object) -> bytes:
    """Name or place of a process or thread."""
    return as_json({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": arguments})


def as_json(value: object) -> bytes:
    """Compact, one line."""
    return json.dumps(value, separators=(",", ":")).encode()


def micros(nanoseconds: int) -> str:
    """Decimal microseconds with three places; also before the first span, where counters start."""
    sign, size = ("-" if nanoseconds < 0 else ""), abs(nanoseconds)
    return f"{sign}{size // 1000}.{size % 1000:03d}"


def span_event(
    thread: tuple[int, int], start_ns: int, dur_ns: int, texts: tuple[object, object], arguments: object
) -> bytes:
    """A complete event.

    Args:
        thread: process and thread.
        start_ns: since the first span of the trace.
        texts: category and name.
    """
    pid, tid = thread
    head = f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{micros(start_ns)},"dur":{micros(dur_ns)},"cat":'
    category, name = (as_json(text) for text in texts)
    return b"".join((head.encode(), category, b',"name":', name, b',"args":', as_json(arguments), b"}"))


def counter_event(pid: int, at_ns: int, name: str, value: float) -> bytes:
    """One reading of a counter; it holds until the next."""
    head = f'{{"ph":"C","pid":{pid},"tid":0,"ts":{micros(at_ns)},"name":'
    return head.encode() + as_json(name) + b',"args":{"value":' + as_json(value) + b"}}"
