"""Every host's clock against one of them, which all times are then given on (METRICS §8).

Pairs of hosts are compared (`evidence`, `pairfit`) and strung together along the surest pairs. Ranks of one
host share its clock. It cannot tell a clock offset from a link, or a host, that is always slower one way,
beyond what causality rules out.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

import numpy as np
from msgspec import Struct

from perfscope.analysis.clocks.evidence import SYNCHRONIZING, messages, shared_calls
from perfscope.analysis.clocks.pairfit import PairFit, fit_shared, fit_two_way
from perfscope.analysis.intervals import Int64
from perfscope.analysis.matching import MatchedCalls

__all__ = ["SYNCHRONIZING", "UNKNOWN_NS", "ClockFit", "fit_clocks"]

UNKNOWN_NS = 1 << 60  # doubt about a clock that nothing was compared with: 36 years; twice it fits int64


class RankClock(Struct, frozen=True, kw_only=True):
    """A rank's clock minus that of the rank `reference`, where no trace names a host.

    Attributes:
        rank: number of the rank.
        reference: the first rank, or where nothing compares the two, the first one it can be compared with.
        offset_ns: where the rank's clock shows at_ns.
        drift_ppm: how much faster it runs; 0 = not known.
        at_ns: on the rank's own clock.
        residual_ns: how far the offset may be off; None: nothing compares it with any other rank.
    """

    rank: int
    reference: int
    offset_ns: int
    drift_ppm: float
    at_ns: int
    residual_ns: int | None

    def to_reference(self, times_ns: Int64) -> Int64:
        """Times of the rank's clock on the clock of `reference`; any shape."""
        return _shifted(times_ns, self.offset_ns, self.drift_ppm, self.at_ns)


class RankClocks(Struct, frozen=True, kw_only=True):
    """Clocks of ranks whose hosts are not known, where their collectives show that they are several.

    Attributes:
        ranks: every rank, in order; its times have been moved onto the clock of its `reference`.
        residual_ns: the largest of theirs.
        later_ns: what has been added to all times after that, so that none is negative.
    """

    ranks: tuple[RankClock, ...]
    residual_ns: int
    later_ns: int = 0

    def of(self, rank: int) -> RankClock:
        """The clock of one of `ranks`."""
        return self.ranks[bisect_left(self.ranks, rank, key=lambda clock: clock.rank)]

    def is_linked(self, rank: int) -> bool:
        """Whether something compares its clock with the first rank's."""
        return self.of(rank).reference == self.ranks[0].rank

    def to_reference(self, rank: int, times_ns: Int64) -> Int64:
        """Times of a rank's clock as they are analyzed; any shape."""
        return self.of(rank).to_reference(times_ns) + np.int64(self.later_ns)

    def residuals(self, ranks: Sequence[int]) -> Int64:
        """As `ClockFit.residuals`, by rank."""
        clocks = [self.of(rank) for rank in ranks]
        references = {clock.reference for clock in clocks}
        common = references.pop() if len(references) == 1 else self.ranks[0].rank
        residuals = [clock.residual_ns if clock.reference == common else None for clock in clocks]
        return np.array([UNKNOWN_NS if ns is None else ns for ns in residuals], dtype=np.int64)

    @property
    def unlinked(self) -> tuple[int, ...]:
        """Ranks that nothing compares with the first one."""
        return tuple(clock.rank for clock in self.ranks if not self.is_linked(clock.rank))

    @property
    def worst_residual_ns(self) -> int | None:
        """Of the ranks compared with the first one; None where there is none."""
        first = self.ranks[0].rank
        linked = [clock for clock in self.ranks if clock.reference == first and clock.rank != first]
        return max((clock.residual_ns or 0 for clock in linked), default=None)


class ClockFit(Struct, frozen=True, kw_only=True):
    """Per host: its clock minus the reference's, how that changes, and how uncertain it is.

    Hosts that could not be compared with the reference are listed in `unlinked`. Those of them that could be
    compared with each other form an island: their offsets are from its first host, for figures among
    themselves.
    """

    reference: str  # host whose clock the others are mapped to
    offset_ns: dict[str, int] = {}  # where the host's clock shows at_ns
    residual_ns: dict[str, int] = {}  # without the unlinked
    unlinked: tuple[str, ...] = ()  # hosts that nothing compares with the reference
    drift_ppm: dict[str, float] = {}  # how much faster it runs; 0 = not known
    at_ns: dict[str, int] = {}
    islands: tuple[ClockFit, ...] = ()  # the unlinked among themselves
    of_ranks: RankClocks | None = None  # None: ranks on hosts without a name seem to share one clock

    def to_reference(self, host: str, times_ns: Int64) -> Int64:
        """Times of a host's clock on the reference's; an unlinked host's on its island's. Any shape.

        Exact but for the rounding of the drift: epoch nanoseconds never become floats.
        """
        fit = self._of(host)
        drift = fit.drift_ppm.get(host, 0.0)
        return _shifted(times_ns, fit.offset_ns.get(host, 0), drift, fit.at_ns[host] if drift else 0)

    def clock_of(self, rank: int, host: str) -> str:
        """A name for the clock of a rank on a host: ranks with the same name share it."""
        return host if self.of_ranks is None else str(rank)

    def is_linked(self, rank: int, host: str) -> bool:
        """Whether the clock of a rank on a host can be compared with the reference's."""
        return host not in self.unlinked if self.of_ranks is None else self.of_ranks.is_linked(rank)

    def doubts(self, ranks: Sequence[int], hosts: Sequence[str]) -> Int64:
        """As `residuals`, of ranks on these hosts, which no trace may name; shape (len(ranks),), ns."""
        return self.residuals(hosts) if self.of_ranks is None else self.of_ranks.residuals(ranks)

    def residuals(self, hosts: Iterable[str]) -> Int64:
        """Doubt about each host's clock in a comparison among `hosts`, shape (len(hosts),), ns.

        UNKNOWN_NS for an unlinked host, unless all the others are of its island, too.
        """
        hosts = list(hosts)
        if len(set(hosts)) == 1 and hosts[0] not in self.residual_ns:
            return np.zeros(len(hosts), dtype=np.int64)
        common = next((fit for fit in self.islands if set(hosts) <= fit.residual_ns.keys()), self)
        return np.array([common.residual_ns.get(host, UNKNOWN_NS) for host in hosts], dtype=np.int64)

    @property
    def worst_residual_ns(self) -> int | None:
        """Of the linked hosts (or ranks); None when there is only one, whose ranks share a clock."""
        if self.of_ranks is not None:
            return self.of_ranks.worst_residual_ns
        return max(self.residual_ns.values()) if len(self.residual_ns) > 1 else None

    def _of(self, host: str) -> ClockFit:
        return next((fit for fit in self.islands if host in fit.offset_ns), self)


def _shifted(times_ns: Int64, offset_ns: int, drift_ppm: float, at_ns: int) -> Int64:
    shifted = times_ns - np.int64(offset_ns)
    if not drift_ppm:
        return shifted
    since = (times_ns - np.int64(at_ns)).astype(np.float64)
    moved: Int64 = shifted - np.rint(since * (drift_ppm * 1e-6)).astype(np.int64)
    return moved


def fit_clocks(
    synchronizing: Iterable[tuple[int, MatchedCalls]],
    hosts: Mapping[int, str],
    pairs: Iterable[tuple[int, MatchedCalls]] = (),
) -> ClockFit:
    """Estimates how the hosts' clocks stand to each other.

    Args:
        synchronizing: (window, calls) of SYNCHRONIZING collectives, times on each host's own clock.
        hosts: rank -> host.
        pairs: (window, calls) of point-to-point calls, the sender in row 0, the receiver in row 1; they
            connect hosts that share no synchronizing collective.
    """
    names = sorted(set(hosts.values()))
    if len(names) < 2:
        reference = names[0] if names else ""
        return ClockFit(reference=reference, offset_ns={reference: 0}, residual_ns={reference: 0})
    edges: dict[str, dict[str, PairFit]] = defaultdict(dict)
    for (a, b), parts in shared_calls(synchronizing, hosts, names[0]).items():
        _join(edges, a, b, fit_shared(parts))
    ways = messages(pairs, hosts)
    for (a, b), there in ways.items():
        back = ways.get((b, a))
        if a < b and back is not None and b not in edges[a]:
            fit = fit_two_way(there, back)
            if fit is not None:
                _join(edges, a, b, fit)
    return _string(names, edges)


def _join(edges: dict[str, dict[str, PairFit]], a: str, b: str, fit: PairFit) -> None:
    edges[a][b], edges[b][a] = fit, _turned(fit)


def _turned(fit: PairFit) -> PairFit:
    """The same, of a's clock minus b's, in terms of a's clock."""
    return PairFit(
        offset_ns=-fit.offset_ns,
        drift=-fit.drift / (1 - fit.drift),
        at_ns=fit.at_ns - fit.offset_ns,
        residual_ns=fit.residual_ns,
    )


def _string(names: Sequence[str], edges: Mapping[str, Mapping[str, PairFit]]) -> ClockFit:
    """From the first host outwards, always over the surest way; residuals add up on it."""
    linked = _reach(names[0], edges)
    unlinked = tuple(name for name in names if name not in linked)
    islands: list[ClockFit] = []
    while left := [name for name in unlinked if not any(name in island.offset_ns for island in islands)]:
        islands.append(_fit_of(left[0], _reach(left[0], edges)))
    return _fit_of(
        names[0], linked, unlinked, tuple(island for island in islands if len(island.offset_ns) > 1)
    )


def _fit_of(
    reference: str,
    linked: Mapping[str, PairFit],
    unlinked: tuple[str, ...] = (),
    islands: tuple[ClockFit, ...] = (),
) -> ClockFit:
    return ClockFit(
        reference=reference,
        offset_ns={host: fit.offset_ns for host, fit in linked.items()},
        residual_ns={host: fit.residual_ns for host, fit in linked.items()},
        unlinked=unlinked,
        drift_ppm={host: fit.drift * 1e6 for host, fit in linked.items()},
        at_ns={host: fit.at_ns for host, fit in linked.items()},
        islands=islands,
    )


def _reach(start: str, edges: Mapping[str, Mapping[str, PairFit]]) -> dict[str, PairFit]:
    """Every host that can be compared with `start` -> its clock against that one's."""
    linked: dict[str, PairFit] = {}
    # The number decides where two paths to a host are as good: the fits themselves have no order.
    queue = [(0, start, 0, PairFit(offset_ns=0, drift=0.0, at_ns=0, residual_ns=0))]
    numbers = count(1)
    while queue:
        _, here, _, fit = heapq.heappop(queue)
        if here in linked:
            continue
        linked[here] = fit
        for there, step in edges.get(here, {}).items():
            if there not in linked:
                further = step if here == start else _chained(fit, step)
                heapq.heappush(queue, (further.residual_ns, there, next(numbers), further))
    return dict(sorted(linked.items()))


def _chained(outer: PairFit, inner: PairFit) -> PairFit:
    """`inner` gives a third clock against the one that `outer` gives against the first."""
    between = inner.at_ns - inner.offset_ns  # on the middle clock
    return PairFit(
        offset_ns=inner.offset_ns + outer.offset_ns + round(outer.drift * (between - outer.at_ns)),
        drift=1 - (1 - outer.drift) * (1 - inner.drift),
        at_ns=inner.at_ns,
        residual_ns=outer.residual_ns + inner.residual_ns,
    )
