"""Events out of damaged text, one at a time: slow, and only for the chunk that is damaged."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.ingest.events import Event, TooDeepError, decode_event

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|["{}\[\]]', re.DOTALL)
# Where an event very probably begins, used to find the way again after one that cannot be read.
_RESUME = re.compile(rb'\}?\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|s|id)"\s*:)')
_LIST_OF_LISTS = re.compile(rb"\[\s*\[")  # never begins events, which a single stray bracket may well do
_OPEN_BRACE, _CLOSE_BRACKET = ord("{"), ord("]")


@dataclass(slots=True)
class Salvaged:
    """What a stretch of damaged text held."""

    upto: int  # the text before this has been dealt with
    events: list[Event] = field(default_factory=list)
    dropped: int = 0  # events that could not be read
    num_mended: int = 0  # events that are no valid JSON and were read all the same
    too_deep: bool = False  # one of those dropped is nested deeper than can be read
    ended: bool = False  # the array's closing bracket was met; `upto` is behind it


def salvage(buffer: bytearray, start: int, end: int, *, last: bool) -> Salvaged:
    """Walk the brackets of `buffer[start:end]` and decode every object by itself.

    Args:
        last: no more text will come; an object left open is dropped. Otherwise it stays for later.
    """
    found = Salvaged(upto=start)
    while True:
        position = _skip(buffer, found.upto, end)
        if position >= end:
            found.upto = end
            return found
        if buffer[position] == _CLOSE_BRACKET:
            found.upto = position + 1
            found.ended = True
            return found
        if buffer[position] != _OPEN_BRACE and not _LIST_OF_LISTS.match(buffer, position, end):
            _resume(buffer, position, end, found)
            continue
        stop = _value_end(buffer, position, end)
        if stop == 0:
            if not last:
                found.upto = position
                return found
            _resume(buffer, position, end, found)
            continue
        try:
            event, mended = decode_event(bytes(buffer[position:stop]))
        except TooDeepError:
            found.dropped += 1
            found.too_deep = True
            found.upto = stop
            continue
        if event is not None and (event.ph or event.name):
            found.events.append(event)
            found.num_mended += mended
            found.upto = stop
        else:
            _resume(buffer, position, stop, found)


def _skip(buffer: bytearray, position: int, end: int) -> int:
    while position < end and buffer[position] in b" \t\r\n,":
        position += 1
    return position


def _resume(buffer: bytearray, position: int, end: int, found: Salvaged) -> None:
    """Step over something unreadable: to the next probable event, else to `end`."""
    resumed = _RESUME.search(buffer, position + 1, end)
    found.dropped += 1
    found.upto = resumed.end() if resumed else end


def _value_end(buffer: bytearray, start: int, end: int) -> int:
    """Just behind the bracket that closes the object or list at `start`; 0 if it stays open."""
    depth = 0
    for token in _TOKEN.finditer(buffer, start, end):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark == b'"':
            return 0  # a string that does not end in this text
        elif mark in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
    return 0
