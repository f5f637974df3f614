"""Bytes and requests of each Lustre object storage target (OST) that this client talks to.

Beside the llite counts of a whole mount (mounts.py), these say whether one target is slower than the others.
A client keeps them in one folder per target: osc/scratch-OST0003-osc-ffff8800/stats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.collectors.base import SECOND_NS, Absent, BaseCollector, Capability, Reading, words_of
from perfscope.collectors.context import Context
from perfscope.rundir.metrics import COUNTER, Metric, Series

PATTERNS = ("/proc/fs/lustre/osc/*/stats", "/sys/kernel/debug/lustre/osc/*/stats")
MOST_OSTS = 128  # that are read; each is a file
_SOURCE = "Lustre osc stats"
_NS_OF = {"[usec]": 1_000, "[usecs]": 1_000}


def _metric(name: str, unit: str, description: str) -> Metric:
    return Metric(name=name, unit=unit, kind=COUNTER, source=_SOURCE, description=description)


READ = _metric("ost_read_bytes", "bytes", "bytes read from an OST")
WRITTEN = _metric("ost_written_bytes", "bytes", "bytes written to an OST")
REQUESTS = _metric("ost_requests", "requests", "requests that an OST has answered")
WAIT = _metric("ost_request_time", "ns", "time from sending a request to an OST until its answer, summed")
# Row of the file, whether its samples or their sum count; the first row that is there counts.
_BYTES = ((READ, "read_bytes"), (WRITTEN, "write_bytes"))
_TIMED = ("req_waittime",)
_READ_AND_WRITE = ("ost_read", "ost_write")  # of clients whose files have no row for all requests


@dataclass(frozen=True, slots=True)
class _Row:
    """``read_bytes 7 samples [bytes] 1 4096 28672``: samples, unit, and the sum where it is there."""

    samples: int
    unit: str
    total: int | None


class LustreOsts(BaseCollector):
    """Every two seconds, of targets that were there at the start."""

    name = "osts"
    slow = True
    min_interval_ns = 2 * SECOND_NS

    def probe(self, ctx: Context) -> Capability:
        files = ost_files(ctx)
        counted: set[Metric] = set()
        reasons: list[str] = []
        for ost, path in list(files.items())[:MOST_OSTS]:
            counts, why = _count(ctx, path)
            counted |= set(counts)
            reasons += [f"{ost}: {why}"] if why else []
        absent = [
            Absent(what=metric.name, reason=_NOT_TIMED)
            for metric in (REQUESTS, WAIT)
            if metric not in counted
        ]
        if len(files) > MOST_OSTS:
            absent.append(Absent(what=f"{len(files) - MOST_OSTS} more OSTs", reason=f"{MOST_OSTS} are read"))
        return self.capability(
            metrics=tuple(metric for metric in (READ, WRITTEN, REQUESTS, WAIT) if metric in counted),
            source=_SOURCE,
            reason="" if counted else "; ".join(reasons[:2]) or "no Lustre client counts OSTs here",
            absent=tuple(absent) if counted else (),
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._files = dict(list(ost_files(ctx).items())[:MOST_OSTS])
        self._series: dict[tuple[str, str], Series] = {}

    def sample(self) -> Sequence[Reading]:
        readings: list[Reading] = []
        for ost, path in tuple(self._files.items()):
            begin = self._ctx.clock()
            counts, why = _count(self._ctx, path)
            end = self._ctx.clock()
            if why:
                del self._files[ost]
                self.stopped("osts", {"ost": ost}, why)
            readings += [
                Reading(self._of(metric, ost), value, begin, end) for metric, value in counts.items()
            ]
        return readings

    def _of(self, metric: Metric, ost: str) -> Series:
        key = (metric.name, ost)
        if key not in self._series:
            self._series[key] = Series(metric, {"ost": ost})
        return self._series[key]


_NOT_TIMED = "the files of this Lustre version count no times of requests"


def _count(ctx: Context, path: str) -> tuple[dict[Metric, int], str]:
    """What a file counts, and why it cannot be read."""
    try:
        return ost_counts(ctx.read(path)), ""
    except (OSError, ValueError, IndexError) as error:
        return {}, words_of(error)


def ost_files(ctx: Context) -> dict[str, str]:
    """Name of each target (``scratch-OST0003``) -> its file; of several mounts of one, the first."""
    files: dict[str, str] = {}
    for path in next((paths for pattern in PATTERNS if (paths := ctx.glob(pattern))), []):
        ost, has_client, client = path.split("/")[-2].partition("-osc-")
        if has_client and not client.startswith("MDT"):  # those of a metadata server are no client's
            files.setdefault(ost, path)
    return dict(sorted(files.items()))


def ost_counts(text: str) -> dict[Metric, int]:
    """What a stats file counts; a row that is not there yet, as nothing was read or written, counts 0.

    Raises:
        ValueError, IndexError: it is not such a file.
    """
    rows = {
        fields[0]: _row(fields) for line in text.splitlines() if (fields := line.split())[2:3] == ["samples"]
    }
    if not rows and "snapshot_time" not in text:
        raise ValueError("no statistics in it")
    counts: dict[Metric, int] = {}
    for metric, name in _BYTES:
        counts[metric] = rows[name].total or 0 if name in rows else 0
    timed = [rows[name] for name in _TIMED if name in rows] or [
        rows[name] for name in _READ_AND_WRITE if name in rows
    ]
    if timed and all(row.total is not None and row.unit in _NS_OF for row in timed):
        counts[REQUESTS] = sum(row.samples for row in timed)
        counts[WAIT] = sum((row.total or 0) * _NS_OF[row.unit] for row in timed)
    return counts


def _row(fields: Sequence[str]) -> _Row:
    return _Row(int(fields[1]), fields[3], int(fields[6]) if len(fields) > 6 else None)
