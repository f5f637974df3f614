"""Processors, caches, NUMA nodes and their memory, as /sys tells them. Part of `topology`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.collectors.context import Context
from perfscope.collectors.cpu.identity import CpuIdentity
from perfscope.kernel_text import format_cpulist, parse_cpulist
from perfscope.units import format_bytes

_CPU = "/sys/devices/system/cpu"
_NODE = "/sys/devices/system/node"
_TIERS = "/sys/devices/virtual/memory_tiering"
_MEMORY_TOLERANCE = 0.05  # of the machine's; what the kernel keeps for itself is less
_HMAT_UNITS = {
    # HMAT bandwidths are in MB/s, latencies in ns (Documentation/admin-guide/mm/numaperf.rst).
    "read_bandwidth": ("read_bandwidth_bytes_per_s", 1_000_000),
    "write_bandwidth": ("write_bandwidth_bytes_per_s", 1_000_000),
    "read_latency": ("read_latency_ns", 1),
    "write_latency": ("write_latency_ns", 1),
}


@dataclass(frozen=True, kw_only=True)
class Processors:
    """CPUs of the machine that are online.

    Attributes:
        package_of: CPU -> package (socket) number.
        core_of: CPU -> one name for all threads of its core.
        online: CPU list; "" = not known.
    """

    package_of: dict[int, int]
    core_of: dict[int, str]
    online: str

    @property
    def threads_per_core(self) -> int | None:
        siblings = next(iter(self.core_of.values()), "")
        return len(_cpus(siblings)) or None

    def packages(self, node_cpus: dict[int, list[int]]) -> list[dict[str, object]]:
        """Entries `packages` of topology.json."""
        members: dict[int, list[int]] = defaultdict(list)
        for cpu, package in self.package_of.items():
            members[package].append(cpu)
        return [
            {
                "package": package,
                "cpus": format_cpulist(cpus),
                "cores": len({self.core_of.get(cpu, str(cpu)) for cpu in cpus}),
                "nodes": [node for node, its in node_cpus.items() if set(its) & set(cpus)],
            }
            for package, cpus in sorted(members.items())
        ]


def read_processors(ctx: Context) -> Processors:
    package_of: dict[int, int] = {}
    core_of: dict[int, str] = {}
    for folder in ctx.glob(f"{_CPU}/cpu[0-9]*/topology"):
        cpu = int(folder.split("/")[-2].removeprefix("cpu"))
        package = ctx.read_int(f"{folder}/physical_package_id")
        if package is not None:
            package_of[cpu] = package
        siblings = ctx.read_or(f"{folder}/thread_siblings_list")
        if siblings:
            core_of[cpu] = siblings
    online = ctx.read_or(f"{_CPU}/online") or format_cpulist(package_of)
    return Processors(package_of=package_of, core_of=core_of, online=online)


def read_caches(ctx: Context) -> list[dict[str, object]]:
    """Entries `caches`: each cache once, however many CPUs share it."""
    caches: dict[tuple[int, str, str], dict[str, object]] = {}
    for folder in ctx.glob(f"{_CPU}/cpu[0-9]*/cache/index[0-9]*"):
        level, kind = ctx.read_int(f"{folder}/level"), ctx.read_or(f"{folder}/type")
        cpus = ctx.read_or(f"{folder}/shared_cpu_list")
        if level is None or (level, kind, cpus) in caches:
            continue
        size = re.fullmatch(r"(\d+)([KM]?)", ctx.read_or(f"{folder}/size"))
        unit = {"": 1, "K": 1 << 10, "M": 1 << 20}
        caches[level, kind, cpus] = {
            "level": level,
            "type": kind,
            "size_bytes": int(size[1]) * unit[size[2]] if size else None,
            "cpus": cpus,
        }
    return [caches[key] for key in sorted(caches, key=lambda key: (key[0], key[1], _cpus(key[2])))]


def read_node_cpus(ctx: Context) -> dict[int, list[int]]:
    """NUMA node -> its CPUs, [] for a node that has memory only; by node number."""
    return {node: _cpus(ctx.read_or(f"{_NODE}/node{node}/cpulist")) for node in _node_ids(ctx)}


def read_numa_nodes(
    ctx: Context, processors: Processors, node_cpus: dict[int, list[int]], cpu: CpuIdentity
) -> list[dict[str, object]]:
    """Entries `numa_nodes`.

    A node without CPUs is `fast` when the firmware's table (HMAT) gives it more bandwidth than any node
    with CPUs has, `mcdram` on a Knights Landing, else `memory_only`. Its distance says nothing about
    speed: MCDRAM is "far" (31) and four times as fast.
    """
    ids = list(node_cpus)
    online = _cpus(ctx.read_or(f"{_NODE}/online")) or ids
    tiers = _tiers(ctx)
    hmat = {node: _hmat(ctx, node) for node in ids}
    distances = {node: _distances(ctx, node) for node in ids}
    best = max((_bandwidth(hmat[node]) for node in ids if node_cpus[node]), default=0)
    nodes: list[dict[str, object]] = []
    for node in ids:
        row = dict(zip(online, distances[node], strict=False))
        nodes.append(
            {
                "node": node,
                "cpus": format_cpulist(node_cpus[node]),
                "memory_bytes": _memory(ctx.read_or(f"{_NODE}/node{node}/meminfo"), "MemTotal"),
                "distances": distances[node],
                "distance_nodes": online[: len(distances[node])],
                "kind": _kind(node_cpus[node], _bandwidth(hmat[node]), best, cpu),
                "package": _package(ctx, node, node_cpus, row, processors),
                "hmat": hmat[node],
                "tier": tiers.get(node),
            }
        )
    return nodes


def is_sub_numa(packages: Sequence[dict[str, object]]) -> bool:
    """Whether a socket is cut into several NUMA nodes with CPUs (sub-NUMA clustering, NPS2/4)."""
    return any(isinstance(package["nodes"], list) and len(package["nodes"]) > 1 for package in packages)


def memory_total(ctx: Context) -> int | None:
    return _memory(ctx.read_or("/proc/meminfo"), "MemTotal")


def memory_differs(machine: int | None, nodes: Sequence[dict[str, object]]) -> str:
    """A remark where the kernel's two figures of the memory differ; "" where they agree.

    They do for a while, or for good, after memory was added or taken while the machine ran.
    """
    sizes = [size for node in nodes if isinstance(size := node["memory_bytes"], int)]
    if not machine or not sizes or abs(sum(sizes) - machine) <= _MEMORY_TOLERANCE * machine:
        return ""
    return (
        f"the kernel says {format_bytes(machine)} of memory for the machine (/proc/meminfo) and "
        f"{format_bytes(sum(sizes))} for its NUMA nodes together (nodeN/meminfo): memory was added or taken "
        "while it ran, or a container shows a /proc/meminfo of its own"
    )


def _kind(cpus: list[int], bandwidth: int, best_with_cpus: int, cpu: CpuIdentity) -> str:
    if cpus:
        return "cpu"
    if cpu.is_knights:
        return "mcdram"
    return "fast" if bandwidth > best_with_cpus > 0 else "memory_only"


def _package(
    ctx: Context, node: int, node_cpus: dict[int, list[int]], row: dict[int, int], processors: Processors
) -> int | None:
    """The socket a node belongs to; for one without CPUs by its HMAT initiator, else by distance."""
    near = [node] if node_cpus[node] else _initiators(ctx, node)
    if not near:
        distances = {other: row[other] for other, cpus in node_cpus.items() if cpus and other in row}
        near = [other for other, far in distances.items() if far == min(distances.values())]
    sockets = {processors.package_of.get(cpu) for other in near for cpu in node_cpus.get(other, [])}
    return sockets.pop() if len(sockets) == 1 else None


def _initiators(ctx: Context, node: int) -> list[int]:
    names = ctx.glob(f"{_access(ctx, node)}/node[0-9]*")
    return [int(name.rpartition("node")[2]) for name in names]


def _access(ctx: Context, node: int) -> str:
    """access1 is seen from CPUs; access0 from any initiator, which may be a device (kernels before 5.8)."""
    folders = [f"{_NODE}/node{node}/access{number}/initiators" for number in (1, 0)]
    return next((folder for folder in folders if ctx.exists(folder)), folders[0])


def _hmat(ctx: Context, node: int) -> dict[str, int] | None:
    folder = _access(ctx, node)
    attributes: dict[str, int] = {}
    for name, (key, factor) in _HMAT_UNITS.items():
        value = ctx.read_int(f"{folder}/{name}")
        if value is not None and value > 0:
            attributes[key] = value * factor
    return attributes or None


def _bandwidth(hmat: dict[str, int] | None) -> int:
    return (hmat or {}).get("read_bandwidth_bytes_per_s", 0)


def _tiers(ctx: Context) -> dict[int, int]:
    tiers: dict[int, int] = {}
    for name in ctx.glob(f"{_TIERS}/memory_tier[0-9]*/nodelist"):
        tier = int(name.split("/")[-2].removeprefix("memory_tier"))
        tiers.update(dict.fromkeys(_cpus(ctx.read_or(name)), tier))
    return tiers


def _distances(ctx: Context, node: int) -> list[int]:
    fields = ctx.read_or(f"{_NODE}/node{node}/distance").split()
    return [int(word) for word in fields if word.isdigit()]


def _node_ids(ctx: Context) -> list[int]:
    names = ctx.glob(f"{_NODE}/node[0-9]*")
    return sorted(int(name.rpartition("node")[2]) for name in names if name.rpartition("node")[2].isdigit())


def _memory(meminfo: str, name: str) -> int | None:
    match = re.search(rf"\b{name}:\s+(\d+) kB", meminfo)
    return int(match[1]) * 1024 if match else None


def _cpus(text: str) -> list[int]:
    try:
        return parse_cpulist(text)
    except ValueError:  # a kernel that writes something else: as if it wrote nothing
        return []
