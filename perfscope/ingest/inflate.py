"""How far a compressed trace is unpacked. A few kilobytes of gzip can hold gigabytes of nothing."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from perfscope.errors import TraceError
from perfscope.rundir.opening import open_regular

# Traces of any framework pack 5 to 25 times smaller; what gzip can do at most is about 1,000 times.
MOST_TIMES = 100
_ALWAYS = 8 << 20  # bytes: a tiny trace may well be a long row of the same
_MOST_IN_MEMORY = 2 << 30  # bytes of a trace that is read whole
_PIECE = 1 << 20
_GZIP = 31  # zlib's word for "with a gzip header"


def most_bytes(packed: int) -> int:
    """Bytes that are unpacked of a file of `packed` bytes."""
    return max(_ALWAYS, MOST_TIMES * packed)


def too_much(packed: int) -> str:
    """What to say of a file that holds more."""
    return f"unpacks to more than {most_bytes(packed):,} bytes, which no trace of {packed:,} bytes does"


def read_whole(path: Path, *, is_part_of_use: bool = False) -> bytes:
    """The content of a trace file of a run; unpacked where its name ends in .gz.

    Args:
        path: of the file.
        is_part_of_use: of damaged gzip data, give what comes before the damage.

    Raises:
        TraceError: it cannot be read, is damaged, or is larger than is read into memory.
    """
    try:
        with open_regular(path) as file:
            packed = os.fstat(file.fileno()).st_size
            if path.suffix == ".gz":
                parts: list[bytes] = []
                try:
                    _inflate(file.read(), min(most_bytes(packed), _MOST_IN_MEMORY), packed, parts)
                except (EOFError, zlib.error):
                    if not (is_part_of_use and parts):
                        raise
                return b"".join(parts)
            if packed > _MOST_IN_MEMORY:
                raise ValueError(f"{packed:,} bytes, more than the {_MOST_IN_MEMORY:,} that are read")
            return file.read()
    except (OSError, EOFError, ValueError, MemoryError, zlib.error) as error:
        reason = getattr(error, "reason", None) or str(error) or "not enough memory"
        raise TraceError(f"{path}: cannot be read: {' '.join(str(reason).split())}") from None


def _inflate(data: bytes, most: int, packed: int, parts: list[bytes]) -> None:
    """All gzip members of `data`, piece by piece into `parts`."""
    total = 0
    while data:
        inflater = zlib.decompressobj(_GZIP)
        while not inflater.eof:
            part = inflater.decompress(data, _PIECE)
            data = inflater.unconsumed_tail
            total += len(part)
            if total > most:
                raise ValueError(too_much(packed))
            if not part and not data and not inflater.eof:
                raise EOFError("gzip data ends early")
            parts.append(part)
        data = inflater.unused_data.lstrip(b"\0")  # some writers pad with zeros
