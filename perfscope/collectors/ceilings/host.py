"""What a measurement of ceilings may use of this machine: CPUs, nodes, caches, memory, limits."""

from __future__ import annotations

import os
from dataclasses import dataclass

from perfscope.collectors.context import Context
from perfscope.kernel_text import parse_cpulist, parse_pairs

_NODES = "/sys/devices/system/node"
_CPUS = "/sys/devices/system/cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A NUMA node. `cores`: one allowed CPU of each core; empty for memory without CPUs."""

    number: int
    cores: tuple[int, ...]
    free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHost:
    """The allowed part of this machine.

    Attributes:
        nodes: those with memory, in order.
        threads: how many CPUs may be busy at once: the affinity mask, one CPU per core, and the cgroup's
            quota rounded down.
        cpus: every allowed CPU.
        cpu_limit: the cgroup's quota in CPUs; None = no limit.
        free_bytes: memory that can be taken without harm, by the machine and by the cgroup.
        cpu_model, memory_bytes: for the fingerprint.
    """

    nodes: tuple[LocalNode, ...]
    threads: int
    cpus: tuple[int, ...]
    cpu_limit: float | None
    free_bytes: int
    cpu_model: str
    memory_bytes: int


def read_host(ctx: Context) -> LocalHost:
    """Ask the kernel. Missing files mean one node with everything."""
    allowed = sorted(os.sched_getaffinity(0))
    cores = _one_per_core(ctx, allowed)
    memory = parse_pairs(ctx.read_or("/proc/meminfo"))
    free = memory.get("MemAvailable", memory.get("MemFree", 0)) * 1024
    cpu_limit, memory_left = cgroup_limits(ctx)
    threads = len(cores) if cpu_limit is None else min(len(cores), max(int(cpu_limit), 1))
    return LocalHost(
        nodes=_nodes(ctx, cores),
        threads=threads,
        cpus=tuple(allowed),
        cpu_limit=cpu_limit,
        free_bytes=free if memory_left is None else min(free, memory_left),
        cpu_model=_cpu_model(ctx),
        memory_bytes=memory.get("MemTotal", 0) * 1024,
    )


def _one_per_core(ctx: Context, allowed: list[int]) -> list[int]:
    """The first allowed CPU of each core: a second hardware thread adds no bandwidth and no FLOP/s."""
    seen: set[str] = set()
    cores = []
    for cpu in allowed:
        siblings = ctx.read_or(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list", str(cpu))
        if siblings not in seen:
            seen.add(siblings)
            cores.append(cpu)
    return cores


def _nodes(ctx: Context, cores: list[int]) -> tuple[LocalNode, ...]:
    nodes = []
    for folder in ctx.glob(f"{_NODES}/node[0-9]*"):
        number = int(folder.rpartition("node")[2])
        lines = [line.split() for line in ctx.read_or(f"{folder}/meminfo").splitlines()]
        sizes = {line[2].rstrip(":"): int(line[3]) * 1024 for line in lines if len(line) >= 4}
        if not sizes.get("MemTotal"):
            continue
        try:
            here = set(parse_cpulist(ctx.read_or(f"{folder}/cpulist")))
        except ValueError:
            continue
        node_cpus = tuple(cpu for cpu in cores if cpu in here)
        if node_cpus or not here:  # a node whose CPUs are all forbidden is not ours to measure
            free = sizes.get("MemFree", 0) + sizes.get("FilePages", 0)
            nodes.append(LocalNode(number=number, cores=node_cpus, free_bytes=free))
    return tuple(nodes) or (LocalNode(number=0, cores=tuple(cores), free_bytes=None),)


def last_level_bytes(ctx: Context, cpus: tuple[int, ...]) -> int:
    """Sum of the last-level caches that these CPUs have; 0 if it is not known."""
    indexes = ctx.glob(f"{_CPUS}/cpu{cpus[0]}/cache/index[0-9]*") if cpus else []
    levels = {index: ctx.read_int(f"{index}/level") or 0 for index in indexes}
    if not levels:
        return 0
    last = max(levels, key=lambda index: levels[index]).rpartition("/")[2]
    caches: dict[str, int] = {}
    for cpu in cpus:
        folder = f"{_CPUS}/cpu{cpu}/cache/{last}"
        shared = ctx.read_or(f"{folder}/shared_cpu_list", str(cpu))
        if shared not in caches:
            caches[shared] = _size(ctx.read_or(f"{folder}/size"))
    return sum(caches.values())


def _size(text: str) -> int:
    """``32768K`` in bytes."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.rstrip("KMG")
    return int(number) * units.get(text[len(number) :], 1) if number.isdigit() else 0


def _cpu_model(ctx: Context) -> str:
    for line in ctx.read_or("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return ""


def cgroup_limits(ctx: Context) -> tuple[float | None, int | None]:
    """(CPUs, bytes left) that this process's cgroups allow; None = no limit. Versions 1, 2 and both mixed."""
    cpus: list[float] = []
    left: list[int] = []
    for line in ctx.read_or("/proc/self/cgroup").splitlines():
        _, _, remainder = line.partition(":")
        controllers, _, path = remainder.partition(":")
        for root, version in _roots(controllers):
            for folder in _upwards(root, path):
                quota = _quota_v2(ctx, folder) if version == 2 else _quota_v1(ctx, folder)
                rest_bytes = _memory_left(ctx, folder, version)
                cpus += [] if quota is None else [quota]
                left += [] if rest_bytes is None else [rest_bytes]
    return min(cpus, default=None), min(left, default=None)


def _roots(controllers: str) -> list[tuple[str, int]]:
    if not controllers:
        return [("/sys/fs/cgroup", 2), ("/sys/fs/cgroup/unified", 2)]
    wanted = [name for name in controllers.split(",") if name in ("cpu", "memory")]
    return [(f"/sys/fs/cgroup/{name}", 1) for name in wanted]


def _upwards(root: str, path: str) -> list[str]:
    """A cgroup's folder and those above it, whose limits hold for it as well."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/".join([root, *parts[:length]]) for length in range(len(parts), -1, -1)]


def _quota_v2(ctx: Context, folder: str) -> float | None:
    fields = ctx.read_or(f"{folder}/cpu.max").split()
    if len(fields) != 2 or not all(word.isdigit() for word in fields) or not int(fields[1]):
        return None
    return int(fields[0]) / int(fields[1])


def _quota_v1(ctx: Context, folder: str) -> float | None:
    quota, period = (ctx.read_int(f"{folder}/cpu.cfs_{what}_us") for what in ("quota", "period"))
    return quota / period if quota and quota > 0 and period else None


def _memory_left(ctx: Context, folder: str, version: int) -> int | None:
    limit_file, used_file = (
        ("memory.max", "memory.current")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    limit = ctx.read_int(f"{folder}/{limit_file}")
    if limit is None or limit >= 1 << 60:  # "max", and version 1's way to say so
        return None
    return max(limit - (ctx.read_int(f"{folder}/{used_file}") or 0), 0)
