"""Events out of damaged text, one at a time: slow, and only for the chunk that is damaged."""

from __future__ import annotations

import re

from msgspec import Struct

from perfscope.ingest.events import Event, TooDeepError, decode_event

_MARK = re.compile(rb'["{}\[\]]')
_BLANK = re.compile(rb"[ \t\r\n,]*")
# Where an event very probably begins, used to find the way again after one that cannot be read.
_RESUME = re.compile(rb'\}?\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|s|id)"\s*:)')
_LIST_OF_LISTS = re.compile(rb"\[\s*\[")  # never begins events, which a single stray bracket may well do
_OPEN_BRACE, _CLOSE_BRACKET = ord("{"), ord("]")
_MAX_DEPTH = 1000  # what the decoder takes
_TOO_DEEP = -1
_MOST_OF_TOO_DEEP = 1 << 22  # bytes that are searched for the end of what is nested too deep
_BACKSLASH = ord("\\")


class Salvaged(Struct):
    """What a stretch of damaged text held."""

    upto: int  # the text before this has been dealt with
    events: list[Event] = []
    dropped: int = 0  # events that could not be read
    num_mended: int = 0  # events that are no valid JSON and were read all the same
    too_deep: bool = False  # one of those dropped is nested deeper than can be read
    ended: bool = False  # the array's closing bracket was met; `upto` is behind it


def salvage(buffer: bytearray, start: int, end: int, *, last: bool) -> Salvaged:
    """Walk the brackets of `buffer[start:end]` and decode every object by itself.

    Args:
        last: no more text will come; an object left open is dropped. Otherwise it stays for later.
    """
    salvaged = Salvaged(upto=start)
    while True:
        position = _skip(buffer, salvaged.upto, end)
        if position >= end:
            salvaged.upto = end
            return salvaged
        if buffer[position] == _CLOSE_BRACKET:
            salvaged.upto = position + 1
            salvaged.ended = True
            return salvaged
        if buffer[position] != _OPEN_BRACE and not _LIST_OF_LISTS.match(buffer, position, end):
            _resume(buffer, position, end, salvaged)
            continue
        stop = _value_end(buffer, position, end)
        if stop == _TOO_DEEP:
            salvaged.too_deep = True
            _resume(buffer, position, end, salvaged)
            continue
        if stop == 0:
            if not last:
                salvaged.upto = position
                return salvaged
            _resume(buffer, position, end, salvaged)
            continue
        try:
            event, mended = decode_event(bytes(buffer[position:stop]))
        except TooDeepError:
            salvaged.dropped += 1
            salvaged.too_deep = True
            salvaged.upto = stop
            continue
        if event is not None and (event.ph or event.name):
            salvaged.events.append(event)
            salvaged.num_mended += mended
            salvaged.upto = stop
        else:
            _resume(buffer, position, stop, salvaged)


def _skip(buffer: bytearray, position: int, end: int) -> int:
    match = _BLANK.match(buffer, position, end)
    return match.end() if match else position


def _resume(buffer: bytearray, position: int, end: int, salvaged: Salvaged) -> None:
    """Step over something unreadable: to the next probable event, else to `end`."""
    resumed = _RESUME.search(buffer, position + 1, end)
    salvaged.dropped += 1
    salvaged.upto = resumed.end() if resumed else end


def _value_end(buffer: bytearray, start: int, end: int) -> int:
    """Just behind the bracket that closes the object or list at `start`; 0 if it stays open, or _TOO_DEEP."""
    depth = 0
    mark = _MARK.search(buffer, start, end)
    while mark:
        after = mark.end()
        if mark[0] in b"{[":
            depth += 1
            if depth > _MAX_DEPTH and after - start > _MOST_OF_TOO_DEEP:
                return _TOO_DEEP
        elif mark[0] == b'"':
            after = _string_end(buffer, after, end)
            if after == 0:
                return 0  # a string that does not end in this text
        else:
            depth -= 1
            if depth == 0:
                return after
        mark = _MARK.search(buffer, after, end)
    return 0


def _string_end(buffer: bytearray, start: int, end: int) -> int:
    """Just behind the quote that ends the string whose text begins at `start`; 0 if there is none.

    By hand: a regular expression for strings takes a hundred times their size in memory.
    """
    quote = buffer.find(b'"', start, end)
    while quote >= 0:
        before = quote - 1
        while before >= start and buffer[before] == _BACKSLASH:
            before -= 1
        if (quote - before) % 2:
            return quote + 1
        quote = buffer.find(b'"', quote + 1, end)
    return 0
