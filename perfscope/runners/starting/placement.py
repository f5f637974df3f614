"""Which CPUs, memory and GPU each rank of a host gets: `--bind numa|core|none`.

    numa   consecutive ranks fill the NUMA domains in order, so a model group stays in one where it fits; the
           cores of a domain are split evenly among its ranks; memory comes from the domain while it lasts
    core   every rank has physical cores to itself (both SMT siblings of each), as many as its neighbors
    none   nothing is bound; a rank computes with its share of the cores

A rank with a GPU goes to the domain that the GPU hangs on. Only CPUs that this process may use count.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from perfscope.collectors.context import Context
from perfscope.collectors.gpu.registry import visible_devices
from perfscope.kernel_text import cpu_set, format_cpulist
from perfscope.runners.cluster.ranks import ENV_CLUSTER
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.starting import kernel
from perfscope.runners.starting.launching import ENV_BOUND

_ROOT = Path("/")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core.

    Attributes:
        cpus: its SMT siblings that may be used, at least one.
        node: NUMA domain; None = the machine does not say.
    """

    cpus: tuple[int, ...]
    node: int | None


@dataclass(frozen=True, slots=True)
class HostTopology:
    """What placement needs to know of a host.

    Attributes:
        cores: usable ones, by domain, then by number.
        gpu_nodes: NUMA domain of each visible GPU in the framework's order; None = not known.
    """

    cores: tuple[Core, ...]
    gpu_nodes: tuple[int | None, ...] = ()

    @property
    def domains(self) -> tuple[tuple[Core, ...], ...]:
        """Cores by domain."""
        nodes = dict.fromkeys(core.node for core in self.cores)
        return tuple(tuple(core for core in self.cores if core.node == node) for node in nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A rank's place.

    Attributes:
        cpus: it may run on.
        num_cores: physical cores among them: the threads it should use.
        node: the NUMA domain that holds all of them; None = several, or not known.
        gpu: index among the visible GPUs; None = none.
        shared: other ranks have the same CPUs.
    """

    cpus: tuple[int, ...]
    num_cores: int
    node: int | None
    gpu: int | None = None
    shared: bool = False


def read_topology(
    root: Path = _ROOT,
    allowed: Collection[int] | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> HostTopology:
    """The host below `root`/sys.

    Args:
        allowed: CPUs that count; None = all that are online.
        environment: variables that select GPUs (CUDA_VISIBLE_DEVICES and its like); {} = all of them.
    """
    nodes = _nodes(root)
    online = sorted(cpu_set(_text(root / "sys/devices/system/cpu/online"))) or sorted(nodes)
    usable = (
        sorted(set(online) & set(allowed)) if allowed is not None and online else sorted(allowed or online)
    )
    cores: dict[tuple[int, ...], Core] = {}
    for cpu in sorted(usable):
        siblings = cpu_set(_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        mine = tuple(cpu for cpu in sorted(siblings) if cpu in usable) or (cpu,)
        cores.setdefault(mine, Core(mine, nodes.get(cpu)))
    ordered = sorted(cores.values(), key=lambda core: (-1 if core.node is None else core.node, core.cpus))
    return HostTopology(tuple(ordered), _gpu_nodes(root, environment))


def plan_placement(num_ranks: int, topology: HostTopology, bind: str = "numa") -> tuple[Slot, ...]:
    """The slot of each local rank.

    Args:
        num_ranks: ranks on this host (of all emulated hosts, where it is one machine).
        bind: numa, core or none. GPUs are dealt out whenever there is one for every rank.

    Raises:
        BenchError: `core`, and there are more ranks than cores; or there is no CPU at all.
    """
    if not topology.cores:
        raise BenchError("this process may use no CPU that the machine knows; use --bind none")
    gpus = topology.gpu_nodes[:num_ranks] if num_ranks <= len(topology.gpu_nodes) else ()
    if bind == "none":
        share = max(len(topology.cores) // num_ranks, 1)
        everything = replace(_slot(topology.cores), num_cores=share, shared=num_ranks > 1)
        slots = [everything] * num_ranks
    elif bind == "core":
        if num_ranks > len(topology.cores):
            raise BenchError(
                f"--bind core wants a core for each rank, but there are {num_ranks} ranks and "
                f"{len(topology.cores)} usable cores; use fewer ranks, --bind numa or --bind none"
            )
        slots = [_slot(cores) for cores in _split(topology.cores, num_ranks)]
    elif gpus and None not in gpus and set(gpus) <= {core.node for core in topology.cores}:
        slots = _beside_gpus(topology, gpus)
    else:
        slots = _fill_domains(topology.domains, num_ranks)
    return tuple(replace(slot, gpu=rank if gpus else None) for rank, slot in enumerate(slots))


def bind_this_process(
    config: BenchConfig,
    local_rank: int,
    local_size: int,
    *,
    root: Path = _ROOT,
    environment: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Bind this rank as its configuration says, before any library makes threads.

    Args:
        local_rank, local_size: this rank among those on its host.
        root: below which /sys lies.
        environment: of the rank; os.environ where it is None.

    Returns:
        What was done: `bind`; `cpus`, the list this rank is bound to, empty = not bound; `numa`, the domain
        of all of them or None; `gpu`, planned index or None; `threads`, cores it has to itself; `memory`, the
        domain memory is preferred from, or None; `notes`, lines on what could not be done.

    Raises:
        BenchError: `core`, and there are more ranks than cores.
    """
    env = os.environ if environment is None else environment
    num_ranks, rank = max(local_size, local_rank + 1), local_rank
    if ENV_CLUSTER in env and env.get("RANK", "").isdigit():  # all hosts are this one machine
        num_ranks, rank = config.num_ranks, min(int(env["RANK"]), config.num_ranks - 1)
    allowed = os.sched_getaffinity(0)
    topology = read_topology(root, allowed, env)
    if config.device == "cpu" or ENV_CLUSTER in env:
        topology = replace(topology, gpu_nodes=())
    done: dict[str, object] = {"bind": config.bind, "cpus": [], "numa": None, "memory": None}
    if ENV_BOUND in env:
        return done | _bound_by_launcher(topology, config.bind)
    slot = plan_placement(num_ranks, topology, config.bind)[rank]
    done |= {"gpu": slot.gpu, "threads": slot.num_cores}
    if config.bind == "none":
        return done | {"notes": []}
    try:
        os.sched_setaffinity(0, slot.cpus)
    except OSError as error:
        return done | {"notes": [f"the kernel refused to bind this rank to CPUs: {error.strerror}"]}
    done |= {"cpus": list(slot.cpus), "numa": slot.node}
    notes = []
    if slot.shared:
        notes.append(f"CPUs {format_cpulist(slot.cpus)} are shared by several ranks: there are too few cores")
    if slot.node is not None and len(cpu_set(_text(root / "sys/devices/system/node/has_memory"))) > 1:
        try:
            kernel.prefer_memory_of(slot.node)
            done["memory"] = slot.node
        except OSError as error:
            notes.append(f"the kernel refused to prefer memory of NUMA domain {slot.node}: {error.strerror}")
    return done | {"notes": notes}


def _bound_by_launcher(topology: HostTopology, bind: str) -> dict[str, object]:
    slot = _slot(topology.cores)
    note = "the launcher had bound this rank already; --bind was left out"
    return {
        "bind": "launcher",
        "cpus": list(slot.cpus),
        "numa": slot.node,
        "gpu": None,
        "threads": slot.num_cores,
        "notes": [note] if bind != "none" else [],
    }


def _fill_domains(domains: Sequence[Sequence[Core]], num_ranks: int) -> list[Slot]:
    """Consecutive ranks into consecutive domains, in proportion to their cores."""
    if num_ranks <= len(domains):  # a rank has whole domains: all of the machine is used
        return [_slot([core for domain in part for core in domain]) for part in _split(domains, num_ranks)]
    slots: list[Slot] = []
    for domain, count in zip(domains, _apportion([len(cores) for cores in domains], num_ranks), strict=True):
        slots += _share(domain, count)
    return slots


def _beside_gpus(topology: HostTopology, gpus: Sequence[int | None]) -> list[Slot]:
    """Each rank in the domain of its GPU; ranks of one domain split it."""
    slots: dict[int, Slot] = {}
    for node in dict.fromkeys(gpus):
        ranks = [rank for rank, gpu_node in enumerate(gpus) if gpu_node == node]
        cores = [core for core in topology.cores if core.node == node]
        slots |= dict(zip(ranks, _share(cores, len(ranks)), strict=True))
    return [slots[rank] for rank in range(len(gpus))]


def _share(cores: Sequence[Core], num_ranks: int) -> list[Slot]:
    """Cores of one domain for each of `num_ranks`; all of them for every rank where they are too few."""
    if num_ranks <= len(cores):
        return [_slot(part) for part in _split(cores, num_ranks)]
    return [replace(_slot(cores), num_cores=1, shared=True)] * num_ranks


def _slot(cores: Sequence[Core]) -> Slot:
    nodes = {core.node for core in cores}
    return Slot(
        cpus=tuple(sorted(cpu for core in cores for cpu in core.cpus)),
        num_cores=len(cores),
        node=nodes.pop() if len(nodes) == 1 else None,
    )


def _split(items: Sequence[_T], num_parts: int) -> list[Sequence[_T]]:
    """Consecutive parts whose sizes differ by at most one."""
    edges = [index * len(items) // num_parts for index in range(num_parts + 1)]
    return [items[low:high] for low, high in pairwise(edges)]


def _apportion(weights: Sequence[int], total: int) -> list[int]:
    """`total` in proportion to `weights`, at least one each; what is left goes to the largest remainders."""
    spare = total - len(weights)
    exact = [spare * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda index: (counts[index] - exact[index], index))
    for index in order[: spare - sum(counts)]:
        counts[index] += 1
    return [count + 1 for count in counts]


def _nodes(root: Path) -> dict[int, int]:
    """CPU -> NUMA domain."""
    nodes: dict[int, int] = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        for cpu in sorted(cpu_set(_text(folder / "cpulist"))):
            nodes[cpu] = int(folder.name.removeprefix("node"))
    return nodes


def _gpu_nodes(root: Path, environment: Mapping[str, str]) -> tuple[int | None, ...]:
    """Of the visible GPUs, in the order of the framework."""
    devices = visible_devices(Context(root=root), environment)
    nodes = (_text(root / f"sys/bus/pci/devices/{gpu.get('pci')}/numa_node") for gpu in devices)
    return tuple(int(node) if node.isdigit() else None for node in nodes)  # -1: the firmware does not say


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
