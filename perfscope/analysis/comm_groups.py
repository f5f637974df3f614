"""Process groups of calls whose trace does not name them, where only one group can be meant.

A backend's thread serves one group. That group is one of those listed that the rank is in, and while a call
that waits for all is under way on one member, a call of its kind and size is under way on every other member.
Where this leaves one group for all calls of a thread, they are that group's; but only if in the end all its
members have as many calls of each kind and size on it. What stays open keeps the group "unknown".

Times of two hosts cannot be compared that finely: a group over several hosts is always possible.
Point-to-point calls are not looked at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from perfscope.analysis.comm_record import CommRecord, GroupKey
from perfscope.analysis.intervals import Int64, distinct
from perfscope.analysis.matching import RankCalls
from perfscope.vocabulary.communication import UNKNOWN_GROUP

_POINT_TO_POINT = frozenset({"send", "recv"})
_WAITS_FOR_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_PER_RANK = frozenset({"all_gather", "gather", "scatter"})  # of a group of unknown size S is one rank's part
_Own = dict[str, RankCalls]  # kind -> a rank's calls without a group
_Lanes = dict[tuple[int, int], str]  # (rank, lane) -> group


def name_groups(record: CommRecord, hosts: Mapping[int, str]) -> None:
    """Moves calls of group "unknown" to the group that they are on, where that is certain.

    Args:
        record: of all ranks; changed.
        hosts: rank -> host.
    """
    for window, ranks in _unnamed(record).items():
        named = {name: _named(record, window, name) for name in record.listed}
        lanes: _Lanes = {}
        for rank, by_collective in ranks.items():
            for lane in distinct(np.concatenate([calls.lane for calls in by_collective.values()])).tolist():
                possible = _possible(record.listed, hosts, rank, lane, ranks, named)
                if len(possible) == 1:
                    lanes[rank, lane] = possible[0]
        for name in sorted(set(lanes.values())):
            chosen = {pair for pair, group_name in lanes.items() if group_name == name}
            if _even(record.listed[name], chosen, ranks, named[name]):
                _move(record, window, name, ranks, chosen)


def _unnamed(record: CommRecord) -> dict[int, dict[int, _Own]]:
    """window -> rank -> kind -> calls without a group."""
    windows: dict[int, dict[int, _Own]] = defaultdict(lambda: defaultdict(dict))
    for key, group in record.groups.items():
        if key.group == UNKNOWN_GROUP and key.collective not in _POINT_TO_POINT:
            for window, every in group.windows.items():
                for calls in every:
                    windows[window][calls.rank][key.collective] = calls
    return windows


def _possible(
    listed: Mapping[str, tuple[int, ...]],
    hosts: Mapping[int, str],
    rank: int,
    lane: int,
    ranks: Mapping[int, _Own],
    named: Mapping[str, Mapping[int, _Own]],
) -> list[str]:
    """Groups that a rank's thread may serve."""
    return [
        name
        for name, members in listed.items()
        if rank in members
        and (
            len({hosts.get(member) for member in members}) > 1
            or not _impossible(rank, lane, members, ranks, named[name])
        )
    ]


def _named(record: CommRecord, window: int, name: str) -> dict[int, _Own]:
    """rank -> kind -> calls that the trace itself puts on a group."""
    by_rank: dict[int, _Own] = defaultdict(dict)
    for key, group in record.groups.items():
        if key.group == name:
            for calls in group.windows.get(window, ()):
                by_rank[calls.rank][key.collective] = calls
    return by_rank


def _impossible(
    rank: int,
    lane: int,
    members: tuple[int, ...],
    ranks: Mapping[int, _Own],
    named: Mapping[int, _Own],
) -> bool:
    """Whether a call on a rank's thread has no counterpart on some other member."""
    for kind, calls in ranks[rank].items():
        mine = np.flatnonzero(calls.lane == lane).tolist()
        for other in members:
            theirs = [source[other][kind] for source in (ranks, named) if kind in source.get(other, {})]
            if other != rank and not all(any(_met(kind, calls, call, t) for t in theirs) for call in mine):
                return True
    return len(members) < 2


def _met(kind: str, calls: RankCalls, call: int, theirs: RankCalls) -> bool:
    # The size of a call on a group that is known is of the whole group.
    alike = np.ones(len(theirs.size), np.bool_) if kind in _PER_RANK else theirs.size == calls.size[call]
    if kind in _WAITS_FOR_ALL:
        alike = alike & (theirs.enter <= calls.exit[call]) & (theirs.exit >= calls.enter[call])
    return bool(alike.any())


def _even(
    members: tuple[int, ...],
    chosen: set[tuple[int, int]],
    ranks: Mapping[int, _Own],
    named: Mapping[int, _Own],
) -> bool:
    """Whether all members have as many calls of each kind and size on the group."""
    counts: dict[int, Counter[tuple[str, int]]] = {rank: Counter() for rank in members}
    for rank in members:
        for kind, calls in ranks.get(rank, {}).items():
            scale = len(members) if kind in _PER_RANK else 1
            sizes = calls.size[_on(calls, chosen)] * scale
            counts[rank].update((kind, size) for size in sizes.tolist())
        for kind, calls in named.get(rank, {}).items():
            counts[rank].update((kind, size) for size in calls.size.tolist())
    return all(count == counts[members[0]] for count in counts.values())


def _on(calls: RankCalls, chosen: set[tuple[int, int]]) -> Int64:
    """Places of the calls on chosen threads."""
    lanes = [lane for rank, lane in chosen if rank == calls.rank]
    rows: Int64 = np.flatnonzero(np.isin(calls.lane, lanes))
    return rows


def _move(
    record: CommRecord, window: int, name: str, ranks: Mapping[int, _Own], chosen: set[tuple[int, int]]
) -> None:
    """Moves the calls on the chosen threads to a group."""
    members = record.listed[name]
    for rank in members:
        for kind in list(ranks[rank]):
            unnamed = GroupKey(kind, UNKNOWN_GROUP, ())
            source, all_calls = record.groups[unnamed], ranks[rank][kind]
            rows = _on(all_calls, chosen)
            if not len(rows):
                continue
            left = [
                calls_of_rank for calls_of_rank in source.windows.pop(window) if calls_of_rank.rank != rank
            ]
            remaining = np.setdiff1d(np.arange(len(all_calls.enter)), rows)
            if len(remaining):
                ranks[rank][kind] = _picked(all_calls, remaining)
                left.append(ranks[rank][kind])
            else:
                del ranks[rank][kind]
            if left:
                source.windows[window] = left
            source.ranks = {
                calls_of_rank.rank for every in source.windows.values() for calls_of_rank in every
            }
            if not source.windows:
                del record.groups[unnamed]
            _add(record, GroupKey(kind, name, members), window, _picked(all_calls, rows), source.dtypes)


def _add(record: CommRecord, key: GroupKey, window: int, calls: RankCalls, dtypes: set[str]) -> None:
    if key.collective in _PER_RANK:
        size = np.where(calls.size >= 0, calls.size * len(key.members), -1)
        calls = replace(calls, size=size)
    group = record.groups[key]
    group.size = max(group.size, len(key.members))
    group.dtypes |= dtypes
    group.ranks.add(calls.rank)
    named = [rank_calls for rank_calls in group.windows[window] if rank_calls.rank == calls.rank]
    of_others = [rank_calls for rank_calls in group.windows[window] if rank_calls.rank != calls.rank]
    group.windows[window] = [*of_others, _together([*named, calls])]


def _picked(calls: RankCalls, rows: Int64) -> RankCalls:
    columns = {name: getattr(calls, name) for name in RankCalls.__struct_fields__}
    return RankCalls(**{name: value if name == "rank" else value[rows] for name, value in columns.items()})


def _together(parts: list[RankCalls]) -> RankCalls:
    """One rank's calls of one kind on one group, in order and counted anew."""
    order = np.argsort(np.concatenate([part.enter for part in parts]), kind="stable")
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])[order]
        for name in RankCalls.__struct_fields__
        if name != "rank"
    }
    return RankCalls(rank=parts[0].rank, **columns | {"seq": np.arange(len(order), dtype=np.int64)})
