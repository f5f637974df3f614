"""Ranks whose memory, or GPU, lies on another NUMA node than their CPUs."""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.findings.numactl import how_to_bind
from perfscope.analysis.machine.placement import lies_elsewhere, remote_ranks
from perfscope.analysis.results import Finding
from perfscope.messages.findings.machine import GpuRemote, NumaRemote
from perfscope.vocabulary.findings import FindingKind


def _remote(
    evidence: Evidence, *, local_step_ns: int | None = None, all_ranks: bool = False
) -> Finding | None:
    """Ranks that are kept to some nodes' CPUs while their memory lies on others."""
    assert evidence.machine is not None
    hosts = {host.name: host for host in evidence.hosts}
    remote = [
        placement
        for placement in evidence.machine.placements
        if lies_elsewhere(placement, hosts[placement.host])
    ]
    if not remote:
        return None
    worst = min(remote, key=lambda placement: (placement.local_ratio or 0.0, placement.rank))
    elsewhere = {node: share for node, share in worst.memory_nodes.items() if node not in worst.cpu_nodes}
    most = max(elsewhere, key=lambda node: elsewhere[node])
    return Finding(
        id=FindingKind.NUMA_REMOTE,
        facts=NumaRemote(
            cpu_nodes=worst.cpu_nodes,
            remote_ratio=1 - (worst.local_ratio or 0.0),
            most_node=most,
            most_ratio=elsewhere[most],
            num_others=len(remote) - 1,
            source=worst.source,
            cpus=worst.cpus,
            host=worst.host,
            policy="" if worst.policy == "default" else worst.policy,
            binding=how_to_bind(evidence.run, hosts[worst.host], _targets(evidence, worst.host)),
            local_step_ns=local_step_ns,
            all_ranks=all_ranks,
        ),
        rank=worst.rank,
    )


def uncosted(evidence: Evidence) -> list[Finding]:
    """Remote memory whose cost is not known."""
    finding = _remote(evidence)
    return [finding] if finding is not None else []


def remote_memory(evidence: Evidence) -> Finding | None:
    """Remote memory with what it costs, where ranks with local memory do the same work faster."""
    what_if = evidence.what_ifs.of("local_memory")
    finding = _remote(evidence, local_step_ns=what_if.step_ns) if what_if is not None else None
    if what_if is None or finding is None:
        return None
    return replace(finding, gain_ns=what_if.gain_ns, gain_ratio=what_if.gain_ratio)


def all_remote(evidence: Evidence) -> Finding | None:
    """Remote memory that no rank does without: what it costs is not known, but nothing else comes first."""
    if evidence.machine is None or len(remote_ranks(evidence.machine, evidence.hosts)) < len(evidence.ranks):
        return None
    return _remote(evidence, all_ranks=True)


def _targets(evidence: Evidence, host: str) -> dict[int, tuple[int, ...]]:
    """Rank -> the nodes that it should have: its GPU's, else its CPUs'."""
    assert evidence.machine is not None
    return {
        placement.rank: (placement.device_node,) if placement.device_node is not None else placement.cpu_nodes
        for placement in evidence.machine.placements
        if placement.host == host
    }


def gpu_remote(evidence: Evidence) -> list[Finding]:
    assert evidence.machine is not None
    hosts = {host.name: host for host in evidence.hosts}
    remote = [
        placement
        for placement in evidence.machine.placements
        if placement.device_node is not None
        and placement.cpu_nodes
        and placement.device_node not in placement.cpu_nodes
    ]
    if not remote:
        return []
    first = min(remote, key=lambda placement: placement.rank)
    return [
        Finding(
            id=FindingKind.GPU_REMOTE,
            facts=GpuRemote(
                cpu_nodes=first.cpu_nodes,
                device_node=first.device_node,
                num_others=len(remote) - 1,
                cpus=first.cpus,
                host=first.host,
                binding=how_to_bind(evidence.run, hosts[first.host], _targets(evidence, first.host)),
            ),
            rank=first.rank,
        )
    ]
