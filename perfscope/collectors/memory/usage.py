"""How full each NUMA node is, how much of it is the job's, and what automatic balancing moves.

Read once a second on a thread of its own: on a large machine the kernel sums over every CPU for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.collectors.base import SECOND_NS, Absent, BaseCollector, Capability, Reading, words_of
from perfscope.collectors.cgroup import JobFile, JobWatch, job_cgroup
from perfscope.collectors.context import Context, KeptFile
from perfscope.collectors.nodes import NODES, online_nodes
from perfscope.rundir.metrics import COUNTER, GAUGE, Metric, Series

_MEMINFO = f"{NODES}/nodeN/meminfo"


def _gauge(name: str, description: str) -> Metric:
    return Metric(
        name=name,
        unit="bytes",
        kind=GAUGE,
        source=_MEMINFO,
        description=description,
        scale=1024,
        resolution="1 KiB",
    )


NODE_METRICS = {
    "MemFree": _gauge("node_memory_free", "unused memory of the node"),
    "MemTotal": _gauge("node_memory_total", "memory of the node"),
    "FilePages": _gauge("node_memory_file", "page cache of the node"),
    "AnonPages": _gauge("node_memory_anon", "memory of processes on the node that is no file's"),
}


def _balancing(name: str, description: str) -> Metric:
    return Metric(name=name, unit="events", kind=COUNTER, source="/proc/vmstat", description=description)


VMSTAT_METRICS = {
    "numa_pages_migrated": Metric(
        name="numa_pages_migrated",
        unit="pages",
        kind=COUNTER,
        source="/proc/vmstat",
        description="pages that automatic NUMA balancing moved, on the whole machine",
    ),
    "numa_hint_faults": _balancing("numa_hint_faults", "faults that balancing causes to see who uses a page"),
    "numa_hint_faults_local": _balancing("numa_hint_faults_local", "those by a CPU of the page's own node"),
}


def _job_metric(name: str, what: str, version: int, page_size: int) -> Metric:
    return Metric(
        name=name,
        unit="bytes",
        kind=GAUGE,
        source="cgroup memory.numa_stat" + ("" if version == 2 else " (version 1, pages)"),
        description=f"{what} of the job on the node",
        scale=1 if version == 2 else page_size,
    )


@dataclass(slots=True)
class _Node:
    labels: dict[str, str]
    file: KeptFile
    series: list[tuple[bytes, Series]]


class NumaMemory(BaseCollector):
    """Memory of nodes and of the job on them, and the counters of automatic balancing."""

    name = "numa.memory"
    slow = True
    min_interval_ns = 2 * SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._nodes: list[_Node] = []
        self._vmstat: list[tuple[str, Series]] = []
        self._job: JobFile | None = None
        self._job_series: dict[tuple[str, str], Series] = {}

    def probe(self, ctx: Context) -> Capability:
        nodes = [node for node in online_nodes(ctx) if ctx.exists(f"{NODES}/node{node}/meminfo")]
        absent = _absent(ctx)
        gone = {part.what for part in absent}
        balancing = [metric for name, metric in VMSTAT_METRICS.items() if name not in gone]
        job = [_job_metric(name, what, 2, ctx.page_size) for name, what in _JOB.values() if name not in gone]
        state = ctx.read_or("/proc/sys/kernel/numa_balancing", "absent")
        return self.capability(
            metrics=(*NODE_METRICS.values(), *balancing, *job) if nodes else (*balancing, *job),
            source=f"{_MEMINFO}, /proc/vmstat, cgroup memory.numa_stat",
            reason="" if nodes or balancing or job else f"no {_MEMINFO}: built without CONFIG_NUMA",
            absent=absent,
            detail=f"automatic balancing: {_BALANCING.get(state, state)}",
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._watch = JobWatch(ctx)
        for node in online_nodes(ctx):
            self._open_node(ctx, node)
        gone = {part.what for part in _absent(ctx)}
        self._vmstat = [(name, Series(VMSTAT_METRICS[name])) for name in VMSTAT_METRICS if name not in gone]
        self._find_job()

    def sample(self) -> Sequence[Reading]:
        if self._watch.look():
            self._find_job()
        readings: list[Reading] = []
        for node in tuple(self._nodes):
            readings += self._sample_node(node)
        if self._vmstat:
            readings += self._sample_vmstat()
        if self._job is not None:
            readings += self._sample_job(self._job)
        return readings

    def close(self) -> None:
        for node in self._nodes:
            node.file.close()
        self._nodes.clear()
        if self._job is not None:
            self._job.close()

    def _open_node(self, ctx: Context, node: int) -> None:
        labels = {"node": str(node)}
        try:
            file = ctx.keep(f"{NODES}/node{node}/meminfo")
            text = file.read()
        except OSError as error:
            self.stopped("meminfo", labels, words_of(error))
            return
        keys = ((f" {name}:".encode(), metric) for name, metric in NODE_METRICS.items())
        self._nodes.append(
            _Node(labels, file, [(key, Series(metric, labels)) for key, metric in keys if key in text])
        )

    def _sample_node(self, node: _Node) -> list[Reading]:
        begin = self._ctx.clock()
        try:
            text = node.file.read()
            values = [(series, _kib_after(text, key)) for key, series in node.series]
        except (OSError, ValueError) as error:
            self._nodes.remove(node)
            node.file.close()
            self.stopped("meminfo", node.labels, words_of(error))
            return []
        end = self._ctx.clock()
        return [Reading(series, value, begin, end) for series, value in values]

    def _sample_vmstat(self) -> list[Reading]:
        begin = self._ctx.clock()
        try:
            counters = _vmstat(self._ctx)
            values = [(series, counters[name]) for name, series in self._vmstat]
        except (OSError, ValueError, KeyError) as error:
            self._vmstat = []
            self.stopped("vmstat", {}, words_of(error))
            return []
        end = self._ctx.clock()
        return [Reading(series, value, begin, end) for series, value in values]

    def _find_job(self) -> None:
        """Open the job's numa_stat, which is found when the first rank is known."""
        path, version = self._watch.group.file(self._ctx, "memory.numa_stat", "memory", "memory.numa_stat")
        if self._job is not None:
            self._job.close()
        self._job = JobFile(self._ctx, path) if path else None
        prefix = "hierarchical_" if version == 1 else ""  # version 1 counts the group alone without it
        self._job_rows = {prefix + kind: kind for kind in _JOB}
        metrics = {
            kind: _job_metric(name, what, version, self._ctx.page_size) for kind, (name, what) in _JOB.items()
        }
        self._job_series = {
            (kind, str(node)): Series(metrics[kind], {"node": str(node)})
            for kind in _JOB
            for node in online_nodes(self._ctx)
        }

    def _sample_job(self, job: JobFile) -> list[Reading]:
        begin = self._ctx.clock()
        try:
            stats = _numa_stat(job.read().decode("ascii", "replace"), self._job_rows)
        except (OSError, ValueError) as error:
            job.close()
            self._job = None
            self.stopped("memory.numa_stat", {}, words_of(error))
            return []
        end = self._ctx.clock()
        return [
            Reading(series, stats[key], begin, end)
            for key, series in self._job_series.items()
            if key in stats
        ]


_BALANCING = {"0": "off", "1": "on", "2": "off, memory tiering on", "3": "on, memory tiering on"}
_JOB = {
    "anon": ("job_memory_anon", "memory that is no file's"),
    "file": ("job_memory_file", "page cache"),
}


def _absent(ctx: Context) -> tuple[Absent, ...]:
    absent: list[Absent] = []
    try:
        counters = _vmstat(ctx)
        why = "not in /proc/vmstat: the kernel is built without CONFIG_NUMA_BALANCING"
    except (OSError, ValueError) as error:
        counters, why = {}, f"/proc/vmstat: {words_of(error)}"
    absent += [Absent(what=name, reason=why) for name in VMSTAT_METRICS if name not in counters]
    group = job_cgroup(ctx)
    path, _ = group.file(ctx, "memory.numa_stat", "memory", "memory.numa_stat")
    if not path:
        reason = group.lacks("memory.numa_stat")
        absent += [Absent(what=name, reason=reason, remedy=group.remedy(ctx)) for name, _ in _JOB.values()]
    return tuple(absent)


def _vmstat(ctx: Context) -> dict[str, int]:
    """The balancing counters.

    Raises:
        OSError: cannot be read.
        ValueError: text where a number belongs.
    """
    counters: dict[str, int] = {}
    for line in ctx.read("/proc/vmstat").splitlines():
        if line.startswith("numa_"):
            name, _, value = line.partition(" ")
            if name in VMSTAT_METRICS:
                counters[name] = int(value)
    return counters


def _numa_stat(text: str, rows: dict[str, str]) -> dict[tuple[str, str], int]:
    """``anon N0=4096 N1=0`` (version 2) and ``hierarchical_anon=1 N0=1 N1=0`` (1) -> {(kind, node): value}.

    Raises:
        ValueError: text where a number belongs.
    """
    stats: dict[tuple[str, str], int] = {}
    for line in text.splitlines():
        fields = line.split()
        kind = rows.get(fields[0].partition("=")[0]) if fields else None
        if kind is not None:
            for word in fields[1:]:
                node, _, value = word.partition("=")
                stats[kind, node[1:]] = int(value)
    return stats


def _kib_after(text: bytes, key: bytes) -> int:
    """Raises ValueError where `key` or its number is not there."""
    begin = text.index(key) + len(key)
    return int(text[begin : text.index(b"kB", begin)])
