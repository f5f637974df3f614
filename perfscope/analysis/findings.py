"""What bounds the step, in words with figures, and what removing each cause would bring.

The first finding is the verdict: the largest part of the mean analysed step. The others follow by the time
they would bring back. A sentence claims only what the run carries: who came last is said where every rank of
the group was traced, layers where the trace names them, waiting where it could be told from transfer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perfscope.analysis.results import (
    Breakdown,
    CollectiveCall,
    CollectiveResult,
    Finding,
    LayerResult,
    Quantiles,
    RankResult,
)
from perfscope.analysis.source import Document
from perfscope.units import format_bytes, format_count, format_ns, format_ratio

NOTABLE = 0.05  # a cause below this share of the step is not worth a finding beside the verdict
REMOVABLE = 0.2  # a removable part from this share of the step on, and ...
AGAINST_COMPUTE = 0.5  # ... from this share of the computation on, is the verdict rather than the computation
CLEARLY = 2.4  # standard deviations of a fair draw above which a rank is last too often
HOLDS_UP = 0.8  # one rank last in so many of the calls holds the others up
IMBALANCE = 0.03  # busiest rank over the mean, as a share of the step
SMALL_BYTES = 256 * 1024  # a collective below this pays mostly latency
BUCKET_BYTES = 25 * 1024 * 1024  # DistributedDataParallel's default bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that findings are drawn from."""

    run: Document
    metas: Mapping[int, Document]
    ranks: Sequence[RankResult]
    layers: Sequence[LayerResult]
    collectives: Sequence[CollectiveResult]
    calls: Sequence[CollectiveCall]
    in_calls_ns: int | None  # as in RunAnalysis
    waiting_ns: int | None
    step_ns: Quantiles | None
    overhead_ratio: float | None
    breakdown_of: str  # "step" or "file"

    @property
    def traced(self) -> list[tuple[RankResult, Breakdown]]:
        return [(rank, rank.breakdown_ns) for rank in self.ranks if rank.breakdown_ns is not None]

    @property
    def step(self) -> float:
        """Mean analysed step over the traced ranks, ns; 0 without a trace."""
        return self.mean("step")

    @property
    def span_name(self) -> str:
        return "mean step" if self.breakdown_of == "step" else "traced time"

    def mean(self, part: str) -> float:
        """Mean of one part of the breakdown over the traced ranks, ns."""
        values = [getattr(breakdown, part) for _, breakdown in self.traced]
        return sum(values) / len(values) if values else 0.0

    @property
    def steps_per_rank(self) -> float:
        """Analysed steps of the mean traced rank."""
        return self.mean("num_steps")

    def of_step(self, part_ns: float) -> str:
        """``41.0 % of the mean step (12.3 ms of 30.1 ms)``."""
        share = format_ratio(part_ns / self.step)
        return f"{share} of the {self.span_name} ({format_ns(part_ns)} of {format_ns(self.step)})"


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings, the verdict first."""
    held_up = _held_up(evidence)
    others = [
        *(_straggler(evidence) if held_up is None else ()),
        *_small_collectives(evidence),
        *_overhead(evidence),
        *_attached(evidence),
        *_killed(evidence),
    ]
    if not evidence.traced or not evidence.step:
        return (_untraced(evidence), *_by_gain(others))
    causes = {
        "compute": (_compute, evidence.mean("compute")),
        "exposed_comm": (_communication, evidence.mean("exposed_comm")),
        "copy": (_copies, evidence.mean("copy")),
        "input_wait": (_input, evidence.mean("input_wait")),
        "optimizer": (_optimizer, evidence.mean("optimizer")),
        "idle": (_idle, evidence.mean("idle")),
    }
    if held_up is not None:
        causes["exposed_comm"] = (_holds_up, held_up)
    ranked = sorted(causes.values(), key=lambda cause: -cause[1])
    removable = max(
        (causes[part] for part in ("exposed_comm", "copy", "input_wait", "idle")), key=lambda c: c[1]
    )
    if removable[1] >= max(REMOVABLE * evidence.step, AGAINST_COMPUTE * evidence.mean("compute")):
        ranked.remove(removable)
        ranked.insert(0, removable)
    verdict = ranked[0][0](evidence, ranked[0][1], True)
    verdict = replace(verdict, detail=f"{verdict.detail} {_basis(evidence)}")
    beside = [cause(evidence, cost, False) for cause, cost in ranked[1:] if cost >= NOTABLE * evidence.step]
    return (verdict, *_by_gain([*(finding for finding in beside if finding.gain_ns is not None), *others]))


def _basis(evidence: Evidence) -> str:
    """How much the verdict rests on."""
    ranks = len(evidence.traced)
    who = "one rank" if ranks == 1 else f"{format_count(ranks)} ranks"
    if evidence.breakdown_of == "file":
        return f"The traces of {who} have no step marks, so each counts as one step."
    steps = format_count(evidence.steps_per_rank)
    return f"Mean of {steps} traced step{'' if steps == '1' else 's'} on {who}."


def _by_gain(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: -(finding.gain_ns or -1))


def _compute(evidence: Evidence, cost: float, verdict: bool) -> Finding:
    title = f"Computation bounds the step: {evidence.of_step(cost)} is spent in operators"
    top = max(evidence.layers, key=lambda layer: layer.forward_ns + layer.backward_ns, default=None)
    detail = "The trace names no layers, so the time cannot be laid at one."
    if top is not None:
        own = top.forward_ns + top.backward_ns
        title += f", most of it in layer {top.layer} ({format_ns(own)})" if own > cost / 2 else ""
        title += f"; the largest layer is {top.layer} with {format_ns(own)}" if own <= cost / 2 else ""
        kind = f" ({top.module_type})" if top.module_type else ""
        detail = (
            f"Layer {top.layer}{kind} takes {format_ns(top.forward_ns)} forward and "
            f"{format_ns(top.backward_ns)} backward per step, {format_ratio(own / cost)} of the computation."
        )
    return Finding(
        id="compute_bound",
        title=title + ".",
        detail=detail,
        action="Look at the largest layers first: precision, memory format, fused operators, batch size.",
        gain_ns=None,
        gain_ratio=None,
        layer=top.layer if top else None,
    )


def _communication(evidence: Evidence, cost: float, verdict: bool) -> Finding:
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


def _held_up(evidence: Evidence) -> float | None:
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


def _holds_up(evidence: Evidence, cost: float, verdict: bool) -> Finding:
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
    if calls and 0 < sent < calls * SMALL_BYTES:
        return "Its calls are small, so latency rules: accumulate gradients over several batches (no_sync)."
    if 0 < calls <= evidence.steps_per_rank:
        return "All gradients go in one call after the backward pass: lower bucket_cap_mb to start earlier."
    return "Overlap more of it with the backward pass, send fewer bytes, or use a faster link."


def _copies(evidence: Evidence, cost: float, verdict: bool) -> Finding:
    return Finding(
        id="copy_bound",
        title=f"Copies take {evidence.of_step(cost)}, under neither computation nor communication.",
        detail="Host-to-device, device-to-host and device-to-device copies and fills.",
        action="Pin the input's memory and copy with non_blocking=True; keep tensors on the device.",
        gain_ns=round(cost),
        gain_ratio=cost / evidence.step,
    )


def _input(evidence: Evidence, cost: float, verdict: bool) -> Finding:
    worst, breakdown = max(evidence.traced, key=lambda item: item[1].input_wait)
    lead = "Input bounds the step" if verdict else "Training waits for input"
    return Finding(
        id="input_bound",
        title=f"{lead}: for {evidence.of_step(cost)} the training waits for the data loader.",
        detail=f"Rank {worst.rank} waits longest: {format_ns(breakdown.input_wait)} per step.",
        action="Give the DataLoader more workers, cheaper transforms, prefetching or a faster store.",
        gain_ns=round(cost),
        gain_ratio=cost / evidence.step,
        rank=worst.rank,
    )


def _optimizer(evidence: Evidence, cost: float, verdict: bool) -> Finding:
    lead = "The optimizer bounds the step" if verdict else "The optimizer weighs"
    return Finding(
        id="optimizer_bound",
        title=f"{lead}: {evidence.of_step(cost)} is spent inside the optimizer's step.",
        detail="The time grows with the number of parameters, not with the batch.",
        action="Use the foreach or fused variant, or shard the optimizer's state over the ranks.",
        gain_ns=None,
        gain_ratio=None,
    )


def _idle(evidence: Evidence, cost: float, verdict: bool) -> Finding:
    waits = [rank.idle_host_wait_ns for rank in evidence.ranks if rank.idle_host_wait_ns is not None]
    launch = sum(waits) / len(waits) if waits else 0.0
    if waits and launch >= cost / 2:
        lead = "Launching bounds the step" if verdict else "The device waits for launches"
        return Finding(
            id="launch_bound",
            title=f"{lead}: for {evidence.of_step(launch)} the device idles because the host launches late.",
            detail=f"The device is idle for {format_ns(cost)} per step in all.",
            action="Launch less: torch.compile, CUDA graphs, larger batches, no .item() inside the step.",
            gain_ns=round(launch),
            gain_ratio=launch / evidence.step,
        )
    where = "the device runs nothing" if waits else "no operator runs and nothing is sent"
    lead = "Idle time bounds the step" if verdict else "The step is idle in part"
    return Finding(
        id="idle_bound" if waits else "host_bound",
        title=f"{lead}: for {evidence.of_step(cost)} {where}.",
        detail="What the host does meanwhile (Python between operators, logging, waiting) is not traced.",
        action="Profile the training loop's Python; move logging, checkpoints and metrics out of the step.",
        gain_ns=round(cost),
        gain_ratio=cost / evidence.step,
    )


def _straggler(evidence: Evidence) -> list[Finding]:
    """Ranks do unequal work between collectives, so the others wait for the busiest."""
    if len(evidence.traced) < 2 or not evidence.step:
        return []
    busy = {rank.rank: part.compute + part.optimizer + part.input_wait for rank, part in evidence.traced}
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


def _small_collectives(evidence: Evidence) -> list[Finding]:
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


def _overhead(evidence: Evidence) -> list[Finding]:
    options = evidence.run.get("options")
    budget = options.get("overhead") if isinstance(options, dict) else None
    ratio = evidence.overhead_ratio
    if ratio is None or not isinstance(budget, (int, float)) or ratio <= budget:
        return []
    return [
        Finding(
            id="overhead",
            title=(
                f"perfscope itself cost {format_ratio(ratio, 2)} of the run, "
                f"over the budget of {format_ratio(budget, 2)}."
            ),
            detail="A first window is always traced; a short run has little time to spread its cost over.",
            action="Run longer, trace fewer steps (`--steps-per-window 1`), or none (`--no-trace`).",
            gain_ns=None,
            gain_ratio=None,
        )
    ]


def _attached(evidence: Evidence) -> list[Finding]:
    expected, attached = evidence.run.get("expected_ranks"), len(evidence.ranks)
    if not isinstance(expected, int) or attached >= expected:
        return []
    count = f"{format_count(attached)} of {format_count(expected)} ranks"
    imported = evidence.run.get("origin") == "import"
    notes = evidence.run.get("attach_notes")
    why = " ".join(str(note) for note in notes) if isinstance(notes, list) else ""
    recorded = evidence.run.get("attached_ranks")
    unreadable = isinstance(recorded, int) and recorded > attached
    return [
        Finding(
            id="ranks_missing",
            title=f"The traces of {count} were imported."
            if imported
            else f"{count} {'can be shown' if unreadable else 'were attached'}.",
            detail=why
            or ("The record of the others is damaged: see what was not collected. " if unreadable else "")
            or ("" if imported else "Nothing in the run says why the others were not. ")
            + "Figures over all ranks cover these only.",
            action="Import the other ranks' traces too."
            if imported
            else "See the launcher's notes in run.json.",
            gain_ns=None,
            gain_ratio=None,
        )
    ]


def _killed(evidence: Evidence) -> list[Finding]:
    cut = [rank for rank in evidence.ranks if rank.finished is False]
    if not cut:
        return []
    names = ", ".join(str(rank.rank) for rank in cut[:8]) + (", ..." if len(cut) > 8 else "")
    fewest = min(rank.num_steps for rank in cut)
    still = evidence.run.get("status") == "running"
    why = "still running, or perfscope was killed with them" if still else "killed, or ended by os._exit"
    return [
        Finding(
            id="ranks_killed",
            title=(
                f"Rank{'s' if len(cut) > 1 else ''} {names} did not close "
                f"{'their' if len(cut) > 1 else 'its'} files ({why}); "
                f"steps are recorded up to number {format_count(fewest)}."
            ),
            detail="All that was written before is in this report; a window under way at the time is lost.",
            action="Look at the exit code and the kernel log (out of memory?) of that rank.",
            gain_ns=None,
            gain_ratio=None,
            rank=cut[0].rank,
        )
    ]


def _untraced(evidence: Evidence) -> Finding:
    """The verdict without a trace: the always-on figures tell at most that input is waited for."""
    step = evidence.step_ns
    if step is None:
        return Finding(
            id="no_steps",
            title="No training step was recorded, so nothing can be said about the training.",
            detail=f"{format_count(len(evidence.ranks))} ranks were attached.",
            action="Check that the command trains: a step is counted when a torch optimizer steps.",
            gain_ns=None,
            gain_ratio=None,
        )
    waits = [rank.input_wait_ns for rank in evidence.ranks if rank.input_wait_ns is not None]
    wait = sum(waits) / len(waits) if waits else 0.0
    share = wait / step.median if step.median else 0.0
    if share >= 0.2:
        return Finding(
            id="input_bound",
            title=(
                f"Training waits for input: {format_ratio(share)} of the median step "
                f"({format_ns(wait)} of {format_ns(step.median)}) is spent in the data loader."
            ),
            detail="Measured without a trace, so the rest of the step is not split up.",
            action="Give the DataLoader more workers, cheaper transforms, prefetching or a faster store.",
            gain_ns=round(wait),
            gain_ratio=share,
        )
    return Finding(
        id="not_traced",
        title=f"The median step takes {format_ns(step.median)}; what bounds it is not known without a trace.",
        detail=f"Waiting for input is {format_ratio(share)} of it." if waits else "Input was not measured.",
        action="Run again without `--no-trace`, and for long enough to reach a traced window.",
        gain_ns=None,
        gain_ratio=None,
    )
