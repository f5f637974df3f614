"""The axes of the mesh in a replay: which groups they have, and how fast bytes move along them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from perfscope.analysis.group_axes import AxisOfCalls
from perfscope.analysis.intervals import distinct
from perfscope.analysis.replay.program import Float, Program
from perfscope.analysis.replay.replays import Replays
from perfscope.analysis.whatif.changes import latency_of
from perfscope.analysis.whatif.latency import NO_LOAD_BYTES, CallCost
from perfscope.messages.whatif import FasterAxis
from perfscope.vocabulary.axes import Axis
from perfscope.volumes import bus_factor

FASTER = 1.25  # times the bandwidth of another axis: less is within what calls vary by
# The next layer needs what calls bring, or (FSDP) they are as large as the units that the program shards.
_BLOCKING = frozenset({Axis.TP, Axis.SP, Axis.CP, Axis.EP, Axis.PP, Axis.FSDP})
_MUCH_LARGER = 4  # times the bytes of a call, from which on bandwidths depend on the size
_BEYOND_SIZE = 16  # times the bandwidth; between large and small calls on one link 7 were measured
_ENOUGH = (
    30  # calls among which the best ones say something: latency is not counted, and leaves few ns of some
)
_BEST = 0.9  # of the bytes of an axis move at most at its best bandwidth
_POINT_TO_POINT = frozenset({"send", "recv"})  # an eager send is over before its bytes have moved


class RunAxes(Struct, frozen=True, kw_only=True):
    """Axes with matched calls.

    Attributes:
        kinds: axis -> kinds of calls, (collective, group).
        bytes_per_s: axis -> usual bus bandwidth while data moves, latency not counted; not of axes without
            sizes.
        best_bytes_per_s: axis -> the same of the calls that are least held up by anything else; of few calls
            the usual one.
        call_bytes: axis -> bytes on the bus of the usual call.
    """

    kinds: Mapping[str, frozenset[tuple[str, str]]] = {}
    bytes_per_s: Mapping[str, float] = {}
    best_bytes_per_s: Mapping[str, float] = {}
    call_bytes: Mapping[str, float] = {}

    @classmethod
    def of(
        cls,
        replays: Replays,
        costs: Mapping[tuple[str, str], CallCost],
        axis_of: AxisOfCalls,
    ) -> RunAxes:
        """Those of a run.

        Args:
            replays: its windows.
            costs: (collective, group) -> what a call costs.
            axis_of: axis of each kind of call.
        """
        kinds: dict[str, set[tuple[str, str]]] = defaultdict(set)
        rates: dict[str, list[Float]] = defaultdict(list)
        for window in replays.windows:
            for kind in window.program.names:
                if kind in axis_of:
                    kinds[axis_of[kind]].add(kind)
            _add_rates(window.program, costs, axis_of, rates)
        calls = {axis: np.concatenate(of, axis=1) for axis, of in rates.items()}
        return cls(
            kinds={axis: frozenset(kinds[axis]) for axis in sorted(kinds)},
            bytes_per_s={axis: _rate(of, 0.5) for axis, of in calls.items()},
            best_bytes_per_s={
                axis: _rate(of, _BEST if of.shape[1] >= _ENOUGH else 0.5) for axis, of in calls.items()
            },
            call_bytes={axis: float(np.median(of[0])) for axis, of in calls.items()},
        )

    @property
    def blocking(self) -> frozenset[tuple[str, str]]:
        """Calls that cannot be merged into buckets."""
        chosen = (kinds for axis, kinds in self.kinds.items() if axis in _BLOCKING)
        return frozenset[tuple[str, str]]().union(*chosen)

    def faster_than(self, axis: str) -> FasterAxis | None:
        """The axis along which bytes move fastest, if clearly faster than along `axis`.

        Its bandwidth is that of its best calls: on busy CPUs the usual small call says more of how soon
        ranks get a CPU than of the link. So where the calls along `axis` are much the smaller ones, only a
        difference that their size cannot explain is one of the links.
        """
        own_rate = self.bytes_per_s.get(axis)
        best = max(self.bytes_per_s, key=lambda name: self.bytes_per_s[name], default=axis)
        if own_rate is None or self.bytes_per_s[best] < FASTER * own_rate:
            return None
        are_small = self.call_bytes[axis] * _MUCH_LARGER < self.call_bytes[best]
        if are_small and self.best_bytes_per_s[best] < _BEYOND_SIZE * self.best_bytes_per_s[axis]:
            return None
        return FasterAxis(axis=best, bytes_per_s=self.best_bytes_per_s[best], own_bytes_per_s=own_rate)


def _add_rates(
    program: Program,
    costs: Mapping[tuple[str, str], CallCost],
    axis_of: AxisOfCalls,
    rates: dict[str, list[Float]],
) -> None:
    """Adds one window's calls by axis: a row of bytes on the bus, a row of the ns that move them."""
    events, first = program.events, program.call_first[:-1]
    if not len(events.transfer):
        return
    members = np.diff(program.call_first)
    # As in `call_costs`: ranks that are late to see the end of a call say nothing of the link.
    time = np.minimum.reduceat(events.transfer - latency_of(program, costs), first)
    for code, kind in enumerate(program.names):
        collective, _ = kind
        if kind not in axis_of or collective in _POINT_TO_POINT:
            continue
        calls = (program.kind == code) & (program.size > NO_LOAD_BYTES) & (time > 0)
        for count in distinct(members[calls]).tolist():
            factor = bus_factor(collective, count)
            if factor is not None:
                chosen = calls & (members == count)
                rates[axis_of[kind]].append(np.stack((factor * program.size[chosen], time[chosen])))


def _rate(calls: Float, share: float) -> float:
    """Bytes per second at which a share of the bytes move, or slower.

    A quantile and not the mean: on busy CPUs single calls take many times as long as the link needs.
    """
    rates = calls[0] / calls[1]
    order = np.argsort(rates)
    moved = np.cumsum(calls[0, order])
    return float(rates[order][np.searchsorted(moved, moved[-1] * share)]) * 1e9
