"""What was around a run's steps: clocks, throttling, pressure, neighbors, versions, hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.host import Host, open_hosts
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.source import RunSource
from perfscope.analysis.steps import RankSteps
from perfscope.analysis.study.results import StudyRun
from perfscope.gate.records import Surroundings
from perfscope.rundir.records import GitRecord
from perfscope.vocabulary.gpu import CLOCK, THROTTLE_TIME

# Nothing of these says anything about the speed of a run; they differ between any two.
_NOT_OPTIONS = frozenset({"ceilings"})
_THROTTLES = ("job_throttled", "thermal_throttle_time", THROTTLE_TIME.name)


def surroundings(
    source: RunSource, study: StudyRun, analysis: RunAnalysis, steps: Mapping[int, RankSteps]
) -> Surroundings:
    """Means over the steps' time; of several hosts the worst one counts (clocks: the slowest)."""
    hosts = [
        candidate
        for candidate in open_hosts(source, steps)
        if candidate.steps_ns is not None and candidate.has_samples
    ]
    git = analysis.run.git or GitRecord()
    pressures = list(analysis.machine.pressures.values()) if analysis.machine else []
    faults = max(analysis.page_faults, key=lambda of_rank: of_rank.minor_faults, default=None)
    return Surroundings(
        start_unix_ns=analysis.run.start_unix_ns,
        commit=git.commit or "",
        dirty=git.dirty,
        command=tuple(study.command),
        hosts=study.machine.hosts,
        kernel=study.machine.kernel,
        packages=dict(study.packages),
        environment=dict(study.environment),
        options={name: str(value) for name, value in study.options.items() if name not in _NOT_OPTIONS},
        cpu_hz=_over(hosts, lambda host: _gauge(host, "cpu_frequency"), min),
        gpu_hz=_over(hosts, lambda host: _gauge(host, CLOCK.name), min),
        throttled_ratio=_over(hosts, _throttled, max),
        pressure_ratio=max(pressures, default=None),
        neighbour_cpus=_over(hosts, _neighbours, max),
        steal_ratio=_over(hosts, _steal, max),
        faults_per_step=faults.minor_faults if faults is not None else None,
        fault_ratio=faults.cost_ratio if faults is not None else None,
    )


def _over(
    hosts: Sequence[Host],
    of: Callable[[Host], float | None],
    choose: Callable[[Sequence[float]], float],
) -> float | None:
    present = [value for host in hosts if (value := of(host)) is not None]
    return choose(present) if present else None


def _gauge(host: Host, metric: str) -> float | None:
    """Mean over the steps' time and over all series (CPUs, GPUs) of the metric."""
    if host.steps_ns is None:
        return None
    means = []
    for series in host.samples.find(metric):
        inside = (series.t_begin_ns >= host.steps_ns[0]) & (series.t_end_ns <= host.steps_ns[1])
        values = np.asarray(series.values, dtype=np.float64)[inside]
        if len(values):
            means.append(float(values.mean()) * series.scale)
    return sum(means) / len(means) if means else None


def _share(host: Host, metric: str, **labels: str) -> float | None:
    """What time counters of that name counted, over the steps' time; summed over series."""
    counters = host.counters(metric, **labels)
    if host.steps_ns is None or not counters:
        return None
    total = sum(counted_between(counted, *host.steps_ns)[0] for _, counted in counters)
    return float(total / max(1, host.steps_ns[1] - host.steps_ns[0]))


def _throttled(host: Host) -> float | None:
    shares = [value for metric in _THROTTLES if (value := _share(host, metric)) is not None]
    return max(shares, default=None)


def _neighbours(host: Host) -> float | None:
    return _share(host, "neighbour_cpu")


def _steal(host: Host) -> float | None:
    stolen = _share(host, "cpu_steal", cpu="all")
    cpus = host.topology.num_cpus
    return stolen / cpus if stolen is not None and cpus else None
