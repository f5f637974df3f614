"""One trace event, typed to the few fields perfscope needs.

msgspec decodes a whole chunk of events into these at several hundred MB/s because all other
fields are skipped without being built. `ts`, `dur` and everything that is text elsewhere stay
`Raw`: a view of the chunk's bytes, valid only until the reader moves on.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

_ABSENT = Raw()


class Args(Struct, gc=False, frozen=True):
    """The `args` of an event. -1 stands for an absent number, empty bytes for absent text."""

    # In the order in which Kineto writes them: msgspec then finds each field at the first try.
    record_function: Raw = field(default=_ABSENT, name="Record function id")
    sequence: int = field(default=-1, name="Sequence number")
    forward_thread: int = field(default=-1, name="Fwd thread id")
    concrete: Raw = field(default=_ABSENT, name="Concrete Inputs")
    types: Raw = field(default=_ABSENT, name="Input type")
    dims: Raw = field(default=_ABSENT, name="Input Dims")
    device: int = -1
    stream: int = -1
    correlation: int = -1
    registers: int = field(default=-1, name="registers per thread")
    grid: Raw = _ABSENT
    block: Raw = _ABSENT
    occupancy: Raw = field(default=_ABSENT, name="est. achieved occupancy %")
    num_bytes: Raw = field(default=_ABSENT, name="bytes")
    collective: Raw = field(default=_ABSENT, name="Collective name")
    in_elements: Raw = field(default=_ABSENT, name="In msg nelems")
    out_elements: Raw = field(default=_ABSENT, name="Out msg nelems")
    group_size: Raw = field(default=_ABSENT, name="Group size")
    dtype: Raw = _ABSENT
    group: Raw = field(default=_ABSENT, name="Process Group Name")
    source_rank: Raw = field(default=_ABSENT, name="Src Rank")
    labels: Raw = _ABSENT  # of a process, in metadata
    title: Raw = field(default=_ABSENT, name="name")  # likewise
    target_rank: Raw = field(default=_ABSENT, name="Dst Rank")
    in_splits: Raw = field(default=_ABSENT, name="In split size")
    out_splits: Raw = field(default=_ABSENT, name="Out split size")
    # Of allocator events.
    total_reserved: Raw = field(default=_ABSENT, name="Total Reserved")
    total_allocated: Raw = field(default=_ABSENT, name="Total Allocated")
    device_id: Raw = field(default=_ABSENT, name="Device Id")
    device_type: Raw = field(default=_ABSENT, name="Device Type")


NO_ARGS = Args()


class Event(Struct, gc=False):
    """An event of the Chrome trace format; see the format's `ph`, `cat` and so on."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Raw = _ABSENT
    dur: Raw = _ABSENT
    args: Args = NO_ARGS


class ReadCounts(Struct):
    """What became of the event objects met so far. read = handed on + skipped + dropped."""

    read: int = 0
    skipped: int = 0  # Python frames that were counted and never built
    dropped: int = 0  # unreadable
    notes: list[str] = []  # damage, in words
    ends_early: bool = False  # events at the end of the file are lost
    lost: bool = False  # or elsewhere


class TooDeepError(ValueError):
    """JSON nested deeper than the decoder's stack: no trace is, the one who wrote it."""

    def __init__(self) -> None:
        super().__init__("nested too deep")


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_RAWS = msgspec.json.Decoder(list[Raw])


def decode_events(text: memoryview) -> list[Event]:
    """A JSON array of events, decoded at once.

    Raises:
        ValueError: it is no valid JSON array, or an element does not look like an event.
        TooDeepError: one of the ValueErrors.
    """
    try:
        return _EVENTS.decode(text)
    except RecursionError:
        raise TooDeepError from None


def decode_raws(text: memoryview) -> list[Raw]:
    """A JSON array as the raw text of its elements.

    Raises:
        ValueError: it is no valid JSON array.
        TooDeepError: one of the ValueErrors.
    """
    try:
        return _RAWS.decode(text)
    except RecursionError:
        raise TooDeepError from None


def decode_event(text: bytes) -> tuple[Event | None, bool]:
    """One event from its own text, mending what can be mended; None if it is beyond that.

    Accepts control characters in strings, NaN and Infinity, invalid UTF-8, and fields of
    unexpected types.

    Returns:
        The event, and whether it had to be mended.

    Raises:
        TooDeepError: it cannot even be looked at.
    """
    try:
        return _EVENT.decode(text), False
    except ValueError:
        return _mended(text), True
    except RecursionError:
        raise TooDeepError from None


def _mended(text: bytes) -> Event | None:
    try:
        clean = text.decode("utf-8", "replace")
        loose = json.loads(clean, strict=False, parse_float=_Number, parse_int=_Number)
        return _from_loose(loose) if isinstance(loose, dict) else None
    except RecursionError:
        raise TooDeepError from None
    except ValueError:
        return None


_ARG_NAMES = {f.encode_name: (f.name, f.type is Raw) for f in msgspec.structs.fields(Args)}


class _Number(str):
    """A JSON number kept as its text."""

    __slots__ = ()


def _from_loose(loose: dict[str, Any]) -> Event:
    args = loose.get("args")
    return Event(
        ph=_text(loose.get("ph")),
        cat=_text(loose.get("cat")),
        name=_text(loose.get("name")),
        pid=_id(loose.get("pid")),
        tid=_id(loose.get("tid")),
        ts=_raw(loose.get("ts")),
        dur=_raw(loose.get("dur")),
        args=_loose_args(args) if isinstance(args, dict) else NO_ARGS,
    )


def _loose_args(args: dict[str, Any]) -> Args:
    values: dict[str, Any] = {}
    for key, value in args.items():
        if key in _ARG_NAMES:
            name, is_raw = _ARG_NAMES[key]
            values[name] = _raw(value) if is_raw else _int(value)
    return Args(**values)


def _text(value: object) -> str:
    # A lone surrogate is no text: it could not be written anywhere.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _int(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return -1


def _id(value: object) -> int | str:
    number = _int(value)
    return number if str(number) == value else str(value or 0)


def _raw(value: object) -> Raw:
    if value is None:
        return _ABSENT
    return Raw(value.encode() if isinstance(value, _Number) else json.dumps(value).encode())
