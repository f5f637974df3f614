"""Pressure stall information: time in which work waited for CPU, memory or I/O.

The totals are differenced; the averages in the same files lag by their windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.collectors.base import (
    SECOND_NS,
    Absent,
    BaseCollector,
    Capability,
    Reading,
    reason_of,
    words_of,
)
from perfscope.collectors.cgroup import JobCgroup, JobFile, JobWatch, job_cgroup
from perfscope.collectors.context import Context
from perfscope.collectors.pace import Pace
from perfscope.rundir.metrics import COUNTER, Metric, Series

RESOURCES = ("cpu", "memory", "io")
_SOURCE = "/proc/pressure/RESOURCE, cgroup RESOURCE.pressure"
_BOOT = "boot with psi=1 on the kernel's command line (the kernel must have CONFIG_PSI)"


def _metric(name: str, description: str) -> Metric:
    return Metric(
        name=name,
        unit="ns",
        kind=COUNTER,
        source=_SOURCE,
        description=description,
        scale=1000,
        resolution="1 µs",
    )


SOME = _metric("pressure_some", "time in which at least one task waited for the resource")
FULL = _metric("pressure_full", "time in which every task that could run waited for the resource")


@dataclass(slots=True)
class _Source:
    labels: dict[str, str]
    file: JobFile
    some: Series
    full: Series | None


class Pressure(BaseCollector):
    """PSI totals of the machine and of the job's cgroup."""

    name = "cpu.pressure"
    min_interval_ns = SECOND_NS // 2  # totals: a later read loses none; each one sums over all CPUs

    def __init__(self) -> None:
        super().__init__()
        self._sources: list[_Source] = []
        self._ended: set[tuple[str, str]] = set()
        self._pids: Sequence[int] = ()
        self._pace = Pace()

    def probe(self, ctx: Context) -> Capability:
        absent: list[Absent] = []
        working = 0
        group = job_cgroup(ctx)
        for scope, resource, path in _paths(group, ctx):
            why = (
                _unreadable(ctx, path)
                if path
                else group.lacks("cpu.pressure, memory.pressure and io.pressure")
            )
            working += not why
            if why:
                remedy = _BOOT if scope == "system" else group.remedy(ctx)
                absent.append(Absent(what=f"{scope} pressure of {resource}", reason=why, remedy=remedy))
        return self.capability(
            metrics=(SOME, FULL) if working else (),
            source=_SOURCE,
            reason="" if working else absent[0].reason,
            remedy="" if working else _BOOT,
            absent=tuple(absent) if working else (),
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        self._watch = JobWatch(ctx)
        self._find()

    def sample(self) -> Sequence[Reading]:
        pids = tuple(self._ctx.pids())
        if pids != self._pids:
            self._pids = pids
            if self._watch.look():
                self._find()
        begin = self._ctx.clock()
        if begin < self._pace.next_ns:
            return ()
        values: list[tuple[Series, int]] = []
        for source in tuple(self._sources):
            values += self._totals_of(source)
        end = self._ctx.clock()
        self._pace.took(begin, end)
        return [Reading(series, value, begin, end) for series, value in values]

    def close(self) -> None:
        for source in self._sources:
            source.file.close()
        self._sources.clear()

    def _find(self) -> None:
        """Sources that are there now; those that are open go on in the wider group."""
        by_resource = {
            (source.labels["scope"], source.labels["resource"]): source for source in self._sources
        }
        for scope, resource, path in _paths(self._watch.group, self._ctx):
            source = by_resource.get((scope, resource))
            if not path or (scope, resource) in self._ended or (source and source.file.path == path):
                continue
            if source is not None:
                source.file.move(path)
            elif not _unreadable(self._ctx, path):
                self._sources.append(_source(self._ctx, scope, resource, path))

    def _totals_of(self, source: _Source) -> list[tuple[Series, int]]:
        """Nothing from a source that fails; it ends."""
        try:
            return _totals(source)
        except (OSError, ValueError, IndexError) as error:
            self._sources.remove(source)
            source.file.close()
            self._ended.add((source.labels["scope"], source.labels["resource"]))
            self.stopped("pressure", source.labels, words_of(error))
            return []


def _source(ctx: Context, scope: str, resource: str, path: str) -> _Source:
    labels = {"resource": resource, "scope": scope}
    # Of a whole machine "full" is not defined for the CPU: the file says 0, or nothing.
    full = None if (scope, resource) == ("system", "cpu") else Series(FULL, labels)
    return _Source(labels, JobFile(ctx, path), Series(SOME, labels), full)


def _paths(group: JobCgroup, ctx: Context) -> list[tuple[str, str, str]]:
    """(scope, resource, path); path "" where the job has no group that counts it."""
    system = [("system", resource, f"/proc/pressure/{resource}") for resource in RESOURCES]
    job = [("job", resource, group.file(ctx, f"{resource}.pressure", "", "")[0]) for resource in RESOURCES]
    return system + job


def _unreadable(ctx: Context, path: str) -> str:
    """Why a file gives no pressure; "" when it does. Disabled PSI answers "Operation not supported"."""
    try:
        has_totals = "total=" in ctx.read(path)
    except OSError as error:
        return f"{path}: {reason_of(error)}"
    return "" if has_totals else f"{path}: no totals in it"


def _totals(source: _Source) -> list[tuple[Series, int]]:
    """Raises OSError, ValueError, IndexError."""
    fields = source.file.read().split()
    totals = [("some", int(fields[4][6:]))]
    if source.full is not None and len(fields) > 9:  # the job's CPU has it since Linux 5.13
        totals.append(("full", int(fields[9][6:])))
    values = source.file.spliced(totals)
    series = {"some": source.some, "full": source.full}
    return [
        (value_series, value) for name, value in values.items() if (value_series := series[name]) is not None
    ]
