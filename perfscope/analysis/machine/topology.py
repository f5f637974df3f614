"""topology.json, typed: what analysis asks of it. Whatever the file lacks is left out, not guessed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

from msgspec import Struct

from perfscope.kernel_text import cpu_set
from perfscope.rundir.host_records import CacheRow, GpuRow, LinkRow, NicRow, NodeRow, PortRow, TopologyRecord
from perfscope.vocabulary.links import LinkClass

_MOST_LINKS = 18  # to other GPUs, of one GPU (H100, H200, B200)


class Node(Struct, frozen=True, kw_only=True):
    """One NUMA node."""

    number: int
    cpus: frozenset[int]
    kind: str  # cpu, memory_only, mcdram, fast
    memory_bytes: int | None
    package: int | None


class Gpu(Struct, frozen=True, kw_only=True):
    id: str
    index: int
    name: str
    node: int | None
    pcie_bytes_per_s: float | None  # per direction
    link_bytes_per_s: float | None  # per direction, over all its links to other GPUs
    vendor: str
    # Environment variables that select GPUs: stages, each by the first of its variables that is set.
    visibility: tuple[tuple[str, ...], ...]
    uuid: str = ""
    pci: str = ""  # address as in sysfs


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

    record: TopologyRecord
    online: frozenset[int]
    logical_cpus: int | None
    cpu_limit: float | None  # CPUs that the cgroup grants
    sockets: int
    nodes: Mapping[int, Node] = {}
    gpus: Mapping[int, Gpu] = {}
    nics: Mapping[str, Port] = {}
    ports: Mapping[str, Port] = {}
    pairs: Mapping[frozenset[str], str] = {}  # two devices -> class of the link between them
    last_cache_bytes: int | None = None  # all last-level caches together

    @classmethod
    def of(cls, record: TopologyRecord | None) -> Topology:
        """What analysis asks of a topology.json; None gives an empty one."""
        topology = record if record is not None else TopologyRecord()
        links = _link_peaks(topology.links)
        return cls(
            record=topology,
            online=cpu_set(topology.online_cpus),
            logical_cpus=topology.logical_cpus or None,
            cpu_limit=topology.cpu_limit or None,
            sockets=topology.sockets or 1,
            nodes={record.number: record for record in map(_node, topology.numa_nodes)},
            gpus={gpu.index: gpu for gpu in (_gpu(row, links) for row in topology.gpus)},
            nics={record.name: record for record in map(_nic, topology.nics)},
            ports={record.name: record for record in map(_port, topology.fabric_ports)},
            pairs={frozenset((row.a, row.b)): row.link_class for row in topology.links},
            last_cache_bytes=_last_cache(topology.caches),
        )

    @property
    def num_cpus(self) -> int | None:
        """CPUs online; None when the file does not say."""
        return len(self.online) or self.logical_cpus

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

    def gpu_of(self, device: str, environment: Mapping[str, str]) -> Gpu | None:
        """The GPU of a rank; None if it has none, or if it is not known which one.

        Args:
            device: of the rank, ``cuda:0 AMD Instinct MI300X``.
            environment: of the rank: CUDA_VISIBLE_DEVICES and its like are followed.
        """
        index, gpus = visible_index(device), self.vendor_gpus(device)
        if index is None or not gpus:
            return None
        for stage in reversed(gpus[0].visibility):  # the last stage numbers what the ones before left
            text = next((environment[name] for name in stage if environment.get(name, "").strip()), "")
            if text:
                parts = [part.strip() for part in text.split(",")]
                if index >= len(parts) or not parts[index].isdecimal():
                    return _by_uuid(gpus, parts[index]) if index < len(parts) else None
                index = int(parts[index])
        return {gpu.index - gpus[0].index: gpu for gpu in gpus}.get(index)

    def link_between(self, gpus: Collection[Gpu]) -> LinkClass | None:
        """The class of the links between GPUs; None if it is not known, or not the same for all pairs."""
        classes = {self.pairs.get(frozenset((gpu.id, other.id)), "") for gpu, other in combinations(gpus, 2)}
        link_values = {LinkClass.PCIE.value, LinkClass.GPU_LINK.value}
        return LinkClass(classes.pop()) if len(classes) == 1 and classes <= link_values else None

    def nodes_of(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """NUMA nodes that these CPUs belong to."""
        wanted = set(cpus)
        return tuple(sorted(node.number for node in self.nodes.values() if node.cpus & wanted))

    def nodes_of_package(self, package: int) -> tuple[int, ...]:
        """NUMA nodes of a socket."""
        return tuple(sorted(node.number for node in self.nodes.values() if node.package == package))


def _by_uuid(gpus: Iterable[Gpu], word: str) -> Gpu | None:
    """The one GPU whose uuid begins with a word."""
    found = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def visible_index(device: str) -> int | None:
    """Index of a rank's GPU among those it sees: 1 of ``cuda:1 <name>``; None of a CPU."""
    word = device.split(" ", 1)[0]
    index = word.partition(":")[2]
    if not word.startswith("cuda"):
        return None
    return int(index) if index.isdecimal() else 0


def _node(row: NodeRow) -> Node:
    cpus = cpu_set(row.cpus)
    return Node(
        number=-1 if row.node is None else row.node,
        cpus=cpus,
        kind=row.kind or ("cpu" if cpus else "memory_only"),
        memory_bytes=row.memory_bytes,
        package=row.package,
    )


def _gpu(row: GpuRow, links: Mapping[str, float]) -> Gpu:
    index = -1 if row.index is None else row.index
    return Gpu(
        id=row.id or f"gpu:{index}",
        index=index,
        name=row.name or f"GPU {index}",
        node=_real_node(row.numa_node),
        pcie_bytes_per_s=row.pcie.peak_bytes_per_s,
        link_bytes_per_s=links.get(row.id or f"gpu:{index}"),
        vendor=row.vendor,
        visibility=row.visibility,
        uuid=row.uuid,
        pci=row.pci,
    )


def _nic(row: NicRow) -> Port:
    return Port(
        name=row.name,
        bytes_per_s=row.speed_bits_per_s / 8 if row.speed_bits_per_s else None,
        node=_real_node(row.numa_node),
        kind="ethernet",
        virtual=row.virtual,
    )


def _port(row: PortRow) -> Port:
    kind = row.kind or "infiniband"
    return Port(
        name=f"{row.device}/{row.port}",
        bytes_per_s=row.rate_bits_per_s / 8 if row.rate_bits_per_s else None,
        node=_real_node(row.numa_node),
        kind=kind,
        virtual=kind == "rxe",
        netdev=row.netdev or None,
    )


def _link_peaks(rows: Iterable[LinkRow]) -> dict[str, float]:
    """Per GPU, what its links to other GPUs carry per direction.

    Four links to each of three neighbors are twelve links; eighteen to each of seven are the same eighteen
    links to a switch, whose neighbors share them. More links in all than a GPU has mean a switch, too: older
    records do not name it.
    """
    peaks: dict[str, list[tuple[int, float]]] = defaultdict(list)
    switched: set[str] = set()
    for row in rows:
        if row.link_class != LinkClass.GPU_LINK or not row.peak_bytes_per_s:
            continue
        for end in (row.a, row.b):
            peaks[end].append((row.num_links or 0, row.peak_bytes_per_s))
            if row.switch:
                switched.add(end)
    return {
        end: max(peak for _, peak in links)
        if end in switched or sum(count for count, _ in links) > _MOST_LINKS
        else sum(peak for _, peak in links)
        for end, links in peaks.items()
    }


def _last_cache(rows: Iterable[CacheRow]) -> int | None:
    sizes: dict[int, int] = defaultdict(int)
    for row in rows:
        if row.level is not None and row.size_bytes is not None and row.type != "Instruction":
            sizes[row.level] += row.size_bytes
    return sizes[max(sizes)] if sizes else None


def _real_node(node: int | None) -> int | None:
    """A NUMA node; the kernel writes -1 where it does not know."""
    return node if node is not None and node >= 0 else None
