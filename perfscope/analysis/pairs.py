"""Point-to-point calls: the k-th send from a to b is the k-th receive at b from a (METRICS §2).

Counting goes wrong by a few where a window begins or ends between the two: a pipeline's stage receives before
its step begins, so the first receive of a window belongs to a send that was not traced. Where the two ranks'
clocks can be compared, the shift is taken at which receives end soonest after both ends were there, and none
before its send began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.comm_record import GroupCalls, GroupKey
from perfscope.analysis.intervals import Int64, distinct
from perfscope.analysis.matching import MatchedCalls, RankCalls

SEND, RECV = "send", "recv"


MOST_SHIFT = 8  # calls by which one rank's window may begin before the other's
FEWEST = 4  # calls a shift must join: of fewer, one may fit by chance
_CLEARLY = 0.7  # of the cost without a shift that another one must not exceed
_DOUBT_NS = 100_000  # differences that say nothing


def match_pairs(
    groups: Mapping[GroupKey, GroupCalls], hosts: Mapping[int, str], clocks: ClockFit
) -> dict[GroupKey, list[tuple[int, MatchedCalls]]]:
    """Group key of the sends -> (window, calls) with the sender in row 0 and the receiver in row 1.

    Calls whose peer the trace does not name, or whose other end was not traced, are left out.

    Args:
        groups: all calls.
        hosts: rank -> host.
        clocks: of the hosts, as far as collectives tell.
    """
    result: dict[GroupKey, list[tuple[int, MatchedCalls]]] = defaultdict(list)
    for key in groups:
        other = groups.get(key._replace(collective=RECV))
        if key.collective != SEND or other is None:
            continue
        for window, sends in sorted(groups[key].windows.items()):
            receives = {calls.rank: calls for calls in other.windows.get(window, [])}
            for sender in sends:
                for peer in distinct(sender.peer[sender.peer >= 0]).tolist():
                    if peer in receives:
                        ends = (hosts.get(sender.rank, ""), hosts.get(peer, ""))
                        result[key].append((window, _pair(sender, receives[peer], ends, clocks)))
    return dict(result)


def _pair(sender: RankCalls, receiver: RankCalls, hosts: tuple[str, str], clocks: ClockFit) -> MatchedCalls:
    out = np.flatnonzero(sender.peer == receiver.rank)
    back = np.flatnonzero(receiver.peer == sender.rank)
    shift = _shift(sender, receiver, (out, back), hosts, clocks)
    sent, got = out[max(shift, 0) :], back[max(-shift, 0) :]
    num = min(len(sent), len(got))
    sent, got = sent[:num], got[:num]
    return MatchedCalls(
        ranks=(sender.rank, receiver.rank),
        enter=np.stack((sender.enter[sent], receiver.enter[got])),
        exit=np.stack((sender.exit[sent], receiver.exit[got])),
        size=np.maximum(sender.size[sent], receiver.size[got]),
        seq=sender.seq[sent],
        step=np.stack((sender.step[sent], receiver.step[got])),
        launch=np.stack((sender.launch[sent], receiver.launch[got])),
        lane=np.stack((sender.lane[sent], receiver.lane[got])),
        num_unmatched=len(out) + len(back) - 2 * num,
    )


def _shift(
    sender: RankCalls,
    receiver: RankCalls,
    calls: tuple[Int64, Int64],
    hosts: tuple[str, str],
    clocks: ClockFit,
) -> int:
    """By how many sends the receives are behind: receive k is of send k + shift."""
    out, back = calls
    ranks = (sender.rank, receiver.rank)
    first, second = (clocks.clock_of(rank, host) for rank, host in zip(ranks, hosts, strict=True))
    doubt = 0 if first == second else int(clocks.doubts(ranks, hosts).sum())
    if doubt > _DOUBT_NS or not len(out) or not len(back):
        return 0
    sent = clocks.to_reference(hosts[0], sender.enter[out])
    got, leave = (clocks.to_reference(hosts[1], times[back]) for times in (receiver.enter, receiver.exit))
    costs: dict[int, float] = {}
    for shift in range(-MOST_SHIFT, MOST_SHIFT + 1):
        s, r = max(shift, 0), max(-shift, 0)
        num = min(len(sent) - s, len(got) - r)
        if (shift and num < FEWEST) or 2 * num < min(len(sent), len(got)):
            continue
        begin = sent[s : s + num]
        over = leave[r : r + num] - np.maximum(begin, got[r : r + num])
        sizes = sender.size[out][s : s + num], receiver.size[back][r : r + num]
        alike = (sizes[0] == sizes[1]) | (sizes[0] < 0) | (sizes[1] < 0)
        if alike.all() and (leave[r : r + num] >= begin - doubt - _DOUBT_NS).mean() >= 0.95:
            costs[shift] = float(np.maximum(over, 0).mean())
    if not costs:
        return 0
    best = min(costs, key=lambda shift: (costs[shift], abs(shift)))
    plain = costs.get(0)
    if plain is not None and costs[best] > min(_CLEARLY * plain, plain - _DOUBT_NS):
        return 0
    return best
