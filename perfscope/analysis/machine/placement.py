"""Where each rank runs, where its memory lies, and whether the two belong together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.analysis.machine.counters import middle_ns
from perfscope.analysis.machine.host import Host, HostRank
from perfscope.analysis.machine.results import MachineAnalysis, RankPlacement
from perfscope.kernel_text import cpu_set, format_cpulist
from perfscope.messages import machine as texts
from perfscope.messages.lists import counted
from perfscope.rundir.sample_facts import Binding
from perfscope.rundir.samples import SampleSeries

REMOTE = 0.2  # of a rank's pages on another node
_FAST = frozenset({"mcdram", "fast"})


def placements(host: Host, environment: Mapping[str, str]) -> list[RankPlacement]:
    """One entry per rank of a host that has a topology, by rank.

    Args:
        host: whose ranks.
        environment: run.json's, for the variables that select GPUs.
    """
    if not host.topology.nodes and not host.has_samples:
        return []
    bindings = _bindings(host)
    pages = _pages(host)
    return [
        _placed(host, rank, bindings.get(str(rank.pid), Binding()), pages.get(str(rank.pid), {}), environment)
        for rank in sorted(host.ranks, key=lambda host_rank: host_rank.rank)
    ]


def _placed(
    host: Host,
    rank: HostRank,
    binding: Binding,
    pages: Mapping[int, float],
    environment: Mapping[str, str],
) -> RankPlacement:
    cpus = cpu_set(binding.cpus) or rank.affinity
    listed = binding.cpu_nodes
    cpu_nodes = host.topology.nodes_of(cpus) if listed is None else tuple(sorted(listed))
    total = sum(pages.values())
    shares = {node: count / total for node, count in sorted(pages.items())} if total else {}
    source = _page_source(host, rank) if total else ""
    if not shares:
        shares, source = _of_the_job(host)
    near = set(cpu_nodes)
    gpu = host.topology.gpu_of(rank.device, environment)
    return RankPlacement(
        rank=rank.rank,
        host=host.name,
        pid=rank.pid,
        cpus=format_cpulist(cpus),
        cpu_nodes=cpu_nodes,
        memory_nodes=shares,
        local_ratio=sum(share for node, share in shares.items() if node in near) if shares and near else None,
        policy=binding.policy,
        source=source,
        device_node=gpu.node if gpu is not None else None,
        note=_meant(host, binding.policy),
    )


def _page_source(host: Host, rank: HostRank) -> str:
    """``move_pages, 7 samples``, or the file."""
    series = max(
        host.samples.find("rank_pages", pid=str(rank.pid)), key=lambda candidate: len(candidate.values)
    )
    name = series.source.split("(")[0].split(",")[0]
    count = len(series.values)
    return f"{name}, {counted(count, 'reading')}"


def _bindings(host: Host) -> dict[str, Binding]:
    """pid -> its last binding: ranks may bind themselves after they have started."""
    return {
        fact.labels["pid"]: fact.value
        for fact in host.samples.facts
        if isinstance(fact.value, Binding) and isinstance(fact.labels.get("pid"), str)
    }


def _pages(host: Host) -> dict[str, dict[int, float]]:
    """pid -> node -> the mean of its sampled pages there, over the steps if any reading falls into them."""
    by_pid: dict[str, dict[int, float]] = defaultdict(dict)
    for series in host.samples.find("rank_pages"):
        node = series.labels.get("node", "")
        mean = _mean_in_steps(host, series)
        if node.isdecimal() and mean is not None:
            by_pid[series.labels.get("pid", "")][int(node)] = mean
    return by_pid


def _mean_in_steps(host: Host, series: SampleSeries) -> float | None:
    if not len(series.values):
        return None
    values = series.values.astype(np.float64) * series.scale
    if host.steps_ns is not None:
        at = middle_ns(series)
        inside = (at >= host.steps_ns[0]) & (at <= host.steps_ns[1])
        if inside.any():
            return float(values[inside].mean())
    return float(values[-1])


def _of_the_job(host: Host) -> tuple[dict[int, float], str]:
    """The control group's memory per node: the rank's own only where the job has one rank on this host."""
    if len(host.ranks) != 1:
        return {}, ""
    by_node: dict[int, float] = {}
    for series in host.samples.find("job_memory_anon"):
        node, mean = series.labels.get("node", ""), _mean_in_steps(host, series)
        if node.isdecimal() and mean is not None:
            by_node[int(node)] = mean
    total = sum(by_node.values())
    if not total:
        return {}, ""
    return {node: value / total for node, value in sorted(by_node.items())}, texts.MEMORY_OF_THE_JOB


def bound_nodes(policy: str) -> tuple[int, ...]:
    """Nodes that a memory policy names: ``bind:2`` -> (2,), ``interleave:0-1`` -> (0, 1)."""
    _, _, nodes = policy.partition(":")
    return tuple(sorted(cpu_set(nodes)))


def _meant(host: Host, policy: str) -> str:
    """Why memory on other nodes is no mistake: it is interleaved, or bound to nodes without CPUs.

    Nodes without CPUs (MCDRAM, HBM, CXL) can be had by a policy only, so a policy that names one means it.
    """
    if "interleave" in policy:
        return texts.interleaved_on_purpose(policy)
    bound = [host.topology.nodes[node] for node in bound_nodes(policy) if node in host.topology.nodes]
    if not bound or any(node.cpus and node.kind not in _FAST for node in bound):
        return ""
    kinds = ", ".join(sorted({node.kind.replace("_", " ") for node in bound}))
    return texts.bound_on_purpose(kinds, policy)


def lies_elsewhere(placement: RankPlacement, host: Host) -> bool:
    """Whether a rank is kept to some nodes' CPUs while its memory lies on others, and not on purpose."""
    ratio, near_nodes = placement.local_ratio, set(placement.cpu_nodes)
    with_cpus = {node.number for node in host.topology.nodes.values() if node.cpus}
    bound = bool(near_nodes) and near_nodes < with_cpus
    # A rank that may run anywhere is remote only where no process runs: on a node without CPUs.
    anywhere = near_nodes == with_cpus and len(host.topology.nodes) > len(with_cpus)
    return ratio is not None and 1 - ratio >= REMOTE and (bound or anywhere) and not placement.note


def remote_ranks(machine: MachineAnalysis | None, hosts: Sequence[Host]) -> tuple[int, ...]:
    """Ranks whose memory `lies_elsewhere`.

    Args:
        machine: the run's; None = nothing was recorded.
        hosts: as `analyze_machine` gives them.
    """
    of_name = {host.name: host for host in hosts}
    placements = machine.placements if machine is not None else ()
    return tuple(
        sorted(
            placement.rank for placement in placements if lies_elsewhere(placement, of_name[placement.host])
        )
    )
