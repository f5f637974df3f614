"""Python stack frames: most events of many a trace, of which a timeline needs few."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from perfscope.ingest.classify import FRAME_CATEGORY, MODULE_PREFIX
from perfscope.ingest.events import Event

# A shorter function is left out: what a host does during a gap of the device is named by its innermost frame
# that takes at least so long.
LONG_FRAME_US = 1000.0
_ABSENT = Raw()


class _Frame(Struct, gc=False):
    """Decodes complete events of Python frames, and nothing else."""

    # In the order in which Kineto writes them, as in `events`.
    ph: Literal["X"]
    cat: Literal["python_function"]
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Raw = _ABSENT
    dur: float = 0.0


_FRAMES = msgspec.json.Decoder(list[_Frame])


def is_row(name: str, dur: Raw) -> bool:
    """Whether a frame is kept: a module's, or one that takes long. `dur`: text, microseconds."""
    if name.startswith(MODULE_PREFIX):
        return True
    try:
        return float(bytes(dur)) >= LONG_FRAME_US
    except ValueError:
        return False


def decode_frames(text: memoryview) -> tuple[int, list[Event]] | None:
    """A JSON array that holds Python frames and nothing else.

    Returns:
        The number of frames, and those that are kept; their `ts` is a view of `text`. None for other texts.
    """
    try:
        frames = _FRAMES.decode(text)
    except (ValueError, RecursionError):
        return None
    kept = [
        Event("X", FRAME_CATEGORY, frame.name, frame.pid, frame.tid, frame.ts, Raw(b"%r" % frame.dur))
        for frame in frames
        if frame.dur >= LONG_FRAME_US or frame.name.startswith(MODULE_PREFIX)
    ]
    return len(frames), kept
