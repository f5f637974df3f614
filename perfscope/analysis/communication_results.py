"""Communication of a rank and of a run, by layer and by axis, per mean step.

The parts are rounded together, so that they add up to the exposed communication of the breakdown exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from perfscope.analysis import intervals as iv
from perfscope.analysis.communication import CommCell, CommSums, RankComm
from perfscope.analysis.group_axes import CommGroup, GroupAxes, GroupUse
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.results import (
    CollectiveResult,
    CommByAxis,
    CommByLayer,
    CommUnattributed,
    Communication,
)
from perfscope.messages import collectives as messages
from perfscope.messages.lists import joined
from perfscope.rundir.scheme_records import SchemeRecord
from perfscope.units import format_ns
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.communication import NoTimes, Unattributed
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.links import LinkClass, NoLink

_ENOUGH_MATCHED = 0.9  # share of an axis' calls without which it has no waits and transfers


class RunComm(Struct):
    """Communication of every rank so far: its sums over the windows, and the number of steps in these."""

    ranks: dict[int, tuple[RankComm, int]] = {}

    @property
    def uses(self) -> dict[CommGroup, GroupUse]:
        """What all ranks together call on each group."""
        uses: dict[CommGroup, GroupUse] = defaultdict(GroupUse)
        for rank, (comm, _) in self.ranks.items():
            for group, use in comm.uses.items():
                uses[group].add(use)
            for cell in comm.cells:
                if cell.peer >= 0:
                    uses[cell.group].links.add((rank, cell.peer))
        return uses


class Link(NamedTuple):
    """The class of an axis' links, or why it is not known."""

    link_class: LinkClass | None
    no_link: NoLink | None = None


class RowName(Struct, frozen=True):
    """What a cell is of: a layer, the boundary of two pipeline stages, or nothing, for `reason`."""

    name: str
    reason: Unattributed | None = None


_Cells = dict[tuple[RowName, str, str], CommSums]  # by row, axis and collective


def axes_of(
    run: RunComm, scheme: SchemeRecord | None, descriptions: Mapping[str, str], world_size: int | None
) -> GroupAxes:
    """The axes of the groups on which ranks communicated.

    Args:
        run: every rank.
        scheme: of a bench run.
        descriptions: group name -> description.
        world_size: number of ranks; None = not known.
    """
    return GroupAxes(scheme, descriptions, run.uses, world_size)


def rank_communication(
    run: RunComm, rank: int, axes: GroupAxes, exposed_ns: int, links: Mapping[str, Link]
) -> Communication | None:
    """Of one rank, without waits and transfers, which take several ranks to know.

    Args:
        run: every rank.
        rank: whose.
        axes: of the groups.
        exposed_ns: of the rank's mean breakdown.
        links: by axis.

    Returns:
        None where the rank has no step.
    """
    comm, num_steps = run.ranks.get(rank, (RankComm(), 0))
    if not num_steps:
        return None
    cells = _cells(comm, rank, num_steps, axes)
    return _communication(cells, exposed_ns, _AxisFacts(axes, comm.cells, links))


def run_communication(
    run: RunComm,
    axes: GroupAxes,
    exposed_ns: Mapping[int, int],
    collectives: Sequence[CollectiveResult],
    links: Mapping[str, Link],
) -> Communication | None:
    """Of the mean rank.

    Args:
        run: every rank.
        axes: of the groups.
        exposed_ns: rank -> that of its mean breakdown.
        collectives: waits and transfers, summed over the windows.
        links: by axis.

    Returns:
        None where no rank has a step.
    """
    traced = {rank: entry for rank, entry in run.ranks.items() if entry[1] and rank in exposed_ns}
    if not traced:
        return None
    cells: _Cells = defaultdict(CommSums)
    for rank, (comm, num_steps) in traced.items():
        for key, sums in _cells(comm, rank, num_steps, axes).items():
            _add(cells[key], sums, len(traced))
    calls: dict[tuple[str, str], float] = defaultdict(float)
    for comm, num_steps in traced.values():
        for cell, sums in comm.cells.items():
            calls[cell.group.name, cell.collective] += sums.num_calls / num_steps / len(traced)
    facts = _AxisFacts(axes, (cell for comm, _ in traced.values() for cell in comm.cells), links)
    facts.add_times(collectives, calls)
    return _communication(cells, round(sum(exposed_ns[rank] for rank in traced) / len(traced)), facts)


class _Times(Struct):
    """Of the calls of an axis that were matched across ranks, per mean step and rank; ns."""

    num_calls: float = 0.0
    wait: float = 0.0
    transfer: float = 0.0
    bus_bytes: float = 0.0  # of the calls that took `moving`
    moving: float = 0.0

    def add(self, collective: CollectiveResult, num_calls: float) -> None:
        """Calls of one kind and group."""
        if collective.wait_ns is None or collective.transfer_ns is None or not collective.num_matched:
            return
        scale = num_calls / collective.num_matched
        self.num_calls += num_calls
        self.wait += collective.wait_ns * scale
        self.transfer += collective.transfer_ns * scale
        if collective.busbw_bytes_per_s is not None:
            self.bus_bytes += collective.busbw_bytes_per_s * collective.transfer_ns * scale
            self.moving += collective.transfer_ns * scale

    @property
    def busbw_bytes_per_s(self) -> float | None:
        """While data moves."""
        return self.bus_bytes / self.moving if self.moving else None


class _AxisFacts:
    """What is known of each axis beside its calls."""

    def __init__(self, axes: GroupAxes, cells: Iterable[CommCell], links: Mapping[str, Link]) -> None:
        self._links = links
        self._axes = axes
        self._kinds: dict[str, set[tuple[CommGroup, str]]] = defaultdict(set)  # of calls, by axis
        for cell in cells:
            self._kinds[axes.of(cell.group, cell.collective).name].add((cell.group, cell.collective))
        self._times: dict[str, _Times] = {}
        self._no_times: dict[str, NoTimes] = dict.fromkeys(self._kinds, NoTimes.ONE_RANK)

    def add_times(
        self, collectives: Sequence[CollectiveResult], calls: Mapping[tuple[str, str], float]
    ) -> None:
        """Waits, transfers and bus bandwidths: those of the mean matched call for every call of the steps.

        Args:
            collectives: summed over the windows.
            calls: (group, collective) -> calls per mean step and rank.
        """
        axes_of: dict[tuple[str, str], set[str]] = defaultdict(set)
        for axis, kinds in self._kinds.items():
            for group, name in kinds:
                axes_of[group.name, name].add(axis)
        # Matched calls of a kind that serves several axes are not known by axis.
        axis_of = {kind: next(iter(axes)) for kind, axes in axes_of.items() if len(axes) == 1}
        times: dict[str, _Times] = defaultdict(_Times)
        for collective in collectives:
            kind = collective.group, collective.collective
            if kind in axis_of:
                times[axis_of[kind]].add(collective, calls.get(kind, 0.0))
        all_calls: dict[str, float] = defaultdict(float)
        for kind, num_calls in calls.items():
            for axis in axes_of[kind]:
                all_calls[axis] += num_calls
        self._times = {
            axis: of_axis
            for axis, of_axis in times.items()
            if of_axis.num_calls and of_axis.num_calls >= _ENOUGH_MATCHED * all_calls[axis]
        }
        shared = {axis for axes in axes_of.values() if len(axes) > 1 for axis in axes}
        self._no_times = {
            axis: NoTimes.SHARED_CALLS if axis in shared else NoTimes.NOT_MATCHED
            for axis in self._kinds.keys() - self._times.keys()
        }

    def result(self, axis: str, total: _Total) -> CommByAxis:
        """The axis with these calls."""
        sums, kinds = total.sums, self._kinds[axis]
        sizes = {group.size for group, _ in kinds}
        times, link = self._times.get(axis), self._links.get(axis, Link(None, NoLink.NO_MEMBERS))
        return CommByAxis(
            axis=axis,
            inferred=any(self._axes.of(*kind).inferred for kind in kinds),
            group_size=(next(iter(sizes)) or None) if len(sizes) == 1 else None,
            link_class=link.link_class,
            no_link=link.no_link,
            ports=(),
            calls=sums.num_calls,
            bytes=_bytes(sums),
            busbw_bytes_per_s=times.busbw_bytes_per_s if times else None,
            wait_ns=round(times.wait) if times else None,
            transfer_ns=round(times.transfer) if times else None,
            no_times=self._no_times.get(axis),
            hidden_ns=total.hidden_ns,
            exposed_ns=total.exposed_ns,
            collectives=dict(total.collectives),
        )


def _cells(comm: RankComm, rank: int, num_steps: int, axes: GroupAxes) -> _Cells:
    """Per mean step of one rank."""
    cells: _Cells = defaultdict(CommSums)
    for cell, sums in comm.cells.items():
        axis = axes.of(cell.group, cell.collective).name
        _add(cells[row_name(cell, rank, axis), axis, cell.collective], sums, num_steps)
    return cells


def row_name(cell: CommCell, rank: int, axis: str) -> RowName:
    """Where a cell is summed up.

    Args:
        cell: of the rank.
        rank: whose.
        axis: of the cell's calls.
    """
    if cell.layer is not None:
        return RowName(cell.layer)
    if cell.boundary is not None:
        return RowName(f"stage {cell.boundary.sender} → {cell.boundary.receiver}")
    members = cell.group.members
    if axis == Axis.PP and rank in members and cell.peer in members:
        stages = members.index(rank), members.index(cell.peer)
        sender, receiver = stages if cell.sends else stages[::-1]
        return RowName(f"stage {sender} → {receiver}")
    return RowName("", cell.reason)


def _add(sums: CommSums, more: CommSums, divisor: float) -> None:
    sums.exposed += more.exposed / divisor
    sums.hidden += more.hidden / divisor
    sums.num_calls += more.num_calls / divisor
    sums.num_sized += more.num_sized / divisor
    sums.num_bytes += more.num_bytes / divisor


def _bytes(sums: CommSums) -> int | None:
    return round(sums.num_bytes) if sums.num_sized else None


class _Total(Struct):
    """Cells of one row or axis together."""

    sums: CommSums = field(default_factory=CommSums)
    exposed_ns: int = 0
    hidden_ns: int = 0
    axes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_axis: dict[str, CommSums] = field(default_factory=lambda: defaultdict(CommSums))
    collectives: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def _communication(cells: _Cells, exposed_ns: int, facts: _AxisFacts) -> Communication:
    """Rounds cells so that they add up to `exposed_ns`, then sums them up by row and by axis."""
    hidden_ns = round(sum(sums.hidden for sums in cells.values()))
    exposed = iv.rounded_to([sums.exposed for sums in cells.values()], exposed_ns) if cells else []
    hidden = iv.rounded_to([sums.hidden for sums in cells.values()], hidden_ns) if cells else []
    rows: dict[RowName, _Total] = defaultdict(_Total)
    axes: dict[str, _Total] = defaultdict(_Total)
    for ((row, axis, collective), sums), exposed_part, hidden_part in zip(
        cells.items(), exposed, hidden, strict=True
    ):
        for total in (rows[row], axes[axis]):
            _add(total.sums, sums, 1)
            _add(total.by_axis[axis], sums, 1)
            total.exposed_ns += exposed_part
            total.hidden_ns += hidden_part
            total.axes[axis] += exposed_part
            total.collectives[collective] += exposed_part
    order = sorted(rows, key=lambda row: (-rows[row].exposed_ns, row.name))
    return Communication(
        exposed_ns=sum(exposed),
        hidden_ns=hidden_ns,
        by_layer=tuple(_by_layer(row.name, rows[row]) for row in order if row.reason is None),
        by_axis=tuple(
            facts.result(axis, axes[axis])
            for axis in sorted(axes, key=lambda axis: (-axes[axis].exposed_ns, axis))
        ),
        unattributed=tuple(
            CommUnattributed(
                reason=row.reason,
                exposed_ns=rows[row].exposed_ns,
                calls=rows[row].sums.num_calls,
                collectives=dict(rows[row].collectives),
                axes=dict(rows[row].axes),
            )
            for row in order
            if row.reason is not None
        ),
    )


def _by_layer(name: str, total: _Total) -> CommByLayer:
    return CommByLayer(
        layer=name,
        exposed_ns=total.exposed_ns,
        hidden_ns=total.hidden_ns,
        calls=total.sums.num_calls,
        bytes=_bytes(total.sums),
        axes=dict(total.axes),
        axis_bytes={axis: size for axis, sums in total.by_axis.items() if (size := _bytes(sums)) is not None},
    )


def missing_of(communication: Communication | None) -> tuple[Missing, ...]:
    """What of the exposed communication belongs to no layer, and why."""
    if communication is None:
        return ()
    outside = [entry for entry in communication.unattributed if entry.reason is Unattributed.NO_LAYER_TENSORS]
    unknown = [entry for entry in communication.unattributed if entry not in outside and entry.exposed_ns]
    missing = []
    if unknown:
        entry = missing_figure(
            Figure.LAYER_COMM,
            Cause.LAYERS_NOT_DETERMINED,
            calls=_listed(unknown),
            time_ns=sum(entry.exposed_ns for entry in unknown),
            total_ns=communication.exposed_ns,
            reasons="; ".join(dict.fromkeys(messages.UNATTRIBUTED[entry.reason] for entry in unknown)),
        )
        missing.append(entry)
    if any(entry.exposed_ns for entry in outside):
        calls = _listed(outside)
        missing.append(missing_figure(Figure.COMM_OUTSIDE_LAYERS, Cause.NO_LAYER_TENSORS, calls=calls))
    return tuple(missing)


def _listed(entries: Iterable[CommUnattributed]) -> str:
    """``all_gather (27.1 ms) and send (3.2 ms)``, the longest first."""
    times: dict[str, float] = defaultdict(float)
    for entry in entries:
        for name, time in entry.collectives.items():
            times[name] += time
    order = sorted((name for name, time in times.items() if time), key=lambda name: (-times[name], name))
    return joined(f"{name} ({format_ns(round(times[name]))})" for name in order)
