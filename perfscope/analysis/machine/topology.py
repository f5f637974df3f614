"""topology.json, typed: what analysis asks of it. Whatever the file lacks is left out, not guessed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from perfscope.analysis.source import Document
from perfscope.vocabulary.links import LinkClass

_MOST_CPUS = 1 << 16  # no kernel has more: a list that names one is damaged
_MOST_LINKS = 18  # to other GPUs, of one GPU (H100, H200, B200)


class Node(Struct, frozen=True, kw_only=True):
    """One NUMA node."""

    number: int
    cpus: frozenset[int]
    kind: str  # cpu, memory_only, mcdram, fast
    memory_bytes: int | None
    package: int | None


class Gpu(Struct, frozen=True, kw_only=True):
    index: int
    name: str
    node: int | None
    pcie_bytes_per_s: float | None  # per direction
    link_bytes_per_s: float | None  # per direction, over all its links to other GPUs
    vendor: str
    # Environment variables that select GPUs: stages, each by the first of its variables that is set.
    visibility: tuple[tuple[str, ...], ...]


class Port(Struct, frozen=True, kw_only=True):
    """A network interface, or a port of a fabric adapter."""

    name: str
    bytes_per_s: float | None  # per direction
    node: int | None
    kind: str  # ethernet, infiniband, omnipath, roce, rxe, iwarp
    virtual: bool
    netdev: str | None = None


class Topology(Struct, frozen=True, kw_only=True):
    """One host."""

    document: Document
    online: frozenset[int]
    cpu_limit: float | None  # CPUs that the cgroup grants
    sockets: int
    nodes: Mapping[int, Node] = {}
    gpus: Mapping[int, Gpu] = {}
    nics: Mapping[str, Port] = {}
    ports: Mapping[str, Port] = {}
    last_cache_bytes: int | None = None  # all last-level caches together

    @classmethod
    def of(cls, document: Document | None) -> Topology:
        """Types a topology.json, also one of an older perfscope; None gives an empty one."""
        recorded = document or {}
        links = _link_peaks(_dicts(recorded.get("links")))
        online = recorded.get("online_cpus")
        sockets = recorded.get("sockets")
        return cls(
            document=recorded,
            online=cpu_set(online) if isinstance(online, str) else frozenset(),
            cpu_limit=_number(recorded.get("cpu_limit")) or None,
            sockets=sockets if isinstance(sockets, int) and sockets > 0 else 1,
            nodes={node.number: node for node in map(_node, _dicts(recorded.get("numa_nodes")))},
            gpus={
                gpu_facts.index: gpu_facts
                for gpu_facts in (_gpu(row, links) for row in _dicts(recorded.get("gpus")))
            },
            nics={nic.name: nic for nic in map(_nic, _dicts(recorded.get("nics")))},
            ports={port.name: port for port in map(_port, _dicts(recorded.get("fabric_ports")))},
            last_cache_bytes=_last_cache(_dicts(recorded.get("caches"))),
        )

    @property
    def num_cpus(self) -> int | None:
        """CPUs online; None when the file does not say."""
        if self.online:
            return len(self.online)
        count = self.document.get("logical_cpus")
        return count if isinstance(count, int) and count > 0 else None

    def vendor_gpus(self, device: str) -> list[Gpu]:
        """GPUs of the vendor of a rank's device, ``cuda:0 AMD Instinct MI300X``, in the runtime's order.

        [] where the host has several vendors' and the name tells none.
        """
        ordered = sorted(self.gpus.values(), key=lambda gpu: gpu.index)
        vendors = list(dict.fromkeys(gpu.vendor for gpu in ordered))
        name = device.partition(" ")[2]
        named = [vendor for vendor in vendors if vendor and vendor.lower() in name.lower().split()]
        named = named or [gpu.vendor for gpu in ordered if name and gpu.name == name]
        chosen = vendors if len(vendors) == 1 else named
        return [gpu for gpu in ordered if chosen and gpu.vendor == chosen[0]]

    def nodes_of(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """NUMA nodes that these CPUs belong to."""
        wanted = set(cpus)
        return tuple(sorted(node.number for node in self.nodes.values() if node.cpus & wanted))

    def nodes_of_package(self, package: int) -> tuple[int, ...]:
        """NUMA nodes of a socket."""
        return tuple(sorted(node.number for node in self.nodes.values() if node.package == package))


def cpu_set(text: str) -> frozenset[int]:
    """``0-3,8`` -> {0, 1, 2, 3, 8}; what is no list gives nothing."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()) and int(last or first) < _MOST_CPUS:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def cpu_list(cpus: Iterable[int]) -> str:
    """{0, 1, 2, 3, 8} -> ``0-3,8``."""
    parts: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _node(row: Document) -> Node:
    cpus = row.get("cpus")
    cpus_of_node = cpu_set(cpus) if isinstance(cpus, str) else frozenset()
    return Node(
        number=_whole(row.get("node")),
        cpus=cpus_of_node,
        kind=str(row.get("kind") or ("cpu" if cpus_of_node else "memory_only")),
        memory_bytes=_maybe_whole(row.get("memory_bytes")),
        package=_maybe_whole(row.get("package")),
    )


def _gpu(row: Document, links: Mapping[str, float]) -> Gpu:
    index = _whole(row.get("index"))
    pcie = row.get("pcie")
    peak = pcie.get("peak_bytes_per_s") if isinstance(pcie, dict) else None
    return Gpu(
        index=index,
        name=str(row.get("name") or f"GPU {index}"),
        node=_real_node(row.get("numa_node")),
        pcie_bytes_per_s=_number(peak),
        link_bytes_per_s=links.get(str(row.get("id") or f"gpu:{index}")),
        vendor=str(row.get("vendor") or ""),
        visibility=_visibility(row.get("visibility")),
    )


def _visibility(value: object) -> tuple[tuple[str, ...], ...]:
    stages = value if isinstance(value, list) else []
    return tuple(tuple(map(str, stage)) for stage in stages if isinstance(stage, list))


def _nic(row: Document) -> Port:
    speed = _number(row.get("speed_bits_per_s"))
    return Port(
        name=str(row.get("name")),
        bytes_per_s=speed / 8 if speed else None,
        node=_real_node(row.get("numa_node")),
        kind="ethernet",
        virtual=bool(row.get("virtual")),
    )


def _port(row: Document) -> Port:
    rate = _number(row.get("rate_bits_per_s"))
    netdev = row.get("netdev")
    kind = str(row.get("kind") or "infiniband")
    return Port(
        name=f"{row.get('device')}/{row.get('port')}",
        bytes_per_s=rate / 8 if rate else None,
        node=_real_node(row.get("numa_node")),
        kind=kind,
        virtual=kind == "rxe",
        netdev=str(netdev) if netdev else None,
    )


def _link_peaks(rows: Iterable[Document]) -> dict[str, float]:
    """Per GPU, what its links to other GPUs carry per direction.

    Four links to each of three neighbors are twelve links; eighteen to each of seven are the same eighteen
    links to a switch, whose neighbors share them. More links in all than a GPU has mean a switch, too: older
    records do not name it.
    """
    peaks: dict[str, list[tuple[int, float]]] = defaultdict(list)
    switched: set[str] = set()
    for row in rows:
        peak, count = _number(row.get("peak_bytes_per_s")), row.get("num_links")
        if row.get("class") != LinkClass.GPU_LINK or not peak:
            continue
        for end in (str(row.get("a")), str(row.get("b"))):
            peaks[end].append((count if isinstance(count, int) else 0, peak))
            if row.get("switch") is True:
                switched.add(end)
    return {
        end: max(peak for _, peak in link)
        if end in switched or sum(count for count, _ in link) > _MOST_LINKS
        else sum(peak for _, peak in link)
        for end, link in peaks.items()
    }


def _last_cache(rows: Iterable[Document]) -> int | None:
    sizes: dict[int, int] = defaultdict(int)
    for row in rows:
        level, size = row.get("level"), row.get("size_bytes")
        if isinstance(level, int) and isinstance(size, int) and row.get("type") != "Instruction":
            sizes[level] += size
    return sizes[max(sizes)] if sizes else None


def _real_node(value: object) -> int | None:
    """A NUMA node; the kernel writes -1 where it does not know."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _dicts(value: object) -> list[Document]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _maybe_whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
