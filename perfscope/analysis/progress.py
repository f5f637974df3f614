"""Where ranks hang: how far each is in its process groups, from the dumps of a flight recorder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfscope.analysis.source import RunSource
from perfscope.rundir.flight_records import FlightCall, FlightDump, FlightGroup
from perfscope.vocabulary.progress import GroupState

_DEFAULT = "default_pg"  # PyTorch's description of the group of all ranks
# Every rank gives these an input of the same shape.
_SAME_SHAPES = frozenset({"all_reduce", "reduce", "reduce_scatter", "all_gather"})
_OPEN = (GroupState.DIFFERENT_CALLS, GroupState.NOT_ENTERED, GroupState.NOT_COMPLETED)


class RankProgress(Struct, frozen=True, kw_only=True):
    """One rank in one process group.

    Attributes:
        enqueued, started, completed: number of its last collective there; None: not recorded.
        has_entered: whether it called the collective that the group is at.
        call: that call; of a rank that has not entered it, the rank's latest call in any group.
    """

    rank: int
    enqueued: int | None
    started: int | None
    completed: int | None
    has_entered: bool
    call: FlightCall | None
    num_p2p: int


class GroupProgress(Struct, frozen=True, kw_only=True):
    """One process group.

    Attributes:
        seq: number of the first collective that differs, is not entered, or not completed; None: none.
        collectives: what the ranks called there, each name once.
        ranks: those with a dump.
        without_dump: members of which there is no dump, or one that has lost its calls in this group.
    """

    name: str
    title: str
    state: GroupState
    seq: int | None
    collectives: tuple[str, ...]
    ranks: tuple[RankProgress, ...]
    without_dump: tuple[int, ...]

    @property
    def is_open(self) -> bool:
        """Whether something is not over."""
        return self.state in _OPEN

    @property
    def waiting(self) -> tuple[int, ...]:
        return tuple(row.rank for row in self.ranks if row.has_entered)

    @property
    def not_entered(self) -> tuple[int, ...]:
        return tuple(row.rank for row in self.ranks if not row.has_entered)


def progress_of(source: RunSource) -> tuple[GroupProgress, ...]:
    """Of the process groups in a run's dumps; () without one."""
    summaries = source.summaries()
    return group_progress({one.rank: one.flight for one in summaries if one.flight is not None})


def group_progress(dumps: Mapping[int, FlightDump]) -> tuple[GroupProgress, ...]:
    """Of each process group in the dumps by rank: first those that are not over, by their earliest call."""
    groups: dict[str, dict[int, FlightGroup]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for group in dump.groups:
            groups[group.name].setdefault(rank, group)
    progress = (_progress(name, of_name, dumps) for name, of_name in groups.items())
    return tuple(sorted((group for group in progress if group is not None), key=_order))


def _order(group: GroupProgress) -> tuple[bool, int, str]:
    times = [
        row.call.created_ns for row in group.ranks if row.has_entered and row.call and row.call.created_ns
    ]
    return not group.is_open, min(times, default=1 << 62), group.name


def _progress(
    name: str, groups: Mapping[int, FlightGroup], dumps: Mapping[int, FlightDump]
) -> GroupProgress | None:
    """None where no dump says how far its rank is."""
    title = next((group.title for group in groups.values() if group.title), "")
    members = _members(title, groups, dumps)
    group_of_rank = {
        rank: groups.get(rank, FlightGroup(name=name)) for rank in sorted(members & dumps.keys())
    }
    groups = {
        rank: group
        for rank, group in group_of_rank.items()
        if group.enqueued is not None or group.num_p2p or not dumps[rank].begins_later
    }
    if not groups:
        return None
    state, seq = _state(groups)
    calls = {rank: _calls_at(group, seq) for rank, group in groups.items()}
    collectives = dict.fromkeys(call.name for of_rank in calls.values() for call in of_rank)
    return GroupProgress(
        name=name,
        title=title,
        state=state,
        seq=seq,
        collectives=tuple(collectives),
        ranks=tuple(
            RankProgress(
                rank=rank,
                enqueued=group.enqueued,
                started=group.started,
                completed=group.completed,
                has_entered=seq is None or (group.enqueued or 0) >= seq,
                call=calls[rank][0] if calls[rank] else _last(seq, group, dumps[rank]),
                num_p2p=group.num_p2p,
            )
            for rank, group in groups.items()
        ),
        without_dump=tuple(sorted(members - groups.keys())),
    )


def _members(title: str, groups: Mapping[int, FlightGroup], dumps: Mapping[int, FlightDump]) -> set[int]:
    """Ranks of the group; where no dump lists them, those that used it, or all of the default group."""
    listed = {rank for group in groups.values() for rank in group.ranks or ()}
    return listed | groups.keys() | (dumps.keys() if title == _DEFAULT else set())


def _last(seq: int | None, group: FlightGroup, dump: FlightDump) -> FlightCall | None:
    """The latest call of a rank that has not entered; None of one whose call is no longer in its dump."""
    return dump.last if seq is not None and (group.enqueued or 0) < seq else None


def _state(groups: Mapping[int, FlightGroup]) -> tuple[GroupState, int | None]:
    """What the group is at, and the number of its collective."""
    enqueued = [group.enqueued or 0 for group in groups.values()]
    done = min(group.completed or 0 for group in groups.values())
    reached, furthest = min(enqueued), max(enqueued)
    different = _first_difference(list(groups.values()), done + 1, reached)
    if different is not None:
        return GroupState.DIFFERENT_CALLS, different
    if furthest > reached:
        return GroupState.NOT_ENTERED, reached + 1
    if done < furthest:
        return GroupState.NOT_COMPLETED, done + 1
    return GroupState.COMPLETED, None


def _first_difference(groups: Sequence[FlightGroup], first: int, last: int) -> int | None:
    """The first collective of `first` to `last` that ranks do not call alike; None: there is none."""
    tables = [_signatures(group, first, last) for group in groups]
    for seq in sorted(set().union(*tables)):
        if len({table[seq] for table in tables if seq in table}) > 1:
            return seq
    return None


def _signatures(group: FlightGroup, first: int, last: int) -> dict[int, tuple[object, ...]]:
    table: dict[int, tuple[object, ...]] = {}
    for call in group.calls:
        if first <= call.seq <= last:
            shapes = call.shapes if call.name in _SAME_SHAPES else ()
            table[call.seq] = (*table.get(call.seq, ()), (call.name, shapes))
    return table


def _calls_at(group: FlightGroup, seq: int | None) -> list[FlightCall]:
    return [call for call in group.calls if call.seq == seq]
