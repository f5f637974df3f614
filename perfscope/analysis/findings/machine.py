"""What the machine did to the training: oversubscription, remote memory, links and clocks."""

from __future__ import annotations

from collections import defaultdict

from perfscope.analysis.findings import numa
from perfscope.analysis.findings.communication import longest_words
from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.oversubscription import oversubscriptions
from perfscope.analysis.machine.results import LinkTraffic
from perfscope.analysis.results import Finding
from perfscope.messages.lists import counted, plural
from perfscope.units import format_count, format_ns, format_rate, format_ratio
from perfscope.vocabulary.gpu import THROTTLE_TIME, ThrottleReason
from perfscope.vocabulary.links import LinkClass

SATURATED_LINK = 0.85  # of its peak, at the 95th percentile
COMM_BOUND = 0.1  # of the step must be exposed communication for a full link to matter
MEMORY_BOUND = 0.1  # of the step in layers at the memory roof
POWER_CAPPED = 0.1  # of the steps' time
CROWDED = 1.5  # threads per CPU from which ...
STARVING = 0.5  # ... waiting for a CPU in so much of the steps' time is what bounds them
_STARVED = frozenset(
    {"slow_link", "comm_bound", "no_overlap", "small_collectives", "compute_bound", "straggler", "imbalance"}
)
WAITED = 0.02  # of the time some task must have waited for a CPU for oversubscription to matter


def findings(evidence: Evidence) -> list[Finding]:
    """All but the disturbances."""
    if evidence.machine is None:
        return []
    return [
        *_oversubscribed(evidence),
        *([] if numa.remote_memory(evidence, False) else numa.uncosted(evidence)),
        *numa.gpu_remote(evidence),
        *_power_capped(evidence),
        *_link_saturated(evidence),
        *_memory_roof(evidence),
    ]


def starved(evidence: Evidence, verdict: Finding) -> Finding | None:
    """Too few CPUs as what comes before the verdict: slow computation, and waiting for it, are its doing."""
    if evidence.machine is None or verdict.id not in _STARVED:
        return None
    oversubscribed = [sharing for host in evidence.hosts for sharing in oversubscriptions(host)]
    severe = [
        sharing
        for sharing in oversubscribed
        if sharing.threads >= CROWDED * sharing.cpus and (sharing.wait_ratio or 0) >= STARVING
    ]
    one_host = len({rank.host for rank in evidence.ranks}) == 1  # else a real link may be behind it
    if not severe or not (one_host or verdict.id in ("compute_bound", "straggler", "imbalance")):
        return None
    return next(iter(_oversubscribed(evidence)), None)


def _oversubscribed(evidence: Evidence) -> list[Finding]:
    oversubscribed = [sharing for host in evidence.hosts for sharing in oversubscriptions(host)]
    oversubscribed = [
        sharing for sharing in oversubscribed if sharing.wait_ratio is None or sharing.wait_ratio >= WAITED
    ]
    if not oversubscribed:
        return []
    worst = max(oversubscribed, key=lambda sharing: sharing.threads / sharing.cpus)
    num = len(worst.ranks)
    each = worst.threads / num
    waited = (
        f"In {format_ratio(worst.wait_ratio)} of step time some task waited for a CPU."
        if worst.wait_ratio is not None
        else "How long they wait for a CPU was not measured."
    )
    where = f" on {worst.host}" if len(evidence.hosts) > 1 else ""
    ranks_text = f"{counted(num, 'rank')} x {each:g} compute {plural('thread', each)}"
    return [
        Finding(
            id="oversubscribed",
            title=(
                f"CPU oversubscription: {ranks_text} share {worst.where}{where} "
                f"({worst.cpus:g} {plural('CPU', worst.cpus)})."
            ),
            detail=f"{waited} Caused by this job, not by other processes.",
            action=_fewer_threads(num, worst.cpus, evidence.words.threads),
            gain_ns=None,
            gain_ratio=None,
            rank=worst.ranks[0],
        )
    ]


def _fewer_threads(num_ranks: int, cpus: float, setting: str) -> str:
    fitting = int(cpus // num_ranks)
    if fitting >= 1 and setting:
        return f"Set {setting.format(fitting)}, or bind each rank to its own CPUs."
    if fitting >= 1:
        return f"Bind each rank to {fitting} CPUs of its own (taskset, --cpus-per-task)."
    most = counted(max(1, int(cpus)), "rank")
    return f"Run at most {most} on these CPUs, one thread each, or give each rank its own core."


def _power_capped(evidence: Evidence) -> list[Finding]:
    """GPUs at their power limit: the machine's own setting, so no disturbance, but it bounds the clocks."""
    capped: dict[str, float] = defaultdict(float)
    for host in evidence.hosts:
        if host.steps_ns is None:
            continue
        for series, rates in host.counters(THROTTLE_TIME.name):
            if series.labels.get("reason") != ThrottleReason.POWER_CAP:
                continue
            held, covered = counted_between(rates, *host.steps_ns)
            if covered:
                capped[f"GPU {series.labels.get('gpu')} of {host.name}"] = held / covered
    over = {name: share for name, share in capped.items() if share >= POWER_CAPPED}
    if not over:
        return []
    worst = max(over, key=lambda name: over[name])
    return [
        Finding(
            id="power_capped",
            title=f"{worst} was at its power limit in {format_ratio(over[worst], 0)} of the steps' time.",
            detail=f"{format_count(len(over))} of {format_count(len(capped))} GPUs were slowed by it.",
            action="Expect this under full load; raise the power limit if the site allows it.",
            gain_ns=None,
            gain_ratio=None,
        )
    ]


def _link_saturated(evidence: Evidence) -> list[Finding]:
    """A link at its peak while communication is exposed."""
    assert evidence.machine is not None
    if not evidence.step or evidence.mean("exposed_comm") < COMM_BOUND * evidence.step:
        return []
    full = [
        link
        for link in evidence.machine.traffic
        if link.link_class is not LinkClass.MEMORY and _use(link) >= SATURATED_LINK
    ]
    if not full:
        return []
    worst = max(full, key=_use)
    return [
        Finding(
            id="link_saturated",
            title=(
                f"{worst.name} of {worst.host} is full: {worst.direction} "
                f"{format_rate(worst.p95_bytes_per_s)} of "
                f"{format_rate(worst.peak_bytes_per_s)} in 5 % of the time."
            ),
            detail=(
                f"{format_rate(worst.mean_bytes_per_s)} in the mean; peak by {worst.peak_source}. "
                "Communication not overlapped with compute takes "
                f"{evidence.of_step(evidence.mean('exposed_comm'))}."
            ),
            action=f"Send fewer bytes ({longest_words(evidence).on_full_link}), or use a faster link.",
            gain_ns=None,
            gain_ratio=None,
        )
    ]


def _use(link: LinkTraffic) -> float:
    return link.p95_bytes_per_s / link.peak_bytes_per_s if link.peak_bytes_per_s else 0.0


def _memory_roof(evidence: Evidence) -> list[Finding]:
    """Layers that run as fast as memory feeds them: faster arithmetic would gain nothing."""
    assert evidence.machine is not None
    if not evidence.machine.rooflines or not evidence.step:
        return []
    roofline = evidence.machine.rooflines[0]
    bound = [point for point in roofline.points if point.bound == "memory"]
    time = sum(point.time_ns for point in bound)
    if time < MEMORY_BOUND * evidence.step:
        return []
    top = max(bound, key=lambda point: point.time_ns)
    return [
        Finding(
            id="memory_bound",
            title=(
                f"Layers at the memory roof take {evidence.of_step(time)}: {top.layer} ({top.phase}) moves "
                f"{format_rate(top.bytes_per_s)} of {format_rate(roofline.bandwidth_bytes_per_s)}."
            ),
            detail=(
                f"Bytes are modeled from shapes; it does {top.intensity:.1f} FLOP per byte. "
                f"It takes {format_ns(top.time_ns)} per step."
            ),
            action=evidence.words.fewer_bytes,
            gain_ns=None,
            gain_ratio=None,
            layer=top.layer,
        )
    ]
