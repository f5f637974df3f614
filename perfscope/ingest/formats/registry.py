"""The trace formats: which one a file is of. Light: readers are imported when a trace is read."""

from __future__ import annotations

import zlib
from pathlib import Path

from perfscope.errors import TraceError
from perfscope.ingest.formats.chakra import Chakra
from perfscope.ingest.formats.execution import Execution
from perfscope.ingest.formats.flight import FlightRecorder
from perfscope.ingest.formats.format import GZIP_MAGIC, Format
from perfscope.ingest.formats.frameworks import Mxnet, ProbeCalls, Xplane
from perfscope.ingest.formats.inspector import Inspector
from perfscope.ingest.formats.kineto import Kineto
from perfscope.ingest.formats.nsys import Nsys

# In the order in which they are asked: Kineto takes any JSON.
FORMATS: tuple[Format, ...] = (
    *(Nsys(), Xplane(), FlightRecorder(), Inspector(), Mxnet(), ProbeCalls()),
    *(Chakra(), Execution(), Kineto()),
)
_HEAD_BYTES = 1 << 16


def format_of_window(suffix: str) -> Format:
    """The format of a run's windows whose names end so.

    Raises:
        KeyError: there is none.
    """
    return _OF_SUFFIX[suffix]


_OF_SUFFIX = {suffix: format_ for format_ in FORMATS for suffix in format_.suffixes}


def format_of_file(path: Path) -> Format:
    """The format of a file from anywhere, by its first bytes and its name.

    Raises:
        TraceError: it is a file of none, and why.
    """
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            raise TraceError("not a regular file")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}") from error
    if not head:
        raise TraceError("the file is empty")
    if head.startswith(GZIP_MAGIC):
        head = _unpacked(head)
    for candidate in FORMATS:
        if candidate.sniff(path, head):
            return candidate
    raise TraceError(
        "not JSON and no other trace that perfscope reads; `perfscope import --help` lists the formats"
    )


def _unpacked(head: bytes) -> bytes:
    """The first bytes of gzipped data; b"" where it is damaged."""
    try:
        return zlib.decompressobj(31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


def is_trace_name(name: str) -> bool:
    """Whether a file of a directory is taken for a trace, by its name alone."""
    return any(format_.takes_name(name) for format_ in FORMATS)


def trace_patterns() -> str:
    """The names that `is_trace_name` takes, for messages and help."""
    shortest = [f"*{format_.endings[-1]}{'[.gz]' if format_.compressible else ''}" for format_ in FORMATS]
    return ", ".join(dict.fromkeys(shortest))


def trace_stem(name: str) -> str:
    """A trace file's name without its ending."""
    endings = sorted((ending for format_ in FORMATS for ending in format_.endings), key=len, reverse=True)
    bare = name.removesuffix(".gz")
    return next((bare.removesuffix(ending) for ending in endings if bare.endswith(ending)), name)
