"""Who, where and when: the line under a report's title."""

from __future__ import annotations

import re
from math import prod

from perfscope.analysis.results import RunAnalysis
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.model import Unit, format_value
from perfscope.reports.moments import utc
from perfscope.vocabulary.axes import Axis

_ORDINAL = re.compile(r"^[a-z]+:\d+ ")  # "cuda:0 NVIDIA H200"
_LONGEST = 60
_YEAR_2000_NS = 946_684_800_000_000_000  # before it: times of a trace that count from its start, no date


def context_of(analysis: RunAnalysis) -> tuple[str, ...]:
    """Ranks, hosts, mesh, devices, versions, batch, date and commit, as far as they are known."""
    run = analysis.run
    parts = [_ranks(analysis), *_mesh(analysis), *_devices(analysis), *_versions(analysis)]
    if analysis.samples_per_step is not None:
        parts.append(f"batch {format_value(Unit.COUNT, analysis.samples_per_step)}")
    if run.start_unix_ns is not None and run.start_unix_ns >= _YEAR_2000_NS:
        parts.append(utc(run.start_unix_ns, "%Y-%m-%d %H:%M UTC"))
    if run.git is not None and run.git.commit:
        parts.append(f"commit {run.git.commit[:7]}{'+' if run.git.dirty else ''}")
    return tuple(visible(part, _LONGEST) for part in parts)


def _ranks(analysis: RunAnalysis) -> str:
    num = analysis.run.expected_ranks or analysis.run.world_size or len(analysis.ranks)
    hosts = sorted({rank.host for rank in analysis.ranks if rank.host})
    where = (
        "" if not hosts else f" on {hosts[0]}" if len(hosts) == 1 else f" on {counted(len(hosts), 'host')}"
    )
    return f"{counted(num, 'rank')}{where}"


def _mesh(analysis: RunAnalysis) -> list[str]:
    """The axes along which ranks communicate, where they make up all ranks."""
    axes = analysis.communication.by_axis if analysis.communication is not None else ()
    sizes = {
        entry.axis: entry.group_size
        for entry in axes
        if entry.axis in {axis.value for axis in Axis} and entry.group_size is not None
    }
    if not sizes or prod(sizes.values()) != len(analysis.ranks):
        return []
    inferred = " (inferred)" if any(entry.inferred for entry in axes if entry.axis in sizes) else ""
    return [f"{' x '.join(f'{axis} {size}' for axis, size in sorted(sizes.items()))}{inferred}"]


def _devices(analysis: RunAnalysis) -> list[str]:
    """GPUs by name; of CPU ranks the number of CPUs, where the host was described."""
    names = [_ORDINAL.sub("", rank.device) for rank in analysis.ranks if _ORDINAL.match(rank.device)]
    if names:
        kinds = sorted(set(names))
        return [f"{names.count(kind)} x {kind}" if len(names) > 1 else kind for kind in kinds]
    machine = analysis.machine
    topologies = machine.topologies if machine is not None else {}
    # A host that only launched the ranks is described, too.
    hosts = {rank.host for rank in analysis.ranks if rank.host} or topologies.keys()
    records = [topologies[host] for host in hosts if host in topologies]
    cpus = [int(record.logical_cpus) for record in records if record.logical_cpus]
    return [counted(sum(cpus), "CPU")] if cpus and len(cpus) == len(hosts) else []


def _versions(analysis: RunAnalysis) -> list[str]:
    """Of the framework; of torch where the ranks name none."""
    name = analysis.framework.partition("-")[0]
    version = analysis.run.packages.get(name)
    return [f"{name} {version}"] if version else []
