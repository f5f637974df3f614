"""Collectives across ranks (METRICS §2): who came last, how long the others waited, what the transfer took.

    wait_r   = latest entry - entry of r, at most r's own time in the call
    transfer = the shortest time any rank spent in the call
    algbw    = S / transfer;  busbw = algbw x factor

S and the factor are of METRICS §2. Entries on different hosts are compared on one host's clock, by
`clocks.fit.fit_clocks`. Nothing is stated about transfer or waiting when fewer ranks were traced than the
group has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis import intervals as iv
from perfscope.analysis.clocks.fit import SYNCHRONIZING, ClockFit, RankClocks, fit_clocks
from perfscope.analysis.clocks.unnamed import rank_clocks
from perfscope.analysis.collective_waits import JudgedCalls, judge
from perfscope.analysis.comm_groups import name_groups
from perfscope.analysis.comm_record import CommRecord, GroupCalls, GroupKey, is_unknown
from perfscope.analysis.intervals import Int64
from perfscope.analysis.matching import MatchedCalls, match_calls
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.pairs import RECV, SEND, match_pairs
from perfscope.analysis.results import CollectiveCall, CollectiveResult
from perfscope.messages import collectives as why
from perfscope.tasks import chunks
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.volumes import bus_factor

_Matched = list[tuple[int, MatchedCalls]]  # (window, calls)
_RANKS_TOGETHER = 256

# Synchronizing whatever the ranks hand in: an all_to_all may have nothing to wait for on some rank.
ALL_NEED_ALL = SYNCHRONIZING - {"all_to_all"}

# Calls of one rank alone: windows and probes of MPI.
ONE_SIDED = frozenset({"put", "get", "accumulate", "epoch", "probe"})


class CommAnalysis(Struct, frozen=True, kw_only=True):
    """What the calls of all ranks say."""

    collectives: tuple[CollectiveResult, ...]  # most time first
    calls: tuple[CollectiveCall, ...]  # by window and start
    clocks: ClockFit
    missing: tuple[Missing, ...]
    in_calls_ns: int | None  # mean rank's |union| of matched calls; None: none matched
    waiting_ns: int | None  # part of it in which the rank waits for the last one to enter, in any call
    matches: tuple[
        JudgedCalls, ...
    ] = ()  # every matched call, one entry per group, kind and window (or pair)


def analyze_collectives(
    record: CommRecord,
    hosts: Mapping[int, str],
    world_size: int | None,
    devices: Mapping[int, int] | None = None,
    clocks_of_ranks: RankClocks | None = None,
) -> CommAnalysis:
    """Matches all calls and sums them up per collective and group.

    Args:
        record: calls of every rank; calls without a group are given theirs where it is certain.
        hosts: rank -> host.
        world_size: ranks of the job, for groups whose size the trace does not name.
        devices: rank -> devices of its process, where it has several.
        clocks_of_ranks: by which times have been moved, where hosts without a name have several clocks.
    """
    name_groups(record, hosts)
    world_size = world_size or _ranks_of_job(record)
    matched, clocks, missing = _match(record, hosts, world_size, devices or {}, clocks_of_ranks)
    if record.num_nameless:
        missing.append(
            missing_figure(Figure.COMM_SPANS, Cause.COLLECTIVE_NOT_NAMED, count=record.num_nameless)
        )
    results: list[CollectiveResult] = []
    calls: list[CollectiveCall] = []
    matches: list[JudgedCalls] = []
    for key, group in sorted(record.groups.items()):
        # A receive's partner is a send: both ends share one match, each looks at its own row.
        group_matches = matched.get(key._replace(collective=SEND) if key.collective == RECV else key)
        judged = (
            None
            if group_matches is None
            else [judge(key, window, matched_calls, hosts, clocks) for window, matched_calls in group_matches]
        )
        results.append(_sum_up(key, group, judged, world_size))
        missing.extend(_unsized(results[-1]))
        if judged and key.collective != RECV:
            matches.extend(judged)
            calls.extend(call for judged_calls in judged for call in judged_calls.calls())
            missing.extend(_unmatched(key, group, judged))
    in_calls, waiting = _union_means(matches)
    return CommAnalysis(
        collectives=tuple(sorted(results, key=lambda r: (-r.duration_ns, r.collective, r.group))),
        calls=tuple(sorted(calls, key=lambda c: (c.window, c.start_ns, c.group, c.collective))),
        clocks=clocks,
        missing=tuple(missing),
        in_calls_ns=in_calls,
        waiting_ns=waiting,
        matches=tuple(matches),
    )


def _ranks_of_job(record: CommRecord) -> int | None:
    """Ranks of a job that states no size: those that were traced, unless there must be more.

    One rank that communicates has others, and so has a group of more ranks than were traced.
    """
    traced = {rank for group in record.groups.values() for rank in group.ranks}
    most = max((group.size for group in record.groups.values()), default=0)
    return len(traced) if len(traced) > 1 and most <= len(traced) else None


def _match(
    record: CommRecord,
    hosts: Mapping[int, str],
    world_size: int | None,
    devices: Mapping[int, int],
    of_ranks: RankClocks | None,
) -> tuple[dict[GroupKey, _Matched], ClockFit, list[Missing]]:
    """The calls of each group that are one call, the clocks fitted to them, and what could not be matched."""
    matched: dict[GroupKey, _Matched] = {}
    reasons: dict[GroupKey, str] = {}
    for key, group in sorted(record.groups.items()):
        group_matches, reason = _match_group(key, group, world_size, devices)
        if group_matches is not None:
            matched[key] = group_matches
        if reason:
            reasons[key] = reason
    together = [
        match
        for key, group_matches in matched.items()
        if key.collective in SYNCHRONIZING
        for match in group_matches
    ]
    if of_ranks is None and len(hosts) > 1 and not any(hosts.values()):
        strict = [
            match for key, group in matched.items() if key.collective in ALL_NEED_ALL for match in group
        ]
        of_ranks = rank_clocks(together, sorted(hosts), record.groups, strict=strict)
    clocks = replace(fit_clocks(together, hosts), of_ranks=of_ranks)
    pairs = match_pairs(record.groups, hosts, clocks)
    if pairs:  # clocks of hosts that share no collective follow from them
        messages = [match for group_matches in pairs.values() for match in group_matches]
        clocks = replace(fit_clocks(together, hosts, messages), of_ranks=of_ranks)
    matched |= pairs
    missing = [
        missing_figure(
            Figure.COLLECTIVE_TIMES,
            Cause.CALLS_UNMATCHED,
            collective=key.collective,
            group=key.group,
            reason=reason,
        )
        for key, reason in reasons.items()
        if not (key.collective in {SEND, RECV} and key._replace(collective=SEND) in matched)
    ]
    return matched, clocks, missing


def _union_means(matches: Sequence[JudgedCalls]) -> tuple[int | None, int | None]:
    """The mean rank's time in matched calls and its time waiting in them, over all windows.

    Both are unions: calls of two groups, or of two threads of the backend, overlap.
    """
    spans: dict[int, list[tuple[Int64, Int64, Int64]]] = defaultdict(list)
    for calls in matches:
        enters = calls.last_entry - calls.lead
        ends = zip(enters, enters + calls.wait, enters + calls.duration, strict=True)
        for rank, of_rank in zip(calls.ranks, ends, strict=True):
            spans[rank].append(of_rank)
    if not spans:
        return None, None
    in_calls = waiting = 0
    for ranks in chunks(list(spans.values()), _RANKS_TOGETHER):
        lengths = [sum([len(enter) for enter, _, _ in parts]) for parts in ranks]
        row = np.repeat(np.arange(len(ranks)), lengths)
        enter, waited, leave = (
            np.concatenate(columns) for columns in zip(*chain.from_iterable(ranks), strict=True)
        )
        first = np.full(len(ranks), np.iinfo(np.int64).max)  # of each rank: nearer to 0, where many have room
        np.minimum.at(first, row, enter)
        enter, waited, leave = (times - first[row] for times in (enter, waited, leave))
        in_calls += int(iv.grouped_length(row, enter, leave, len(ranks)).sum())
        waiting += int(iv.grouped_length(row, enter, waited, len(ranks)).sum())
    return round(in_calls / len(spans)), round(waiting / len(spans))


def _match_group(
    key: GroupKey, group: GroupCalls, world_size: int | None, devices: Mapping[int, int]
) -> tuple[_Matched | None, str | None]:
    """The matched calls, or None and why there are none."""
    if key.collective in {SEND, RECV}:
        return None, why.OTHER_END
    if key.collective in ONE_SIDED:
        return None, why.ONE_SIDED
    if is_unknown(key.group):
        return None, why.GROUP_NOT_KNOWN
    size = group.size or world_size
    if size is None:
        return None, why.SIZE_NOT_KNOWN
    if len(group.ranks) < size <= sum(devices.get(rank, 1) for rank in group.ranks):
        return None, why.single_devices(size, len(group.ranks))
    if len(group.ranks) < size:
        return None, why.ranks_traced(len(group.ranks), size)
    complete = {window: calls for window, calls in group.windows.items() if len(calls) >= size}
    if not complete:
        return None, why.no_common_window(size)
    return [(window, match_calls(calls, key.collective)) for window, calls in sorted(complete.items())], None


def _sum_up(
    key: GroupKey, group: GroupCalls, judged: Sequence[JudgedCalls] | None, world_size: int | None
) -> CollectiveResult:
    every = [calls for window in group.windows.values() for calls in window]
    num_ranks = len(group.ranks)
    sizes = np.concatenate([calls.size for calls in every])
    duration = round(sum(int((calls.exit - calls.enter).sum()) for calls in every) / num_ranks)
    size = group.size or (None if is_unknown(key.group) else world_size)
    has_size = sizes >= 0
    total_bytes = round(int(sizes[has_size].sum()) / num_ranks) if has_size.any() else None
    in_told = round(
        sum(int((calls.exit - calls.enter)[calls.size >= 0].sum()) for calls in every) / num_ranks
    )
    factor = bus_factor(key.collective, size or 0)
    transfer = _Transfer.of(key, judged, num_ranks) if judged else None
    algbw = transfer.bytes_per_s if transfer else None
    with_wait = total_bytes * factor * 1e9 / in_told if total_bytes and factor and in_told else None
    return CollectiveResult(
        collective=key.collective,
        group=key.group,
        group_size=size,
        dtype=next(iter(group.dtypes)) if len(group.dtypes) == 1 else None,
        count=round(len(sizes) / num_ranks),
        bytes=total_bytes,
        duration_ns=duration,
        transfer_ns=transfer.total_ns if transfer else None,
        wait_ns=transfer.wait_ns if transfer else None,
        max_wait_ns=transfer.max_wait_ns if transfer else None,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * factor if algbw is not None and factor is not None else None,
        busbw_with_wait_bytes_per_s=with_wait,
        late_counts=transfer.late_counts if transfer else (),
        num_matched=transfer.num_matched if transfer else 0,
        num_waits_uncertain=transfer.num_uncertain if transfer else None,
        num_unsized=round(int((~has_size).sum()) / num_ranks),
    )


class _Transfer(Struct, frozen=True, kw_only=True):
    """The figures that need every rank of the group."""

    total_ns: int
    wait_ns: int
    max_wait_ns: int
    bytes_per_s: float | None
    late_counts: tuple[tuple[int, int], ...]
    num_matched: int
    num_uncertain: int

    @classmethod
    def of(cls, key: GroupKey, judged: Sequence[JudgedCalls], num_ranks: int) -> _Transfer | None:
        waiting_side = {SEND: slice(0, 1), RECV: slice(1, 2)}.get(key.collective, slice(None))
        num_calls = sum(len(judged_calls.seq) for judged_calls in judged)
        if num_calls == 0:
            return None
        total = sum(int(calls.transfer.sum()) for calls in judged)
        late: Counter[int] = Counter()
        for calls in judged:
            late.update(calls.ranks[row] for row in calls.late_row.tolist())
        # A pair has one rank of each side per call; a collective has all of its ranks.
        wait = sum(int(calls.wait[waiting_side].sum()) for calls in judged) / num_ranks
        moved = sum(int(calls.size[calls.size >= 0].sum()) for calls in judged)
        in_told = sum(int(calls.transfer[calls.size >= 0].sum()) for calls in judged)
        return cls(
            total_ns=total if waiting_side == slice(None) else round(total / num_ranks),
            wait_ns=round(wait),
            max_wait_ns=max(int(calls.wait[waiting_side].max(initial=0)) for calls in judged),
            bytes_per_s=moved * 1e9 / in_told if moved and in_told else None,
            late_counts=tuple(sorted(late.items(), key=lambda item: (-item[1], item[0]))),
            num_matched=num_calls if waiting_side == slice(None) else round(num_calls / num_ranks),
            num_uncertain=sum(int(calls.uncertain[waiting_side].sum()) for calls in judged),
        )


def _unsized(result: CollectiveResult) -> list[Missing]:
    if result.bytes is None or not result.num_unsized:  # none has a size: the row itself says so
        return []
    return [
        missing_figure(
            Figure.COLLECTIVE_BYTES,
            Cause.SIZE_NOT_IN_TRACE,
            count=result.num_unsized,
            total=result.count,
            collective=result.collective,
            group=result.group,
        )
    ]


def _unmatched(key: GroupKey, group: GroupCalls, judged: Sequence[JudgedCalls]) -> list[Missing]:
    number = sum(judged_calls.num_unmatched for judged_calls in judged)
    if not number:
        return []
    total = sum(len(calls.enter) for window in group.windows.values() for calls in window)
    return [
        missing_figure(
            Figure.SOME_COLLECTIVE_TIMES,
            Cause.SOME_CALLS_UNMATCHED,
            count=number,
            total=total,
            collective=key.collective,
            group=key.group,
        )
    ]
