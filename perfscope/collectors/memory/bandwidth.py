"""Bytes to and from DRAM, counted by the memory controllers (perf_event_open on their PMUs).

The first rung of a ladder: where this may not be opened, `membw.perf_stat` has a perf with rights do it;
`membw.resctrl` is independent of both. Where none works, reports model bytes from tensor shapes and say so.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfscope.collectors.base import (
    FAST_NS,
    SECOND_NS,
    Absent,
    BaseCollector,
    Capability,
    Fact,
    Reading,
    reason_of,
)
from perfscope.collectors.context import Context
from perfscope.collectors.memory.uncore import (
    CACHE_HITS,
    CACHE_MISSES,
    FAST_READ,
    FAST_WRITE,
    PMUS,
    READ,
    TOTAL,
    WRITE,
    UncoreEvent,
    UncoreMap,
    find_uncore,
)
from perfscope.rundir.metrics import COUNTER, DERIVED, EXACT, SCALED, Metric, Series

MODELLED_INSTEAD = "memory traffic is then modeled from tensor shapes, and labeled so"
MANY_COUNTERS = 24  # each read interrupts a CPU of that socket for microseconds
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_RECORD = struct.Struct("=QQQ")  # value, time enabled, time running
_DESCRIPTIONS = {
    READ: "bytes read from DRAM by everything on the socket",
    WRITE: "bytes written to DRAM by everything on the socket",
    TOTAL: "bytes read from and written to DRAM by everything on the socket",
    FAST_READ: "bytes read from on-package memory (MCDRAM, HBM)",
    FAST_WRITE: "bytes written to on-package memory (MCDRAM, HBM)",
    CACHE_HITS: "accesses that hit the MCDRAM cache",
    CACHE_MISSES: "accesses that missed the MCDRAM cache",
}
FindUncore = Callable[[Context], UncoreMap]


def metric_of(event: UncoreEvent, cached: bool) -> Metric:
    """The metric of an event; `cached`: on-package memory works as a cache, so its bytes are not demand."""
    hits = event.metric in (CACHE_HITS, CACHE_MISSES)
    return Metric(
        name=event.metric,
        unit="events" if hits else "bytes",
        kind=COUNTER,
        source=f"{event.pmu}/{event.how}/",
        description=_DESCRIPTIONS.get(event.metric, event.metric),
        scale=event.bytes_per_count,
        quality=DERIVED if cached and event.metric in (FAST_READ, FAST_WRITE) else EXACT,
    )


def series_of(uncore: UncoreMap) -> list[tuple[UncoreEvent, int, Series]]:
    """Every counter that is to be opened: event, CPU, series."""
    cached = any(event.metric == CACHE_HITS for event in uncore.events)
    rows = []
    for event in uncore.events:
        metric = metric_of(event, cached)
        for cpu in event.cpus:
            labels = {"socket": uncore.sockets[cpu], "channel": event.channel, "pmu": event.pmu}
            rows.append((event, cpu, Series(metric, labels)))
    return rows


def describe(uncore: UncoreMap) -> str:
    """``uncore_imc: 6 on each of 2 sockets``."""
    groups: dict[str, set[tuple[str, int]]] = {}
    for event in uncore.events:
        groups.setdefault(event.pmu.rstrip("0123456789").rstrip("_"), set()).update(
            (uncore.sockets[cpu], int(event.channel.partition(".")[0])) for cpu in event.cpus
        )
    parts = []
    for name, channels in groups.items():
        sockets = len({socket for socket, _ in channels})
        on_each = f"on each of {sockets} sockets" if sockets > 1 else "on 1 socket"
        parts.append(f"{name}: {len(channels) // max(sockets, 1)} {on_each}")
    return ", ".join(parts)


def try_to_open(ctx: Context, uncore: UncoreMap) -> tuple[str, str]:
    """Open one counter and close it: ("", "") when that works, else the reason and the remedy."""
    event = uncore.events[0]
    try:
        descriptor = _open(ctx, event, event.cpus[0])
    except OSError as error:
        if not ctx.live and error.errno == errno.ENOSYS:
            return f"{_names(uncore)} found; cannot be opened in a captured tree", ""
        return _explain(ctx, event, error)
    os.close(descriptor)
    return "", ""


def _names(uncore: UncoreMap) -> str:
    """``uncore_imc_0…5``."""
    groups: dict[str, list[int]] = {}
    for pmu in {event.pmu for event in uncore.events}:
        stem = pmu.rstrip("0123456789")
        groups.setdefault(stem, []).append(int(pmu[len(stem) :] or -1))
    names = []
    for stem, numbers in sorted(groups.items()):
        first, last = min(numbers), max(numbers)
        names.append(stem if last < 0 else f"{stem}{first}" if first == last else f"{stem}{first}…{last}")
    return ", ".join(names)


def _open(ctx: Context, event: UncoreEvent, cpu: int) -> int:
    return ctx.syscalls.perf_event_open(
        event.kind, event.config, cpu, config1=event.config1, config2=event.config2
    )


def _explain(ctx: Context, event: UncoreEvent, error: OSError) -> tuple[str, str]:
    where = f"{event.pmu}/{event.how}/"
    if error.errno in (errno.EACCES, errno.EPERM):
        level = ctx.read_or(_PARANOID) or "not readable"
        python = os.path.realpath(sys.executable) if ctx.live else "the Python interpreter"
        return (
            f"{where}: no permission to count for the whole machine (kernel.perf_event_paranoid is {level})",
            f"as root: sysctl kernel.perf_event_paranoid=0, or: setcap cap_perfmon=ep {python}; "
            "in a container: --cap-add PERFMON",
        )
    if error.errno == errno.EMFILE:
        return f"{where}: too many open files", "raise the limit: ulimit -n 4096"
    return f"{where}: {reason_of(error)}", ""


@dataclass(slots=True)
class _Counter:
    """One open counter. `total` extrapolates parts of the time, and never falls."""

    descriptor: int
    series: Series
    value: int = 0
    enabled: int = 0
    running: int = 0
    total: int = 0

    def read(self) -> tuple[int | None, str | None]:
        """Value and quality; (None, None) when the kernel had no turn for it since the last time.

        Raises:
            OSError: the counter is gone.
        """
        data = os.read(self.descriptor, _RECORD.size)
        if len(data) < _RECORD.size:
            raise OSError(errno.ENODEV, "the counter has been switched off")
        value, enabled, running = _RECORD.unpack(data)
        more, on, ran = value - self.value, enabled - self.enabled, running - self.running
        self.value, self.enabled, self.running = value, enabled, running
        if ran <= 0 < on:
            return None, None
        if ran < on:
            self.total += more * on // ran
            return self.total, SCALED
        self.total += more
        return self.total, SCALED if self.total != value else None


class MemoryBandwidth(BaseCollector):
    """Counters of the memory controllers, one series per channel and socket.

    Args:
        find: where the counters come from; tests give others.
    """

    name = "membw"
    min_interval_ns = FAST_NS

    def __init__(self, find: FindUncore = find_uncore) -> None:
        super().__init__()
        self._find = find
        self._ctx = Context()
        self._counters: list[_Counter] = []

    def probe(self, ctx: Context) -> Capability:
        uncore = self._find(ctx)
        reason, remedy = try_to_open(ctx, uncore) if uncore.events else (uncore.reason, uncore.remedy)
        metrics = {event.metric: metric_of(event, cached=False) for event in uncore.events}
        return self.capability(
            metrics=tuple(metrics.values()),
            source=f"perf_event_open on {PMUS}" if uncore.events else PMUS,
            reason=f"{reason}; {MODELLED_INSTEAD}" if reason else "",
            remedy=remedy,
            absent=tuple(Absent(what="MCDRAM", reason=note) for note in uncore.notes),
            detail=describe(uncore),
        )

    def open(self, ctx: Context) -> None:
        self._ctx = ctx
        uncore = self._find(ctx)
        self._facts += [Fact("note", {}, {"text": note}) for note in uncore.notes]
        refused = [why for row in series_of(uncore) if (why := self._start(ctx, *row)) is not None]
        if not self._counters:
            raise OSError(errno.ENODEV, refused[0][1] if refused else uncore.reason)
        for (pmu, metric), reason in dict(refused).items():
            self.stopped(metric, {"pmu": pmu}, reason)
        self.min_interval_ns = FAST_NS if len(self._counters) <= MANY_COUNTERS else SECOND_NS // 4

    def sample(self) -> Sequence[Reading]:
        begin = self._ctx.clock()
        values = [(counter.series, *self._read(counter)) for counter in list(self._counters)]
        end = self._ctx.clock()
        return [Reading(series, value, begin, end, quality) for series, value, quality in values]

    def close(self) -> None:
        while self._counters:
            os.close(self._counters.pop().descriptor)

    def _start(
        self, ctx: Context, event: UncoreEvent, cpu: int, series: Series
    ) -> tuple[tuple[str, str], str] | None:
        """Open a counter; what and why when that is refused."""
        try:
            self._counters.append(_Counter(_open(ctx, event, cpu), series))
        except OSError as error:
            return (event.pmu, event.metric), "; ".join(part for part in _explain(ctx, event, error) if part)
        return None

    def _read(self, counter: _Counter) -> tuple[int | None, str | None]:
        try:
            return counter.read()
        except OSError as error:
            self._counters.remove(counter)
            os.close(counter.descriptor)
            self.stopped(counter.series.metric.name, dict(counter.series.labels), reason_of(error))
            return None, None
