"""How far the hosts' clocks stand apart (METRICS §8), from when they leave the same collective.

All members leave a synchronising collective nearly together, so the median difference between two hosts'
exits is the offset of their clocks, and how far single calls stray from it is what the offset leaves
uncertain. Ranks of one host share its clock. It cannot tell a clock offset from a link that is always slower
one way.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from perfscope.analysis.intervals import Int64
from perfscope.analysis.matching import MatchedCalls

SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFit:
    """Per host: clock minus the reference host's, and how uncertain that is, in ns."""

    reference: str
    offset_ns: dict[str, int] = field(default_factory=dict)
    residual_ns: dict[str, int] = field(default_factory=dict)  # 90th percentile of |exit skew - offset|
    unlinked: tuple[str, ...] = ()  # hosts that share no synchronising collective with the others

    def offsets(self, hosts: Iterable[str]) -> Int64:
        """Shape (len(hosts),); 0 for a host that could not be compared."""
        return np.array([self.offset_ns.get(host, 0) for host in hosts], dtype=np.int64)

    def residuals(self, hosts: Iterable[str]) -> Int64:
        """Shape (len(hosts),)."""
        return np.array([self.residual_ns.get(host, 0) for host in hosts], dtype=np.int64)

    @property
    def worst_residual_ns(self) -> int | None:
        """None when there is only one host, whose ranks share a clock."""
        return max(self.residual_ns.values()) if len(self.residual_ns) > 1 else None


def fit_clocks(matched: Iterable[MatchedCalls], hosts: Mapping[int, str]) -> ClockFit:
    """Estimates the hosts' clock offsets.

    Args:
        matched: synchronising collectives only.
        hosts: rank -> host.
    """
    names = sorted(set(hosts.values()))
    reference = names[0] if names else ""
    if len(names) < 2:
        return ClockFit(reference=reference, offset_ns={reference: 0}, residual_ns={reference: 0})
    skews: dict[tuple[str, str], list[Int64]] = defaultdict(list)
    for calls in matched:
        leave = _exits_by_host(calls, hosts)
        first = min(leave)
        for host in leave:
            if host != first:
                skews[first, host].append(leave[host] - leave[first])
    edges: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for (a, b), samples in skews.items():
        values = np.concatenate(samples)
        if not len(values):
            continue
        offset = int(np.median(values))
        residual = int(np.percentile(np.abs(values - offset), 90))
        edges[a][b], edges[b][a] = (offset, residual), (-offset, residual)
    return _spread(reference, names, edges)


def _exits_by_host(calls: MatchedCalls, hosts: Mapping[int, str]) -> dict[str, Int64]:
    """Host -> median exit of its ranks for each call, shape (calls,)."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, rank in enumerate(calls.ranks):
        rows[hosts[rank]].append(row)
    # Subtracting first: medians go through float64, which cannot hold epoch nanoseconds.
    base = calls.exit.min(axis=0, initial=np.iinfo(np.int64).max)
    relative = calls.exit - base
    return {
        host: base + np.rint(np.median(relative[at], axis=0)).astype(np.int64) for host, at in rows.items()
    }


def _spread(reference: str, names: list[str], edges: dict[str, dict[str, tuple[int, int]]]) -> ClockFit:
    """Offsets from the reference along shared groups, adding up residuals on the way."""
    offset, residual = {reference: 0}, {reference: 0}
    queue = deque([reference])
    while queue:
        here = queue.popleft()
        for there, (step, doubt) in sorted(edges.get(here, {}).items()):
            if there not in offset:
                offset[there], residual[there] = offset[here] + step, residual[here] + doubt
                queue.append(there)
    unlinked = tuple(name for name in names if name not in offset)
    return ClockFit(reference=reference, offset_ns=offset, residual_ns=residual, unlinked=unlinked)
