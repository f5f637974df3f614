"""The lines of a file of NCCL Inspector, one at a time: memory does not grow with the file."""

from __future__ import annotations

import gzip
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec
from msgspec import Struct, field

from perfscope.errors import TraceError
from perfscope.ingest.inflate import most_bytes, too_much
from perfscope.rundir.opening import open_regular
from perfscope.rundir.typed import Count, Figure

_LONGEST = 1 << 20  # bytes of a line; with the times of 64 channels it has 15,000
_MOST_TEXT = 200


class Header(Struct):
    """Of a communicator; `rank` is within it."""

    id: str
    rank: Count
    n_ranks: Count
    comm_name: str = ""

    @property
    def group(self) -> str:
        return self.id[:_MOST_TEXT].encode("utf-8", "replace").decode()


class Metadata(Struct):
    """When and where the line was written."""

    dump_timestamp_us: Count = 0
    hostname: str = ""
    inspector_output_format_version: str = ""


class Channel(Struct):
    """When a channel's kernel ran, µs since the Unix epoch."""

    kernel_start_ts: Count = 0
    kernel_stop_ts: Count = 0


class Times(Struct):
    """Only in verbose output."""

    kernel_events: list[Channel] = field(default_factory=list)


class Collective(Struct, rename=lambda name: name if name in {"coll", "event_trace_ts"} else f"coll_{name}"):
    """One call of a collective on one rank."""

    coll: str
    sn: Count
    msg_size_bytes: Count
    exec_time_us: Figure
    timing_source: str = ""
    algobw_gbs: Figure | None = None
    busbw_gbs: Figure | None = None
    event_trace_ts: Times | None = None

    @property
    def name(self) -> str:
        return self.coll


class PointToPoint(Struct, rename=lambda name: name if name in {"p2p", "event_trace_ts"} else f"p2p_{name}"):
    """One send or receive; the same fields."""

    p2p: str
    sn: Count
    msg_size_bytes: Count
    exec_time_us: Figure
    timing_source: str = ""
    algobw_gbs: Figure | None = None
    busbw_gbs: Figure | None = None
    event_trace_ts: Times | None = None

    @property
    def name(self) -> str:
        return self.p2p


class InspectorLine(Struct):
    """What one line says; `left_out` is of `copy_rank`."""

    header: Header | None = None
    metadata: Metadata = field(default_factory=Metadata)
    coll_perf: Collective | None = None
    p2p_perf: PointToPoint | None = None
    left_out: Count = 0


class Communicator(NamedTuple):
    """The largest one of a file, and the process's ranks in it."""

    name: str
    ranks: list[int]


_DECODER = msgspec.json.Decoder(InspectorLine)


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines that are not empty; of one that is too long, pieces that are no JSON.

    Raises:
        TraceError: the file cannot be read; also after some lines.
    """
    try:
        with open_regular(path) as raw:
            packed = os.fstat(raw.fileno()).st_size
            is_packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file = cast(BinaryIO, gzip.GzipFile(fileobj=raw) if is_packed else raw)
            yield from _bounded(file, most_bytes(packed) if is_packed else packed, packed)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None


def _bounded(file: BinaryIO, most: int, packed: int) -> Iterator[bytes]:
    import io

    total = 0
    with io.BufferedReader(cast(io.RawIOBase, file), 1 << 20) as buffered:
        while line := buffered.readline(_LONGEST):
            total += len(line)
            if total > most:
                raise ValueError(too_much(packed))
            if line := line.strip():
                yield line


def decode(line: bytes) -> InspectorLine | None:
    """None: no record, or one with values that cannot be."""
    try:
        return _DECODER.decode(line)
    except (ValueError, RecursionError):
        return None


def largest_communicator(path: Path) -> Communicator | None:
    """That with the most ranks, the first of several; None: no line can be read.

    Raises:
        TraceError: the file cannot be read.
    """
    ranks: dict[tuple[int, str], set[int]] = defaultdict(set)
    for line in lines_of(path):
        record = decode(line)
        head = record.header if record is not None else None
        if head is not None and head.rank < head.n_ranks <= 1 << 24:
            ranks[head.n_ranks, head.group].add(head.rank)
    if not ranks:
        return None
    size = max(size for size, _ in ranks)
    group, members = next((group, members) for (number, group), members in ranks.items() if number == size)
    return Communicator(group, sorted(members))


def copy_rank(path: Path, rank: int, target: Path) -> None:
    """The lines of one of several ranks of a process, as threads have them.

    Only the largest communicator says which rank a line is of: the lines of others are left out and counted.

    Raises:
        TraceError: the file cannot be read.
        OSError: the copy cannot be written.
    """
    largest = largest_communicator(path)
    left_out = 0
    with target.open("wb") as file:
        for line in lines_of(path):
            record = decode(line)
            if record is None or record.header is None:
                continue
            if largest is None or record.header.group != largest.name:
                left_out += 1
            elif record.header.rank == rank:
                file.write(line + b"\n")
        if left_out:
            file.write(msgspec.json.encode({"left_out": left_out}) + b"\n")
