"""What main threads sleep in while they train: readings of `rank_main_thread_state` in untraced steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analysis.machine.counters import middle_ns
from perfscope.analysis.machine.host import Host
from perfscope.vocabulary.host_activity import ASLEEP, HostActivity

MAIN_STATE = "rank_main_thread_state"
FEWEST = 20  # readings


class ThreadStates(Struct, frozen=True, kw_only=True):
    """Of one rank's main thread.

    Attributes:
        num_readings: within its untraced steps; at least FEWEST.
        ratios: of these, in which it slept in each activity of ASLEEP; without those of no reading.
    """

    num_readings: int
    ratios: Mapping[HostActivity, float]


def thread_states(hosts: Sequence[Host]) -> dict[int, ThreadStates]:
    """By rank; without ranks that have fewer than FEWEST readings."""
    states = {}
    for host in hosts:
        ranks = {str(rank.pid): rank for rank in host.ranks if rank.pid is not None and len(rank.starts)}
        for series in host.samples.find(MAIN_STATE):
            rank = ranks.get(series.labels.get("pid", ""))
            if rank is None:
                continue
            counted = slice(None) if rank.is_counted is None else rank.is_counted
            starts, ends = rank.starts[counted], rank.ends[counted]
            at = middle_ns(series)
            step = np.searchsorted(starts, at, side="right") - 1
            codes = series.values[(step >= 0) & (at < ends[np.maximum(step, 0)])] if len(starts) else ()
            if len(codes) < FEWEST:
                continue
            counts = np.bincount(np.asarray(codes, dtype=np.int64).clip(0), minlength=len(ASLEEP) + 1)
            ratios = {
                activity: float(count / len(codes))
                for activity, count in zip(ASLEEP, counts[1:], strict=False)
                if count
            }
            states[rank.rank] = ThreadStates(num_readings=len(codes), ratios=ratios)
    return states
