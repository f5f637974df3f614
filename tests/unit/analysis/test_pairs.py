"""Which receive is of which send, where windows begin and end between the two."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.comm_record import GroupCalls, GroupKey
from perfscope.analysis.matching import MatchedCalls, RankCalls
from perfscope.analysis.pairs import match_pairs

MS = 1_000_000
SENDS = np.array([10, 31, 55, 82, 110, 131, 159, 180]) * MS  # when each message is sent
ONE_HOST = {0: "node0", 1: "node0"}
NO_CLOCKS = ClockFit(reference="node0", offset_ns={"node0": 0}, residual_ns={"node0": 0})


def calls(rank: int, peer: int, enter: np.ndarray, leave: np.ndarray, size: int = 1000) -> RankCalls:
    number = len(enter)
    return RankCalls(
        rank=rank,
        enter=enter.astype(np.int64),
        exit=leave.astype(np.int64),
        step=np.zeros(number, dtype=np.int64),
        seq=np.arange(number, dtype=np.int64),
        size=np.full(number, size, dtype=np.int64),
        peer=np.full(number, peer, dtype=np.int64),
        launch=np.full(number, -1, dtype=np.int64),
        lane=np.zeros(number, dtype=np.int64),
    )


def matched(sender: RankCalls, receiver: RankCalls, hosts: dict[int, str], clocks: ClockFit) -> MatchedCalls:
    groups = {}
    for kind, one in (("send", sender), ("recv", receiver)):
        entry = GroupCalls(size=2)
        entry.windows[0].append(one)
        groups[GroupKey(kind, "0", (0, 1))] = entry
    ((_, found),) = match_pairs(groups, hosts, clocks)[GroupKey("send", "0", (0, 1))]
    return found


def pipeline(first_send: int, first_receive: int, num: int) -> tuple[RankCalls, RankCalls]:
    """The receiver waits for each message, works 2 ms and waits for the next."""
    leave = SENDS + MS
    enter = np.concatenate(([0], leave[:-1] + 2 * MS))
    s, r = slice(first_send, first_send + num), slice(first_receive, first_receive + num)
    return calls(0, 1, SENDS[s], SENDS[s] + 30_000), calls(1, 0, enter[r], leave[r])


@pytest.mark.parametrize(("first_send", "first_receive"), [(0, 0), (0, 1), (1, 0), (0, 2)])
def test_a_receive_goes_with_the_send_that_ended_it(first_send: int, first_receive: int) -> None:
    sender, receiver = pipeline(first_send, first_receive, 6)
    found = matched(sender, receiver, ONE_HOST, NO_CLOCKS)
    np.testing.assert_array_equal(found.exit[1] - found.enter[0], np.full(found.enter.shape[1], MS))
    assert found.num_unmatched == 2 * abs(first_receive - first_send)


def test_messages_that_lie_ready_are_counted_from_the_first() -> None:
    """Nothing waits, so every shift is as good; then it is the k-th with the k-th."""
    sender = calls(0, 1, np.arange(6) * MS, np.arange(6) * MS + 1000)
    late = (50 + np.arange(6)) * MS
    found = matched(sender, calls(1, 0, late, late + 1000), ONE_HOST, NO_CLOCKS)
    assert found.num_unmatched == 0


def test_hosts_whose_clocks_cannot_be_compared_are_counted() -> None:
    sender, receiver = pipeline(0, 1, 6)
    doubt = {"node0": 10 * MS, "node1": 10 * MS}
    clocks = ClockFit(reference="node0", offset_ns={"node0": 0, "node1": 0}, residual_ns=doubt)
    assert matched(sender, receiver, {0: "node0", 1: "node1"}, clocks).num_unmatched == 0
