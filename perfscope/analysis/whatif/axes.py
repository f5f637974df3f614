"""The axes of the mesh in a replay: which groups they have, and how fast bytes move along them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from perfscope.analysis.group_axes import AxisOfCalls
from perfscope.analysis.replay.program import Program
from perfscope.analysis.replay.replays import Replays
from perfscope.analysis.whatif.changes import latency_of
from perfscope.analysis.whatif.latency import NO_LOAD_BYTES, CallCost
from perfscope.messages.whatif import FasterAxis
from perfscope.vocabulary.axes import Axis
from perfscope.volumes import bus_factor

FASTER = 1.25  # times the bandwidth of another axis: less is within what calls vary by
# The next layer needs what calls bring, or (FSDP) they are as large as the units that the program shards.
_BLOCKING = frozenset({Axis.TP, Axis.SP, Axis.CP, Axis.EP, Axis.PP, Axis.FSDP})
_POINT_TO_POINT = frozenset({"send", "recv"})  # an eager send is over before its bytes have moved


class RunAxes(Struct, frozen=True, kw_only=True):
    """Axes with matched calls.

    Attributes:
        kinds: axis -> kinds of calls, (collective, group).
        bytes_per_s: axis -> bus bandwidth while data moves, latency not counted; not of axes without sizes.
    """

    kinds: Mapping[str, frozenset[tuple[str, str]]] = {}
    bytes_per_s: Mapping[str, float] = {}

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
        moved: dict[str, float] = defaultdict(float)
        moving: dict[str, float] = defaultdict(float)
        for window in replays.windows:
            for kind in window.program.names:
                if kind in axis_of:
                    kinds[axis_of[kind]].add(kind)
            _add_rates(window.program, costs, axis_of, moved, moving)
        return cls(
            kinds={axis: frozenset(kinds[axis]) for axis in sorted(kinds)},
            bytes_per_s={axis: moved[axis] / time * 1e9 for axis, time in moving.items() if time > 0},
        )

    @property
    def blocking(self) -> frozenset[tuple[str, str]]:
        """Calls that cannot be merged into buckets."""
        chosen = (kinds for axis, kinds in self.kinds.items() if axis in _BLOCKING)
        return frozenset[tuple[str, str]]().union(*chosen)

    def faster_than(self, axis: str) -> FasterAxis | None:
        """The axis along which bytes move fastest, if clearly faster than along `axis`."""
        own = self.bytes_per_s.get(axis)
        best = max(self.bytes_per_s, key=lambda name: self.bytes_per_s[name], default=axis)
        if own is None or self.bytes_per_s[best] < FASTER * own:
            return None
        return FasterAxis(axis=best, bytes_per_s=self.bytes_per_s[best], own_bytes_per_s=own)


def _add_rates(
    program: Program,
    costs: Mapping[tuple[str, str], CallCost],
    axis_of: AxisOfCalls,
    moved: dict[str, float],
    moving: dict[str, float],
) -> None:
    """Adds the bytes on the bus and the time in ns that calls of one window move them, by axis."""
    events, first = program.events, program.call_first[:-1]
    if not len(events.transfer):
        return
    members = np.diff(program.call_first)
    time = np.add.reduceat(np.maximum(events.transfer - latency_of(program, costs), 0), first) / members
    for code, kind in enumerate(program.names):
        collective, _ = kind
        if kind not in axis_of or collective in _POINT_TO_POINT:
            continue
        calls = (program.kind == code) & (program.size > NO_LOAD_BYTES) & (time > 0)
        for count in np.unique(members[calls]).tolist():
            factor = bus_factor(collective, count)
            if factor is not None:
                chosen = calls & (members == count)
                moved[axis_of[kind]] += factor * float(program.size[chosen].sum())
                moving[axis_of[kind]] += float(time[chosen].sum())
