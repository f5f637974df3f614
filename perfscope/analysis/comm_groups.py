"""Process groups of calls whose trace does not name them, where only one group can be meant.

A rank's calls without a group (within one window) are on group g if

- every member of g has as many of them, of each kind and size,
- nobody leaves the k-th call of a kind that waits for all before the last member has entered it, and
- this holds for no other listed group of any of its members.

Times of two hosts cannot be compared that finely: groups over several hosts are never named so. Point-to-point
calls are not looked at. What stays open keeps the group "unknown".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from perfscope.analysis.comm_record import UNKNOWN_GROUP, CommRecord, GroupKey
from perfscope.analysis.matching import RankCalls

_POINT_TO_POINT = frozenset({"send", "recv"})
_WAITS_FOR_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_PER_RANK = frozenset({"all_gather", "gather", "scatter"})  # of a group of unknown size S is one rank's part
_Own = dict[str, RankCalls]  # kind -> a rank's calls without a group


def name_groups(record: CommRecord, hosts: Mapping[int, str]) -> None:
    """Moves calls of group "unknown" to the group that they are on, where that is certain.

    Args:
        record: of all ranks; changed.
        hosts: rank -> host.
    """
    windows: dict[int, dict[int, _Own]] = defaultdict(lambda: defaultdict(dict))
    for key, group in record.groups.items():
        if key.group == UNKNOWN_GROUP and key.collective not in _POINT_TO_POINT:
            for window, every in group.windows.items():
                for calls in every:
                    windows[window][calls.rank][key.collective] = calls
    for window, ranks in windows.items():
        fitting = {
            name: members
            for name, members in record.listed.items()
            if len({hosts.get(rank) for rank in members}) == 1 and _fits(members, ranks)
        }
        of_rank = {rank: [name for name in fitting if rank in fitting[name]] for rank in ranks}
        for name, members in fitting.items():
            if all(of_rank[rank] == [name] for rank in members):
                _move(record, window, name, {rank: ranks[rank] for rank in members})


def _fits(members: tuple[int, ...], ranks: Mapping[int, _Own]) -> bool:
    """Whether all calls without a group of these ranks may be calls among them."""
    if len(members) < 2 or any(rank not in ranks for rank in members):
        return False
    if len({frozenset(ranks[rank]) for rank in members}) != 1:
        return False
    return all(_one_by_one(kind, [ranks[rank][kind] for rank in members]) for kind in ranks[members[0]])


def _one_by_one(kind: str, every: list[RankCalls]) -> bool:
    if len({len(calls.enter) for calls in every}) != 1:
        return False
    # Two threads may start two calls in another order on each rank: sizes keep these apart.
    orders = [np.lexsort((calls.enter, calls.size)) for calls in every]
    sizes = np.stack([calls.size[order] for calls, order in zip(every, orders, strict=True)])
    if (sizes != sizes[0]).any():
        return False
    enter = np.stack([calls.enter[order] for calls, order in zip(every, orders, strict=True)])
    leave = np.stack([calls.exit[order] for calls, order in zip(every, orders, strict=True)])
    return kind not in _WAITS_FOR_ALL or bool((enter.max(axis=0) <= leave.min(axis=0)).all())


def _move(record: CommRecord, window: int, name: str, ranks: Mapping[int, _Own]) -> None:
    members = record.listed[name]
    for rank, own in ranks.items():
        for kind, calls in own.items():
            source = record.groups[GroupKey(kind, UNKNOWN_GROUP, ())]
            source.windows[window] = [one for one in source.windows[window] if one.rank != rank]
            source.windows = defaultdict(list, {w: every for w, every in source.windows.items() if every})
            source.ranks = {one.rank for every in source.windows.values() for one in every}
            if kind in _PER_RANK:
                calls = replace(calls, size=np.where(calls.size >= 0, calls.size * len(members), -1))
            target = record.groups[GroupKey(kind, name, members)]
            target.size = max(target.size, len(members))
            target.dtypes |= source.dtypes
            target.ranks.add(rank)
            every = target.windows[window]
            named = [one for one in every if one.rank == rank]
            target.windows[window] = [one for one in every if one.rank != rank] + [_together([*named, calls])]
            if not source.windows:
                del record.groups[GroupKey(kind, UNKNOWN_GROUP, ())]


def _together(parts: list[RankCalls]) -> RankCalls:
    """One rank's calls of one kind on one group, in order and counted anew."""
    order = np.argsort(np.concatenate([part.enter for part in parts]), kind="stable")
    columns = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts])[order]
        for column in fields(RankCalls)
        if column.name != "rank"
    }
    return RankCalls(rank=parts[0].rank, **columns | {"seq": np.arange(len(order), dtype=np.int64)})
