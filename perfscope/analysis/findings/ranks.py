"""Ranks as the cause: one that is slower than its peers, a model that is split unevenly, work that varies."""

from __future__ import annotations

import math
from collections import Counter

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.rank_facts import num_devices
from perfscope.analysis.results import CollectiveCall, Finding
from perfscope.analysis.server import servers_of
from perfscope.analysis.whatif.analyse import in_words
from perfscope.analysis.whatif.peers import SLOWER, Slow
from perfscope.analysis.whatif.results import WhatIf
from perfscope.messages.sentences import capital
from perfscope.units import format_count, format_ns, format_ratio

CLEARLY = 2.4  # standard deviations of a fair draw above which a rank is last too often
HOLDS_UP = 0.8  # one rank last in so many of the calls holds the others up
IMBALANCE = 0.03  # busiest rank over the mean, as a share of the step
UNEVEN = 0.1  # of one layer's parameters by which two ranks' shares of it differ
_DOMINANT = 0.5  # of the excess of all slow ranks that the worst has, to be the one


def slow_rank(evidence: Evidence, verdict: bool) -> Finding | None:
    """A rank that does the same as others and takes longer; its gain is what the replay says."""
    what_if = evidence.what_ifs.of("no_stragglers")
    if what_if is None or evidence.uneven is not None:
        return None
    slow = [rank for rank in evidence.what_ifs.slow if rank.rank not in servers(evidence)]
    if not slow or slow[0].excess_ns < _DOMINANT * sum(rank.excess_ns for rank in slow):
        return None
    worst = slow[0]
    waited = held_up(evidence)
    if waited is not None and waited[0] == worst.rank:
        _, cost, times = waited
        title = (
            f"Rank {worst.rank} is the straggler: the others wait {evidence.of_step(cost)} for it; it enters "
            f"last in {format_count(times)} of {format_count(len(certain_calls(evidence)))} collectives."
        )
    else:
        usual = format_ratio(worst.excess_ns / worst.peers_ns, 0) if worst.peers_ns else "all of it"
        title = f"Rank {worst.rank} is slow: {usual} more for the same work, and the others wait for it."
    detail = in_words(worst)
    return Finding(
        id="straggler",
        title=title,
        detail=f"{capital(detail)}.{_prediction(what_if)}",
        action=_why_slow(worst),
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
        layer=worst.layer,
        rank=worst.rank,
    )


def _why_slow(worst: Slow) -> str:
    if worst.part == "idle":
        return (
            f"Find out what rank {worst.rank} does outside operators: logging, checkpoints, other processes "
            "on its cores (see Machine), its core binding."
        )
    if worst.layer is not None and worst.part_excess_ns > 0.6 * worst.excess_ns:
        return (
            f"Look at {worst.layer} on rank {worst.rank}: its data, shapes and code path against the others'."
        )
    return f"Find out what rank {worst.rank} does differently: its data, code path, clocks, core binding."


def _prediction(what_if: WhatIf) -> str:
    doubt = f" ({what_if.caution})" if what_if.caution else ""
    return f" With {what_if.title} the step would take {format_ns(what_if.step_ns)}{doubt}."


def model_split(evidence: Evidence, verdict: bool) -> Finding | None:
    """A model split over ranks so that one has more to compute."""
    what_if = evidence.what_ifs.of("perfect_balance")
    uneven = evidence.uneven
    if what_if is None or not (evidence.what_ifs.different_work or uneven is not None):
        return None
    busy = {rank.rank: part.compute + part.optimizer for rank, part in evidence.traced}
    busy = {rank: time for rank, time in busy.items() if rank not in servers(evidence)}
    if len(busy) < 2:
        return None
    most, least = max(busy, key=lambda rank: busy[rank]), min(busy, key=lambda rank: busy[rank])
    mean = sum(busy.values()) / len(busy)
    how = "Ranks run different layers."
    if uneven is not None:
        how = (
            f"Rank {uneven.most_rank} holds {format_ratio(uneven.most / uneven.least - 1, 0)} more "
            f"parameters of {uneven.layer} than rank {uneven.least_rank}."
        )
    return Finding(
        id="model_split",
        title=(
            f"The model is split unevenly: rank {most} computes {format_ns(busy[most])} per step, rank "
            f"{least} {format_ns(busy[least])}, the mean rank {format_ns(mean)}."
        ),
        detail=f"{how} The others wait for rank {most}.{_prediction(what_if)}",
        action=f"Move layers (or parts of them) from rank {most} to rank {least}.",
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
        rank=most,
    )


def late_start(evidence: Evidence, verdict: bool) -> Finding | None:
    """A rank that begins the traced steps after the others, who wait for it in their first call."""
    what_if = evidence.what_ifs.of("equal_start")
    if what_if is None:
        return None
    calls = certain_calls(evidence)
    if not any(call.late_rank == what_if.rank for call in calls):
        return None
    times, count = sum(call.late_rank == what_if.rank for call in calls), format_count(len(calls))
    return Finding(
        id="late_start",
        title=(
            f"Rank {what_if.rank} begins the traced steps late, and the others wait for it in their first "
            f"call; it enters last in {format_count(times)} of {count} calls."
        ),
        detail=(f"{capital(what_if.evidence)}.{_prediction(what_if)} {wait_or_transfer(evidence)}"),
        action=(
            f"Look at what rank {what_if.rank} does before: its input, logging, the step before. Trace "
            "several steps to see whether it is so in each."
        ),
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
        rank=what_if.rank,
    )


def imbalance(evidence: Evidence, verdict: bool) -> Finding | None:
    """Unequal work without a rank that is slower than its peers: some have less to do, or they take turns."""
    what_if = evidence.what_ifs.of("perfect_balance")
    if (
        what_if is None
        or evidence.what_ifs.different_work
        or evidence.uneven is not None
        or servers(evidence)
    ):
        return None
    if evidence.what_ifs.of("no_stragglers") is not None:
        return None
    busy = _busy(evidence)
    mean = sum(busy.values()) / max(len(busy), 1)
    worst = max(busy, key=lambda rank: busy[rank], default=None)
    if worst is not None and busy[worst] > (1 + SLOWER) * mean:
        title = (
            f"Work is spread unevenly: rank {worst} is busy {format_ns(busy[worst])} per step, the mean rank "
            f"{format_ns(mean)}; equal work would save {format_ratio(what_if.gain_ratio)} of the step."
        )
        detail, action = (
            "Busy is computation, optimizer and input.",
            "Give ranks with less to do a larger share.",
        )
    else:
        title = (
            "Ranks take turns at being slow: equal computation in every step would save "
            f"{format_ratio(what_if.gain_ratio)} of it."
        )
        detail = "No rank is slower than the others over all traced steps."
        action = "Look for work that varies: sample lengths, caches, other processes, clocks."
    return Finding(
        id="imbalance",
        title=title,
        detail=detail + _prediction(what_if),
        action=action,
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
    )


def _busy(evidence: Evidence) -> dict[int, int]:
    """Rank -> what it does per step besides waiting for others, ns; without ranks that only serve."""
    serving = servers(evidence)
    return {
        rank.rank: part.compute + part.optimizer + part.input_wait
        for rank, part in evidence.traced
        if rank.rank not in serving
    }


def busiest(evidence: Evidence) -> list[Finding]:
    """Unequal work between collectives, by the breakdown alone, where nothing could be replayed."""
    if len(evidence.traced) < 2 or not evidence.step or evidence.what_ifs.check is not None:
        return []
    busy = _busy(evidence)
    if len(busy) < 2:
        return []
    mean = sum(busy.values()) / len(busy)
    worst = max(busy, key=lambda rank: busy[rank])
    excess = busy[worst] - mean
    gain = min(excess, evidence.mean("exposed_comm")) if evidence.collectives else excess
    if gain < IMBALANCE * evidence.step:
        return []
    return [
        Finding(
            id="straggler",
            title=(
                f"In the traced steps rank {worst} is busy {format_ns(busy[worst])} per step, "
                f"the mean rank {format_ns(mean)}; equal work would save up to {evidence.of_step(gain)}."
            ),
            detail="Busy is computation, optimizer and input; the others wait for it in collectives.",
            action=f"Compare rank {worst}'s data, layers, clocks and core binding with the others'.",
            gain_ns=evidence.all_of(gain)[0],
            gain_ratio=gain / evidence.step,
            rank=worst,
        )
    ]


def held_up(evidence: Evidence) -> tuple[int, float, int] | None:
    """(rank that nearly always enters last, what the others wait for it per step in ns, how often).

    The mean over all ranks would halve it: what is waiting on the others is other work, or idle, on that one.
    """
    rank, times = late(evidence)
    if rank is None or not evidence.in_calls_ns or evidence.waiting_ns is None:
        return None
    exposed_of_others = [part.exposed_comm for result, part in evidence.traced if result.rank != rank]
    mostly_waiting = evidence.waiting_ns > evidence.in_calls_ns / 2
    if times < HOLDS_UP * len(certain_calls(evidence)) or not mostly_waiting or not exposed_of_others:
        return None
    waited = (
        evidence.waiting_ns / max(evidence.steps_per_rank, 1) * len(evidence.traced) / len(exposed_of_others)
    )
    return (
        rank,
        min(waited, sum(exposed_of_others) / len(exposed_of_others)),
        times,
    )  # the late rank itself waits for nobody


def certain_calls(evidence: Evidence) -> list[CollectiveCall]:
    """Calls of which it is certain who came last."""
    return [call for call in evidence.calls if not call.late_uncertain]


def late(evidence: Evidence) -> tuple[int | None, int]:
    """The rank that enters last clearly more often than its share, on enough calls, and how often."""
    calls = certain_calls(evidence)
    if len(calls) < 5 or len(evidence.ranks) < 2:
        return None, 0
    rank, times = Counter(call.late_rank for call in calls).most_common(1)[0]
    share = 1 / len(evidence.ranks)
    usual = share * len(calls)
    by_chance = usual + CLEARLY * math.sqrt(usual * (1 - share))
    return (rank, times) if times >= by_chance else (None, times)


def _transfer(evidence: Evidence) -> int:
    """Sum of the matched calls' transfers, ns."""
    return sum(call.transfer_ns for call in evidence.calls)


def wait_or_transfer(evidence: Evidence) -> str:
    """How much of the time in calls is waiting for the last rank, and how much transfer."""
    in_calls, waiting = evidence.in_calls_ns, evidence.waiting_ns
    devices = devices_of_one(evidence)
    if devices:
        return (
            f"Waiting and transfer cannot be distinguished: the {devices} devices belong to one process, "
            "and the trace does not show which of them entered a call last."
        )
    if not in_calls or waiting is None:
        return "Waiting and transfer cannot be distinguished: that needs the traces of every rank of a group."
    steps = max(evidence.steps_per_rank, 1)
    unit, transfer = "step" if evidence.breakdown_of == "step" else "file", _transfer(evidence)
    at_once = " (overlapping)" if transfer > 1.1 * (in_calls - waiting) else ""
    return (
        f"Average over ranks: {format_ns(in_calls / steps)} per {unit} in collectives, "
        f"{format_ratio(waiting / in_calls)} of it ({format_ns(waiting / steps)}) waiting for the last "
        f"rank to enter; the transfers themselves take {format_ns(transfer / steps)}{at_once}."
    )


def devices_of_one(evidence: Evidence) -> int:
    """Devices of the longest collective's group, where all of them are one process's; 0 elsewhere."""
    top = max(evidence.collectives, key=lambda collective: collective.duration_ns, default=None)
    if top is None or evidence.in_calls_ns or len(evidence.ranks) != 1:
        return 0
    return (
        top.group_size if 1 < top.group_size == num_devices(evidence.metas).get(evidence.ranks[0].rank) else 0
    )


def servers(evidence: Evidence) -> set[int]:
    """Ranks of a bench run that only serve: they wait by design."""
    return servers_of(evidence.run.scheme)
