"""Which NUMA nodes there are, and whose CPUs are on them."""

from __future__ import annotations

from perfscope.collectors.context import Context
from perfscope.kernel_text import parse_cpulist

NODES = "/sys/devices/system/node"


def online_nodes(ctx: Context) -> list[int]:
    """Ids of the nodes that are there, with the holes that nodes taken offline leave; [] = no NUMA here."""
    nodes = [int(name[len(NODES) + 5 :]) for name in ctx.glob(f"{NODES}/node[0-9]*")]
    try:
        online = set(parse_cpulist(ctx.read_or(f"{NODES}/online")))
    except ValueError:
        online = set()
    return [node for node in nodes if not online or node in online]


def node_cpus(ctx: Context, node: int) -> list[int]:
    """CPUs of a node; [] for one that has memory only."""
    try:
        return parse_cpulist(ctx.read_or(f"{NODES}/node{node}/cpulist"))
    except ValueError:
        return []
