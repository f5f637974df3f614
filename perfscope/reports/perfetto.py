"""Export for ui.perfetto.dev: Chrome's JSON trace format, written as a stream.

One process per rank, one thread per lane and per worker of a data loader (reports/perfetto_loaders.py); one
process per host with a track for each of its counters. Times are decimal microseconds with three places,
counted from the run's first span so that a reader's float64 keeps every nanosecond.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from msgspec import Struct

from perfscope.analysis.machine.results import CounterTrack
from perfscope.reports.export_source import BATCH_ROWS, TimelinePart, first_start, lane_text
from perfscope.reports.perfetto_loaders import loader_events
from perfscope.reports.trace_events import as_json, counter_event, metadata_event, span_event

# Columns that become arguments of a slice, where they are set.
ARGUMENTS = (
    "phase",
    "layer",
    "flops",
    "bytes_read",
    "bytes_written",
    "unattributed",
    "collective",
    "group",
    "axis",
    "group_size",
    "in_bytes",
    "out_bytes",
    "dtype",
    "peer",
    "seq",
)
_COLUMNS = (
    "start_ns",
    "dur_ns",
    "device",
    "lane",
    "step",
    "depth",
    "kind",
    "name",
    "launch_ns",
    *ARGUMENTS,
)

Row = dict[str, object]


class _Threads(Struct):
    """Thread numbers: a host thread and a stream may share an id, and ids may not fit 32 bits."""

    numbers: dict[tuple[int, int, int], int] = {}
    per_rank: dict[int, int] = {}

    def number(self, rank: int, device: int, lane: int) -> tuple[int, bool]:
        """The thread's number and whether it is new."""
        key = (rank, device, lane)
        if key in self.numbers:
            return self.numbers[key], False
        self.per_rank[rank] = self.numbers[key] = self.per_rank.get(rank, 0) + 1
        return self.numbers[key], True


def write_perfetto(
    parts: Sequence[TimelinePart], title: str, file: BinaryIO, counters: Sequence[CounterTrack] = ()
) -> int:
    """Writes all timelines as one JSON trace and gives the number of spans.

    `counters` become counter tracks, one process per host, on the same clock: Unix ns.
    """
    origin = first_start(parts)
    other = {"run": title, "clock": f"nanoseconds since {origin} of the traces' clock"}
    file.write(b'{"displayTimeUnit":"ns","otherData":' + as_json(other) + b',"traceEvents":[\n')
    spans, first, threads = 0, True, _Threads()
    seen: set[int] = set()
    for part in parts:
        for event in _part_events(part, origin, threads, seen):
            file.write(event if first else b",\n" + event)
            first = False
            spans += event.startswith(b'{"ph":"X"')
    for event in counter_events(counters, origin):
        file.write(event if first else b",\n" + event)
        first = False
    file.write(b"\n]}\n")
    return spans


# Process numbers of hosts, clear of the ranks'.
FIRST_HOST = 1_000_000
_SUFFIX = {
    "ratio": "%",
    "bytes_per_s": "MB/s",
    "bytes": "MiB",
    "watts": "W",
    "hz": "MHz",
    "celsius": "°C",
    "per_s": "/s",
}
_SIZE = {"ratio": 0.01, "bytes_per_s": 1e6, "bytes": float(1 << 20), "hz": 1e6}


def counter_events(counters: Sequence[CounterTrack], origin: int) -> Iterator[bytes]:
    """Chrome counter events (``"ph":"C"``) in units a person reads; a gap has no event."""
    hosts: dict[str, int] = {}
    for track in counters:
        if track.host not in hosts:
            pid = hosts[track.host] = FIRST_HOST + len(hosts)
            yield metadata_event("process_name", pid, 0, name=f"machine · {track.host}")
            yield metadata_event("process_sort_index", pid, 0, sort_index=pid)
        unit, size = _SUFFIX.get(track.unit, track.unit), _SIZE.get(track.unit, 1.0)
        name = f"{track.title} ({unit})"
        for at, value in zip(track.t_ns, track.mean, strict=True):
            if math.isfinite(value):
                yield counter_event(hosts[track.host], at - origin, name, float(f"{value / size:.6g}"))


def _part_events(part: TimelinePart, origin: int, threads: _Threads, seen: set[int]) -> Iterator[bytes]:
    if part.rank not in seen:
        seen.add(part.rank)
        name = f"rank {part.rank}" + (f" · {part.host}" if part.host else "")
        yield metadata_event("process_name", part.rank, 0, name=name)
        yield metadata_event("process_sort_index", part.rank, 0, sort_index=part.rank)
        for loader in part.loaders():
            yield from loader_events(part.rank, loader, origin)
    labels = {(lane.device, lane.lane): lane.label for lane in part.lanes}
    table = part.load()
    table = table.select([name for name in _COLUMNS if name in table.schema.names])
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        for row in batch.to_pylist():
            device, lane = _int(row["device"]), _int(row["lane"])
            tid, new = threads.number(part.rank, device, lane)
            if new:
                label = labels.get((device, lane)) or lane_text(device, lane)
                yield metadata_event("thread_name", part.rank, tid, name=label)
                yield metadata_event("thread_sort_index", part.rank, tid, sort_index=tid)
            yield _span(row, part, tid, origin)


def _span(row: Row, part: TimelinePart, tid: int, origin: int) -> bytes:
    arguments = (
        {"step": row["step"], "window": part.window} if _int(row["step"]) >= 0 else {"window": part.window}
    )
    if row["launch_ns"] is not None:
        arguments["launched_ns_before"] = _int(row["start_ns"]) - _int(row["launch_ns"])
    arguments |= {key: row[key] for key in ARGUMENTS if row.get(key) is not None}
    start, duration = _int(row["start_ns"]) - origin, max(_int(row["dur_ns"]), 0)
    texts = (row["kind"] or "other", row["name"] or "?")
    return span_event((part.rank, tid), start, duration, texts, arguments)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
