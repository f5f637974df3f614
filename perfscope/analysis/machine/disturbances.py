"""Who or what took part of the machine, when, and with what evidence.

A disturbance is something from outside the training that lasted: other processes' CPU time, CPUs taken by the
hypervisor or by a quota, heat, other processes on a GPU, memory pressure. More threads than CPUs within the
job is not one (`oversubscription` says that).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.machine.counters import Rates, middle_ns, on_grid
from perfscope.analysis.machine.episodes import Episode, episodes
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.neighbors import who
from perfscope.analysis.machine.oversubscription import is_oversubscribed
from perfscope.analysis.machine.results import Disturbance
from perfscope.messages import disturbances as texts
from perfscope.vocabulary.disturbances import DisturbanceKind as Kind
from perfscope.vocabulary.gpu import (
    CLOCK,
    FOREIGN_MEMORY,
    FOREIGN_PROCESSES,
    MEMORY_TOTAL,
    TEMPERATURE,
    THROTTLE_FAULTS,
    THROTTLE_REASONS,
    THROTTLE_TIME,
)

CPU_SHARE = 0.05  # of the machine's CPUs, and at least ...
CPU_LEAST = 0.2  # ... so many CPUs, is a neighbor that matters
STEAL_SHARE = 0.05
THROTTLED_SHARE = 0.05
MEMORY_PRESSURE = 0.1
CPU_PRESSURE = 0.4  # only where other processes cannot be seen
THROTTLES_PER_S = 1.0  # where the kernel counts events, but not their time
_SECOND = 1_000_000_000


class _Part(Struct, frozen=True, kw_only=True):
    """A part of the run: before, in, or after the steps."""

    start_ns: int
    end_ns: int
    within_steps: bool


def disturbances(host: Host) -> list[Disturbance]:
    """Everything on one host, in and around its steps."""
    if not host.has_samples:
        return []
    watchers: tuple[Callable[[Host, _Part], Iterable[Disturbance]], ...] = (
        _neighbours,
        _outside_the_group,
        _steal,
        _quota,
        _heat,
        _gpu_heat,
        _gpu_bits,
        _gpu_neighbours,
        _memory_pressure,
        _cpu_pressure,
    )
    return [disturbance for part in _parts(host) for watch in watchers for disturbance in watch(host, part)]


def _parts(host: Host) -> list[_Part]:
    span, steps = host.span_ns, host.steps_ns
    if span is None:
        return []
    if steps is None:
        return [_Part(start_ns=span[0], end_ns=span[1], within_steps=False)]
    parts = [
        _Part(start_ns=span[0], end_ns=min(steps[0], span[1]), within_steps=False),
        _Part(start_ns=max(steps[0], span[0]), end_ns=min(steps[1], span[1]), within_steps=True),
        _Part(start_ns=max(steps[1], span[0]), end_ns=span[1], within_steps=False),
    ]
    return [part for part in parts if part.end_ns - part.start_ns > 0]


def _episodes(counted: Rates, part: _Part, factor: float, threshold: float) -> list[Episode]:
    """When a counter's rate x factor was high, on stretches of a second or a little more."""
    start, end = _inward(counted, part)
    num = (end - start) // _SECOND
    if num < 1:
        return []
    grid = on_grid(counted, start, end, (end - start) // num)
    return episodes(grid.start_ns, grid.end_ns, grid.per_s * factor, threshold)


def _inward(counted: Rates, part: _Part) -> tuple[int, int]:
    """The part's bounds moved to readings, so that no interval mixes what lies before and after them."""
    edges = np.concatenate((counted.start_ns, counted.end_ns[-1:]))
    inside = edges[(edges >= part.start_ns) & (edges <= part.end_ns)]
    if len(inside) and inside[-1] - inside[0] >= 0.8 * (part.end_ns - part.start_ns):
        return int(inside[0]), int(inside[-1])
    return part.start_ns, part.end_ns


def _make(
    host: Host,
    part: _Part,
    kind: Kind,
    episode: Episode,
    severity: float,
    title: str,
    evidence: Sequence[str],
    names: Sequence[str] = (),
) -> Disturbance:
    is_before = host.steps_ns is not None and part.start_ns < host.steps_ns[0]
    return Disturbance(
        host=host.name,
        kind=kind,
        start_ns=host.unix(episode.start_ns),
        end_ns=host.unix(episode.end_ns),
        severity=min(1.0, max(0.0, severity)),
        title=texts.lasted(
            title,
            episode.dur_ns,
            before_steps=not part.within_steps and is_before,
            after_steps=not part.within_steps and not is_before,
        ),
        evidence=tuple(evidence),
        names=tuple(names),
        within_steps=part.within_steps,
    )


def _threshold(num_cpus: int) -> float:
    """CPUs that other processes must use to matter."""
    return max(CPU_SHARE * num_cpus, CPU_LEAST)


def _neighbours(host: Host, part: _Part) -> Iterator[Disturbance]:
    num_cpus = host.topology.num_cpus
    if not num_cpus:  # what is much for this machine is not known
        return
    for _, counted in host.counters("neighbour_cpu"):
        for episode in _episodes(counted, part, 1e-9, _threshold(num_cpus)):
            names, lines = who(host, "cpu", episode)
            title = texts.cpus_taken(episode.mean, num_cpus, names)
            lines = lines or [texts.PROCESSES_UNNAMED]
            yield _make(host, part, Kind.CPU_NEIGHBOR, episode, episode.mean / num_cpus, title, lines, names)


def _outside_the_group(host: Host, part: _Part) -> Iterator[Disturbance]:
    """Where other processes cannot be listed: the machine's busy time less the job's control group's."""
    num_cpus = host.topology.num_cpus
    busy, job_series = host.counters("cpu_busy", cpu="all"), host.counters("job_cpu")
    if host.counters("neighbour_cpu") or not busy or not job_series or not num_cpus:
        return
    num = (part.end_ns - part.start_ns) // _SECOND
    if num < 1:
        return
    width = (part.end_ns - part.start_ns) // num
    all_of_it = on_grid(busy[0][1], part.start_ns, part.end_ns, width)
    of_job = on_grid(job_series[0][1], part.start_ns, part.end_ns, width)
    outside = (all_of_it.per_s - of_job.per_s) * 1e-9
    for episode in episodes(all_of_it.start_ns, all_of_it.end_ns, outside, _threshold(num_cpus)):
        title = texts.cpus_taken(episode.mean, num_cpus, by_group=True)
        lines = [texts.OUTSIDE_THE_GROUP]
        yield _make(host, part, Kind.CPU_NEIGHBOR, episode, episode.mean / num_cpus, title, lines)


def _steal(host: Host, part: _Part) -> Iterator[Disturbance]:
    num_cpus = host.topology.num_cpus
    if not num_cpus:
        return
    for _, counted in host.counters("cpu_steal", cpu="all"):
        for episode in _episodes(counted, part, 1e-9 / num_cpus, STEAL_SHARE):
            title, evidence = texts.steal(episode.mean, episode.most)
            yield _make(host, part, Kind.STEAL, episode, episode.mean, title, [evidence])


def _quota(host: Host, part: _Part) -> Iterator[Disturbance]:
    granted = host.topology.cpu_limit or host.topology.num_cpus
    if not granted:
        return
    for series, counted in host.counters("job_throttled"):
        for episode in _episodes(counted, part, 1e-9, THROTTLED_SHARE):
            title, lines = texts.quota(episode.mean, series.source, host.topology.cpu_limit)
            yield _make(host, part, Kind.CGROUP_THROTTLING, episode, episode.mean / granted, title, lines)


def _heat(host: Host, part: _Part) -> Iterator[Disturbance]:
    """Packages that slow their clocks against heat; by the count of times on kernels without the time."""
    timed = host.counters("thermal_throttle_time")
    for series, counted in timed or host.counters("thermal_throttle_count"):
        factor, threshold = (1e-9, THROTTLED_SHARE) if timed else (1.0, THROTTLES_PER_S)
        for episode in _episodes(counted, part, factor, threshold):
            kind = "package" if "package" in series.labels else "core"
            share = min(1.0, episode.mean) if timed else 0.5
            number = series.labels.get(kind, "?")
            title = texts.cpu_throttled(kind, number, share if timed else None, episode.mean)
            yield _make(host, part, Kind.THROTTLING, episode, share, title, [f"counted in {series.source}"])


def _gpu_heat(host: Host, part: _Part) -> Iterator[Disturbance]:
    """GPUs slowed by heat or by the power supply; a power cap is the machine's own way (see findings)."""
    for series, counted in host.counters(THROTTLE_TIME.name):
        if series.labels.get("reason") not in THROTTLE_FAULTS:
            continue
        name = series.labels.get("name") or series.labels["reason"]
        for episode in _episodes(counted, part, 1e-9, THROTTLED_SHARE):
            gpu, share = series.labels.get("gpu", "?"), min(1.0, episode.mean)
            title = texts.gpu_throttled(gpu, name, share)
            yield _make(
                host,
                part,
                Kind.THROTTLING,
                episode,
                share,
                title,
                _clock_lines(host, gpu, episode),
            )


def _gpu_bits(host: Host, part: _Part) -> Iterator[Disturbance]:
    """The same of GPUs whose driver only tells the reasons of the moment."""
    timed = {series.labels.get("gpu") for series, _ in host.counters(THROTTLE_TIME.name)}
    for series in host.samples.find(THROTTLE_REASONS.name):
        at, gpu = middle_ns(series), series.labels.get("gpu", "?")
        inside = np.flatnonzero((at >= part.start_ns) & (at <= part.end_ns))
        if gpu in timed or len(inside) < 2:
            continue
        values = series.values[inside].astype(np.int64)
        for bit in series.bits:
            if bit.reason not in THROTTLE_FAULTS:
                continue
            level = ((values & bit.mask) != 0).astype(np.float64)
            for episode in episodes(at[inside[:-1]], at[inside[1:]], level[:-1], 1.0):
                title = texts.gpu_throttled(gpu, bit.name)
                yield _make(
                    host,
                    part,
                    Kind.THROTTLING,
                    episode,
                    1.0,
                    title,
                    _clock_lines(host, gpu, episode),
                )


def _clock_lines(host: Host, gpu: str, episode: Episode) -> list[str]:
    lines = []
    for metric, unit, scale, word in (
        (CLOCK.name, "MHz", 1e-6, "clock"),
        (TEMPERATURE.name, "°C", 1.0, "temperature"),
    ):
        for series in host.samples.find(metric, gpu=gpu):
            at = middle_ns(series)
            inside = series.values[(at >= episode.start_ns) & (at <= episode.end_ns)] * (series.scale * scale)
            if len(inside):
                lines.append(f"{word} {inside.min():.0f} to {inside.max():.0f} {unit}")
    return lines or [texts.THROTTLED_TIME]


def _gpu_neighbours(host: Host, part: _Part) -> Iterator[Disturbance]:
    for series in host.samples.find(FOREIGN_PROCESSES.name):
        at, gpu = middle_ns(series), series.labels.get("gpu", "?")
        inside = np.flatnonzero((at >= part.start_ns) & (at <= part.end_ns))
        if len(inside) < 2:
            continue
        level = series.values[inside].astype(np.float64)
        for episode in episodes(at[inside[:-1]], at[inside[1:]], level[:-1], 1.0):
            memory = _most_in(host, FOREIGN_MEMORY.name, gpu, episode)
            names, lines = who(host, "gpu", episode)
            title = texts.gpu_shared(gpu, int(episode.most), memory)
            share = _share_of_gpu(host, gpu, memory)
            yield _make(
                host,
                part,
                Kind.GPU_NEIGHBOR,
                episode,
                share,
                title,
                lines or [f"process list: {series.source}"],
                names,
            )


def _most_in(host: Host, metric: str, gpu: str, episode: Episode) -> float | None:
    most = None
    for series in host.samples.find(metric, gpu=gpu):
        at = middle_ns(series)
        values = series.values[(at >= episode.start_ns) & (at <= episode.end_ns)]
        if len(values):
            most = float(values.max()) * series.scale
    return most


def _share_of_gpu(host: Host, gpu: str, memory: float | None) -> float:
    """Share of the GPU's memory: what else they took of it is not known."""
    for series in host.samples.find(MEMORY_TOTAL.name, gpu=gpu):
        if memory and len(series.values) and series.values[-1] > 0:
            return memory / (float(series.values[-1]) * series.scale)
    return 0.5


def _memory_pressure(host: Host, part: _Part) -> Iterator[Disturbance]:
    of_job_scope = host.counters("pressure_some", resource="memory", scope="job")
    for series, counted in of_job_scope or host.counters("pressure_some", resource="memory"):
        for episode in _episodes(counted, part, 1e-9, MEMORY_PRESSURE):
            title, evidence = texts.memory_pressure(episode.mean, series.source)
            yield _make(host, part, Kind.PRESSURE, episode, episode.mean, title, [evidence])


def _cpu_pressure(host: Host, part: _Part) -> Iterator[Disturbance]:
    """CPUs waited for though the job has no more threads than CPUs, where no process can be named."""
    if host.counters("neighbour_cpu") or is_oversubscribed(host) is not False:
        return
    for series, counted in host.counters("pressure_some", resource="cpu", scope="job"):
        for episode in _episodes(counted, part, 1e-9, CPU_PRESSURE):
            title = texts.cpu_pressure(episode.mean)
            lines = [f"pressure in {series.source}", texts.NOT_OVERSUBSCRIBED]
            yield _make(host, part, Kind.PRESSURE, episode, episode.mean, title, lines)
