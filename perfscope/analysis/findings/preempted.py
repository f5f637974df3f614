"""Idle time in which ranks were ready to run and waited for a CPU: no fault of the training's own code."""

from __future__ import annotations

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.host import Host, HostRank

EXPLAINS = 0.5  # of the idle time that waiting for a CPU must account for
_WAITED = "rank_runqueue_wait"


def waited_for_cpu(evidence: Evidence) -> float | None:
    """Share of the steps' time in which a compute thread of the mean traced rank waited for a CPU.

    The kernel counts it for each thread; threads that sleep wait for nothing. None where it was not read.
    """
    traced = {rank.rank for rank, _ in evidence.traced}
    shares = [
        share
        for host in evidence.hosts
        for rank in host.ranks
        if rank.rank in traced and (share := _share(host, rank)) is not None
    ]
    return sum(shares) / len(shares) if shares else None


def _share(host: Host, rank: HostRank) -> float | None:
    if host.steps_ns is None:
        return None
    for series, counted in host.counters(_WAITED):
        if series.labels.get("pid") == str(rank.pid):
            waited, covered = counted_between(counted, *host.steps_ns)
            return waited / covered / max(rank.num_threads or 1, 1) if covered else None
    return None


def explains_idle(evidence: Evidence, idle_ns: float) -> float | None:
    """The share, where it accounts for most of so much idle time per step; else None."""
    share = waited_for_cpu(evidence)
    if share is None or not idle_ns or share * evidence.step < EXPLAINS * idle_ns:
        return None
    return min(share, 1.0)
