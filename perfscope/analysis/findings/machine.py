"""What the machine did to the training: disturbances, oversubscription, remote memory, links and clocks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.findings.numactl import how_to_bind
from perfscope.analysis.machine.counters import counted_between
from perfscope.analysis.machine.effects import windows_in_words
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.oversubscription import oversubscriptions
from perfscope.analysis.machine.results import Disturbance, LinkTraffic, RankPlacement
from perfscope.analysis.results import Finding
from perfscope.units import format_count, format_ns, format_rate, format_ratio

DECISIVE = 0.25  # of the mean step lost to disturbances: the code's own causes come after them
SLOWER = 1.02  # steps this many times longer than the others are slower
SEVERE = 0.1  # of a host's CPUs (or other resource): doubt about every figure
REMOTE = 0.2  # of a rank's pages on another node
SATURATED_LINK = 0.85  # of its peak, at the 95th percentile
COMM_BOUND = 0.1  # of the step must be exposed communication for a full link to matter
MEMORY_BOUND = 0.1  # of the step in layers at the memory roof
POWER_CAPPED = 0.1  # of the steps' time
WAITED = 0.02  # of the time some task must have waited for a CPU for oversubscription to matter
_SLOWED_BY = {
    "cpu_neighbour": "Somebody else's processes slow",
    "gpu_neighbour": "Somebody else's processes on the GPU slow",
    "steal": "The hypervisor slows",
    "cgroup_throttling": "The CPU quota slows",
    "throttling": "Lowered clocks slow",
    "pressure": "A machine short of CPUs or memory slows",
}


def findings(evidence: Evidence) -> list[Finding]:
    """All but the disturbances."""
    if evidence.machine is None:
        return []
    return [
        *_oversubscribed(evidence),
        *_numa_remote(evidence),
        *_gpu_remote(evidence),
        *_power_capped(evidence),
        *_link_saturated(evidence),
        *_memory_roof(evidence),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """The finding that the run was disturbed, in the list that says where it belongs."""

    first: list[Finding] = field(default_factory=list)  # it costs more than the verdict's cause
    doubt: list[Finding] = field(default_factory=list)  # it may explain the figures
    minor: list[Finding] = field(default_factory=list)


def disturbed(evidence: Evidence, verdict: Finding) -> Disturbed:
    """Whether something else disturbed the run, and what its absence would bring.

    Args:
        evidence: of the run.
        verdict: the finding that stands first without it.
    """
    machine = evidence.machine
    if machine is None or machine.clean is not False:
        return Disturbed()
    inside = [one for one in machine.disturbances if one.within_steps]
    ratio = machine.disturbed_ratio
    first = ratio is not None and ratio >= DECISIVE and ratio > (verdict.gain_ratio or 0.0)
    worst = max(
        inside, key=lambda one: (_lost(one) if first else 0, one.severity * (one.end_ns - one.start_ns))
    )
    where = f"on {worst.host} " if len(evidence.hosts) > 1 else ""
    told = f"{where}{worst.title[:1].lower()}{worst.title[1:].removesuffix('.')}"
    effect = _effect(worst)
    if first and effect:
        title = f"{_SLOWED_BY.get(worst.kind, 'Something else slows')} the steps: {effect}; {told}."
    else:
        title = f"Something outside the training disturbed it: {told}{'; ' if effect else ''}{effect}."
    hit = {number for one in inside for number in one.windows}
    traced = f" {windows_in_words(sorted(hit))}." if hit or machine.traced_disturbed is False else ""
    finding = Finding(
        id="disturbed",
        title=title,
        detail=_evidence(worst, inside, traced),
        action=_what_to_do(worst),
        gain_ns=machine.disturbed_ns,
        gain_ratio=ratio,
    )
    if first:
        return Disturbed(first=[finding])
    severe = worst.severity >= SEVERE or (ratio or 0.0) >= DECISIVE
    return Disturbed(doubt=[finding]) if severe else Disturbed(minor=[finding])


def _lost(one: Disturbance) -> int:
    """Time that steps of one rank lost in it, ns."""
    if one.step_ns_during is None or one.step_ns_otherwise is None:
        return 0
    return one.num_steps_during * max(0, one.step_ns_during - one.step_ns_otherwise)


def _effect(one: Disturbance) -> str:
    """``203 steps took 25.4 ms instead of 13.4 ms``; '' where that is not known."""
    if one.step_ns_during is None or one.step_ns_otherwise is None:
        return ""
    count, during = format_count(one.num_steps_during), format_ns(one.step_ns_during)
    if one.step_ns_during >= SLOWER * one.step_ns_otherwise:
        return f"{count} steps took {during} instead of {format_ns(one.step_ns_otherwise)}"
    return f"its {count} steps were hardly slower ({during}, {format_ns(one.step_ns_otherwise)} otherwise)"


def _evidence(worst: Disturbance, inside: list[Disturbance], traced: str) -> str:
    lines = "; ".join(worst.evidence)
    others = len(inside) - 1
    more = (
        f" {format_count(others)} other disturbance{'s' if others > 1 else ''} on the machine's timeline."
        if others
        else ""
    )
    return f"Seen: {lines}.{traced}{more} Compare such figures with another run's only after a quiet run."


def _what_to_do(worst: Disturbance) -> str:
    return {
        "cpu_neighbour": "Repeat it on a quiet machine before blaming the code, or give it CPUs of its own.",
        "steal": "Repeat it on a host that is not shared: the hypervisor gave this machine's CPUs to others.",
        "cgroup_throttling": "Raise the CPU quota of the job's control group, or compute with fewer threads.",
        "throttling": "Check cooling, power supply and power limits before comparing step times.",
        "gpu_neighbour": "End the other processes on that GPU, or set CUDA_VISIBLE_DEVICES to another one.",
    }.get(worst.kind, "Free memory on that host (other jobs, page cache, a smaller batch) and run again.")


def _oversubscribed(evidence: Evidence) -> list[Finding]:
    found = [one for host in evidence.hosts for one in oversubscriptions(host)]
    found = [one for one in found if one.wait_ratio is None or one.wait_ratio >= WAITED]
    if not found:
        return []
    worst = max(found, key=lambda one: one.threads / one.cpus)
    num = len(worst.ranks)
    each = worst.threads / num
    waited = (
        f"In {format_ratio(worst.wait_ratio)} of the steps' time some task waited for a CPU."
        if worst.wait_ratio is not None
        else "How long they wait for each other was not measured."
    )
    where = f" on {worst.host}" if len(evidence.hosts) > 1 else ""
    who = f"{num} rank{'s' if num > 1 else ''} x {each:g} compute thread{'s' if each != 1 else ''}"
    return [
        Finding(
            id="oversubscribed",
            title=(
                f"{who} share {worst.where}{where}: "
                f"{format_count(worst.threads)} threads want {worst.cpus:g} CPUs."
            ),
            detail=f"{waited} This is the job's own doing, not a neighbour's.",
            action=_fewer_threads(num, worst.cpus),
            gain_ns=None,
            gain_ratio=None,
            rank=worst.ranks[0],
        )
    ]


def _fewer_threads(num_ranks: int, cpus: float) -> str:
    fitting = int(cpus // num_ranks)
    if fitting >= 1:
        return f"Set OMP_NUM_THREADS={fitting} (unset, torchrun sets 1), or bind ranks to CPUs of their own."
    return f"Start at most {max(1, int(cpus))} ranks on these CPUs, with one thread each, or use more CPUs."


def _numa_remote(evidence: Evidence) -> list[Finding]:
    """Ranks that are kept to some nodes' CPUs while their memory lies on others."""
    assert evidence.machine is not None
    hosts = {host.name: host for host in evidence.hosts}
    remote = [one for one in evidence.machine.placements if _is_remote(one, hosts[one.host])]
    if not remote:
        return []
    worst = min(remote, key=lambda one: (one.local_ratio or 0.0, one.rank))
    elsewhere = {node: share for node, share in worst.memory_nodes.items() if node not in worst.cpu_nodes}
    most = max(elsewhere, key=lambda node: elsewhere[node])
    how = how_to_bind(evidence.run, hosts[worst.host], _targets(evidence, worst.host))
    policy = f" Its memory policy is {worst.policy}." if worst.policy not in ("", "default") else ""
    return [
        Finding(
            id="numa_remote",
            title=(
                f"Rank {worst.rank} runs on NUMA {_nodes(worst.cpu_nodes)}, but "
                f"{format_ratio(1 - (worst.local_ratio or 0.0), 0)} of its memory lies elsewhere "
                f"({format_ratio(elsewhere[most], 0)} on node {most}){_and_more(len(remote) - 1)}."
            ),
            detail=(
                f"{worst.source}; CPUs {worst.cpus} on {worst.host}.{policy} Every access to that memory "
                "crosses the link between the nodes: less bandwidth, more latency."
            ),
            action=f"Keep CPUs and memory together: {how}.",
            gain_ns=None,
            gain_ratio=None,
            rank=worst.rank,
        )
    ]


def _is_remote(placement: RankPlacement, host: Host) -> bool:
    ratio, own = placement.local_ratio, set(placement.cpu_nodes)
    with_cpus = {node.number for node in host.topology.nodes.values() if node.cpus}
    bound = bool(own) and own < with_cpus
    # A rank that may run anywhere is remote only where nobody runs: on a node without CPUs.
    anywhere = own == with_cpus and len(host.topology.nodes) > len(with_cpus)
    return ratio is not None and 1 - ratio >= REMOTE and (bound or anywhere) and not placement.note


def _targets(evidence: Evidence, host: str) -> dict[int, tuple[int, ...]]:
    """Rank -> the nodes that it should have: its GPU's, else its CPUs'."""
    assert evidence.machine is not None
    return {
        one.rank: (one.device_node,) if one.device_node is not None else one.cpu_nodes
        for one in evidence.machine.placements
        if one.host == host
    }


def _gpu_remote(evidence: Evidence) -> list[Finding]:
    assert evidence.machine is not None
    hosts = {host.name: host for host in evidence.hosts}
    remote = [
        one
        for one in evidence.machine.placements
        if one.device_node is not None and one.cpu_nodes and one.device_node not in one.cpu_nodes
    ]
    if not remote:
        return []
    first = min(remote, key=lambda one: one.rank)
    how = how_to_bind(evidence.run, hosts[first.host], _targets(evidence, first.host))
    return [
        Finding(
            id="gpu_remote",
            title=(
                f"Rank {first.rank} runs on NUMA {_nodes(first.cpu_nodes)}, its GPU is attached to node "
                f"{first.device_node}{_and_more(len(remote) - 1)}."
            ),
            detail=(
                f"CPUs {first.cpus} on {first.host}. Copies and launches cross the link between the nodes."
            ),
            action=f"Bind it beside its GPU: {how}.",
            gain_ns=None,
            gain_ratio=None,
            rank=first.rank,
        )
    ]


def _nodes(nodes: tuple[int, ...]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"


def _and_more(count: int) -> str:
    return (
        f"; so {'are' if count > 1 else 'is'} {count} other rank{'s' if count > 1 else ''}" if count else ""
    )


def _power_capped(evidence: Evidence) -> list[Finding]:
    """GPUs at their power limit: the machine's own setting, so no disturbance, but it bounds the clocks."""
    capped: dict[str, float] = defaultdict(float)
    for host in evidence.hosts:
        if host.steps_ns is None:
            continue
        for series, counted in host.counters("gpu_throttle_time"):
            if "power_cap" not in series.labels.get("reason", ""):
                continue
            held, covered = counted_between(counted, *host.steps_ns)
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
            detail=f"{format_count(len(over))} of {format_count(len(capped))} GPUs ran slower for it.",
            action="Expect this under full load; raise the limit (`nvidia-smi -pl`) if the site allows it.",
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
        one for one in evidence.machine.traffic if one.link_class != "memory" and _use(one) >= SATURATED_LINK
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
                f"{format_rate(worst.peak_bytes_per_s)} for a twentieth of the time."
            ),
            detail=(
                f"{format_rate(worst.mean_bytes_per_s)} in the mean; peak by {worst.peak_source}. "
                f"Communication that nothing hides takes {evidence.of_step(evidence.mean('exposed_comm'))}."
            ),
            action="Send fewer bytes (bf16 gradients, accumulation over batches), or use a faster link.",
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
                f"Bytes are modelled from shapes; it does {top.intensity:.1f} FLOP per byte. "
                f"It takes {format_ns(top.time_ns)} per step."
            ),
            action="Move fewer bytes: fuse elementwise operators (torch.compile), use lower precision.",
            gain_ns=None,
            gain_ratio=None,
            layer=top.layer,
        )
    ]
