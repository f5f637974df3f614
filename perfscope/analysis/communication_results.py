"""Communication of a rank and of a run, by layer and by axis, per mean step.

The parts are rounded together, so that they add up to the exposed communication of the breakdown exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis import intervals as iv
from perfscope.analysis.communication import CommCell, CommSums
from perfscope.analysis.communication_record import Kind, ReadComm, RunComm, unpacked
from perfscope.analysis.group_axes import GroupAxes, GroupAxis
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.packed import Packed
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
from perfscope.tasks import chunks, mapped
from perfscope.units import format_ns
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.communication import NoTimes, Unattributed
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.links import LinkClass, NoLink

if TYPE_CHECKING:
    from concurrent.futures import Executor

Float = NDArray[np.float64]
_RANKS_TOGETHER = 256
_ENOUGH_MATCHED = 0.9  # share of an axis' calls without which it has no waits and transfers


class Link(NamedTuple):
    """The class of an axis' links, or why it is not known."""

    link_class: LinkClass | None
    no_link: NoLink | None = None


class RowName(Struct, frozen=True):
    """What a cell is of: a layer, the boundary of two pipeline stages, or nothing, for `reason`."""

    name: str
    reason: Unattributed | None = None


_Cells = dict[tuple[RowName, str, str], CommSums]  # by row, axis and collective
_SUMS = len(CommSums.__struct_fields__)
_CALLS = CommSums.__struct_fields__.index("num_calls")


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


def communications(
    run: RunComm,
    axes: GroupAxes,
    exposed_ns: Mapping[int, int],
    collectives: Sequence[CollectiveResult],
    links: Mapping[str, Link],
    executor: Executor | None = None,
) -> tuple[dict[int, Communication], Communication | None]:
    """Of each rank, without waits and transfers, which take several ranks to know; and of the mean rank.

    Args:
        run: every rank.
        axes: of the groups.
        exposed_ns: rank -> that of its mean breakdown.
        collectives: waits and transfers, summed over the windows.
        links: by axis.
        executor: does the work of each rank; None = this process.

    Returns:
        (by rank, without ranks that have no step; None where there is none).
    """
    traced = [rank for rank in run.all_ranks if rank in exposed_ns]
    if not traced:
        return {}, None

    def task(content: bytes, ranks: Iterable[int], kinds: Iterable[Kind]) -> _CommTask:
        exposed = {rank: exposed_ns[rank] for rank in ranks if rank in exposed_ns}
        return _CommTask(content, {kind: axes.of(*kind) for kind in kinds}, exposed, links, len(traced))

    of_rank: dict[int, Communication] = {}
    sums, calls, kinds = _Columns(_SUMS), _Columns(1), dict[Kind, None]()
    packed = [task(part.content, part.ranks, part.kinds) for part in run.packed]
    answers = mapped(executor, _of_packed, packed)
    read_here = chunks(list(run.ranks), _RANKS_TOGETHER)  # sums of every rank at once take much memory
    kinds_here = run.kinds
    here = (_of_ranks(run.ranks, task(b"", ranks, kinds_here)) for ranks in read_here)
    for answer in chain(answers, here):
        of_rank |= answer.of_rank
        sums.add(*answer.sums)
        calls.add(*answer.calls)
        kinds |= dict.fromkeys(answer.kinds)
    mean = {key: CommSums(*row) for key, row in sums.items()}
    facts = _AxisFacts({kind: axes.of(*kind) for kind in kinds}, kinds, links)
    facts.add_times(collectives, {key: row[0] for key, row in calls.items()})
    return of_rank, _communication(mean, round(sum(exposed_ns[rank] for rank in traced) / len(traced)), facts)


class _CommTask(NamedTuple):
    """Some ranks, and what of the run their communication needs."""

    content: bytes  # as of PackedComm
    axes: Mapping[Kind, GroupAxis]
    exposed_ns: Mapping[int, int]
    links: Mapping[str, Link]
    num_traced: int  # ranks of the run


class _CommAnswer(NamedTuple):
    """Of some ranks; arrays of shape (ranks, keys, values) are their shares of the mean rank's."""

    of_rank: dict[int, Communication]
    sums: tuple[list[Any], Float]  # of keys of _Cells: fields of CommSums
    calls: tuple[list[Any], Float]  # of group and collective: calls
    kinds: list[Kind]


class _Columns:
    """Rows of ranks, added up one after the other: in any division into tasks to the same bits."""

    def __init__(self, num_values: int) -> None:
        self._place: dict[Any, int] = {}
        self._sums = np.zeros((0, num_values))

    def add(self, keys: Sequence[Any], rows: NDArray[np.float64]) -> None:
        """Takes in later ranks: shape (ranks, keys, values)."""
        at = np.array([self._place.setdefault(key, len(self._place)) for key in keys], dtype=np.int64)
        self._sums = np.pad(self._sums, ((0, len(self._place) - len(self._sums)), (0, 0)))
        for row in rows:
            self._sums[at] += row

    def items(self) -> Iterable[tuple[Any, list[float]]]:
        """Key and sums, in order of appearance."""
        return zip(self._place, self._sums.tolist(), strict=True)


def _rows(of_ranks: Sequence[tuple[Sequence[Any], Float]], num_values: int) -> tuple[list[Any], Float]:
    """Keys of any rank; and each rank's values by key, 0 where it lacks one."""
    lists = {id(keys): keys for keys, _ in of_ranks}  # ranks that do the same have one list
    every = list(dict.fromkeys(chain.from_iterable(lists.values())))
    column = {key: number for number, key in enumerate(every)}
    columns = {
        number: np.array([column[key] for key in keys], dtype=np.int64) for number, keys in lists.items()
    }
    rows = np.zeros((len(of_ranks), len(every), num_values))
    for row, (keys, values) in zip(rows, of_ranks, strict=True):
        row[columns[id(keys)]] = values
    return every, rows


def _of_packed(task: _CommTask) -> _CommAnswer:
    """What `communications` needs of ranks that another task read."""
    return _of_ranks(unpacked(task.content), task)


def _of_ranks(ranks: Mapping[int, ReadComm], task: _CommTask) -> _CommAnswer:
    of_rank: dict[int, Communication] = {}
    sums: list[tuple[Sequence[Any], Float]] = []
    calls: list[tuple[Sequence[Any], Float]] = []
    every: dict[Kind, None] = {}
    known: dict[int, _CellNames] = {}  # by cells, which most ranks share
    for rank, exposed_ns in task.exposed_ns.items():
        comm = ranks[rank]
        names = known.get(id(comm.cells)) or _CellNames(comm.cells, rank, task)
        if not names.differs:
            known[id(comm.cells)] = names
        means = names.summed(comm.sums / comm.num_steps)
        cells = {key: CommSums(*row) for key, row in zip(names.keys, means.tolist(), strict=True)}
        of_one = _communication(cells, exposed_ns, names.facts)
        of_rank[rank] = replace(of_one, by_layer=Packed(CommByLayer, of_one.by_layer))
        every |= names.kinds
        sums.append((names.keys, means / task.num_traced))
        num_calls = comm.sums[:, _CALLS] / comm.num_steps / task.num_traced
        of_calls = np.bincount(names.call_of, num_calls, len(names.calls)).astype(np.float64)
        calls.append((names.calls, of_calls[:, None]))
    return _CommAnswer(of_rank, _rows(sums, _SUMS), _rows(calls, 1), list(every))


class _CellNames:
    """What cells are summed up as.

    Attributes:
        differs: between ranks: messages, whose other end is another one for each.
        keys: of the sums.
        kinds: of calls.
        calls: (group, collective), by number.
        call_of: which of these each cell is.
        facts: of the axes.
    """

    def __init__(self, cells: Sequence[CommCell], rank: int, task: _CommTask) -> None:
        axes = [task.axes[cell.group, cell.collective].name for cell in cells]
        keys = [
            (row_name(cell, rank, axis), axis, cell.collective)
            for cell, axis in zip(cells, axes, strict=True)
        ]
        self.differs = any(cell.peer >= 0 for cell in cells)
        self.keys = list(dict.fromkeys(keys))
        self.kinds = dict.fromkeys((cell.group, cell.collective) for cell in cells)
        called = [(cell.group.name, cell.collective) for cell in cells]
        self.calls = list(dict.fromkeys(called))
        self.call_of = np.array([self.calls.index(call) for call in called], dtype=np.int64)
        self.facts = _AxisFacts(task.axes, self.kinds, task.links)
        number_of = {key: number for number, key in enumerate(self.keys)}
        self._key_of = np.array([number_of[key] for key in keys], dtype=np.int64)

    def summed(self, values: Float) -> Float:
        """Values of the cells, added up by key in their order. Shape (cells, n) -> (keys, n)."""
        if len(self.keys) == len(self._key_of):
            return values
        sums = np.zeros((len(self.keys), values.shape[1]))
        np.add.at(sums, self._key_of, values)
        return sums


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

    def __init__(
        self, axes: Mapping[Kind, GroupAxis], kinds: Iterable[Kind], links: Mapping[str, Link]
    ) -> None:
        self._links = links
        self._axes = axes
        self._kinds: dict[str, set[Kind]] = defaultdict(set)  # of calls, by axis
        for kind in kinds:
            self._kinds[axes[kind].name].add(kind)
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
            inferred=any(self._axes[kind].inferred for kind in kinds),
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
            collectives=total.by(_COLLECTIVE),
        )


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


def _bytes(sums: CommSums) -> int | None:
    return round(sums.num_bytes) if sums.num_sized else None


class _Part(NamedTuple):
    """A cell with its times in whole ns."""

    axis: str
    collective: str
    sums: CommSums
    exposed_ns: int
    hidden_ns: int


class _Total:
    """Cells of one row or axis together."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts
        self.sums = _together(parts)
        self.exposed_ns = sum(part.exposed_ns for part in parts)
        self.hidden_ns = sum(part.hidden_ns for part in parts)

    def by(self, kind: Callable[[_Part], str]) -> dict[str, int]:
        """Exposed ns by axis or collective."""
        exposed: dict[str, int] = defaultdict(int)
        for part in self._parts:
            exposed[kind(part)] += part.exposed_ns
        return dict(exposed)

    @property
    def axis_bytes(self) -> dict[str, int]:
        """Of axes of whose calls a size is known."""
        by_axis: dict[str, list[_Part]] = defaultdict(list)
        for part in self._parts:
            if part.sums.num_sized:
                by_axis[part.axis].append(part)
        return {axis: round(_together(parts).num_bytes) for axis, parts in by_axis.items()}


_AXIS, _COLLECTIVE = attrgetter("axis"), attrgetter("collective")


def _together(parts: Sequence[_Part]) -> CommSums:
    if len(parts) == 1:
        return parts[0].sums
    sums = CommSums()
    for part in parts:
        sums.exposed += part.sums.exposed
        sums.hidden += part.sums.hidden
        sums.num_calls += part.sums.num_calls
        sums.num_sized += part.sums.num_sized
        sums.num_bytes += part.sums.num_bytes
    return sums


def _communication(cells: _Cells, exposed_ns: int, facts: _AxisFacts) -> Communication:
    """Rounds cells so that they add up to `exposed_ns`, then sums them up by row and by axis."""
    hidden_ns = round(sum(sums.hidden for sums in cells.values()))
    exposed = iv.rounded_to([sums.exposed for sums in cells.values()], exposed_ns) if cells else []
    hidden = iv.rounded_to([sums.hidden for sums in cells.values()], hidden_ns) if cells else []
    of_row: dict[RowName, list[_Part]] = defaultdict(list)
    of_axis: dict[str, list[_Part]] = defaultdict(list)
    for ((row, axis, collective), sums), *times in zip(cells.items(), exposed, hidden, strict=True):
        part = _Part(axis, collective, sums, *times)
        of_row[row].append(part)
        of_axis[axis].append(part)
    axes = {axis: _Total(parts) for axis, parts in of_axis.items()}
    exposed_of = {row: sum([part.exposed_ns for part in parts]) for row, parts in of_row.items()}
    order = sorted(of_row, key=lambda row: (-exposed_of[row], row.name))
    rows = {row: _Total(parts) for row, parts in of_row.items() if row.reason is not None}
    return Communication(
        exposed_ns=sum(exposed),
        hidden_ns=hidden_ns,
        by_layer=tuple([_by_layer(row.name, of_row[row]) for row in order if row.reason is None]),
        by_axis=tuple(
            facts.result(axis, axes[axis])
            for axis in sorted(axes, key=lambda axis: (-axes[axis].exposed_ns, axis))
        ),
        unattributed=tuple(
            CommUnattributed(
                reason=row.reason,
                exposed_ns=rows[row].exposed_ns,
                calls=rows[row].sums.num_calls,
                collectives=rows[row].by(_COLLECTIVE),
                axes=rows[row].by(_AXIS),
            )
            for row in order
            if row.reason is not None
        ),
    )


def _by_layer(name: str, parts: Sequence[_Part]) -> CommByLayer:
    if len(parts) == 1:  # most layers: this is run for each of each rank
        (part,) = parts
        size = _bytes(part.sums)
        return CommByLayer(
            layer=name,
            exposed_ns=part.exposed_ns,
            hidden_ns=part.hidden_ns,
            calls=part.sums.num_calls,
            bytes=size,
            axes={part.axis: part.exposed_ns},
            axis_bytes={} if size is None else {part.axis: size},
        )
    total = _Total(parts)
    return CommByLayer(
        layer=name,
        exposed_ns=total.exposed_ns,
        hidden_ns=total.hidden_ns,
        calls=total.sums.num_calls,
        bytes=_bytes(total.sums),
        axes=total.by(_AXIS),
        axis_bytes=total.axis_bytes,
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
