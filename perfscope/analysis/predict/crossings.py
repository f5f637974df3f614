"""How much of a call goes through the busiest host's link, against what the formula of one call says.

A ring in rank order leaves each host once, so the ranks of a host do not share its link. A ring per rank of
the host (data groups beside model groups) does: ParaDL's penalty phi (Kahira et al., HPDC'21). An all-to-all
sends from each of a host's k members to each of the P-k others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from perfscope.analysis.predict.costs import LinkCost, collective_time_s
from perfscope.volumes import edges

_ONE_BYTE = LinkCost(0.0, 1.0)


def host_shares(collective: str, hosts: Sequence[int]) -> Mapping[int, float]:
    """host -> bytes that leave or enter it (the larger) per byte of S, for one call.

    Args:
        collective: canonical name.
        hosts: of the group's members, in the group's order.
    """
    num = len(hosts)
    leaving: dict[int, float] = defaultdict(float)
    entering: dict[int, float] = defaultdict(float)
    if collective == "all_to_all":  # its edges grow with the square of the group
        for host, members in Counter(hosts).items():
            leaving[host] = entering[host] = members * (num - members) / num
    else:
        for sender, receiver, share in edges(collective, range(num)):
            if hosts[sender] != hosts[receiver]:
                leaving[hosts[sender]] += share
                entering[hosts[receiver]] += share
    return {host: max(leaving[host], entering[host]) for host in {*leaving, *entering}}


def uses_inside(collective: str, hosts: Sequence[object]) -> bool:
    """Whether a call over several hosts sends inside one of them, too.

    A ring or a tree in rank order does where two neighbors share a host; an all-to-all where any two do.

    Args:
        collective: canonical name.
        hosts: of the group's members, in the group's order.
    """
    if len(set(hosts)) < 2:
        return False
    if collective == "all_to_all":
        return len(set(hosts)) < len(hosts)
    return any(host == other for host, other in zip(hosts, [*hosts[1:], hosts[0]], strict=True))


def sharing(collective: str, groups: Sequence[Sequence[int]]) -> float:
    """How many times the formula's bytes go through the busiest host's link; 1 where nothing is shared.

    Args:
        collective: canonical name.
        groups: the hosts of the members of every group that makes the same call at the same time.
    """
    busy: dict[int, float] = defaultdict(float)
    for hosts in groups:
        for host, share in host_shares(collective, hosts).items():
            busy[host] += share
    alone = max(collective_time_s(collective, len(hosts), 1.0, _ONE_BYTE) for hosts in groups)
    return max(1.0, max(busy.values(), default=0.0) / alone) if alone else 1.0
