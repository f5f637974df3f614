"""Energy over the training steps: processor packages and memory by RAPL, GPUs by their own counters.

Domains must not overlap: `psys` (the whole platform) holds the packages, `core` and `uncore` are parts of
one; DRAM is its own. So psys counts only where no package is readable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from perfscope.analysis.machine.counters import counted_between, middle_ns
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.results import Energy
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.rundir.sample_facts import Gap
from perfscope.rundir.samples import SampleSeries
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.gpu import ENERGY, POWER

_PACKAGE, _PSYS = "package", "psys"
_WORDS = {_PACKAGE: "CPU package", "dram": "DRAM", _PSYS: "whole platform (psys)"}
_RAPL = ("power", "power.perf")
_GPUS = re.compile(r"gpu\.\w+")  # a vendor's first collector, which reads its energy
_COVERED = 0.9  # of the steps' time must be read


def energies(host: Host) -> list[Energy]:
    """Energy per domain from the first step's start to the last one's end; at least 90 % of it was read."""
    if host.steps_ns is None:
        return []
    energies = [
        result for series, _ in host.counters("rapl_energy") if (result := _rapl(host, series)) is not None
    ]
    domains = {domain for domain, _ in energies}
    left_out = _PSYS if _PACKAGE in domains else None
    return [*(energy for domain, energy in energies if domain != left_out), *_gpus(host)]


def _rapl(host: Host, series: SampleSeries) -> tuple[str, Energy] | None:
    """(one of _WORDS, its energy)."""
    name, _, number = series.labels.get("domain", "").partition("-")
    if name not in _WORDS:
        return None
    energy = _counted(host, series, f"{_WORDS[name]} {number}".strip(), "RAPL")
    return None if energy is None else (name, energy)


def _counted(host: Host, series: SampleSeries, domain: str, source: str) -> Energy | None:
    assert host.steps_ns is not None
    length = host.steps_ns[1] - host.steps_ns[0]
    joules, covered = counted_between(host.rates(series), *host.steps_ns)
    if length <= 0 or covered < _COVERED * length:
        return None
    watts = joules * 1e9 / covered
    return Energy(host=host.name, domain=domain, joules=watts * length / 1e9, mean_watts=watts, source=source)


def _gpus(host: Host) -> Iterable[Energy]:
    """Each GPU's energy counter; its power over time where the GPU is too old to have one."""
    counted = set()
    for series, _ in host.counters(ENERGY.name):
        gpu = series.labels.get("gpu", "?")
        energy = _counted(host, series, f"GPU {gpu}", series.source)
        if energy is not None:
            counted.add(gpu)
            yield energy
    for series in host.samples.find(POWER.name):
        gpu = series.labels.get("gpu", "?")
        if gpu not in counted:
            yield from _integrated(host, series, f"GPU {gpu}")


def _integrated(host: Host, series: SampleSeries, domain: str) -> Iterable[Energy]:
    assert host.steps_ns is not None
    start, end = host.steps_ns
    at = middle_ns(series)
    inside = (at >= start) & (at <= end)
    if inside.sum() < 2 or at[inside][-1] - at[inside][0] < _COVERED * (end - start):
        return
    watts = series.values[inside].astype(np.float64) * series.scale
    seconds = np.diff(at[inside]) / 1e9
    mean = float(((watts[1:] + watts[:-1]) / 2 * seconds).sum() / seconds.sum())
    joules = mean * (end - start) / 1e9
    yield Energy(
        host=host.name, domain=domain, joules=joules, mean_watts=mean, source=f"{series.source}, over time"
    )


def why_no_energy(host: Host) -> list[Missing]:
    """Why `energies` gave nothing, by the sampler's own notes; empty where it noted nothing."""
    if host.counters("rapl_energy") or host.counters(ENERGY.name) or host.samples.find(POWER.name):
        return [_missing(Cause.ENERGY_BARELY_READ, share=_COVERED)]
    noted = {
        fact.collector: fact.value.reason
        for fact in host.samples.facts
        if fact.name == "absent" and isinstance(fact.value, Gap)
    }
    names = [*(name for name in _RAPL if name in noted), *filter(_GPUS.fullmatch, noted)]
    sources = tuple((name, noted[name]) for name in names)
    return [_missing(Cause.NO_ENERGY_SOURCE, absent=sources)] if sources else []


def joules_per_sample(
    energies: Sequence[Energy], num_hosts: int, num_samples: float | None, absent: Sequence[Missing] = ()
) -> tuple[float | None, tuple[Missing, ...]]:
    """Energy of all hosts over the samples trained meanwhile, or why it is not known.

    Args:
        energies: of all hosts.
        num_hosts: hosts that ranks ran on.
        num_samples: of the whole job, from the first step to the last.
        absent: what `why_no_energy` said of the hosts.
    """
    with_energy = {energy.host for energy in energies}
    if not with_energy:
        return None, tuple(dict.fromkeys(absent)) or (_missing(Cause.NO_ENERGY),)
    if len(with_energy) < num_hosts:
        lost = num_hosts - len(with_energy)
        return None, (_missing(Cause.ENERGY_OF_SOME_HOSTS, count=lost, total=num_hosts),)
    if not num_samples:
        return None, (_missing(Cause.SAMPLES_NOT_KNOWN),)
    return sum(energy.joules for energy in energies) / num_samples, ()


def _missing(cause: Cause, **detail: Any) -> Missing:
    return missing_figure(Figure.ENERGY_PER_SAMPLE, cause, **detail)
