"""Matched calls on one clock: who entered last, how long the others waited (METRICS §2)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.comm_record import GroupKey
from perfscope.analysis.intervals import Int64
from perfscope.analysis.matching import MatchedCalls
from perfscope.analysis.results import CollectiveCall


class JudgedCalls(Struct, frozen=True, kw_only=True, eq=False):
    """Matched calls with what they say; matrices of shape (ranks, calls), rows as `ranks`.

    Calls from one rank to another have the sender in row 0, the receiver in row 1, and the key of the sends.
    """

    key: GroupKey
    window: int
    ranks: tuple[int, ...]
    enter: Int64  # reference host's clock
    exit: Int64
    step: Int64  # the step each rank made the call in; -1 = outside every step
    launch: Int64  # when each rank's host asked for it, on that host's own clock; -1 = not in the trace
    lane: Int64  # thread or stream it ran on
    last_entry: Int64  # shape (calls,), reference host's clock
    lead: Int64  # how long before the last entry each rank entered
    wait: Int64  # the same, but no longer than the rank's own call
    duration: Int64
    late_row: NDArray[np.int64]
    start_skew: Int64
    end_skew: Int64
    size: Int64
    seq: Int64
    uncertain: NDArray[np.bool_]  # waits within the uncertainty of the two ranks' clocks
    num_unmatched: int

    @property
    def transfer(self) -> Int64:
        """Shape (calls,), ns."""
        result: Int64 = self.duration.min(axis=0)
        return result

    def calls(self) -> list[CollectiveCall]:
        doubted = np.asarray(self.uncertain.any(axis=0)).tolist()
        transfer, late = self.transfer.tolist(), [self.ranks[row] for row in self.late_row.tolist()]
        return [
            CollectiveCall(
                window=self.window,
                seq=int(self.seq[k]),
                collective=self.key.collective,
                group=self.key.group,
                start_ns=int(self.last_entry[k]),
                transfer_ns=transfer[k],
                late_rank=late[k],
                start_skew_ns=int(self.start_skew[k]),
                end_skew_ns=int(self.end_skew[k]),
                bytes=int(self.size[k]) if self.size[k] >= 0 else None,
                late_uncertain=doubted[k],
            )
            for k in range(len(transfer))
        ]


def judge(
    key: GroupKey, window: int, calls: MatchedCalls, hosts: Mapping[int, str], clocks: ClockFit
) -> JudgedCalls:
    """Puts matched calls on one clock and says who was late.

    Args:
        key: what they are.
        window: where they were traced.
        calls: the match, each rank's times on its own host's clock.
        hosts: rank -> host.
        clocks: how the hosts' clocks stand to each other.
    """
    of_rank = [hosts[rank] for rank in calls.ranks]
    enter = np.stack([clocks.to_reference(of_rank[row], calls.enter[row]) for row in range(len(of_rank))])
    leave = np.stack([clocks.to_reference(of_rank[row], calls.exit[row]) for row in range(len(of_rank))])
    last, late_row = enter.max(axis=0), enter.argmax(axis=0)
    duration = np.maximum(leave - enter, 0)
    wait = np.minimum(last - enter, duration)
    residual = clocks.doubts(calls.ranks, of_rank)
    names = [clocks.clock_of(rank, host) for rank, host in zip(calls.ranks, of_rank, strict=True)]
    clock = np.unique(names, return_inverse=True)[1]
    foreign = clock[:, None] != clock[late_row][None, :]
    doubt = residual[:, None] + residual[late_row][None, :]
    return JudgedCalls(
        key=key,
        window=window,
        ranks=calls.ranks,
        enter=enter,
        exit=leave,
        step=calls.step,
        launch=calls.launch,
        lane=calls.lane,
        last_entry=last,
        lead=last - enter,
        wait=wait,
        duration=duration,
        late_row=late_row,
        start_skew=last - enter.min(axis=0),
        end_skew=leave.max(axis=0) - leave.min(axis=0),
        size=calls.size,
        seq=calls.seq,
        uncertain=foreign & (wait < doubt),
        num_unmatched=calls.num_unmatched,
    )
