"""Events out of a trace's bytes, chunk by chunk, never the whole file in memory.

The bytes of a chunk end where some `}` `,` `{` follows: perhaps between two events, perhaps inside
one. Decoding `[` + chunk + `]` decides it: text cut in the middle of an event is no JSON, so a
decode that succeeds proves the cut. One that fails is tried with earlier cuts, then handed to
`salvage`, which walks the brackets and keeps every event that can be read.

Runs of Python stack frames, most of many a file, are recognized and never built.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from perfscope.errors import TraceError
from perfscope.ingest.events import (
    Event,
    ReadCounts,
    TooDeepError,
    decode_event,
    decode_events,
    decode_raws,
)
from perfscope.ingest.formats.kineto_metadata import parse_metadata
from perfscope.ingest.formats.kineto_salvage import salvage
from perfscope.ingest.formats.kineto_source import TraceSource
from perfscope.ingest.frames import decode_frames
from perfscope.ingest.metadata import Metadata
from perfscope.ingest.summary import MENDED

CHUNK_BYTES = 1 << 18
_MAX_EVENT_BYTES = 1 << 26  # an event larger than this is taken for damage
_MAX_OUTSIDE = 1 << 22  # metadata text kept from before and from after the events
_EARLIER_CUTS = 4

_OPEN, _CLOSE = ord("["), ord("]")
_CUT = re.compile(rb"\}\s*,\s*\{")
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_FRAME = "python_function"


class EventReader:
    """Iterates over lists of events; the lists' `Raw` fields are valid until the next list.

    Attributes:
        counts: filled while iterating.
        outside: text of the file before and after its events.

    Raises (while iterating):
        TraceError: the file is empty, or no trace.
    """

    def __init__(self, source: TraceSource, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.counts = ReadCounts()
        self.outside: list[bytes] = []
        self._source = source
        self._chunk = max(16, chunk_bytes)
        self._buffer = bytearray(self._chunk + 2)
        self._buffer[0] = _OPEN
        self._end = 1  # the buffer's text is [1:_end]; byte 0 is the `[` decoding needs
        self._begin = 1  # text before this has been dealt with
        self._eof = False
        self._cut = b""  # the exact bytes between two events of this file, once known
        self._in_frames = False  # the last event was a Python frame

    def __iter__(self) -> Iterator[list[Event]]:
        if not self._find_array(first=True):
            return
        while True:
            yield from self._read_array()
            if self._eof or not self._find_array(first=False):
                break
            self._note("more than one traceEvents array; all were read")
        if self._source.damage:
            self.counts.ends_early = True
            self._note(self._source.damage)

    def metadata(self) -> Metadata:
        """What the text before and after the events says."""
        return parse_metadata(self.outside)

    # Filling the buffer

    def _fill(self) -> bool:
        """Read once into the free room of the buffer, making room if there is none."""
        if self._end >= len(self._buffer) - 1:
            larger = bytearray(2 * len(self._buffer))
            larger[: self._end] = self._buffer[: self._end]
            self._buffer = larger
        with memoryview(self._buffer) as view, view[self._end : -1] as room:
            count = self._source.readinto(room)
        self._end += count
        self._eof = count == 0
        return count > 0

    def _fill_chunk(self) -> None:
        """Read until the buffer holds a chunk: a pipe-like source hands over little at a time."""
        while self._end < self._chunk and self._fill():
            pass

    def _consume(self, upto: int) -> None:
        """Mark the text before `upto` as dealt with. It stays in place while events that view it are out."""
        self._begin = upto

    def _settle(self) -> None:
        """Move what is left to the front of the buffer: after this, `Raw` fields handed out are invalid."""
        if self._begin > 1:
            length = self._end - self._begin
            self._buffer[1 : 1 + length] = self._buffer[self._begin : self._end]
            self._end = 1 + length
            self._begin = 1

    def _note(self, text: str) -> None:
        if text not in self.counts.notes:
            self.counts.notes.append(text)

    # Outside the array of events

    def _find_array(self, *, first: bool) -> bool:
        """Move to the first event. Text passed over goes to `outside`."""
        kept = bytearray()
        while True:
            self._settle()
            grew = self._fill()
            if first and self._end > 1:
                start = self._skip_blank(1)
                if start < self._end:
                    first = False
                    if self._start_of_file(start):
                        return True
            match = _ARRAY.search(self._buffer, 1, self._end)
            if match:
                kept += self._buffer[1 : match.end()]
                self.outside.append(bytes(kept[:_MAX_OUTSIDE]))
                self._consume(match.end())
                return True
            if not grew:
                kept += self._buffer[1 : self._end]
                self.outside.append(bytes(kept[:_MAX_OUTSIDE]))
                if first or (len(self.outside) == 1):
                    raise TraceError(f"{self._source.path}: {self._why_nothing(first)}")
                return False
            boundary = max(1, self._end - 64)  # the key may straddle two fills
            if boundary > self._chunk // 2:
                if len(kept) < _MAX_OUTSIDE:
                    kept += self._buffer[1:boundary]
                self._consume(boundary)

    def _skip_blank(self, start: int) -> int:
        if self._buffer[start : start + 3] == b"\xef\xbb\xbf":
            start += 3
        while start < self._end and self._buffer[start] in b" \t\r\n":
            start += 1
        return start

    def _start_of_file(self, start: int) -> bool:
        """True when the file is a bare list of events; raises when it is neither list nor object."""
        if self._buffer[start] == _OPEN:
            self.outside.append(b"[")
            self._consume(start + 1)
            return True
        if self._buffer[start] != ord("{"):
            raise TraceError(f"{self._source.path}: not JSON: a trace begins with {{ or [")
        return False

    def _why_nothing(self, empty: bool) -> str:
        if empty:
            return f"holds nothing ({self._source.damage})" if self._source.damage else "the file is empty"
        if self._source.damage:
            return f"nothing readable: {self._source.damage}"
        return "JSON without traceEvents, so no trace"

    # Inside it

    def _read_array(self) -> Iterator[list[Event]]:
        while True:
            self._settle()
            self._fill_chunk()
            if self._eof:
                yield from self._finish()
                return
            if self._end - 1 > _MAX_EVENT_BYTES:
                events, ended = self._salvage()
                yield events
                if ended:
                    return
                continue
            yielded = self._take_chunk()
            if yielded is None:
                events, ended = self._fallback()
                if events:
                    yield events
                if ended:
                    return
            elif yielded:
                yield yielded

    def _take_chunk(self) -> list[Event] | None:
        """The events before the last cut; [] if there were only frames, None if no cut decodes."""
        limit = self._end
        for _ in range(_EARLIER_CUTS):
            stop, following = self._last_cut(limit)
            if stop == 0:
                return None
            events = self._frames(stop)
            if events is None:
                events = self._decode(stop)
                self._in_frames = events is not None and events[-1:] != [] and events[-1].cat == _FRAME
            if events is not None:
                self._cut = bytes(self._buffer[stop - 1 : following + 1])
                self._consume(following)
                return events
            limit = stop
        return None

    def _last_cut(self, limit: int) -> tuple[int, int]:
        """(end of an event, start of the next) before `limit`, as far right as can be; (0, 0): none."""
        if self._cut:
            at = self._buffer.rfind(self._cut, 1, limit)
            if at > 0:
                return at + 1, at + len(self._cut) - 1
        window = 1 << 16
        while True:
            start = max(1, limit - window)
            cuts = deque(_CUT.finditer(self._buffer, start, limit), maxlen=1)
            if cuts:
                return cuts[0].start() + 1, cuts[0].end() - 1
            if start == 1:
                return 0, 0
            window *= 8

    def _decode(self, stop: int) -> list[Event] | None:
        """Events of the text [1:stop]; None if that is no sequence of JSON values."""
        saved = self._buffer[stop]
        self._buffer[stop] = _CLOSE
        try:
            view = memoryview(self._buffer)[: stop + 1]
            try:
                events = decode_events(view)
                self.counts.read += len(events)
            except TooDeepError:
                raise
            except ValueError:
                events = self._decode_one_by_one(view)
        except ValueError:
            return None
        finally:
            self._buffer[stop] = saved
        return events

    def _decode_one_by_one(self, view: memoryview) -> list[Event]:
        """Some element has a field of an unexpected type, or is no event: keep the others."""
        events = []
        raws = decode_raws(view)
        for raw in raws:
            event, _ = decode_event(bytes(raw))
            if event is not None:
                events.append(event)
        self.counts.read += len(raws)
        self.counts.dropped += len(raws) - len(events)
        return events

    def _fallback(self) -> tuple[list[Event], bool]:
        """No cut decodes: the array may end in this text, an event may be larger, or it is damaged."""
        end = self._end_of_array()
        if end:
            return self._close(end)
        events, ended = self._salvage()
        if not ended and self._begin == 1:
            # One event larger than the buffer's text. Twice as much: looking again each time must not add up.
            enough = 2 * self._end
            while self._end < enough and self._fill():
                pass
        return events, ended

    def _end_of_array(self) -> int:
        """Where the array's `]` is in the text, proved by decoding up to it; 0: not known."""
        try:
            decode_raws(memoryview(self._buffer)[: self._end])
        except ValueError as error:
            hint = _TRAILING.search(str(error))
            if hint:
                return self._buffer.rfind(b"]", 1, int(hint[1]) + 1)
        return 0

    def _close(self, end: int) -> tuple[list[Event], bool]:
        events = self._decode(end)
        if events is None:
            return self._salvage()
        self._consume(end + 1)
        return events, True

    def _salvage(self) -> tuple[list[Event], bool]:
        salvaged = salvage(self._buffer, 1, self._end, last=self._eof or self._end - 1 > _MAX_EVENT_BYTES)
        self.counts.read += len(salvaged.events) + salvaged.dropped
        self.counts.dropped += salvaged.dropped
        if salvaged.dropped or salvaged.num_mended:
            self.counts.lost |= salvaged.dropped > 0
            damage = "JSON nested too deep" if salvaged.too_deep else "damaged JSON"
            self._note(f"{damage}; what could be read was kept" if salvaged.dropped else MENDED)
        self._consume(salvaged.upto)
        return salvaged.events, salvaged.ended

    def _finish(self) -> Iterator[list[Event]]:
        """The text left at the end of the file."""
        start = self._skip_blank(1)
        end = self._end_of_array()
        if end:
            events, _ = self._close(end)
            self._eof = False  # what follows the array is still in the buffer
        else:
            is_whole = self._bare_list_end(start)
            if is_whole:
                decoded = self._decode(is_whole)
                events = self._salvage()[0] if decoded is None else decoded
                self._consume(self._end)
            else:
                events, ended = self._salvage()
                if ended:
                    self._eof = False
                else:
                    self.counts.ends_early = True
                    self._note("the file ends before its array of events does")
        if events:
            yield events

    def _bare_list_end(self, start: int) -> int:
        """Where the `]` stands that ends both the list and the file; 0: nowhere."""
        end = self._end
        while end > start and self._buffer[end - 1] in b" \t\r\n":
            end -= 1
        if end > start and self._buffer[end - 1] == _CLOSE:
            try:
                decode_raws(memoryview(self._buffer)[:end])
            except ValueError:
                return 0
            return end - 1
        return 0

    # Python frames

    def _frames(self, stop: int) -> list[Event] | None:
        """If the text [1:stop] holds Python stack frames only: the few of them that are kept.

        Proving that costs half of decoding. So it is only tried after a chunk that ended in frames.
        """
        if not self._in_frames:
            return None
        saved = self._buffer[stop]
        self._buffer[stop] = _CLOSE
        frames = decode_frames(memoryview(self._buffer)[: stop + 1])
        self._buffer[stop] = saved
        if frames is None:
            return None
        count, events = frames
        self.counts.read += count
        self.counts.skipped += count - len(events)
        return events
