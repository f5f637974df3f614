"""What disturbances did: steps in them against steps outside of all, and the traced windows they hit.

Steps count without warm-up and traced ones, and belong to the disturbance that their middle is in. Steps
outside are those that overlap no disturbance of any host: ranks wait for each other, so what slows one host
slows the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64, union
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.results import Disturbance

FEWEST = 5  # steps of a rank on either side for a comparison


class HostStepTimes(Struct, frozen=True, kw_only=True, eq=False):
    """Counted steps of one host's ranks, Unix ns; arrays of shape (n,)."""

    start_ns: Int64
    dur_ns: Int64
    rank: Int64

    def where(self, chosen: NDArray[np.bool_]) -> HostStepTimes:
        return HostStepTimes(
            start_ns=self.start_ns[chosen], dur_ns=self.dur_ns[chosen], rank=self.rank[chosen]
        )

    @property
    def most(self) -> int:
        """Steps of the rank that has most."""
        return int(np.unique(self.rank, return_counts=True)[1].max(initial=0))


class Effects(Struct, frozen=True, kw_only=True):
    """`lost_ns`: mean counted step less the mean one outside of all disturbances; None = not known, or no
    loss. `lost_ratio`: of the mean counted step."""

    disturbances: tuple[Disturbance, ...]
    lost_ns: int | None
    lost_ratio: float | None


def step_times(host: Host) -> HostStepTimes:
    """The host's counted steps."""
    starts, durations, ranks = [], [], []
    for rank in host.ranks:
        chosen = rank.is_counted if rank.is_counted is not None else np.ones(len(rank.starts), dtype=bool)
        starts.append(rank.starts[chosen])
        durations.append((rank.ends - rank.starts)[chosen])
        ranks.append(np.full(int(chosen.sum()), rank.rank, dtype=np.int64))
    none = np.empty(0, dtype=np.int64)
    return HostStepTimes(
        start_ns=host.samples.unix_ns(np.concatenate((none, *starts))),
        dur_ns=np.concatenate((none, *durations)),
        rank=np.concatenate((none, *ranks)),
    )


def with_effects(
    disturbances: Sequence[Disturbance],
    hosts: Sequence[Host],
    windows: Mapping[str, Sequence[tuple[int, int, int]]],
) -> Effects:
    """What disturbances of all hosts did.

    Args:
        disturbances: disturbances of all hosts.
        hosts: those that were sampled.
        windows: host -> (window, start, end), Unix ns on that host's clock.
    """
    steps = {host.name: step_times(host) for host in hosts}
    inside = [disturbance for disturbance in disturbances if disturbance.within_steps]
    busy = union(
        np.array([disturbance.start_ns for disturbance in inside], dtype=np.int64),
        np.array([disturbance.end_ns for disturbance in inside], dtype=np.int64),
    )
    quiet = {name: times.where(~_overlaps(times, busy)) for name, times in steps.items()}
    compared = tuple(
        replace(
            _compared(disturbance, steps[disturbance.host], quiet[disturbance.host]),
            windows=_hit(disturbance, windows[disturbance.host]),
        )
        for disturbance in disturbances
    )
    lost = _lost(list(steps.values()), list(quiet.values()))
    return Effects(
        disturbances=compared, lost_ns=lost[0] if lost else None, lost_ratio=lost[1] if lost else None
    )


def _hit(disturbance: Disturbance, windows: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
    return tuple(
        number for number, start, end in windows if start < disturbance.end_ns and end > disturbance.start_ns
    )


def _overlaps(steps: HostStepTimes, busy: Int64) -> NDArray[np.bool_]:
    """Which steps overlap one of the stretches, shape (n, 2), ascending and apart."""
    if not len(busy):
        return np.zeros(len(steps.start_ns), dtype=bool)
    next_end = np.searchsorted(busy[:, 1], steps.start_ns, side="right")  # the first that ends after it began
    begins = np.append(busy[:, 0], np.iinfo(np.int64).max)[next_end]
    result: NDArray[np.bool_] = begins < steps.start_ns + steps.dur_ns
    return result


def _compared(disturbance: Disturbance, steps: HostStepTimes, quiet: HostStepTimes) -> Disturbance:
    middle = steps.start_ns + steps.dur_ns // 2
    during = steps.where((middle >= disturbance.start_ns) & (middle < disturbance.end_ns))
    comparable = during.most >= FEWEST and quiet.most >= FEWEST
    return replace(
        disturbance,
        num_steps_during=during.most,
        step_ns_during=round(float(np.median(during.dur_ns))) if comparable else None,
        step_ns_otherwise=round(float(np.median(quiet.dur_ns))) if comparable else None,
    )


def _lost(steps: Sequence[HostStepTimes], quiet: Sequence[HostStepTimes]) -> tuple[int, float] | None:
    if not steps:
        return None
    num = max(times.most for times in quiet)
    if num < FEWEST or max(times.most for times in steps) - num < FEWEST:
        return None
    mean = float(np.concatenate([times.dur_ns for times in steps]).mean())
    undisturbed = float(np.concatenate([times.dur_ns for times in quiet]).mean())
    return (round(mean - undisturbed), 1 - undisturbed / mean) if mean > undisturbed else None
