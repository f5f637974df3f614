"""CPU time: the machine's and each NUMA node's, each rank's, the job's; and pressure (PSI).

One read of /proc/stat serves the machine, the nodes and the context switches. The time of a rank comes from
its process clock, in ns and for half a microsecond, where the sampler runs on the rank's machine; otherwise
from /proc/PID/stat, in steps of 10 ms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from perfscope.collectors.base import SECOND_NS, Absent, BaseCollector, Capability, Reading, words_of
from perfscope.collectors.cgroup import JobCgroup, JobFile, JobWatch, job_cgroup
from perfscope.collectors.context import Context, KeptFile
from perfscope.collectors.nodes import node_cpus, online_nodes
from perfscope.collectors.pace import Pace
from perfscope.rundir.metrics import COUNTER, Metric, Series

STAT = "/proc/stat"
_TICK = "10 ms (USER_HZ)"
_BUSY_COLUMNS = (1, 2, 3, 6, 7)  # user, nice, system, irq, softirq
RANK_CLOCK = Metric(
    name="rank_cpu",
    unit="ns",
    kind=COUNTER,
    source="CPU-time clock of the process",
    description="CPU time of all threads of a rank",
)
SWITCHES = Metric(
    name="context_switches",
    unit="events",
    kind=COUNTER,
    source=f"{STAT} ctxt",
    description="context switches of the whole machine",
)
THROTTLES = Metric(
    name="job_throttle_count",
    unit="events",
    kind=COUNTER,
    source="cgroup cpu.stat",
    description="periods in which the job had used up its CPU quota",
)


def _ticks(name: str, source: str, description: str, clock_ticks: int) -> Metric:
    return Metric(
        name=name,
        unit="ns",
        kind=COUNTER,
        source=source,
        description=description,
        scale=1e9 / clock_ticks,
        resolution=_TICK,
    )


def stat_metrics(clock_ticks: int) -> dict[str, Metric]:
    """Of /proc/stat. Time that a guest runs is inside user already, so it is not added again."""
    return {
        "busy": _ticks(
            "cpu_busy", STAT, "time CPUs ran anything: user, nice, system, interrupts", clock_ticks
        ),
        "steal": _ticks(
            "cpu_steal", STAT, "time the hypervisor ran other virtual machines (CPU steal)", clock_ticks
        ),
        "iowait": _ticks("cpu_iowait", STAT, "time CPUs were idle while I/O was outstanding", clock_ticks),
    }


def rank_stat_metric(clock_ticks: int) -> Metric:
    """Of /proc/PID/stat."""
    return _ticks("rank_cpu", "/proc/PID/stat utime+stime", RANK_CLOCK.description, clock_ticks)


def job_metrics(version: int) -> dict[str, Metric]:
    """Of the job's cgroup; version 2 counts µs, version 1 ns."""
    scale = 1000 if version == 2 else 1
    cpu = "cpu.stat usage_usec" if version == 2 else "cpuacct.usage (version 1)"
    throttled = "cpu.stat throttled_usec" if version == 2 else "cpu.stat throttled_time (version 1)"
    return {
        "job_cpu": Metric(
            name="job_cpu",
            unit="ns",
            kind=COUNTER,
            source=f"cgroup {cpu}",
            description="CPU time of everything in the job's cgroup, data loader workers included",
            scale=scale,
        ),
        "job_throttled": Metric(
            name="job_throttled",
            unit="ns",
            kind=COUNTER,
            source=f"cgroup {throttled}",
            description="time the job's threads were throttled by its CPU quota",
            scale=scale,
        ),
        "job_throttle_count": THROTTLES,
    }


class CpuCounters(BaseCollector):
    """CPU time of machine, nodes, ranks and job; context switches of the machine."""

    name = "cpu"
    min_interval_ns = SECOND_NS // 5  # the kernel counts in steps of 10 ms: at 100 ms that is 10 % either way

    def __init__(self) -> None:
        super().__init__()
        self._stat: _Stat | None = None
        self._ranks: dict[int, _Rank] = {}
        self._gone: set[int] = set()
        self._pids: Sequence[int] = ()
        self._job = _Job()

    def probe(self, ctx: Context) -> Capability:
        try:
            _rows(ctx.read(STAT).encode())
        except (OSError, ValueError) as error:
            return self.capability(reason=f"{STAT}: {words_of(error)}")
        nodes = [node for node in online_nodes(ctx) if node_cpus(ctx, node)]
        job, absent = _probe_job(ctx)
        rank = RANK_CLOCK if ctx.live else rank_stat_metric(ctx.clock_ticks)
        return self.capability(
            metrics=(*stat_metrics(ctx.clock_ticks).values(), SWITCHES, rank, *job),
            source=f"{STAT}, {rank.source}, cgroup cpu.stat",
            absent=absent,
            detail=f"busy time of the machine and of {len(nodes)} nodes" if len(nodes) > 1 else "",
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._live = ctx.live
        self._clock = ctx.clock
        self._stat = _Stat(ctx)
        self._watch = JobWatch(ctx)
        self._rank_metric = RANK_CLOCK if ctx.live else rank_stat_metric(ctx.clock_ticks)
        self._job.find(ctx, self._watch.group)

    def sample(self) -> Sequence[Reading]:
        pids = tuple(self._ctx.pids())
        if pids != self._pids:
            self._follow(pids)
        readings = self._sample_stat()
        if self._ranks:
            readings += self._sample_ranks()
        if self._job.files:
            readings += self._sample_job()
        return readings

    def close(self) -> None:
        if self._stat is not None:
            self._stat.file.close()
        for rank in self._ranks.values():
            rank.close()
        self._ranks.clear()
        self._job.close()

    def _follow(self, pids: Sequence[int]) -> None:
        """Ranks have appeared or ended."""
        self._pids = pids
        for pid in [pid for pid in self._ranks if pid not in pids]:
            self._ranks.pop(pid).close()
        for pid in pids:
            if pid not in self._ranks and pid not in self._gone:
                self._ranks[pid] = _Rank(pid, Series(self._rank_metric, {"pid": str(pid)}))
        if self._watch.look():
            self._job.find(self._ctx, self._watch.group)

    def _sample_stat(self) -> list[Reading]:
        stat = self._stat
        begin = self._clock()
        if stat is None or begin < stat.pace.next_ns:
            return []
        try:
            values = stat.read()
        except (OSError, ValueError, IndexError) as error:
            stat.file.close()
            self._stat = None
            self.stopped("/proc/stat", {}, words_of(error))
            return []
        end = self._clock()
        stat.pace.took(begin, end)
        return [Reading(series, value, begin, end) for series, value in values]

    def _sample_ranks(self) -> list[Reading]:
        begin = self._clock()
        values = [(rank.series, self._cpu_of(rank)) for rank in self._ranks.values()]
        end = self._clock()
        for pid in self._gone & self._ranks.keys():
            self._ranks.pop(pid).close()
        return [Reading(series, value, begin, end) for series, value in values if value is not None]

    def _cpu_of(self, rank: _Rank) -> int | None:
        """Raw CPU time; None for a rank that has ended, or cannot be read: it is not asked again."""
        try:
            return _process_ns(rank.pid) if self._live else rank.ticks(self._ctx)
        except (OSError, ValueError, IndexError) as error:
            self._gone.add(rank.pid)
            if not isinstance(error, OSError) or isinstance(error, PermissionError):
                self.stopped("rank_cpu", {"pid": str(rank.pid)}, words_of(error))
            return None

    def _sample_job(self) -> list[Reading]:
        begin = self._clock()
        if begin < self._job.pace.next_ns:
            return []
        try:
            values = self._job.read()
        except (OSError, ValueError) as error:
            self._job.close()
            self._job.files.clear()
            self.stopped("job_cpu", {}, words_of(error))
            return []
        end = self._clock()
        self._job.pace.took(begin, end)
        return [Reading(series, value, begin, end) for series, value in values]


class _Stat:
    """/proc/stat, kept open, with the place of each node's CPUs in it."""

    def __init__(self, ctx: Context) -> None:
        self.file: KeptFile = ctx.keep(STAT)
        self.pace = Pace()
        metrics = stat_metrics(ctx.clock_ticks)
        everything = {"cpu": "all"}
        self._total = [Series(metrics[name], everything) for name in ("busy", "steal", "iowait")]
        self._switches = Series(SWITCHES)
        members = {node: set(node_cpus(ctx, node)) for node in online_nodes(ctx)}
        self._node_series = {
            node: Series(metrics["busy"], {"node": str(node)}) for node, cpus in members.items() if cpus
        }
        self._node_of = {cpu: node for node, cpus in members.items() for cpu in cpus}
        self._names: list[bytes] = []
        self._slices: dict[int, list[slice]] = {}
        self._iowait = 0

    def read(self) -> list[tuple[Series, int]]:
        """Raw values in ticks.

        Raises:
            OSError, ValueError, IndexError: it is gone, or in another format.
        """
        text = self.file.read()
        fields, width, names = _rows(text)
        user, nice, system, _, iowait, irq, softirq = [int(word) for word in fields[1:8]]
        steal = int(fields[8]) if width > 8 else 0
        # The kernel says itself that iowait may go backwards; it is no counter that was reset.
        self._iowait = max(self._iowait, iowait)
        busy = user + nice + system + irq + softirq
        values = list(zip(self._total, (busy, steal, self._iowait), strict=True))
        if len(self._node_series) > 1:
            values += self._nodes(fields, width, names)
        elif self._node_series:
            values += [(series, busy) for series in self._node_series.values()]
        at = text.find(b"\nctxt ")
        if at >= 0:
            values.append((self._switches, int(text[at + 6 : text.index(b"\n", at + 6)])))
        return values

    def _nodes(self, fields: list[bytes], width: int, names: list[bytes]) -> list[tuple[Series, int]]:
        if names != self._names:  # a CPU went offline or came back
            self._names, self._slices = names, _slices(names, width, self._node_of)
        return [
            (series, sum([sum(map(int, fields[part])) for part in self._slices.get(node, ())]))
            for node, series in self._node_series.items()
        ]


def _rows(text: bytes) -> tuple[list[bytes], int, list[bytes]]:
    """The words of all ``cpu`` lines, words per line, and the names of the lines after the first.

    Raises:
        ValueError: another format.
    """
    fields = text[: text.index(b"\nintr")].split()
    if fields[:1] != [b"cpu"]:
        raise ValueError("no cpu line")
    try:
        width = fields.index(b"cpu0", 1)
    except ValueError:  # CPU 0 can be offline
        width = len(text[: text.index(b"\n")].split())
    if width < 8 or len(fields) % width:
        raise ValueError("not the columns of the kernel")
    return fields, width, fields[width::width]


def _slices(names: list[bytes], width: int, node_of: dict[int, int]) -> dict[int, list[slice]]:
    """Node -> where in the words its CPUs' busy columns are: one slice per column and run of neighbors."""
    slices: dict[int, list[slice]] = {}
    begin = 0
    nodes = [node_of.get(int(name[3:]), -1) for name in names]
    for end in range(1, len(nodes) + 1):
        if end == len(nodes) or nodes[end] != nodes[begin]:
            first, last = width * (1 + begin), width * (1 + end)
            slices.setdefault(nodes[begin], []).extend(
                slice(first + column, last + column, width) for column in _BUSY_COLUMNS
            )
            begin = end
    return slices


@dataclass(slots=True)
class _Rank:
    pid: int
    series: Series
    file: KeptFile | None = None

    def ticks(self, ctx: Context) -> int:
        """utime + stime. Raises OSError, ValueError, IndexError."""
        if self.file is None:
            self.file = ctx.keep(f"/proc/{self.pid}/stat")
        return process_ticks(self.file.read())

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def process_ticks(stat: bytes) -> int:
    """utime + stime of /proc/PID/stat. The name before them may hold spaces and parentheses.

    Raises:
        ValueError, IndexError: another format.
    """
    fields = stat[stat.rindex(b")") + 2 :].split(None, 13)
    return int(fields[11]) + int(fields[12])


def _process_ns(pid: int) -> int:
    """CPU time of a process of this machine: what clock_getcpuclockid(3) does, in one call.

    Raises:
        OSError: it has ended.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)  # 2: CPUCLOCK_SCHED


@dataclass(slots=True)
class _Job:
    """The job's cpu.stat (version 2), or cpuacct.usage and cpu.stat (version 1)."""

    files: dict[str, JobFile] = field(default_factory=dict)  # what -> file; "usage" before "throttle"
    pace: Pace = field(default_factory=Pace)
    version: int = 0
    series: dict[str, Series] = field(default_factory=dict)

    def find(self, ctx: Context, group: JobCgroup) -> None:
        """Open the files of the group, or go on in those of a wider one."""
        paths, version = _job_paths(ctx, group)
        if version != self.version:
            self.close()
            self.files = {}
            self.series = {name: Series(metric) for name, metric in job_metrics(version).items()}
            self.version = version
        for what in [what for what in self.files if what not in paths]:
            self.files.pop(what).close()
        for what, path in paths.items():
            if what not in self.files:
                self.files[what] = JobFile(ctx, path)
            elif self.files[what].path != path:
                self.files[what].move(path)

    def read(self) -> list[tuple[Series, int]]:
        """Raises OSError, ValueError."""
        values: list[tuple[Series, int]] = []
        for what, file in self.files.items():
            text = file.read()
            values_read = [("job_cpu", int(text))] if what == "usage" else _cpu_stat(text)
            values += [(self.series[name], value) for name, value in file.spliced(values_read).items()]
        return values

    def close(self) -> None:
        for file in self.files.values():
            file.close()


_CPU_STAT = {
    b"usage_usec": "job_cpu",
    b"throttled_usec": "job_throttled",
    b"throttled_time": "job_throttled",
    b"nr_throttled": "job_throttle_count",
}


def _cpu_stat(text: bytes) -> list[tuple[str, int]]:
    fields = text.split()
    return [
        (_CPU_STAT[name], int(value))
        for name, value in zip(fields[::2], fields[1::2], strict=False)
        if name in _CPU_STAT
    ]


def _job_paths(ctx: Context, group: JobCgroup) -> tuple[dict[str, str], int]:
    path, version = group.file(ctx, "cpu.stat", "cpu", "cpu.stat")
    if version == 2:
        return {"stat": path}, 2
    usage, _ = group.file(ctx, "cpu.stat", "cpuacct", "cpuacct.usage")
    paths = {"usage": usage, "throttle": path}
    return {what: name for what, name in paths.items() if name}, 1


def _probe_job(ctx: Context) -> tuple[list[Metric], tuple[Absent, ...]]:
    group = job_cgroup(ctx)
    paths, version = _job_paths(ctx, group)
    job = _Job()
    names: set[str] = set()
    reason = group.lacks("cpu.stat")
    if paths:
        job.find(ctx, group)
        try:
            names = {series.metric.name for series, _ in job.read()}
        except (OSError, ValueError) as error:
            reason = f"cgroup cpu.stat: {words_of(error)}"
        job.close()
    metrics = job_metrics(version)
    absent = [
        Absent(what=name, reason=reason, remedy=group.remedy(ctx)) for name in metrics if name not in names
    ]
    return [metric for name, metric in metrics.items() if name in names], tuple(absent)
