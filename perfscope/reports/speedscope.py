"""Export for https://www.speedscope.app: one evented profile per thread or stream of each rank.

Profiles are written as a stream, the frames that all share at the end. speedscope wants spans that nest: one
that ends after the span it is in is drawn to that span's end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from perfscope.analysis.machine.results import CounterTrack
from perfscope.reports.export_source import LaneName, TimelinePart, first_start, lane_text

if TYPE_CHECKING:
    import pyarrow as pa

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_COLUMNS = ["start_ns", "dur_ns", "device", "lane", "name", "layer"]
_BATCH = 10_000  # events in one write

Event = tuple[str, int, int]  # O or C, frame, at


def write_speedscope(
    parts: Sequence[TimelinePart], title: str, file: BinaryIO, counters: Sequence[CounterTrack] = ()
) -> int:
    """Writes all timelines and gives the number of spans. Counters have no place in the format."""
    origin, frames, spans, first = first_start(parts), dict[str, int](), 0, True
    head = {"$schema": _SCHEMA, "name": title, "exporter": "perfscope", "activeProfileIndex": 0}
    file.write(json.dumps(head).encode()[:-1] + b',"profiles":[')
    for part in parts:
        labels = {(lane.device, lane.lane): lane for lane in part.lanes}
        for key, rows in lanes_of(part.load()):
            label = labels.get(key)
            name = _profile_name(part, key, label)
            file.write(b"\n" if first else b",\n")
            _write_profile(file, name, rows, origin, frames)
            spans, first = spans + len(rows), False
    listed = [{"name": name} for name in frames]
    file.write(b'\n],"shared":{"frames":' + json.dumps(listed).encode() + b"}}\n")
    return spans


def _profile_name(part: TimelinePart, key: tuple[int, int], label: LaneName | None) -> str:
    window = f", window {part.window}" if part.window > 0 else ""
    return f"rank {part.rank}{window}: {label.label if label else lane_text(*key)}"


def lanes_of(table: pa.Table) -> Iterator[tuple[tuple[int, int], list[tuple[int, int, str]]]]:
    """Each lane with its (start, end, name) in order, an outer span before those in it."""
    columns = [table.column(name).to_pylist() for name in _COLUMNS]
    lanes: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for start, dur, device, lane, name, layer in zip(*columns, strict=True):
        text = f"{name or '?'} [{layer}]" if layer else name or "?"
        lanes.setdefault((device, lane), []).append((start, start + max(dur, 0), text))
    for key in sorted(lanes):
        yield key, sorted(lanes[key], key=lambda row: (row[0], -row[1]))


def _write_profile(
    file: BinaryIO, name: str, rows: list[tuple[int, int, str]], origin: int, frames: dict[str, int]
) -> None:
    start, end = rows[0][0] - origin, max(row[1] for row in rows) - origin
    head = {"type": "evented", "name": name, "unit": "nanoseconds", "startValue": start, "endValue": end}
    file.write(json.dumps(head).encode()[:-1] + b',"events":[')
    texts: list[str] = []
    first = True
    for kind, frame, at in nested_events(rows, frames):
        texts.append(f'{{"type":"{kind}","frame":{frame},"at":{at - origin}}}')
        if len(texts) == _BATCH:
            file.write((("" if first else ",") + ",".join(texts)).encode())
            texts, first = [], False
    if texts:
        file.write((("" if first else ",") + ",".join(texts)).encode())
    file.write(b"]}")


def nested_events(rows: list[tuple[int, int, str]], frames: dict[str, int]) -> Iterator[Event]:
    """Opening and closing events, balanced, times in order."""
    open_: list[tuple[int, int]] = []  # (end, frame), the innermost last
    for start, end, name in rows:
        while open_ and open_[-1][0] <= start:
            until, frame = open_.pop()
            yield "C", frame, until
        frame = frames.setdefault(name, len(frames))
        yield "O", frame, start
        open_.append((min(end, open_[-1][0]) if open_ else end, frame))
    while open_:
        until, frame = open_.pop()
        yield "C", frame, until
