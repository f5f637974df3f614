"""Export as an OTF2 archive (Vampir, Score-P's tools): a process per rank, a location per thread or stream.

The archive is a folder, written by the package otf2.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from perfscope.errors import PerfscopeError
from perfscope.reports.export_source import TimelinePart, lane_text
from perfscope.reports.speedscope import lanes_of, nested_events

_TICKS = 1_000_000_000  # per second: times are ns


def write_otf2(parts: Sequence[TimelinePart], title: str, folder: Path) -> int:
    """Writes all timelines into a new folder and gives the number of spans.

    Raises:
        PerfscopeError: the package is not installed, the folder is there, or cannot be written.
    """
    try:
        otf2 = import_module("otf2")
    except ImportError:
        raise PerfscopeError("--format otf2 needs otf2: python -m pip install 'otf2>=3'") from None
    if folder.exists():
        raise PerfscopeError(f"{folder} is there already; name another folder with -o")
    try:
        with otf2.writer.open(str(folder), timer_resolution=_TICKS) as trace:
            return _write(trace, parts, title)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)  # half an archive, which the next call would refuse
        if not isinstance(error, (OSError, otf2.error.Error)):
            raise
        raise PerfscopeError(f"{folder} cannot be written: {' '.join(str(error).split())}") from None


def _write(trace: Any, parts: Sequence[TimelinePart], title: str) -> int:
    define, spans = trace.definitions, 0
    root = define.system_tree_node(title)
    hosts: dict[str, Any] = {}
    ranks: dict[int, Any] = {}
    writers: dict[tuple[int, int, int], Any] = {}
    frames: dict[str, int] = {}
    regions: list[Any] = []
    for part in sorted(parts, key=lambda each: (each.rank, each.window)):  # times of a location rise
        if part.host not in hosts:
            hosts[part.host] = define.system_tree_node(part.host or "unknown host", parent=root)
        if part.rank not in ranks:
            node = hosts[part.host]
            ranks[part.rank] = define.location_group(f"rank {part.rank}", system_tree_parent=node)
        labels = {(lane.device, lane.lane): lane.label for lane in part.lanes}
        for key, rows in lanes_of(part.load()):
            lane_key = (part.rank, *key)
            if lane_key not in writers:
                label = labels.get(key) or lane_text(*key)
                writers[lane_key] = trace.event_writer(label, group=ranks[part.rank])
            events = list(nested_events(rows, frames))
            regions += [define.region(name) for name in list(frames)[len(regions) :]]
            for kind, frame, at in events:
                (writers[lane_key].enter if kind == "O" else writers[lane_key].leave)(at, regions[frame])
            spans += len(rows)
    return spans
