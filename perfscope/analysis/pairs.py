"""Point-to-point calls: the k-th send from a to b is the k-th receive at b from a (METRICS §2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from perfscope.analysis.comm_record import GroupCalls, GroupKey
from perfscope.analysis.matching import MatchedCalls, RankCalls

SEND, RECV = "send", "recv"


def match_pairs(groups: Mapping[GroupKey, GroupCalls]) -> dict[GroupKey, list[tuple[int, MatchedCalls]]]:
    """Group key of the sends -> (window, calls) with the sender in row 0 and the receiver in row 1.

    Calls whose peer the trace does not name, or whose other end was not traced, are left out.
    """
    result: dict[GroupKey, list[tuple[int, MatchedCalls]]] = defaultdict(list)
    for key in groups:
        other = groups.get(key._replace(collective=RECV))
        if key.collective != SEND or other is None:
            continue
        for window, sends in sorted(groups[key].windows.items()):
            receives = {calls.rank: calls for calls in other.windows.get(window, [])}
            for sender in sends:
                for peer in np.unique(sender.peer[sender.peer >= 0]).tolist():
                    if peer in receives:
                        result[key].append((window, _pair(sender, receives[peer])))
    return dict(result)


def _pair(sender: RankCalls, receiver: RankCalls) -> MatchedCalls:
    out = np.flatnonzero(sender.peer == receiver.rank)
    back = np.flatnonzero(receiver.peer == sender.rank)
    num = min(len(out), len(back))
    sent, got = out[:num], back[:num]
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
