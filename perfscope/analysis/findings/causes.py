"""The parts of a step as causes: computation, copies, input, the optimizer, idle time."""

from __future__ import annotations

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.host import Host, HostRank
from perfscope.analysis.results import Finding
from perfscope.units import format_count, format_ns, format_ratio

LARGE = 0.1  # of the computation that a layer must have to be the one to look at
_EXPLAINS = 0.5  # of the idle time that waiting for a CPU must account for
_WAITED = "rank_runqueue_wait"


def compute(evidence: Evidence, verdict: bool) -> Finding:
    cost = evidence.mean("compute")
    advice_words = evidence.words
    title = f"Compute-bound: {evidence.of_step(cost)} is spent {advice_words.busy}"
    top = max(evidence.layers, key=lambda layer: layer.forward_ns + layer.backward_ns, default=None)
    detail, action = advice_words.unnamed, advice_words.heavy_unnamed
    top_ns = top.forward_ns + top.backward_ns if top is not None else 0
    if top is not None and top_ns < LARGE * cost:
        detail = (
            f"No layer dominates: the largest, {top.layer}, has {format_ratio(top_ns / cost)} of the "
            f"computation ({format_ns(top_ns)}), all of them {format_ratio(_in_layers(evidence) / cost)}."
        )
        top = None
    if top is not None:
        action = advice_words.heavy
        title += f", most of it in layer {top.layer} ({format_ns(top_ns)})" if top_ns > cost / 2 else ""
        title += f"; the largest layer is {top.layer} with {format_ns(top_ns)}" if top_ns <= cost / 2 else ""
        kind = f" ({top.module_type})" if top.module_type else ""
        detail = (
            f"Layer {top.layer}{kind} takes {format_ns(top.forward_ns)} forward and "
            f"{format_ns(top.backward_ns)} backward per step, {format_ratio(top_ns / cost)} of "
            "the computation."
        )
    return Finding(
        id="compute_bound",
        title=title + ".",
        detail=detail,
        action=action,
        gain_ns=None,
        gain_ratio=None,
        layer=top.layer if top else None,
    )


def _in_layers(evidence: Evidence) -> int:
    """Computation of the mean step that layers have, ns."""
    return sum(layer.forward_ns + layer.backward_ns for layer in evidence.layers)


def copies(evidence: Evidence, verdict: bool) -> Finding:
    cost = evidence.mean("copy")
    gain_ns, gain_ratio = evidence.all_of(cost)
    return Finding(
        id="copy_bound",
        title=f"Copies take {evidence.of_step(cost)}, not overlapped with compute or communication.",
        detail="Host-to-device, device-to-host and device-to-device copies and fills.",
        action=evidence.words.faster_copies,
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
    )


def input_wait(evidence: Evidence, verdict: bool) -> Finding:
    cost = evidence.mean("input_wait")
    gain_ns, gain_ratio = evidence.gain("no_input_wait", cost)
    worst, breakdown = max(evidence.traced, key=lambda item: item[1].input_wait)
    lead = "Input-bound" if verdict else "Training waits for input"
    return Finding(
        id="input_bound",
        title=f"{lead}: for {evidence.of_step(cost)} the training waits for the {evidence.words.loader}.",
        detail=f"Rank {worst.rank} waits longest: {format_ns(breakdown.input_wait)} per step.",
        action=evidence.words.faster_input,
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
        rank=worst.rank,
    )


def optimizer(evidence: Evidence, verdict: bool) -> Finding:
    cost = evidence.mean("optimizer")
    lead = "Optimizer-bound" if verdict else "The optimizer takes long"
    return Finding(
        id="optimizer_bound",
        title=f"{lead}: {evidence.of_step(cost)} is spent inside the optimizer's step.",
        detail="The time grows with the number of parameters, not with the batch.",
        action=evidence.words.quicker_update,
        gain_ns=None,
        gain_ratio=None,
    )


def idle(evidence: Evidence, verdict: bool) -> Finding:
    cost = evidence.mean("idle")
    gain_ns, gain_ratio = evidence.gain("no_idle", cost)
    slow = evidence.what_ifs.slow
    lone = evidence.what_ifs.of("no_stragglers") if slow and slow[0].part == "idle" else None
    if lone is not None:  # what only the slow rank idles more is laid at it
        gain_ns, gain_ratio = max(gain_ns - lone.gain_ns, 0), max(gain_ratio - lone.gain_ratio, 0.0)
    waits = [rank.idle_host_wait_ns for rank in evidence.ranks if rank.idle_host_wait_ns is not None]
    launch = sum(waits) / len(waits) if waits else 0.0
    if waits and launch >= cost / 2:
        lead = "Launch-bound" if verdict else "The device waits for kernel launches"
        return Finding(
            id="launch_bound",
            title=f"{lead}: for {evidence.of_step(launch)} the device idles because the host launches late.",
            detail=f"The device is idle for {format_ns(cost)} per step in all.",
            action=evidence.words.fewer_launches,
            gain_ns=min(round(launch), gain_ns),
            gain_ratio=min(launch / evidence.step, gain_ratio),
        )
    where = "the device is idle" if waits else "no operator or communication runs"
    waited = _explained_by_cpu_wait(evidence, cost)
    if waited is not None:
        lead = "Bound by a shortage of CPUs" if verdict else "Ranks wait for a CPU"
        return Finding(
            id="preempted",
            title=f"{lead}: for {evidence.of_step(cost)} {where}, while threads wait for a CPU.",
            detail=(
                f"In {format_ratio(waited)} of step time a thread of an average rank was ready to run "
                "while another thread had its CPU, so the idle time may not come from the training code."
            ),
            action=(
                "Repeat the run on an idle machine, or give each rank its own CPUs (fewer threads, "
                "binding), before you look for gaps in the code."
            ),
            gain_ns=gain_ns,
            gain_ratio=gain_ratio,
        )
    lead = "Idle-bound" if verdict else "Part of the step is idle"
    return Finding(
        id="idle_bound" if waits else "host_bound",
        title=f"{lead}: for {evidence.of_step(cost)} {where}.",
        detail=evidence.words.gaps,
        action=evidence.words.shorter_gaps,
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
    )


def _attached(count: int) -> str:
    """Of ranks that recorded no step."""
    if not count:
        return "No rank was attached."
    ranks, were = ("rank", "was") if count == 1 else ("ranks", "were")
    return f"{format_count(count)} {ranks} {were} attached, without a step."


def untraced(evidence: Evidence) -> Finding:
    """The verdict without a trace: the always-on figures tell at most that input is waited for."""
    step = evidence.step_ns
    if step is None:
        return Finding(
            id="no_steps",
            title="No training step was recorded, so the training cannot be analyzed.",
            detail=_attached(len(evidence.ranks)),
            action=(
                "Check that the command trains; loops without an optimizer object can call "
                "perfscope.step() once per step."
            ),
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
                f"({format_ns(wait)} of {format_ns(step.median)}) is spent in the {evidence.words.loader}."
            ),
            detail="Measured without a trace, so the rest of the step is not split up.",
            action=evidence.words.faster_input,
            gain_ns=round(wait),
            gain_ratio=share,
        )
    why = evidence.no_window
    return Finding(
        id="not_traced",
        title=f"The median step takes {format_ns(step.median)}; what bounds it is not known without a trace.",
        detail=f"Waiting for input is {format_ratio(share)} of it." if waits else "Input was not measured.",
        action=why.cure if why else "See “Not collected”: no traced step can be used.",
        gain_ns=None,
        gain_ratio=None,
    )


def _waited_for_cpu(evidence: Evidence) -> float | None:
    """Share of the steps' time in which a compute thread of the mean traced rank waited for a CPU.

    The kernel counts it for each thread; threads that sleep wait for nothing. None where it was not read.
    """
    traced = {rank.rank for rank, _ in evidence.traced}
    found = [
        share
        for host in evidence.hosts
        for rank in host.ranks
        if rank.rank in traced and (share := _cpu_wait(host, rank)) is not None
    ]
    return sum(found) / len(found) if found else None


def _cpu_wait(host: Host, rank: HostRank) -> float | None:
    if host.steps_ns is None:
        return None
    for series, counted in host.counters(_WAITED):
        if series.labels.get("pid") == str(rank.pid):
            waited, covered = counted_between(counted, *host.steps_ns)
            return waited / covered / max(rank.num_threads or 1, 1) if covered else None
    return None


def _explained_by_cpu_wait(evidence: Evidence, idle_ns: float) -> float | None:
    """The share, where it accounts for most of so much idle time per step; else None."""
    share = _waited_for_cpu(evidence)
    if share is None or not idle_ns or share * evidence.step < _EXPLAINS * idle_ns:
        return None
    return min(share, 1.0)
