"""Whether the job itself wants more CPUs than it may use: contention between its own threads."""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct

from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.host import Host, HostRank
from perfscope.kernel_text import format_cpulist


class Oversubscription(Struct, frozen=True, kw_only=True):
    """Compute threads of some ranks against the CPUs they share."""

    host: str
    ranks: tuple[int, ...]
    threads: int
    cpus: float  # a quota may be no whole number
    where: str  # "CPUs 0-1", "a quota of 1.5 CPUs"
    wait_ratio: float | None  # share of the steps' time in which some task waited for a CPU; None: not read


def is_oversubscribed(host: Host) -> bool | None:
    """None when ranks do not say how many threads they compute with."""
    if not host.ranks or any(rank.num_threads is None for rank in host.ranks):
        return None
    return bool(oversubscriptions(host))


def oversubscriptions(host: Host) -> list[Oversubscription]:
    """Sets of ranks that compute on the CPU with more threads than they have CPUs; usually none or one.

    Ranks whose device is a GPU compute little on the CPU and are left out.
    """
    ranks = [rank for rank in host.ranks if rank.num_threads is not None and rank.gpu is None]
    if not ranks:
        return []
    groups: dict[frozenset[int], list[HostRank]] = defaultdict(list)
    for rank in ranks:
        groups[rank.affinity or host.topology.online].append(rank)
    judgements = [
        judgement
        for cpus, members in groups.items()
        if (judgement := _judged(host, members, float(len(cpus)), f"CPUs {format_cpulist(cpus)}")) is not None
    ]
    limit = host.topology.cpu_limit
    if limit is not None and limit < len(frozenset[int]().union(*groups)):
        quota = _judged(host, ranks, limit, f"a quota of {limit:g} CPUs")
        return [quota] if quota is not None else judgements
    if judgements or len(groups) < 2:
        return judgements
    everything = frozenset[int]().union(*groups)  # overlapping, but not equal, sets of CPUs
    oversubscription = _judged(host, ranks, float(len(everything)), f"CPUs {format_cpulist(everything)}")
    return [oversubscription] if oversubscription is not None else []


def _judged(host: Host, ranks: list[HostRank], cpus: float, where: str) -> Oversubscription | None:
    threads = sum(rank.num_threads or 0 for rank in ranks)
    if not cpus or threads <= cpus:
        return None
    return Oversubscription(
        host=host.name,
        ranks=tuple(rank.rank for rank in ranks),
        threads=threads,
        cpus=cpus,
        where=where,
        wait_ratio=waited_ratio(host),
    )


def waited_ratio(host: Host) -> float | None:
    """Share of the steps' time in which some task waited for a CPU (the job's, else any on the host)."""
    if host.counted_ns is None:
        return None
    of_job = host.counters("pressure_some", resource="cpu", scope="job")
    for _, counted in of_job or host.counters("pressure_some", resource="cpu"):
        waited, covered = counted_between(counted, *host.counted_ns)
        if covered:
            return min(1.0, waited / covered)
    return None
