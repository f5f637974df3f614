"""Memory traffic per L3 cache domain from resctrl (Intel RDT and AMD QoS memory bandwidth monitoring).

`mbm_total_bytes` less `mbm_local_bytes` is what went to other sockets: the only counter of a job's remote
traffic. A group of its own for the job must have been made by root; else the default group is read, which
holds every task that is in no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Reading, reason_of
from perfscope.collectors.context import Context, KeptFile
from perfscope.collectors.cpu.identity import read_cpu_identity
from perfscope.rundir.metrics import COUNTER, Metric, Series

ROOT = "/sys/fs/resctrl"
DEFAULT_GROUP = "default"


def _metric(name: str, description: str) -> Metric:
    return Metric(
        name=name,
        unit="bytes",
        kind=COUNTER,
        source=f"{ROOT}/GROUP/mon_data/mon_L3_DD/{name}",
        description=description,
    )


METRICS = (
    _metric("mbm_total_bytes", "bytes between the L3 cache and memory anywhere, of the tasks of a group"),
    _metric("mbm_local_bytes", "bytes between the L3 cache and the socket's own memory, of a group's tasks"),
)


@dataclass(slots=True)
class _Source:
    name: str
    series: Series
    kept: KeptFile


class Resctrl(BaseCollector):
    """Counters of the default group and of the groups that the ranks are in.

    A value `Unavailable` is left out and may come back; `Unassigned` (AMD, no counter given to the group)
    and `Error` end the series.
    """

    name = "membw.resctrl"
    slow = True
    min_interval_ns = SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self._ctx = Context()
        self._sources: list[_Source] = []
        self._groups: set[str] = set()
        self._pids: tuple[int, ...] = ()

    def probe(self, ctx: Context) -> Capability:
        monitor_files = list(_files(ctx, ROOT))
        reason, remedy = ("", "") if monitor_files else _why_not(ctx)
        names = {metric.name for _, _, metric in monitor_files}
        return self.capability(
            metrics=tuple(metric for metric in METRICS if metric.name in names),
            source=ROOT,
            reason=reason,
            remedy=remedy,
            detail=f"{len({domain for _, domain, _ in monitor_files})} L3 domains" if monitor_files else "",
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._add(ROOT, DEFAULT_GROUP)

    def sample(self) -> Sequence[Reading]:
        pids = tuple(self._ctx.pids())
        if pids and pids != self._pids:
            self._pids = pids
            self._follow(pids)
        return [reading for source in list(self._sources) if (reading := self._read(source)) is not None]

    def close(self) -> None:
        while self._sources:
            self._sources.pop().kept.close()

    def _follow(self, pids: Sequence[int]) -> None:
        """Add the groups that the ranks are in."""
        wanted = {str(pid) for pid in pids}
        for pattern in ("mon_groups/*", "*/mon_groups/*", "*"):
            for tasks in self._ctx.glob(f"{ROOT}/{pattern}/tasks"):
                folder = tasks.removesuffix("/tasks")
                if wanted & set(self._ctx.read_or(tasks).split()):
                    self._add(folder, folder.removeprefix(f"{ROOT}/"))

    def _add(self, folder: str, group: str) -> None:
        if group in self._groups:
            return
        self._groups.add(group)
        for name, domain, metric in _files(self._ctx, folder):
            series = Series(metric, {"domain": domain, "group": group})
            try:
                self._sources.append(_Source(name, series, self._ctx.keep(name)))
            except OSError as error:
                self.stopped(metric.name, dict(series.labels), f"{name}: {reason_of(error)}")

    def _read(self, source: _Source) -> Reading | None:
        begin = self._ctx.clock()
        try:
            text = source.kept.read().decode("ascii", "replace").strip()
        except OSError as error:
            self._end(source, reason_of(error))
            return None
        end = self._ctx.clock()
        if text.isdigit():
            return Reading(source.series, int(text), begin, end)
        if text == "Unavailable":
            return Reading(source.series, None, begin, end)
        failures = {
            "Unassigned": "no hardware counter is assigned to this group; see info/L3_MON/mbm_assign_mode",
            "Error": "the processor reports an error for this group",
        }
        self._end(source, failures.get(text, f'the file says "{text[:40]}"'))
        return None

    def _end(self, source: _Source, reason: str) -> None:
        self._sources.remove(source)
        source.kept.close()
        self.stopped(source.series.metric.name, dict(source.series.labels), f"{source.name}: {reason}")


def _files(ctx: Context, folder: str) -> Iterator[tuple[str, str, Metric]]:
    """(file, domain, metric) of a group. With sub-NUMA clusters each domain has parts: then only those."""
    for domain in ctx.glob(f"{folder}/mon_data/mon_L3_*"):
        number = _number(domain)
        parts = {part: f"{number}/{_number(part)}" for part in ctx.glob(f"{domain}/mon_sub_L3_*")}
        for path, label in (parts or {domain: number}).items():
            for metric in METRICS:
                if ctx.exists(f"{path}/{metric.name}"):
                    yield f"{path}/{metric.name}", label, metric


def _number(folder: str) -> str:
    """``mon_L3_01`` -> ``1``."""
    return folder.rpartition("_")[2].lstrip("0") or "0"


def _why_not(ctx: Context) -> tuple[str, str]:
    if ctx.exists(f"{ROOT}/schemata"):
        return f"{ROOT} has no memory bandwidth monitoring", ""
    flags = read_cpu_identity(ctx).flags
    if flags and not flags & {"cqm_mbm_total", "cqm_mbm_local"}:
        return "the processor does not monitor memory bandwidth (no cqm_mbm_total in /proc/cpuinfo)", ""
    return f"{ROOT} is not mounted", "as root: mount -t resctrl resctrl /sys/fs/resctrl"
