"""What the machine says that could make a rank late: remote memory, neighbors, too few CPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.oversubscription import oversubscriptions
from perfscope.analysis.machine.placement import remote_ranks
from perfscope.analysis.machine.results import MachineAnalysis, RankPlacement
from perfscope.messages import stragglers as words
from perfscope.messages.sentences import clause
from perfscope.vocabulary.disturbances import SLOW_COMPUTATION


class HostConditions(Struct, frozen=True, kw_only=True):
    """Empty where nothing of the machine was recorded: then none of these is ever named as a reason."""

    remote: Mapping[int, str] = {}  # rank -> where its memory lies, in words
    disturbed: Mapping[tuple[str, int], str] = {}  # (host, window) -> by what
    crowded: Mapping[int, str] = {}  # rank -> how many threads share which CPUs
    is_known: bool = False


def surroundings(machine: MachineAnalysis | None, hosts: Sequence[Host]) -> HostConditions:
    """What is of use here.

    Args:
        machine: the run's; None = nothing was recorded.
        hosts: as `analyze_machine` gives them.
    """
    if machine is None:
        return HostConditions()
    disturbed: dict[tuple[str, int], str] = {}
    for disturbance in sorted(machine.disturbances, key=lambda disturbance: -disturbance.severity):
        if disturbance.within_steps and disturbance.kind in SLOW_COMPUTATION:
            for window in disturbance.windows:
                disturbed.setdefault((disturbance.host, window), clause(disturbance.title))
    crowded = {
        rank: words.crowded(oversubscription.threads, len(oversubscription.ranks), oversubscription.where)
        for host in hosts
        for oversubscription in oversubscriptions(host)
        for rank in oversubscription.ranks
    }
    remote = remote_ranks(machine, hosts)
    return HostConditions(
        remote={
            placement.rank: _where(placement) for placement in machine.placements if placement.rank in remote
        },
        disturbed=disturbed,
        crowded=crowded,
        is_known=True,
    )


def _where(placement: RankPlacement) -> str:
    away = {node: share for node, share in placement.memory_nodes.items() if node not in placement.cpu_nodes}
    most = max(away, key=lambda node: away[node], default=None)
    return words.remote_memory(placement.local_ratio or 0.0, placement.cpu_nodes, most)
