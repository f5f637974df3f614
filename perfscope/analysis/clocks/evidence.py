"""What matched calls say about two hosts' clocks, call by call.

A synchronizing collective (every rank needs something of every other rank) says two things about hosts a, b:

    skew      exit_b - exit_a             about the offset, for all leave within the transfer time
    bounds    enter_b - exit_a <= offset <= exit_b - enter_a, because no rank leaves before the last one
    enters

A send is one-way: exit at the receiver - enter at the sender >= offset. Both ways bound it, as in NTP.
Nothing here compares absolute times, so hosts may stand any time apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from perfscope.analysis.intervals import Int64
from perfscope.analysis.matching import MatchedCalls

SYNCHRONIZING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
MOST_CALLS = 256  # per group and window; more do not make the offset surer than clocks are steady

Hosts = tuple[str, str]


class PairSamples(Struct, frozen=True, kw_only=True, eq=False):
    """Calls of one window that hosts a and b shared; arrays of shape (calls,), ns."""

    window: int
    at: Int64  # on b's clock
    skew: Int64  # b's clock minus a's, as the exits have it
    low: Int64  # the offset is at least this ...
    high: Int64  # ... and at most this
    side: NDArray[np.int8]  # who entered last: -1 = a, 1 = b, 0 = a third host
    stay: Int64  # how long the last one in then stayed
    held: Int64  # how long a and b stayed after the last entry, together; of use among calls of one window
    size: Int64  # bytes; -1 = unknown


class OneWay(Struct, frozen=True, kw_only=True, eq=False):
    """Messages of one window from one host to another; arrays of shape (messages,), ns."""

    window: int
    sent: Int64  # on the sender's clock
    got: Int64  # on the receiver's clock


def shared_calls(
    matched: Iterable[tuple[int, MatchedCalls]], hosts: Mapping[int, str], reference: str
) -> dict[Hosts, list[PairSamples]]:
    """Of synchronizing collectives, per pair of hosts: each host of a group against one of them.

    Args:
        matched: (window, calls), each rank's times on its own host's clock.
        hosts: rank -> host.
        reference: the host against which a group's others are set, where it is one of them.
    """
    result: dict[Hosts, list[PairSamples]] = defaultdict(list)
    for window, calls in matched:
        rows: dict[str, list[int]] = defaultdict(list)
        for row, rank in enumerate(calls.ranks):
            rows[hosts[rank]].append(row)
        if len(rows) < 2 or not calls.enter.shape[1]:
            continue
        names = sorted(rows, key=lambda name: (name != reference, name))
        for column, samples in enumerate(_of_group(window, calls, [rows[name] for name in names]), 1):
            result[names[0], names[column]].append(samples)
    return dict(result)


def _of_group(window: int, calls: MatchedCalls, rows: list[list[int]]) -> Iterable[PairSamples]:
    at = _fastest(calls)
    enter, leave = calls.enter[:, at], calls.exit[:, at]
    # (hosts, calls). The lower median of a host's exits: half of its ranks may leave late.
    left = np.stack([np.sort(leave[rank_rows], axis=0)[(len(rank_rows) - 1) // 2] for rank_rows in rows])
    first_out = np.stack([leave[rank_rows].min(axis=0) for rank_rows in rows])
    last_in = np.stack([enter[rank_rows].max(axis=0) for rank_rows in rows])
    skew = left - left[0]
    rough = np.sort(skew, axis=1)[:, (skew.shape[1] - 1) // 2]
    entered = last_in - rough[:, None]
    last = entered.argmax(axis=0)
    stay = (left - last_in)[last, np.arange(len(last))]
    out = left - rough[:, None] - entered.max(axis=0)
    for b in range(1, len(rows)):
        yield PairSamples(
            window=window,
            at=left[b],
            skew=skew[b],
            low=last_in[b] - first_out[0],
            high=first_out[b] - last_in[0],
            side=((last == b).astype(np.int8) - (last == 0)).astype(np.int8),
            stay=stay,
            held=out[0] + out[b],
            size=calls.size[at],
        )


def _fastest(calls: MatchedCalls) -> NDArray[np.int64]:
    """At most MOST_CALLS calls: the shortest of each run of neighbors, where exits can stray the least."""
    num = calls.enter.shape[1]
    if num <= MOST_CALLS:
        return np.arange(num)
    run = -(-num // MOST_CALLS)
    divisible = num - num % run
    transfer = np.full(num, np.iinfo(np.int64).max)
    for enter, leave in zip(calls.enter, calls.exit, strict=True):
        np.minimum(transfer, leave - enter, out=transfer)
    picked = transfer[:divisible].reshape(-1, run).argmin(axis=1) + np.arange(0, divisible, run)
    return np.append(picked, divisible + transfer[divisible:].argmin()) if divisible < num else picked


def messages(
    pairs: Iterable[tuple[int, MatchedCalls]], hosts: Mapping[int, str]
) -> dict[Hosts, list[OneWay]]:
    """(sender's host, receiver's host) -> messages between them.

    Args:
        pairs: (window, calls) with the sender in row 0 and the receiver in row 1.
        hosts: rank -> host.
    """
    result: dict[Hosts, list[OneWay]] = defaultdict(list)
    for window, calls in pairs:
        sender, receiver = hosts[calls.ranks[0]], hosts[calls.ranks[1]]
        if sender != receiver and calls.enter.shape[1]:
            way = OneWay(window=window, sent=calls.enter[0], got=calls.exit[1])
            result[sender, receiver].append(way)
    return dict(result)
