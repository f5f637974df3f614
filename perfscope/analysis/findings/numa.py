"""Ranks whose memory, or GPU, lies on another NUMA node than their CPUs."""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.findings.numactl import how_to_bind
from perfscope.analysis.machine.placement import lies_elsewhere, remote_ranks
from perfscope.analysis.results import Finding
from perfscope.messages.lists import counted, plural
from perfscope.units import format_ns, format_ratio


def uncosted(evidence: Evidence) -> list[Finding]:
    """Ranks that are kept to some nodes' CPUs while their memory lies on others."""
    assert evidence.machine is not None
    hosts = {host.name: host for host in evidence.hosts}
    remote = [
        placement
        for placement in evidence.machine.placements
        if lies_elsewhere(placement, hosts[placement.host])
    ]
    if not remote:
        return []
    worst = min(remote, key=lambda placement: (placement.local_ratio or 0.0, placement.rank))
    elsewhere = {node: share for node, share in worst.memory_nodes.items() if node not in worst.cpu_nodes}
    most = max(elsewhere, key=lambda node: elsewhere[node])
    how = how_to_bind(evidence.run, hosts[worst.host], _targets(evidence, worst.host))
    policy = f" Its memory policy is {worst.policy}." if worst.policy not in ("", "default") else ""
    return [
        Finding(
            id="numa_remote",
            title=(
                f"Rank {worst.rank} runs on NUMA {_nodes(worst.cpu_nodes)}, but "
                f"{format_ratio(1 - (worst.local_ratio or 0.0), 0)} of its memory is on other nodes "
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


def remote_memory(evidence: Evidence, verdict: bool) -> Finding | None:
    """Remote memory with what it costs, where ranks with local memory do the same work faster."""
    what_if = evidence.what_ifs.of("local_memory")
    findings = uncosted(evidence) if what_if is not None else []
    if what_if is None or not findings:
        return None
    gain = (
        " Ranks with local memory do the same work faster. With local memory the step would take "
        f"{format_ns(what_if.step_ns)}."
    )
    return replace(
        findings[0],
        detail=findings[0].detail + gain,
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
    )


def all_remote(evidence: Evidence) -> Finding | None:
    """Remote memory that no rank does without: what it costs cannot be told, but nothing else comes first."""
    if evidence.machine is None or len(remote_ranks(evidence.machine, evidence.hosts)) < len(evidence.ranks):
        return None
    findings = uncosted(evidence)
    if not findings:
        return None
    cost_note = " Every rank is affected, so this run does not show the cost."
    return replace(findings[0], detail=findings[0].detail + cost_note)


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
    return f"{plural('node', len(nodes))} {', '.join(map(str, nodes))}"


def _and_more(count: int) -> str:
    return f"; so {'are' if count > 1 else 'is'} {counted(count, 'other rank')}" if count else ""
