"""What steps lose because no CPU is free: run-queue wait of the ranks' main threads (schedstat).

A main thread drives the training, so what it waits lengthens the rank's step by as much. Probes of PyTorch
read it at each step. The sampler's readings lie 0.1 s apart and count evenly in between, so shares are of all
steps together, not of single ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.machine.counters import Rates, counted_in
from perfscope.analysis.machine.host import Host, HostRank
from perfscope.analysis.machine.results import Disturbance
from perfscope.analysis.whole_run.steps import StepParts
from perfscope.vocabulary.disturbances import DisturbanceKind

MAIN_WAIT = "rank_main_thread_wait"
_COVERED = 0.5  # of the steps' time that there must be readings for


class CpuWaits(Struct, frozen=True, kw_only=True):
    """Share of the steps' time in which the main thread of a rank was ready to run and had no CPU.

    Attributes:
        usual: rank -> share of its untraced steps.
        traced: rank -> share of its traced steps.
        others_cpus: host -> CPUs that other processes took while it trained, as far as they are disturbances.
    """

    usual: Mapping[int, float] = {}
    traced: Mapping[int, float] = {}
    others_cpus: Mapping[str, float] = {}

    def most(self, ranks: Iterable[int]) -> float | None:
        """Of the rank that waits most: the others wait for it. None where it was not read."""
        return max((self.usual[rank] for rank in ranks if rank in self.usual), default=None)

    def mean_traced(self) -> float | None:
        """Over the ranks whose traced steps have readings."""
        return float(np.mean([*self.traced.values()])) if self.traced else None

    def beyond_work(self, rank: int, own_work: float, peers: float) -> float | None:
        """By how much a rank waits more in traced steps than its work explains; None: not known.

        With as little CPU as its peers, a rank that has more work waits longer in proportion: that is due to
        the work.

        Args:
            rank: of whom.
            own_work: what it takes for its own work, waiting for a CPU included, as a share of the step.
            peers: likewise, what its peers take.
        """
        peer_waits = [share for other, share in self.traced.items() if other != rank]
        if rank not in self.traced or not peer_waits:
            return None
        waited, usual = self.traced[rank], float(np.median(peer_waits))
        work, of_peers = max(own_work - waited, 0.0), max(peers - usual, 0.0)
        return waited - usual * (work / of_peers if of_peers > 0 else 1.0)


def cpu_waits(
    hosts: Sequence[Host], disturbances: Sequence[Disturbance], steps: Mapping[int, StepParts] | None = None
) -> CpuWaits:
    """Of all ranks whose main thread was read.

    Args:
        hosts: with their counters.
        disturbances: of all hosts.
        steps: by rank; where these say how long the thread waited in each step, that counts: a traced window
            may be shorter than the time between two readings.
    """
    usual: dict[int, float] = {}
    traced: dict[int, float] = {}
    for host in hosts:
        ranks = {str(rank.pid): rank for rank in host.ranks if rank.pid is not None and len(rank.starts)}
        for series, counted in host.counters(MAIN_WAIT):
            rank = ranks.get(series.labels.get("pid", ""))
            if rank is None:
                continue
            for shares, chosen in ((usual, rank.is_counted), (traced, rank.is_traced)):
                share = _share(rank, counted, chosen)
                if share is not None:
                    shares[rank.rank] = share
    for number, parts in (steps or {}).items():
        for shares, chosen in ((usual, parts.is_usual), (traced, parts.is_traced)):
            share = _share_of_steps(parts, chosen)
            if share is not None:
                shares[number] = share
    others_cpus = {host.name: _others(host, disturbances) for host in hosts}
    return CpuWaits(usual=usual, traced=traced, others_cpus=others_cpus)


def _share(rank: HostRank, counted: Rates, chosen: NDArray[np.bool_] | None) -> float | None:
    if chosen is None or not chosen.any():
        return None
    starts, ends = rank.starts[chosen], rank.ends[chosen]
    waited, covered = counted_in(counted, starts, ends)
    if covered < _COVERED * int((ends - starts).sum()):
        return None
    return min(max(waited / covered, 0.0), 1.0) if covered else None


def _share_of_steps(parts: StepParts, chosen: NDArray[np.bool_]) -> float | None:
    measured = chosen & (parts.runqueue >= 0)
    total = int(parts.durations[measured].sum())
    return min(int(parts.runqueue[measured].sum()) / total, 1.0) if total else None


def _others(host: Host, disturbances: Sequence[Disturbance]) -> float:
    """Mean CPUs of neighbors over the steps' time."""
    num_cpus, steps = host.topology.num_cpus, host.steps_ns
    if steps is None or not num_cpus:
        return 0.0
    taken = sum(
        disturbance.severity * num_cpus * (disturbance.end_ns - disturbance.start_ns)
        for disturbance in disturbances
        if disturbance.host == host.name
        and disturbance.within_steps
        and disturbance.kind is DisturbanceKind.CPU_NEIGHBOR
    )
    return taken / max(1, steps[1] - steps[0])
