"""Communication as the cause: exposed, waiting for a late rank, many small calls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.results import Finding
from perfscope.units import format_bytes, format_count, format_ns, format_ratio

NOTABLE = 0.05  # a cause below this share of the step is not worth a finding beside the verdict
CLEARLY = 2.4  # standard deviations of a fair draw above which a rank is last too often
HOLDS_UP = 0.8  # one rank last in so many of the calls holds the others up
IMBALANCE = 0.03  # busiest rank over the mean, as a share of the step
SMALL_BYTES = 256 * 1024  # a collective below this pays mostly latency
BUCKET_BYTES = 25 * 1024 * 1024  # DistributedDataParallel's default bucket


def exposed(evidence: Evidence, cost: float, verdict: bool) -> Finding:
    top = max(evidence.collectives, key=lambda one: one.duration_ns, default=None)
    name = top.collective if top and len({one.collective for one in evidence.collectives}) == 1 else None
    what = f"exposed {name}" if name else "communication that no computation hides"
    lead = "Communication bounds the step" if verdict else "Communication is exposed"
    title = f"{lead}: {evidence.of_step(cost)} is {what}"
    late_rank, times = _late(evidence)
    if late_rank is not None:
        calls = format_count(len(evidence.calls))
        title += f"; rank {late_rank} enters last in {format_count(times)} of {calls} calls"
    return Finding(
        id="comm_bound",
        title=title + ".",
        detail=_hidden(evidence) + _wait_or_transfer(evidence),
        action=_communication_action(evidence, late_rank),
        gain_ns=round(cost),
        gain_ratio=cost / evidence.step,
        rank=late_rank,
        collective=top.collective if top else None,
    )


def held_up(evidence: Evidence) -> float | None:
    """What the other ranks wait per step for the one that nearly always enters last, ns; None without one.

    The mean over all ranks would halve it: what is waiting on the others is other work, or idle, on that one.
    """
    rank, times = _late(evidence)
    if rank is None or not evidence.in_calls_ns or evidence.waiting_ns is None:
        return None
    others = [part.exposed_comm for one, part in evidence.traced if one.rank != rank]
    mostly_waiting = evidence.waiting_ns > evidence.in_calls_ns / 2
    if times < HOLDS_UP * len(evidence.calls) or not mostly_waiting or not others:
        return None
    waited = evidence.waiting_ns / max(evidence.steps_per_rank, 1) * len(evidence.traced) / len(others)
    return min(waited, sum(others) / len(others))  # the late rank itself waits for nobody


def holds_up(evidence: Evidence, cost: float, verdict: bool) -> Finding:
    rank, times = _late(evidence)
    own = next(part for one, part in evidence.traced if one.rank == rank)
    others = [part for one, part in evidence.traced if one.rank != rank]
    excess = {
        what: getattr(own, part) - sum(getattr(other, part) for other in others) / len(others)
        for part, what in (
            ("compute", "computation"),
            ("input_wait", "waiting for input"),
            ("optimizer", "the optimizer"),
            ("copy", "copies"),
            ("idle", "no operator at all (Python, sleeping, or another process on its core)"),
        )
    }
    reason = max(excess, key=lambda what: excess[what])
    return Finding(
        id="straggler",
        title=(
            f"Rank {rank} holds the others up: they wait {evidence.of_step(cost)} for it; it enters last in "
            f"{format_count(times)} of {format_count(len(evidence.calls))} collectives."
        ),
        detail=f"Rank {rank} spends {format_ns(excess[reason])} more per step than the others in {reason}.",
        action=f"Find out what rank {rank} does differently: its data, code path, clocks, core binding.",
        gain_ns=round(cost),
        gain_ratio=cost / evidence.step,
        rank=rank,
    )


def _late(evidence: Evidence) -> tuple[int | None, int]:
    """The rank that enters last clearly more often than its share, on enough calls, and how often."""
    counts = Counter(call.late_rank for call in evidence.calls)
    if len(evidence.calls) < 5 or len(evidence.ranks) < 2:
        return None, 0
    rank, times = counts.most_common(1)[0]
    share = 1 / len(evidence.ranks)
    usual = share * len(evidence.calls)
    by_chance = usual + CLEARLY * math.sqrt(usual * (1 - share))
    return (rank, times) if times >= by_chance else (None, times)


def _transfer(evidence: Evidence) -> int:
    """Sum of the matched calls' transfers, ns."""
    return sum(call.transfer_ns for call in evidence.calls)


def _wait_or_transfer(evidence: Evidence) -> str:
    in_calls, waiting = evidence.in_calls_ns, evidence.waiting_ns
    if not in_calls or waiting is None:
        return "Waiting cannot be told from transfer: that needs the traces of every rank of a group."
    steps = max(evidence.steps_per_rank, 1)
    unit, transfer = "step" if evidence.breakdown_of == "step" else "file", _transfer(evidence)
    at_once = ", some of them at the same time" if transfer > 1.1 * (in_calls - waiting) else ""
    return (
        f"The mean rank is in collectives for {format_ns(in_calls / steps)} per {unit}, "
        f"{format_ratio(waiting / in_calls)} of it ({format_ns(waiting / steps)}) waiting for the last "
        f"rank to enter; the transfers themselves take {format_ns(transfer / steps)}{at_once}."
    )


def _hidden(evidence: Evidence) -> str:
    """How much of the communication computation covers."""
    known = [rank for rank, _ in evidence.traced if rank.comm_ns]
    total = sum(rank.comm_ns or 0 for rank in known)
    if not total:
        return ""
    hidden = sum((rank.comm_ns or 0) * (rank.overlap_ratio or 0) for rank in known)
    return f"Computation hides {format_ratio(hidden / total)} of the communication. "


def _communication_action(evidence: Evidence, late_rank: int | None) -> str:
    if not evidence.in_calls_ns or evidence.waiting_ns is None:
        return "Trace every rank to tell waiting from transfer."
    if evidence.waiting_ns > evidence.in_calls_ns / 2:
        who = f"rank {late_rank}" if late_rank is not None else "the ranks that enter last"
        return f"The link is not the cause: find out what holds {who} up before the collective."
    reduces = [one for one in evidence.collectives if one.collective == "all_reduce"]
    calls = sum(one.count for one in reduces)
    sent = sum(one.bytes or 0 for one in reduces)
    if not _averages_gradients(evidence):
        return (
            "Give each call more to do (a larger batch), use fewer ranks in the group, or keep the group "
            "inside a host; `perfscope bench list` tells what this scheme sends."
        )
    if calls and 0 < sent < calls * SMALL_BYTES:
        return "Its calls are small, so latency rules: accumulate gradients over several batches (no_sync)."
    if 0 < calls <= evidence.steps_per_rank:
        return "All gradients go in one call after the backward pass: lower bucket_cap_mb to start earlier."
    return "Overlap more of it with the backward pass, send fewer bytes, or use a faster link."


def _scheme(evidence: Evidence) -> Mapping[str, Any]:
    scheme = evidence.run.get("scheme")
    return scheme if isinstance(scheme, dict) else {}


def _averages_gradients(evidence: Evidence) -> bool:
    """False for bench runs that send something else: activations, weights to and from a server."""
    axes = _scheme(evidence).get("axes")
    if not isinstance(axes, dict):
        return True
    return axes.get("parallelism") == "data" and axes.get("optimisation") == "decentralised"


def _servers(evidence: Evidence) -> set[int]:
    """Ranks of a bench run that only serve: they wait by design."""
    groups = _scheme(evidence).get("groups")
    return {
        group["ranks"][0]
        for group in (groups if isinstance(groups, list) else [])
        if isinstance(group, dict) and group.get("axis") == "server" and group.get("ranks")
    }


def straggler(evidence: Evidence) -> list[Finding]:
    """Ranks do unequal work between collectives, so the others wait for the busiest."""
    if len(evidence.traced) < 2 or not evidence.step:
        return []
    servers = _servers(evidence)
    busy = {
        rank.rank: part.compute + part.optimizer + part.input_wait
        for rank, part in evidence.traced
        if rank.rank not in servers
    }
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
            gain_ns=round(gain),
            gain_ratio=gain / evidence.step,
            rank=worst,
        )
    ]


def small_collectives(evidence: Evidence) -> list[Finding]:
    """Calls too small to use the link: merged into buckets they would pay their latency once."""
    small = [call for call in evidence.calls if call.bytes is not None and call.bytes < SMALL_BYTES]
    small = [call for call in small if call.collective == "all_reduce"]
    steps = max((part.num_steps for _, part in evidence.traced), default=0)
    if not small or not steps:
        return []
    latency = min(call.transfer_ns for call in small)
    total_bytes = sum(call.bytes or 0 for call in small)
    needed = steps * max(1, -(-total_bytes // steps // BUCKET_BYTES))
    gain = (len(small) - needed) * latency / steps
    if gain < NOTABLE * evidence.step:
        return []
    return [
        Finding(
            id="small_collectives",
            title=(
                f"{format_count(len(small) / steps)} all_reduce calls per step carry only "
                f"{format_bytes(total_bytes / len(small))} each; merged they would save "
                f"about {format_ns(gain)}."
            ),
            detail=f"The shortest of them still takes {format_ns(latency)}: latency, not bandwidth.",
            action="Raise bucket_cap_mb, or reduce one flat tensor instead of many.",
            gain_ns=round(gain),
            gain_ratio=gain / evidence.step,
            collective="all_reduce",
        )
    ]
