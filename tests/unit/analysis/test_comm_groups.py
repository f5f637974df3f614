"""Groups of calls that no trace names: found where only one can be meant, and else left open."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analysis.comm_groups import name_groups
from perfscope.analysis.comm_record import CommRecord, GroupKey
from perfscope.analysis.matching import RankCalls
from perfscope.vocabulary.communication import UNKNOWN_GROUP

LISTED = {"world": (0, 1, 2, 3), "a": (0, 1), "b": (2, 3), "c": (0, 2), "d": (1, 3)}
HOSTS = dict.fromkeys(range(4), "one")
Call = tuple[int, int, int]  # enter, exit, lane


def calls_of(rank: int, made: Sequence[Call], size: int = 100) -> RankCalls:
    enter, leave, lane = (np.array(column, np.int64) for column in zip(*made, strict=True))
    nothing = np.full(len(enter), -1, np.int64)
    return RankCalls(
        rank=rank,
        enter=enter,
        exit=leave,
        lane=lane,
        peer=nothing,
        launch=nothing,
        step=np.zeros_like(enter),
        seq=np.arange(len(enter), dtype=np.int64),
        size=np.full(len(enter), size, np.int64),
    )


def record_of(collective: str = "all_reduce", **ranks: Sequence[Call]) -> CommRecord:
    """Calls without a group by rank (`r0`, `r1`, ...)."""
    record = CommRecord(listed=dict(LISTED))
    group = record.groups[GroupKey(collective, UNKNOWN_GROUP, ())]
    for name, made in ranks.items():
        rank = int(name[1:])
        group.ranks.add(rank)
        group.windows[0].append(calls_of(rank, made))
    return record


def counts(record: CommRecord) -> dict[str, dict[int, int]]:
    """Group -> rank -> number of calls."""
    return {
        key.group: {calls.rank: len(calls.enter) for calls in group.windows[0]}
        for key, group in record.groups.items()
    }


def test_calls_that_meet_within_one_group_only_are_on_it() -> None:
    record = record_of(r0=[(0, 10, 7)], r1=[(5, 11, 7)], r2=[(20, 30, 7)], r3=[(21, 31, 7)])
    name_groups(record, HOSTS)
    assert counts(record) == {"a": {0: 1, 1: 1}, "b": {2: 1, 3: 1}}
    assert record.groups[GroupKey("all_reduce", "a", (0, 1))].size == 2


def test_calls_that_meet_in_several_groups_stay_open() -> None:
    record = record_of(r0=[(0, 10, 7)], r1=[(5, 11, 7)], r2=[(6, 12, 7)], r3=[(7, 13, 7)])
    name_groups(record, HOSTS)
    assert counts(record) == {"unknown": {0: 1, 1: 1, 2: 1, 3: 1}}


def test_two_groups_of_a_rank_are_told_apart_by_their_threads() -> None:
    """Counting would put all of them on one group: they are as many and of one size."""
    record = record_of(
        r0=[(0, 10, 7), (100, 110, 8)],
        r1=[(5, 11, 7), (200, 210, 8)],
        r2=[(50, 60, 7), (101, 111, 8)],
        r3=[(51, 61, 7), (201, 211, 8)],
    )
    name_groups(record, HOSTS)
    assert counts(record) == {
        "a": {0: 1, 1: 1},
        "b": {2: 1, 3: 1},
        "c": {0: 1, 2: 1},
        "d": {1: 1, 3: 1},
    }


def test_a_counterpart_whose_group_is_known_counts() -> None:
    """Rank 1's thread is known from a mark; without it rank 0's call would seem to be on c."""
    record = record_of(r0=[(0, 10, 7)], r2=[(100, 110, 7)])
    known = record.groups[GroupKey("all_reduce", "a", (0, 1))]
    known.windows[0].append(calls_of(1, [(5, 11, 7)]))
    name_groups(record, HOSTS)
    assert counts(record) == {"a": {0: 1, 1: 1}, "unknown": {2: 1}}


def test_uneven_counts_leave_it_open() -> None:
    record = record_of(r0=[(0, 10, 7), (2, 9, 8)], r1=[(5, 11, 7)])
    name_groups(record, HOSTS)
    assert counts(record) == {"unknown": {0: 2, 1: 1}}


def test_groups_over_hosts_are_never_excluded() -> None:
    record = record_of(r0=[(0, 10, 7)], r1=[(5, 11, 7)], r2=[(20, 30, 7)], r3=[(21, 31, 7)])
    name_groups(record, {0: "one", 1: "one", 2: "two", 3: "two"})
    assert counts(record) == {"unknown": {0: 1, 1: 1, 2: 1, 3: 1}}


def test_the_payload_of_an_all_gather_grows_with_the_group() -> None:
    record = record_of("all_gather", r0=[(0, 10, 7)], r1=[(5, 11, 7)])
    name_groups(record, HOSTS)
    (calls, _) = record.groups[GroupKey("all_gather", "a", (0, 1))].windows[0]
    assert calls.size.tolist() == [200]
