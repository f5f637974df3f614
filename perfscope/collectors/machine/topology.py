"""What a host is made of: sockets, NUMA nodes, memory, caches, GPUs, network ports, and what joins them.

One dict, as hosts/<host>/topology.json holds it. Everything is read without root; what a machine does not
tell is None or left out, and nothing raises.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from itertools import combinations
from typing import TypeVar

from perfscope.collectors.context import Context
from perfscope.collectors.cpu.identity import CpuIdentity, read_cpu_identity
from perfscope.collectors.gpu import registry
from perfscope.collectors.machine.numa_nodes import (
    Processors,
    is_sub_numa,
    memory_differs,
    memory_total,
    read_caches,
    read_node_cpus,
    read_numa_nodes,
    read_processors,
)
from perfscope.collectors.machine.pci import (
    PciLocation,
    normal_address,
    path_between,
    pcie_link,
    place_of,
    read_fabric_ports,
    read_nics,
)
from perfscope.kernel_text import parse_cpulist
from perfscope.rundir import layout

_PCI_DEVICES = "/sys/bus/pci/devices"
_T = TypeVar("_T")
Entry = dict[str, object]


def read_topology(ctx: Context, host: str) -> Entry:
    """The machine below `ctx.root` as topology.json describes it. Never raises.

    Args:
        ctx: where to look; vendors' libraries are asked through it.
        host: name of the host, as it is written.
    """
    notes: list[str] = []
    cpu = _part(notes, "processor", lambda: read_cpu_identity(ctx), CpuIdentity())
    none = Processors(package_of={}, core_of={}, online="")
    processors = _part(notes, "processors", lambda: read_processors(ctx), none)
    node_cpus = _part(notes, "NUMA nodes", lambda: read_node_cpus(ctx), dict[int, list[int]]())
    packages = _part(notes, "packages", lambda: processors.packages(node_cpus), list[Entry]())
    nodes = _part(
        notes, "NUMA nodes", lambda: read_numa_nodes(ctx, processors, node_cpus, cpu), list[Entry]()
    )
    differs = _part(notes, "memory", lambda: memory_differs(memory_total(ctx), nodes), "")
    notes += [differs] if differs else []
    gpus = _part(
        notes, "GPUs", lambda: [_placed(ctx, gpu) for gpu in registry.devices(ctx, notes)], list[Entry]()
    )
    nics, more = _part(notes, "network interfaces", lambda: read_nics(ctx), (list[Entry](), list[str]()))
    ports = _part(notes, "fabric ports", lambda: read_fabric_ports(ctx), list[Entry]())
    links = _part(notes, "links", lambda: _links(ctx, gpus, nics, ports, len(nodes), notes), list[Entry]())
    return {
        "schema_version": layout.SCHEMA_VERSION,
        "host": host,
        **_part(notes, "system", lambda: _system(ctx), Entry()),
        "cpu_model": cpu.name,
        "logical_cpus": os.cpu_count() if ctx.live else _count(processors.online),
        "online_cpus": processors.online or None,
        "affinity": sorted(os.sched_getaffinity(0)) if ctx.live else None,
        "sockets": len(packages) or None,
        "threads_per_core": processors.threads_per_core,
        "packages": packages,
        "caches": _part(notes, "caches", lambda: read_caches(ctx), list[Entry]()),
        "numa_nodes": nodes,
        "sub_numa": is_sub_numa(packages),
        "gpus": gpus,
        "nics": nics,
        "fabric_ports": ports,
        "links": links,
        "notes": notes + more,
    }


def _part(notes: list[str], what: str, read: Callable[[], _T], otherwise: _T) -> _T:
    """One part of the picture; a fault in reading it costs that part only."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - firmware writes anything into these files; the rest must stand
        notes.append(f"{what}: not read ({type(error).__name__}: {error})")
        return otherwise


def _system(ctx: Context) -> Entry:
    return {
        "kernel": platform.release() if ctx.live else ctx.read_or("/proc/sys/kernel/osrelease") or None,
        "machine": platform.machine() if ctx.live else None,
        "cpu_limit": _cpu_limit(ctx),
        "memory_bytes": memory_total(ctx),
    }


def _count(cpus: str) -> int | None:
    try:
        return len(parse_cpulist(cpus)) or None
    except ValueError:
        return None


def _cpu_limit(ctx: Context) -> float | None:
    """CPUs that the control groups around this process grant (the least of them); None = no limit."""
    match = re.search(r"^0::(/.*)$", ctx.read_or("/proc/self/cgroup"), re.M)
    parts = match[1].strip("/").split("/") if match else []
    limits = []
    for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        for length in range(len(parts) + 1):
            folder = "/".join([base, *[part for part in parts[:length] if part]])
            limits.append(_quota(*ctx.read_or(f"{folder}/cpu.max").partition(" ")[::2]))
    old = "/sys/fs/cgroup/cpu/cpu.cfs_"
    limits.append(_quota(ctx.read_or(f"{old}quota_us"), ctx.read_or(f"{old}period_us")))
    return min((limit for limit in limits if limit), default=None)


def _quota(quota: str, period: str) -> float | None:
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


# GPUs


def _placed(ctx: Context, gpu: Entry) -> Entry:
    """The same with what sysfs knows; what the driver said goes first."""
    address = normal_address(str(gpu.get("pci") or ""))
    folder = f"{_PCI_DEVICES}/{address}"
    is_present = address and ctx.exists(folder)
    location = place_of(ctx, folder) if is_present else PciLocation()
    facts: Entry = {
        "id": gpu["id"],
        "index": gpu["index"],
        "pci": address or None,
        "name": None,
        "uuid": None,
        "memory_bytes": None,
        "numa_node": location.numa_node,
        "cpus": location.cpus,
        "pcie": pcie_link(ctx, location.folder) if location.folder else None,
    }
    vendor_facts = {key: value for key, value in gpu.items() if value is not None and value != ""}
    return {**facts, **vendor_facts, "pci": facts["pci"]}


# Links


def _links(
    ctx: Context,
    gpus: list[Entry],
    nics: list[Entry],
    ports: list[Entry],
    num_nodes: int,
    notes: list[str],
) -> list[Entry]:
    """GPU to GPU (the vendor's links, else PCIe) and GPU to network port (PCIe)."""
    links = registry.links(ctx, gpus, notes)
    linked = {(link["a"], link["b"]) for link in links}
    pairs = [pair for pair in combinations(gpus, 2) if (pair[0]["id"], pair[1]["id"]) not in linked]
    links += [_pcie_path(ctx, a, b, num_nodes) for a, b in pairs if a.get("pci") and b.get("pci")]
    adapters = {port["pci"] for port in ports}
    ends = [*ports, *[nic for nic in nics if nic["pci"] not in adapters]]  # one adapter, one end
    links += [
        _pcie_path(ctx, gpu, end, num_nodes)
        for gpu in gpus
        for end in ends
        if gpu.get("pci") and end.get("pci")
    ]
    return links


def _pcie_path(ctx: Context, first_gpu: Entry, other: Entry, num_nodes: int) -> Entry:
    locations = [place_of(ctx, f"{_PCI_DEVICES}/{end['pci']}") for end in (first_gpu, other)]
    peaks = [
        pcie["peak_bytes_per_s"] for end in (first_gpu, other) if isinstance(pcie := end.get("pcie"), dict)
    ]
    return {
        "a": first_gpu["id"],
        "b": other["id"],
        "class": "pcie",
        "path": path_between(locations[0], locations[1], num_nodes),
        "peak_bytes_per_s": min(peaks) if len(peaks) == 2 else None,
    }
