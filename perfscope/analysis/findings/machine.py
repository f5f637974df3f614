"""What the machine did to the training: oversubscription, remote memory, links and clocks."""

from __future__ import annotations

from perfscope.analysis.findings import memory, numa
from perfscope.analysis.findings.communication import longest_library
from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.oversubscription import oversubscriptions
from perfscope.analysis.machine.results import LinkTraffic
from perfscope.analysis.results import Finding
from perfscope.messages.findings.machine import LinkSaturated, MemoryBound, Oversubscribed, PowerCapped
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.gpu import THROTTLE_TIME, ThrottleReason
from perfscope.vocabulary.links import LinkClass

SATURATED_LINK = 0.85  # of its peak, at the 95th percentile
COMM_BOUND = 0.1  # of the step must be exposed communication for a full link to matter
MEMORY_BOUND = 0.1  # of the step in layers at the memory roof
POWER_CAPPED = 0.1  # of the steps' time
CROWDED = 1.5  # threads per CPU from which ...
STARVING = 0.5  # ... waiting for a CPU in so much of the steps' time is what bounds them
WAITED = 0.02  # of the time some task must have waited for a CPU for oversubscription to matter


def findings(evidence: Evidence) -> list[Finding]:
    """All but the disturbances."""
    if evidence.machine is None:
        return []
    return [
        *_oversubscribed(evidence),
        *([] if numa.remote_memory(evidence) else numa.uncosted(evidence)),
        *numa.gpu_remote(evidence),
        *_power_capped(evidence),
        *_link_saturated(evidence),
        *_memory_roof(evidence),
        *memory.low_headroom(evidence),
        *memory.grows(evidence),
    ]


def starves(evidence: Evidence) -> bool:
    """Whether ranks share so few CPUs that waiting for one is what bounds them."""
    sharing = [sharing for host in evidence.hosts for sharing in oversubscriptions(host)]
    return any(
        entry.threads >= CROWDED * entry.cpus and (entry.wait_ratio or 0) >= STARVING for entry in sharing
    )


def _oversubscribed(evidence: Evidence) -> list[Finding]:
    oversubscribed = [sharing for host in evidence.hosts for sharing in oversubscriptions(host)]
    oversubscribed = [
        sharing for sharing in oversubscribed if sharing.wait_ratio is None or sharing.wait_ratio >= WAITED
    ]
    if not oversubscribed:
        return []
    worst = max(oversubscribed, key=lambda sharing: sharing.threads / sharing.cpus)
    waits, neighbor_cpus = evidence.cpu_waits, evidence.cpu_waits.others_cpus.get(worst.host, 0.0)
    cpu_wait = waits.most(worst.ranks)
    gain_ns, gain_ratio = None, None
    if cpu_wait is not None:
        wanted = worst.threads - worst.cpus
        gain_ns, gain_ratio = evidence.share_of_step(cpu_wait * wanted / (wanted + neighbor_cpus))
    return [
        Finding(
            id=FindingKind.OVERSUBSCRIBED,
            facts=Oversubscribed(
                num_ranks=len(worst.ranks),
                threads=worst.threads,
                cpus=worst.cpus,
                where=worst.where,
                host=worst.host if len(evidence.hosts) > 1 else "",
                wait_ratio=worst.wait_ratio,
                cpu_wait_ratio=cpu_wait,
                others_cpus=neighbor_cpus
                if evidence.machine and evidence.machine.clean is not None
                else None,
                framework=evidence.framework,
            ),
            gain_ns=gain_ns,
            gain_ratio=gain_ratio,
            rank=worst.ranks[0] if len(worst.ranks) == 1 else None,
        )
    ]


def _power_capped(evidence: Evidence) -> list[Finding]:
    """GPUs at their power limit: the machine's own setting, so no disturbance, but it bounds the clocks."""
    capped: dict[tuple[str, str], float] = {}  # (host, GPU) -> share of the steps' time
    for host in evidence.hosts:
        if host.steps_ns is None:
            continue
        for series, rates in host.counters(THROTTLE_TIME.name):
            if series.labels.get("reason") != ThrottleReason.POWER_CAP:
                continue
            held, covered = counted_between(rates, *host.steps_ns)
            if covered:
                capped[host.name, series.labels.get("gpu", "")] = held / covered
    over = {name: share for name, share in capped.items() if share >= POWER_CAPPED}
    if not over:
        return []
    host_name, gpu = max(over, key=lambda name: over[name])
    return [
        Finding(
            id=FindingKind.POWER_CAPPED,
            facts=PowerCapped(
                gpu=gpu,
                host=host_name,
                ratio=over[host_name, gpu],
                num_capped=len(over),
                num_gpus=len(capped),
            ),
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
            id=FindingKind.LINK_SATURATED,
            facts=LinkSaturated(
                link=worst.name,
                host=worst.host,
                direction=worst.direction,
                p95_bytes_per_s=worst.p95_bytes_per_s,
                mean_bytes_per_s=worst.mean_bytes_per_s,
                peak_bytes_per_s=worst.peak_bytes_per_s,
                peak_source=worst.peak_source,
                exposed=evidence.of_step(evidence.mean("exposed_comm")),
                library=longest_library(evidence),
            ),
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
            id=FindingKind.MEMORY_BOUND,
            facts=MemoryBound(
                layers=evidence.of_step(time),
                phase=top.phase,
                bytes_per_s=top.bytes_per_s,
                peak_bytes_per_s=roofline.bandwidth_bytes_per_s,
                intensity=top.intensity,
                time_ns=top.time_ns,
                framework=evidence.framework,
            ),
            layer=top.layer,
        )
    ]
