"""The parts of a step as causes: compute, copies, input, the optimizer, idle time."""

from __future__ import annotations

from collections import defaultdict

from msgspec.structs import replace

from perfscope.analysis.findings import host_calls, loading
from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.kernels.results import Kernels
from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.host import Host, HostRank
from perfscope.analysis.rank_facts import is_torch
from perfscope.analysis.results import DeviceIdle, Finding
from perfscope.messages.findings.recording import NoDeviceEvents, NoSteps, NotTraced, NoWholeStep
from perfscope.messages.findings.step import (
    BlockingCall,
    ComputeBound,
    ComputeKinds,
    CopyBound,
    HostBlocked,
    IdleBound,
    LaunchBound,
    OptimizerBound,
    Preempted,
    ThreadBlocked,
)
from perfscope.messages.findings.texts import FindingFacts
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.host_activity import ASLEEP, BLOCKING, LAUNCHING, HostActivity
from perfscope.vocabulary.kernels import MATRIX, MOVES_BYTES, NOT_COMPUTE

NOTABLE = 0.05  # a cause below this share of the step is not worth a finding beside the verdict
LARGE = 0.1  # of the compute that a layer must have to be the one to look at
_BLOCKS = 0.3  # of the devices' idle time that a blocking call must account for to be named
_EXPLAINS = 0.5  # of the idle time beside a device that waiting for a CPU must account for
_LAUNCHES = 0.5  # of the idle time that the host must spend launching, with nothing queued
_WAITED = "rank_runqueue_wait"


def compute(evidence: Evidence) -> Finding:
    cost = evidence.mean("compute")
    top = max(evidence.layers, key=lambda layer: layer.forward_ns + layer.backward_ns, default=None)
    bound = ComputeBound(
        compute=evidence.of_step(cost), framework=evidence.framework, kinds=_kinds(evidence.kernels)
    )
    if top is None:
        return Finding(id=FindingKind.COMPUTE_BOUND, facts=bound)
    stands_out = top.forward_ns + top.backward_ns >= LARGE * cost
    bound = replace(
        bound,
        layer=top.layer,
        module_type=top.module_type,
        forward_ns=top.forward_ns,
        backward_ns=top.backward_ns,
        layers_ns=sum(layer.forward_ns + layer.backward_ns for layer in evidence.layers),
        stands_out=stands_out,
    )
    return Finding(id=FindingKind.COMPUTE_BOUND, facts=bound, layer=top.layer if stands_out else None)


def _kinds(kernels: Kernels | None) -> ComputeKinds | None:
    """What the kernels (host: operators) that compute do; None where none was traced."""
    computing = [row for row in kernels.by_type if row.type not in NOT_COMPUTE] if kernels else []
    total = sum(row.total_ns for row in computing)
    if kernels is None or not total:
        return None
    gemm = [row for row in computing if row.type in MATRIX and row.matrix_ns is not None]
    classified_ns = sum(row.total_ns - (row.matrix_unknown_ns or 0) for row in gemm)
    return ComputeKinds(
        of_device=kernels.of_device,
        shares=tuple((row.type, row.total_ns / total) for row in computing[:3]),
        bytes_ratio=sum(row.total_ns for row in computing if row.type in MOVES_BYTES) / total,
        matrix_ratio=sum(row.total_ns for row in computing if row.type in MATRIX) / total,
        on_matrix_units=sum(row.matrix_ns or 0 for row in gemm) / classified_ns if classified_ns else None,
    )


def copies(evidence: Evidence) -> Finding:
    cost = evidence.mean("copy")
    gain_ns, gain_ratio = evidence.all_of(cost)
    return Finding(
        id=FindingKind.COPY_BOUND,
        facts=CopyBound(copy=evidence.of_step(cost), framework=evidence.framework),
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
    )


def optimizer(evidence: Evidence) -> Finding:
    cost = evidence.mean("optimizer")
    return Finding(
        id=FindingKind.OPTIMIZER_BOUND,
        facts=OptimizerBound(optimizer=evidence.of_step(cost), framework=evidence.framework),
    )


def idle(evidence: Evidence) -> list[Finding]:
    """Time without work, the largest cause first: one that a call or a sleep accounts for, or the lack of a
    CPU, and what none of these accounts for.
    """
    cost = evidence.mean("idle")
    gain_ns, gain_ratio = evidence.gain("no_idle", cost)
    slow = evidence.what_ifs.slow
    lone = evidence.what_ifs.of("no_stragglers") if slow and slow[0].part == "idle" else None
    if lone is not None:  # what only the slow rank idles more is attributed to it
        gain_ns, gain_ratio = max(gain_ns - lone.gain_ns, 0), max(gain_ratio - lone.gain_ratio, 0.0)
    named = 0.0 if _on_device(evidence) else host_calls.gap_ratio(evidence)
    if named:  # calls that are findings of their own
        cost = max(0.0, cost - named * evidence.step)
        gain_ns, gain_ratio = evidence.share_of_step(max(0.0, gain_ratio - named))
    most = max((part.idle / part.step for _, part in evidence.traced if part.step), default=0.0)
    if gain_ratio > most:  # the replay may be of fewer windows; what is saved is no more than is there
        gain_ns, gain_ratio = evidence.share_of_step(most)
    blocking = _blocking_call(evidence)
    if blocking is not None:
        facts = HostBlocked(idle=evidence.of_step(cost), call=blocking, framework=evidence.framework)
        return [_gap(FindingKind.HOST_BLOCKED, facts, (gain_ns, gain_ratio), blocking.ratio)]
    asleep = _asleep(evidence, cost)
    if asleep is None:
        return _awake(evidence, cost, (gain_ns, gain_ratio))
    asleep_ratio = gain_ratio * asleep.ratio
    usual = _usual_sleep(evidence)
    # Readings may have shown more sleep for a time or for files than a step's account of its thread.
    is_read = asleep.kind in (HostActivity.FILES, HostActivity.SLEEP)
    if usual is not None and not (is_read and usual < asleep_ratio):
        asleep_ratio = usual
        asleep = replace(asleep, asleep=evidence.of_step(usual * evidence.step), of_untraced_ratio=usual)
    if asleep_ratio < NOTABLE:  # there is more to say of all of it
        return _awake(evidence, cost, (gain_ns, gain_ratio))
    gaps = [_gap(FindingKind.HOST_BLOCKED, asleep, evidence.share_of_step(asleep_ratio))]
    left = 1 - asleep_ratio / gain_ratio if gain_ratio else 0.0
    if left > 0:
        gaps += _awake(evidence, cost * left, (round(gain_ns * left), gain_ratio * left), is_rest=True)
    return sorted(gaps, key=lambda finding: -(finding.gain_ratio or 0.0))


def _on_device(evidence: Evidence) -> bool:
    """Whether idle time is that of devices."""
    return any(rank.idle_host_wait_ns is not None for rank in evidence.ranks)


def _usual_sleep(evidence: Evidence) -> float | None:
    """Share of the untraced steps in which the training threads sleep, mean rank; None: not known."""
    shares = [evidence.slept_ratio.get(rank.rank) for rank, _ in evidence.traced]
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known and len(known) == len(shares) else None


def _gap(kind: FindingKind, facts: FindingFacts, gain: tuple[int, float], ratio: float = 1.0) -> Finding:
    """That a share of the idle time goes away."""
    return Finding(id=kind, facts=facts, gain_ns=round(gain[0] * ratio), gain_ratio=gain[1] * ratio)


def _awake(
    evidence: Evidence, idle_ns: float, gain: tuple[int, float], is_rest: bool = False
) -> list[Finding]:
    """Idle time in which nothing sleeps: the host launches, has no CPU, or does something else."""
    on_device = _on_device(evidence)
    launch = _launching_share(evidence) * idle_ns
    if launch >= _LAUNCHES * idle_ns > 0:
        launch_ns, launch_ratio = evidence.all_of(launch)
        facts = LaunchBound(launch=evidence.of_step(launch), idle_ns=idle_ns, framework=evidence.framework)
        return [_gap(FindingKind.LAUNCH_BOUND, facts, (min(launch_ns, gain[0]), min(launch_ratio, gain[1])))]
    kind = FindingKind.IDLE_BOUND if on_device else FindingKind.HOST_BOUND
    waited = min(waited_for_cpu(evidence) or 0.0, 1.0)
    # The wait falls into gaps and operators alike (`host_idle`). Beside a device, all of it may be in gaps.
    of_ns = evidence.step if on_device else evidence.mean("idle")
    ratio = min(waited * of_ns / idle_ns, 1.0) if idle_ns else 0.0
    if gain[1] * ratio < NOTABLE or (on_device and ratio < _EXPLAINS):
        return [_gap(kind, _gaps(evidence, idle_ns, is_rest), gain)]
    preempted = Preempted(idle=evidence.of_step(idle_ns * ratio), on_device=on_device, cpu_wait_ratio=waited)
    gaps = [_gap(FindingKind.PREEMPTED, preempted, gain, ratio)]
    if gain[1] * (1 - ratio) >= NOTABLE:
        gaps.append(_gap(kind, _gaps(evidence, idle_ns * (1 - ratio), is_rest=True), gain, 1 - ratio))
    return sorted(gaps, key=lambda finding: -(finding.gain_ratio or 0.0))


def _gaps(evidence: Evidence, idle_ns: float, is_rest: bool) -> IdleBound:
    return IdleBound(
        idle=evidence.of_step(idle_ns),
        on_device=_on_device(evidence),
        framework=evidence.framework,
        is_rest=is_rest,
    )


def untraced(evidence: Evidence) -> Finding:
    """The verdict without a trace: the always-on figures show at most that input is waited for."""
    step, why = evidence.step_ns, evidence.no_window
    if why is not None and why.cause is Cause.FILE_ENDS_EARLY:
        return Finding(id=FindingKind.NOT_TRACED, facts=NoWholeStep())
    if why is not None and why.cause is Cause.NO_DEVICE_EVENTS:
        facts = NoDeviceEvents(step_ns=step.median if step else None, ends_early=why.ends_early)
        return Finding(id=FindingKind.NO_DEVICE_EVENTS, facts=facts)
    if step is None:
        return Finding(id=FindingKind.NO_STEPS, facts=NoSteps(num_ranks=len(evidence.ranks)))
    waits = [rank.input_wait_ns for rank in evidence.ranks if rank.input_wait_ns is not None]
    wait = sum(waits) / len(waits) if waits else 0.0
    share = wait / step.median if step.median else 0.0
    waiting = loading.untraced(evidence, wait, step.median)
    if waiting is not None:
        return waiting
    return Finding(
        id=FindingKind.NOT_TRACED,
        facts=NotTraced(
            step_ns=step.median,
            input_ratio=share if waits else None,
            no_window=why.cause if why else None,
            framework=why.framework if why else "",
        ),
    )


def _blocking_call(evidence: Evidence) -> BlockingCall | None:
    """The runtime call that accounts for most of the devices' idle time; None where none stands out.

    It must account for `_BLOCKS` of the idle time, and for more than the launches of kernels, together with
    the idle time that follows it because the host had waited until nothing was queued. Calls that
    allocate and free memory count as one: the same change removes them.
    """
    entries = [entry for rank in evidence.ranks for entry in rank.device_idle or ()]
    total = sum(entry.ns for entry in entries)
    launches = sum(entry.ns for entry in entries if entry.kind is HostActivity.LAUNCH)
    calls: dict[tuple[HostActivity, str], list[DeviceIdle]] = defaultdict(list)
    for entry in entries:
        if entry.kind in BLOCKING and entry.name is not None:
            name = "" if entry.kind is HostActivity.ALLOCATION else entry.name
            calls[entry.kind, name].append(entry)
    if not total or not calls:
        return None
    (kind, _), alike = max(
        calls.items(), key=lambda item: sum(entry.ns + (entry.after_ns or 0) for entry in item[1])
    )
    ns, after_ns = sum(entry.ns for entry in alike), sum(entry.after_ns or 0 for entry in alike)
    if ns + after_ns < _BLOCKS * total or ns + after_ns < launches:
        return None
    longest = max(alike, key=lambda entry: entry.ns + (entry.after_ns or 0))
    by_name: dict[str, int] = defaultdict(int)
    for entry in alike:
        by_name[str(entry.name)] += entry.ns
    return BlockingCall(
        kind=kind,
        names=tuple(sorted(by_name, key=lambda name: -by_name[name])),
        ratio=min(1.0, (ns + after_ns) / total),  # a call after the one that waited counts in both
        after_ratio=after_ns / (ns + after_ns),
        calls=sum(entry.calls for entry in alike),
        num_ranks=sum(
            any(entry.kind is kind and entry.name in by_name for entry in rank.device_idle or ())
            for rank in evidence.ranks
        ),
        operator=longest.operator,
        range=longest.range,
        layer=longest.layer,
    )


# What threads sleep in, too, that wait for threads of their framework's runtime to compute.
_OF_RUNTIME = (HostActivity.LOCK, HostActivity.BLOCKED)


def _asleep(evidence: Evidence, idle_ns: float) -> ThreadBlocked | None:
    """What the training threads of ranks that compute on the CPU sleep in, if that is `_BLOCKS` of the idle
    time or more, and more than they wait for a CPU.
    """
    entries = [entry for rank in evidence.ranks for entry in rank.host_idle or ()]
    sums: dict[HostActivity, int] = defaultdict(int)
    for entry in entries:
        sums[entry.kind] += entry.ns
    total, asleep = sum(sums.values()), sum(sums[kind] for kind in ASLEEP)
    if asleep < _BLOCKS * total or asleep <= sums[HostActivity.PREEMPTED] or not asleep:
        return None
    kind = max(ASLEEP, key=lambda kind: sums[kind])
    if kind in _OF_RUNTIME and not is_torch(evidence.metas):
        return None
    ranks = [rank.rank for rank in evidence.ranks if rank.host_idle]
    of_ranks = [evidence.other_threads_ns[rank] for rank in ranks if rank in evidence.other_threads_ns]
    readings = [evidence.states[rank].num_readings for rank in ranks if rank in evidence.states]
    faults = [of_rank.major_faults for of_rank in evidence.page_faults if of_rank.rank in ranks]
    return ThreadBlocked(
        asleep=evidence.of_step(idle_ns * asleep / total),
        ratio=asleep / total,
        kind=kind,
        kind_ratio=sums[kind] / asleep,
        num_readings=sum(readings),
        other_threads_ns=sum(of_ranks) / len(of_ranks) if of_ranks else None,
        major_faults=sum(faults) / len(faults) if faults else 0.0,
    )


def _launching_share(evidence: Evidence) -> float:
    """Share of the devices' idle time with nothing queued and the host in launching calls or operators."""
    entries = [entry for rank in evidence.ranks for entry in rank.device_idle or ()]
    total = sum(entry.ns for entry in entries)
    launching = sum(entry.queue_empty_ns or 0 for entry in entries if entry.kind in LAUNCHING)
    return launching / total if total else 0.0


def waited_for_cpu(evidence: Evidence) -> float | None:
    """Share of the steps' time in which a compute thread of the mean traced rank waited for a CPU.

    Of main threads in the traced steps, where these were read; else of all threads in all steps, as the
    kernel counts it. Threads that sleep wait for nothing. None where it was not read.
    """
    measured = evidence.cpu_waits.mean_traced()
    if measured is not None:
        return measured
    traced = {rank.rank for rank, _ in evidence.traced}
    waiting = [
        share
        for host in evidence.hosts
        for rank in host.ranks
        if rank.rank in traced and (share := _cpu_wait(host, rank)) is not None
    ]
    return sum(waiting) / len(waiting) if waiting else None


def _cpu_wait(host: Host, rank: HostRank) -> float | None:
    if host.steps_ns is None:
        return None
    for series, counted in host.counters(_WAITED):
        if series.labels.get("pid") == str(rank.pid):
            waited, covered = counted_between(counted, *host.steps_ns)
            return waited / covered / max(rank.num_threads or 1, 1) if covered else None
    return None
