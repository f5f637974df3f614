"""Storage traffic: of the job's cgroup by device, and of each rank.

Data loader workers are processes of their own: the cgroup has them, /proc/PID/io of a rank has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.collectors.base import SECOND_NS, Absent, BaseCollector, Capability, Reading, words_of
from perfscope.collectors.cgroup import JobCgroup, JobFile, JobWatch, job_cgroup
from perfscope.collectors.context import Context, KeptFile
from perfscope.rundir.metrics import COUNTER, Metric, Series

_V1 = "blkio.throttle.io_service_bytes"
_SOURCE = f"cgroup io.stat (version 1: {_V1})"


def _metric(name: str, source: str, description: str) -> Metric:
    return Metric(name=name, unit="bytes", kind=COUNTER, source=source, description=description)


# Stacked devices (dm-0 on nvme0n1) count the same bytes each.
JOB = {
    "read": _metric("job_read_bytes", _SOURCE, "bytes the job read from the device"),
    "written": _metric("job_written_bytes", _SOURCE, "bytes the job wrote to the device"),
}
RANK = {
    b"read_bytes:": _metric("rank_read_bytes", "/proc/PID/io", "bytes a rank caused to be read from storage"),
    b"write_bytes:": _metric(
        "rank_written_bytes", "/proc/PID/io", "bytes a rank caused to be written to storage"
    ),
    b"rchar:": _metric("rank_read_chars", "/proc/PID/io", "bytes a rank read, page cache and pipes included"),
}
_SAME_USER = "run the sampler as the same user as the ranks"


@dataclass(slots=True)
class _Rank:
    labels: dict[str, str]
    file: KeptFile
    series: list[tuple[bytes, Series]]


class IoCounters(BaseCollector):
    """Bytes read and written, twice a second; the kernel sums over CPUs for the cgroup's."""

    name = "io"
    slow = True
    min_interval_ns = SECOND_NS // 2

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[int, _Rank] = {}
        self._gone: set[int] = set()
        self._pids: Sequence[int] = ()
        self._job: JobFile | None = None
        self._version = 0
        self._devices: dict[str, dict[str, Series]] = {}

    def probe(self, ctx: Context) -> Capability:
        absent: list[Absent] = []
        group = job_cgroup(ctx)
        path, _ = _job_path(ctx, group)
        if not path:
            reason = group.lacks("io.stat")
            absent += [
                Absent(what=metric_kind.name, reason=reason, remedy=group.remedy(ctx))
                for metric_kind in JOB.values()
            ]
        why, remedy = _rank_refused(ctx)
        if why:
            absent += [
                Absent(what=metric_kind.name, reason=why, remedy=remedy) for metric_kind in RANK.values()
            ]
        metrics = (*(JOB.values() if path else ()), *(() if why else RANK.values()))
        return self.capability(
            metrics=metrics,
            source=f"{_SOURCE}, /proc/PID/io",
            reason="" if metrics else absent[0].reason,
            remedy="" if metrics else absent[0].remedy,
            absent=tuple(absent),
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._watch = JobWatch(ctx)
        self._find_job()

    def sample(self) -> Sequence[Reading]:
        pids = tuple(self._ctx.pids())
        if pids != self._pids:
            self._follow(pids)
        readings = self._sample_job(self._job) if self._job is not None else []
        for pid, rank in tuple(self._ranks.items()):
            readings += self._sample_rank(pid, rank)
        return readings

    def close(self) -> None:
        for rank in self._ranks.values():
            rank.file.close()
        self._ranks.clear()
        if self._job is not None:
            self._job.close()

    def _follow(self, pids: Sequence[int]) -> None:
        """Ranks have appeared or ended."""
        self._pids = pids
        for pid in [pid for pid in self._ranks if pid not in pids]:
            self._ranks.pop(pid).file.close()
        for pid in pids:
            if pid not in self._ranks and pid not in self._gone:
                self._open_rank(pid)
        if self._watch.look():
            self._find_job()

    def _open_rank(self, pid: int) -> None:
        labels = {"pid": str(pid)}
        try:
            file = self._ctx.keep(f"/proc/{pid}/io")
        except OSError as error:
            self._refuse(pid, labels, error)
            return
        self._ranks[pid] = _Rank(
            labels, file, [(key, Series(metric, labels)) for key, metric in RANK.items()]
        )

    def _refuse(self, pid: int, labels: dict[str, str], error: Exception) -> None:
        """A rank that is not ours, or has ended: the first is stated, the second is no fault."""
        self._gone.add(pid)
        if isinstance(error, FileNotFoundError | ProcessLookupError):
            return
        remedy = f"; {_SAME_USER}" if isinstance(error, PermissionError) else ""
        self.stopped("/proc/PID/io", labels, words_of(error) + remedy)

    def _sample_rank(self, pid: int, rank: _Rank) -> list[Reading]:
        begin = self._ctx.clock()
        try:
            fields = rank.file.read().split()
            values = [(series, int(fields[fields.index(key) + 1])) for key, series in rank.series]
        except (OSError, ValueError, IndexError) as error:
            self._ranks.pop(pid).file.close()
            self._refuse(pid, rank.labels, error)
            return []
        end = self._ctx.clock()
        return [Reading(series, value, begin, end) for series, value in values]

    def _find_job(self) -> None:
        path, version = _job_path(self._ctx, self._watch.group)
        if self._job is not None and path and version == self._version:
            self._job.move(path)
            return
        if self._job is not None:
            self._job.close()
        self._job, self._version = (JobFile(self._ctx, path) if path else None), version

    def _sample_job(self, job: JobFile) -> list[Reading]:
        begin = self._ctx.clock()
        try:
            text = job.read().decode("ascii", "replace")
            by_device = parse_io_stat(text) if self._version == 2 else parse_blkio(text)
        except (OSError, ValueError) as error:
            job.close()
            self._job = None
            self.stopped("io.stat", {}, words_of(error))
            return []
        end = self._ctx.clock()
        flat = {f"{device} {what}": value for device, row in by_device.items() for what, value in row.items()}
        values = job.spliced(flat.items())
        return [Reading(self._series_of(key), value, begin, end) for key, value in values.items()]

    def _series_of(self, key: str) -> Series:
        number, _, what = key.partition(" ")
        if number not in self._devices:
            labels = {"device": device_name(self._ctx, number)}
            self._devices[number] = {name: Series(metric, labels) for name, metric in JOB.items()}
        return self._devices[number][what]


def parse_io_stat(text: str) -> dict[str, dict[str, int]]:
    """``8:0 rbytes=1 wbytes=2 rios=..`` -> {"8:0": {"read": 1, "written": 2}}.

    Devices that say nothing more than their number are left out (Linux before 5.15 lists them).

    Raises:
        ValueError: text where a number belongs.
    """
    names = {"rbytes": "read", "wbytes": "written"}
    by_device: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        device, *pairs = line.split()
        split = (pair.partition("=") for pair in pairs)
        row = {names[name]: int(value) for name, _, value in split if name in names}
        if row:
            by_device[device] = row
    return by_device


def parse_blkio(text: str) -> dict[str, dict[str, int]]:
    """``8:0 Read 1`` / ``8:0 Write 2`` / ``Total 3`` -> as parse_io_stat. Raises ValueError."""
    names = {"Read": "read", "Write": "written"}
    by_device: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] in names:
            by_device.setdefault(fields[0], {})[names[fields[1]]] = int(fields[2])
    return by_device


def device_name(ctx: Context, number: str) -> str:
    """``259:0`` -> nvme0n1; the number itself where the name is not known."""
    link = f"/sys/dev/block/{number}"
    if ctx.exists(link):
        return ctx.real(link).rpartition("/")[2]
    for line in ctx.read_or("/proc/partitions").splitlines():
        fields = line.split()
        if len(fields) == 4 and f"{fields[0]}:{fields[1]}" == number:
            return fields[3]
    return number


def _job_path(ctx: Context, group: JobCgroup) -> tuple[str, int]:
    return group.file(ctx, "io.stat", "blkio", _V1)


def _rank_refused(ctx: Context) -> tuple[str, str]:
    """Why /proc/PID/io cannot be read, and what to do; two empty strings when it can."""
    pids = ctx.pids()
    io_file = f"/proc/{pids[0]}/io" if pids else "/proc/self/io"
    if not pids and not ctx.live:
        return "no training process is known", ""
    try:
        ctx.read(io_file)
    except OSError as error:
        return f"{io_file}: {words_of(error)}", _SAME_USER if isinstance(error, PermissionError) else ""
    return "", ""
