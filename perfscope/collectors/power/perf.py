"""Energy of CPU packages and memory through perf, where powercap is for root only."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.collectors.base import SECOND_NS, BaseCollector, Capability, Reading, reason_of, words_of
from perfscope.collectors.context import Context
from perfscope.collectors.power.rapl import DESCRIPTION, PERF_POWER, rapl_readable
from perfscope.kernel_text import parse_cpulist
from perfscope.rundir.metrics import COUNTER, Metric, Series

_READ_BYTES = 24  # value, time enabled, time running
# Event -> the name that powercap has for it.
_DOMAINS = {
    "energy-pkg": "package",
    "energy-ram": "dram",
    "energy-cores": "core",
    "energy-gpu": "uncore",
    "energy-psys": "psys",
}
_ALLOW = "sysctl kernel.perf_event_paranoid=0 as root, or give the sampler CAP_PERFMON"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    name: str
    config: int
    scale: float


@dataclass(slots=True)
class _Counter:
    series: Series
    descriptor: int


class PerfEnergy(BaseCollector):
    """Energy of the perf PMU `power`, one counter per event and package."""

    name = "power.perf"
    min_interval_ns = SECOND_NS // 5  # counters lose nothing by it

    def __init__(self) -> None:
        super().__init__()
        self._counters: list[_Counter] = []

    def probe(self, ctx: Context) -> Capability:
        events = _events(ctx)
        reason, remedy = "", ""
        if not events:
            reason = f"no {PERF_POWER}: virtual machines have none, nor have CPUs without RAPL"
        elif rapl_readable(ctx):
            reason = "not needed: powercap gives the same"
        else:
            reason, remedy = _refused(ctx, events[0])
        return self.capability(
            metrics=tuple(_metric(event) for event in events) if not reason else (),
            source="perf_event_open, PMU power",
            reason=reason,
            remedy=remedy,
            detail=", ".join(event.name for event in events),
        )

    def open(self, ctx: Context) -> None:
        self._clock = ctx.clock
        kind = ctx.read_int(f"{PERF_POWER}/type") or 0
        for event in _events(ctx):
            metric = _metric(event)
            for domain, cpu in _places(ctx, event):
                labels = {"domain": domain}
                try:
                    descriptor = ctx.syscalls.perf_event_open(kind, event.config, cpu)
                except OSError as error:
                    self.stopped("rapl_energy", labels, reason_of(error))
                    continue
                self._counters.append(_Counter(Series(metric, labels), descriptor))

    def sample(self) -> Sequence[Reading]:
        begin = self._clock()
        values = [(counter, self._energy(counter)) for counter in self._counters]
        end = self._clock()
        if any(value is None for _, value in values):
            self._counters = [counter for counter, value in values if value is not None]
        return [Reading(counter.series, value, begin, end) for counter, value in values if value is not None]

    def close(self) -> None:
        for counter in self._counters:
            os.close(counter.descriptor)
        self._counters.clear()

    def _energy(self, counter: _Counter) -> int | None:
        try:
            data = os.read(counter.descriptor, _READ_BYTES)
            if len(data) < _READ_BYTES:  # the counter's CPU went offline
                raise ValueError("short read")
        except (OSError, ValueError) as error:
            os.close(counter.descriptor)
            self.stopped("rapl_energy", dict(counter.series.labels), words_of(error))
            return None
        return int.from_bytes(data[:8], "little")


def _metric(event: _Event) -> Metric:
    return Metric(
        name="rapl_energy",
        unit="joules",
        kind=COUNTER,
        source=f"perf power/{event.name}/",
        description=DESCRIPTION,
        scale=event.scale,
    )


def _events(ctx: Context) -> list[_Event]:
    """Events of the PMU that we have a name for; [] = no PMU."""
    events = []
    for name in _DOMAINS:
        path = f"{PERF_POWER}/events/{name}"
        _, _, config = ctx.read_or(path).partition("event=")
        try:
            event = _Event(name=name, config=int(config, 16), scale=float(ctx.read_or(f"{path}.scale")))
        except ValueError:
            continue
        events.append(event)
    return events


def _places(ctx: Context, event: _Event) -> list[tuple[str, int]]:
    """(domain, CPU to open it on), one per package; the board's (psys) once."""
    try:
        cpus = parse_cpulist(ctx.read_or(f"{PERF_POWER}/cpumask", "0"))
    except ValueError:
        return []
    name = _DOMAINS[event.name]
    if name == "psys":
        return [(name, cpus[0])] if cpus else []
    packages: dict[str, int] = {}
    for cpu in cpus:
        package = ctx.read_or(
            f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", str(len(packages))
        )
        domain = f"{name}-{package}"
        # Packages of several dies have one counter per die.
        packages[domain if domain not in packages else f"{domain}-cpu{cpu}"] = cpu
    return list(packages.items())


def _refused(ctx: Context, event: _Event) -> tuple[str, str]:
    """Why a counter cannot be opened, and the remedy; two empty strings when it can."""
    kind = ctx.read_int(f"{PERF_POWER}/type")
    packages = _places(ctx, event)
    if kind is None or not packages:
        return f"{PERF_POWER} has no type or cpumask", ""
    try:
        os.close(ctx.syscalls.perf_event_open(kind, event.config, packages[0][1]))
    except PermissionError as error:
        return f"perf_event_open: {reason_of(error)}", _ALLOW
    except OSError as error:
        if not ctx.live and error.errno == errno.ENOSYS:
            return f"{PERF_POWER} found; cannot be opened in a captured tree", ""
        return f"perf_event_open: {reason_of(error)}", ""
    return "", ""
