"""Writes hosts/<host>/samples.jsonl. The format is in rundir/samples.py; standard library only.

Whole lines go in one write to a file opened for appending, so what is there after SIGKILL is whole but for
a last line at most; what was not yet flushed is missing. Several threads add lines.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from perfscope.collectors.base import Fact, Reading
from perfscope.errors import RunDirectoryError, UnreadableFileError
from perfscope.rundir import layout, seal
from perfscope.rundir.metrics import Series
from perfscope.rundir.opening import open_regular
from perfscope.rundir.writer import write_json

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode
_RETRY_NS = 5_000_000_000  # after a write failed (full disk)


class SampleLog:
    """One open file of samples. Lines are gathered, and written by `flush`.

    Args:
        path: the file; lines are appended to what is there.
        host: name of this host.
        interval_ns: the fast tick.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, host: str, interval_ns: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._path = path
        self._written = _already_there(path)
        self._lock = threading.Lock()
        self._ids: dict[tuple[Series, ...], int] = {}
        self._pending: list[str] = []
        self._silent_until = 0
        self._torn = os.fstat(self._descriptor).st_size > 0  # the one who wrote before may have been killed
        self.num_bytes = 0
        self.num_readings = 0
        self.num_lost = 0
        self._add(
            {
                "schema_version": layout.SCHEMA_VERSION,
                "host": host,
                "pid": os.getpid(),
                "interval_ns": interval_ns,
                "anchor": anchor(),
            }
        )
        self.flush()

    def readings(self, collector: str, readings: Sequence[Reading]) -> None:
        """Add what one sample gave: one line per group of readings that share their times."""
        row: list[Reading] = []
        for reading in readings:
            if row and (reading.t_begin_ns != row[0].t_begin_ns or reading.t_end_ns != row[0].t_end_ns):
                self._row(collector, row)
                row = []
            row.append(reading)
        if row:
            self._row(collector, row)

    def _row(self, collector: str, row: list[Reading]) -> None:
        begin, end = row[0].t_begin_ns, row[0].t_end_ns
        key = tuple([reading.series for reading in row])
        values = ",".join([_number(reading.value) for reading in row])
        odd = {str(index): reading.quality for index, reading in enumerate(row) if reading.quality}
        tail = f",{_encode(odd)}" if odd else ""
        with self._lock:
            number = self._ids.get(key)
            if number is None:
                number = self._ids[key] = len(self._ids)
                series = [item.as_dict() for item in key]
                self._pending.append(_encode({"id": number, "collector": collector, "series": series}))
            # By hand, not by json: ten times a second, and the values are numbers.
            self._pending.append(f"[{number},{begin},{end},[{values}]{tail}]")
            self.num_readings += len(row)

    def fact(self, collector: str, fact: Fact, t_ns: int) -> None:
        self._add(
            {
                "fact": fact.name,
                "collector": collector,
                "t_ns": t_ns,
                "labels": fact.labels,
                "value": fact.value,
            }
        )

    def anchor(self) -> None:
        """Pair the clocks again."""
        self._add({"anchor": anchor()})

    def interval(self, interval_ns: int) -> None:
        self._add({"interval_ns": interval_ns, "t_ns": time.monotonic_ns()})

    def end(self, reason: str, cost: dict[str, object]) -> None:
        self._add({"end": reason, "t_ns": time.monotonic_ns(), "cost": cost})

    def close(self) -> None:
        self._silent_until = 0  # one last try
        self.flush()
        os.close(self._descriptor)
        with suppress(RunDirectoryError):  # a full disk: the file stays as it is, without a seal
            if self._written is not None:
                seals = {self._path.name: self._written.seal()}
                write_json(self._path.with_name(layout.SAMPLES_SEAL), {seal.FILES: seals})

    def _add(self, value: object) -> None:
        with self._lock:
            self._pending.append(_encode(value))

    def flush(self) -> None:
        """Append what was gathered, whole lines in one write. On a full disk they are lost, and counted."""
        with self._lock:
            if not self._pending:
                return
            lines, self._pending = self._pending, []
            if time.monotonic_ns() < self._silent_until:
                self._lose(len(lines))
                return
            text = "\n".join(lines) + "\n"
            data = ("\n" + text if self._torn else text).encode()
            try:
                written = os.write(self._descriptor, data)
                self._torn = written < len(data)
                self.num_bytes += written
                if self._written is not None:
                    self._written.add(data[:written])
            except OSError:
                self._lose(len(lines))
                self._torn = True
                self._silent_until = time.monotonic_ns() + _RETRY_NS

    def _lose(self, lines: int) -> None:
        self.num_lost += lines
        self._ids.clear()  # a lost line may have defined an id: define them all again


def _already_there(path: Path) -> seal.Counter | None:
    """What an earlier sampler of this host left in the file; None of what is no regular file."""
    counter = seal.Counter()
    try:
        with open_regular(path) as file:
            while piece := file.read(1 << 20):
                counter.add(piece)
    except UnreadableFileError:
        return None
    path.with_name(layout.SAMPLES_SEAL).unlink(missing_ok=True)  # the file grows: this seal is of before
    return counter


def anchor() -> list[int]:
    """[monotonic ns, Unix ns] of the same moment: the narrowest of three readings."""
    pairs = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        pairs.append((after - before, (before + after) // 2, wall))
    _, mono, wall = min(pairs)
    return [mono, wall]


def _number(value: int | float | None) -> str:
    if type(value) is int:  # nearly all
        return repr(value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "null"
    return repr(value)
