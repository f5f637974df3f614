"""How much memory each rank holds, and how far the host and the job's control groups are from their limits.

Read twice a second on a thread of its own: a rank costs one short file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Reading, words_of
from perfscope.collectors.cgroup import JobCgroup, JobWatch, job_cgroup
from perfscope.collectors.context import Context, KeptFile
from perfscope.rundir.metrics import GAUGE, Metric, Series
from perfscope.vocabulary.memory import (
    HOST_AVAILABLE,
    HOST_TOTAL,
    JOB_LIMIT,
    JOB_USED,
    RANK_RESIDENT,
    RANK_SHARED,
)

_MEMINFO, _STATM = "/proc/meminfo", "/proc/PID/statm"
# Version 1 has no word for "no limit": the largest number of pages that fits.
_NO_LIMIT = 1 << 60
_BASE = "/sys/fs/cgroup"


def _metric(name: str, source: str, description: str, scale: float = 1.0) -> Metric:
    return Metric(name=name, unit="bytes", kind=GAUGE, source=source, description=description, scale=scale)


HOST_METRICS = {
    "MemAvailable": _metric(
        HOST_AVAILABLE, _MEMINFO, "memory that new work can have without swapping, of the host", 1024
    ),
    "MemTotal": _metric(HOST_TOTAL, _MEMINFO, "memory of the host", 1024),
}
_USED = _metric(
    JOB_USED,
    "cgroup memory.current less inactive_file of memory.stat",
    "memory of a limited control group that the kernel cannot take back at once",
)
_LIMIT = _metric(JOB_LIMIT, "cgroup memory.max", "most memory that a control group of the job may hold")


def _rank_metrics(page_size: int) -> tuple[Metric, Metric]:
    return (
        _metric(RANK_RESIDENT, _STATM, "physical memory that a rank's process has mapped", page_size),
        _metric(RANK_SHARED, _STATM, "the part of it that is files or shared memory", page_size),
    )


@dataclass(slots=True)
class _Rank:
    file: KeptFile
    series: tuple[Series, Series]


@dataclass(slots=True)
class _Group:
    """One control group with a limit: its own, or an ancestor of the job's."""

    folder: str
    version: int
    used: Series
    limit: Series


class MemoryOccupancy(BaseCollector):
    """Resident memory of each rank; what the host has left; usage and limit of the job's control groups."""

    name = "memory"
    slow = True
    min_interval_ns = SECOND_NS // 2

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[int, _Rank] = {}
        self._gone: set[int] = set()
        self._meminfo: KeptFile | None = None
        self._groups: list[_Group] = []

    def probe(self, ctx: Context) -> Capability:
        if not ctx.exists(_MEMINFO):
            return self.capability(reason=f"no {_MEMINFO}")
        limited = list(_limited(ctx, job_cgroup(ctx)))
        detail = f"limited control groups: {len(limited)}" if limited else "no control group limits the job"
        return self.capability(
            metrics=(
                *_rank_metrics(ctx.page_size),
                *HOST_METRICS.values(),
                *((_USED, _LIMIT) if limited else ()),
            ),
            source=f"{_STATM}, {_MEMINFO}, cgroup memory.current, memory.max",
            detail=detail,
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._watch = JobWatch(ctx)
        self._metrics = _rank_metrics(ctx.page_size)
        self._host_series = [(f"{name}:", Series(metric)) for name, metric in HOST_METRICS.items()]
        try:
            self._meminfo = ctx.keep(_MEMINFO)
        except OSError as error:
            self.stopped("meminfo", {}, words_of(error))
        self._find_groups()

    def sample(self) -> Sequence[Reading]:
        if self._watch.look():
            self._find_groups()
        readings = self._sample_host()
        for group in tuple(self._groups):
            readings += self._sample_group(group)
        pids = self._ctx.pids()
        for pid in [pid for pid in self._ranks if pid not in pids]:
            self._ranks.pop(pid).file.close()
        for pid in pids:
            readings += self._sample_rank(pid)
        return readings

    def close(self) -> None:
        for rank in self._ranks.values():
            rank.file.close()
        self._ranks.clear()
        if self._meminfo is not None:
            self._meminfo.close()
            self._meminfo = None

    def _sample_rank(self, pid: int) -> list[Reading]:
        """Nothing of a process that has ended: the next list of ranks is without it."""
        begin = self._ctx.clock()
        try:
            if pid not in self._ranks:
                labels = {"pid": str(pid)}
                resident, shared = (Series(metric, labels) for metric in self._metrics)
                self._ranks[pid] = _Rank(self._ctx.keep(f"/proc/{pid}/statm"), (resident, shared))
            rank = self._ranks[pid]
            pages = [int(word) for word in rank.file.read().split()[1:3]]
        except (OSError, ValueError) as error:
            if not isinstance(error, (FileNotFoundError, ProcessLookupError)) and pid not in self._gone:
                self._gone.add(pid)
                self.stopped("statm", {"pid": str(pid)}, words_of(error))
            return []
        end = self._ctx.clock()
        if len(pages) < 2 or not pages[0]:  # a process that is ending has no memory any more
            return []
        return [Reading(series, value, begin, end) for series, value in zip(rank.series, pages, strict=True)]

    def _sample_host(self) -> list[Reading]:
        if self._meminfo is None:
            return []
        begin = self._ctx.clock()
        try:
            text = self._meminfo.read().decode("ascii", "replace")
            values = [(series, _kib(text, key)) for key, series in self._host_series]
        except (OSError, ValueError, IndexError) as error:
            self._meminfo.close()
            self._meminfo = None
            self.stopped("meminfo", {}, words_of(error))
            return []
        end = self._ctx.clock()
        return [Reading(series, value, begin, end) for series, value in values]

    def _find_groups(self) -> None:
        known = {group.folder: group for group in self._groups}
        self._groups = [
            known.get(folder)
            or _Group(
                folder,
                version,
                Series(_USED, {"group": _name(folder)}),
                Series(_LIMIT, {"group": _name(folder)}),
            )
            for folder, version in _limited(self._ctx, self._watch.group)
        ]

    def _sample_group(self, group: _Group) -> list[Reading]:
        begin = self._ctx.clock()
        try:
            used = _used(self._ctx, group.folder, group.version)
            limit = _limit(self._ctx, group.folder, group.version)
        except (OSError, ValueError) as error:
            self._groups.remove(group)
            self.stopped("cgroup memory", dict(group.used.labels), words_of(error))
            return []
        end = self._ctx.clock()
        readings = [Reading(group.used, used, begin, end)]
        return readings if limit is None else [*readings, Reading(group.limit, limit, begin, end)]


def _limited(ctx: Context, group: JobCgroup) -> Iterable[tuple[str, int]]:
    """Folders of the job's control group and of its ancestors that have a limit, with the version."""
    for own, version in ((group.v2, 2), (group.v1.get("memory", ""), 1)):
        folder = own
        while folder.startswith(f"{_BASE}/") or (folder == _BASE and version == 2):
            try:
                if _limit(ctx, folder, version) is not None:
                    yield folder, version
            except (OSError, ValueError):
                pass  # a group without the controller: an ancestor may have it
            folder = folder.rpartition("/")[0]


def _limit(ctx: Context, folder: str, version: int) -> int | None:
    """Bytes; None: no limit. Raises OSError, ValueError."""
    text = ctx.read(f"{folder}/{'memory.max' if version == 2 else 'memory.limit_in_bytes'}").strip()
    limit = None if text == "max" else int(text)
    return None if limit is None or limit >= _NO_LIMIT else limit


def _used(ctx: Context, folder: str, version: int) -> int:
    """Bytes, without the page cache that was not used lately. Raises OSError, ValueError."""
    used = int(ctx.read(f"{folder}/{'memory.current' if version == 2 else 'memory.usage_in_bytes'}"))
    key = "inactive_file" if version == 2 else "total_inactive_file"
    for line in ctx.read(f"{folder}/memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return max(used - int(value), 0)
    return used


def _name(folder: str) -> str:
    """A group as /proc/PID/cgroup names it, without the mount."""
    return folder.removeprefix(_BASE) or "/"


def _kib(text: str, key: str) -> int:
    """The number after `key`. Raises ValueError, IndexError where it is not there."""
    return int(text[text.index(key) + len(key) :].split(maxsplit=1)[0])
