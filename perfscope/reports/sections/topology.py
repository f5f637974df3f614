"""The topology picture as data: what is plugged in where on each kind of host, from topology.json.

What the file does not say is left out of the picture.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

from perfscope import units
from perfscope.kernel_text import cpu_set
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.model import Device, Machine, MemoryNode, Socket, TopologyPicture
from perfscope.reports.sections.links import device_names, rails
from perfscope.rundir.host_records import NodeRow, PcieRow, TopologyRecord

KIND_WORDS = {"memory_only": "memory only", "mcdram": "MCDRAM", "fast": "fast memory"}
FABRIC_WORDS = {
    "infiniband": "InfiniBand",
    "omnipath": "Omni-Path",
    "roce": "RoCE",
    "rxe": "soft RoCE",
    "iwarp": "iWARP",
}
MOST_MACHINES = 6
# What tells one machine from another of the same kind; equal machines are drawn once.
PERSONAL = frozenset(
    {"host", "uuid", "mac", "affinity", "notes", "cpu_limit", "state", "kernel", "speed_gt_s"}
)
# PCIe speeds in GT/s. A GPU at rest runs its link slower, so the generation is read from the fastest.
PCIE = {2.5: "1.0", 5.0: "2.0", 8.0: "3.0", 16.0: "4.0", 32.0: "5.0", 64.0: "6.0"}


def topology_block(topologies: Mapping[str, TopologyRecord]) -> TopologyPicture | None:
    """One picture per kind of host; None where no host has a readable topology."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for host, topology in topologies.items():
        if topology.numa_nodes or topology.gpus or topology.fabric_ports or topology.nics:
            kinds[json.dumps(_shape(topology.document), sort_keys=True, default=str)].append(host)
    if not kinds:
        return None
    ranked = sorted(kinds.values(), key=lambda hosts: (-len(hosts), hosts[0]))
    left = sum(len(hosts) for hosts in ranked[MOST_MACHINES:])
    return TopologyPicture(
        id="topology-chart",
        title="Topology",
        machines=tuple(_machine(hosts, topologies[hosts[0]]) for hosts in ranked[:MOST_MACHINES]),
        caption=f"{left:,} further hosts differ from these and are not drawn." if left else "",
    )


def _shape(value: object) -> object:
    if isinstance(value, Mapping):
        # Equal machines still differ by the few MiB that firmware and kernel keep.
        return {
            str(key): units.format_bytes(item)
            if key == "memory_bytes" and isinstance(item, int)
            else _shape(item)
            for key, item in value.items()
            if key not in PERSONAL
        }
    if isinstance(value, (list, tuple)):
        return [_shape(item) for item in value]
    return value


def _machine(hosts: Sequence[str], topology: TopologyRecord) -> Machine:
    names = device_names(topology)
    placed, loose = _devices(topology)
    sockets = _sockets(topology, placed)
    summary = _summary(topology, len(sockets))
    alike = f" and {len(hosts) - 1:,} more like it" if len(hosts) > 1 else ""
    if 1 < len(hosts) <= 4:
        alike = "".join(f", {visible(host, 40)}" for host in hosts[1:])
    return Machine(
        title=f"{visible(hosts[0], 60)}{alike}",
        summary=summary,
        sockets=sockets,
        rails=rails(topology, names),
        between=_between(topology),
        loose=loose,
    )


def _summary(topology: TopologyRecord, num_sockets: int) -> str:
    cards = [device for _, device in _network(topology) if device.kind == "nic"]
    counts = (
        (num_sockets, "socket"),
        (len(topology.numa_nodes), "NUMA node"),
        (topology.logical_cpus or 0, "CPU"),
    )
    devices = (
        (len(topology.gpus), "GPU"),
        (len(topology.fabric_ports), "fabric port"),
        (len(cards), "network interface"),
    )
    parts = [counted(count, noun) for count, noun in counts if count]
    if topology.memory_bytes is not None:
        parts.append(units.format_bytes(topology.memory_bytes))
    parts += [counted(count, noun) for count, noun in devices if count]
    model, limit = visible(topology.cpu_model, 80), topology.cpu_limit
    sentence = f"{model}: {', '.join(parts)}." if model else f"{', '.join(parts)}."
    return f"{sentence} The job may use {limit:g} CPUs." if limit is not None else sentence


def _between(topology: TopologyRecord) -> str:
    """The largest NUMA distance between nodes of two sockets, as the firmware states it."""
    package = {row.node: row.package for row in topology.numa_nodes}
    far = [
        distance
        for row in topology.numa_nodes
        for other, distance in _distances(row).items()
        if None not in (row.package, package.get(other)) and package[other] != row.package
    ]
    return f"{max(far) / 10:.1f}× local" if far else ""


def _distances(row: NodeRow) -> dict[int, float]:
    return dict(zip(row.distance_nodes, row.distances, strict=False))


def _homes(topology: TopologyRecord) -> tuple[NodeRow, ...]:
    """Nodes with CPUs; the first one where the file names none."""
    return tuple(row for row in topology.numa_nodes if row.cpus) or topology.numa_nodes[:1]


def _sockets(topology: TopologyRecord, placed: Mapping[int, list[Device]]) -> tuple[Socket, ...]:
    homes = _homes(topology)
    near: dict[int | None, list[MemoryNode]] = defaultdict(list)
    for row in topology.numa_nodes:
        if row not in homes:
            near[_nearest(row, homes)].append(_node(row, (), ()))
    by_package: dict[int | None, list[MemoryNode]] = defaultdict(list)
    for row in homes:
        devices = tuple(placed.get(row.node, ())) if row.node is not None else ()
        by_package[row.package].append(_node(row, tuple(near[row.node]), devices))
    return tuple(
        Socket(title=_socket_title(topology, package), nodes=tuple(members))
        for package, members in by_package.items()
    )


def _nearest(row: NodeRow, homes: Sequence[NodeRow]) -> int | None:
    distances = _distances(row)
    return min(homes, key=lambda home: distances.get(home.node or 0, 255)).node


def _node(row: NodeRow, near: tuple[MemoryNode, ...], devices: tuple[Device, ...]) -> MemoryNode:
    kind = row.kind or "cpu"
    lines = []
    if row.memory_bytes is not None:
        lines.append(f"{units.format_bytes(row.memory_bytes)} {KIND_WORDS.get(kind, '')}".rstrip())
    if row.cpus:
        lines.append(f"CPUs {visible(row.cpus, 80).replace('-', '–').replace(',', ', ')}")
    if row.hmat.read_bandwidth_bytes_per_s is not None:
        lines.append(f"{units.format_rate(row.hmat.read_bandwidth_bytes_per_s)} by firmware")
    return MemoryNode(
        title=f"NUMA node {'' if row.node is None else row.node}",
        kind=kind if kind in (*KIND_WORDS, "cpu") else "cpu",
        lines=tuple(lines),
        near=near,
        devices=devices,
    )


def _socket_title(topology: TopologyRecord, package: int | None) -> str:
    title = "Socket" if package is None else f"Socket {package}"
    cache = _last_cache(topology, package)
    return f"{title} · {cache}" if cache else title


def _last_cache(topology: TopologyRecord, package: int | None) -> str:
    """The largest level of cache and how much of it one socket has."""
    cpus = next((cpu_set(row.cpus) for row in topology.packages if row.package == package), None)
    caches = [(row.level, row) for row in topology.caches if row.size_bytes and row.level]
    if not caches or cpus is None:
        return ""
    last = max(level for level, _ in caches)
    sizes = [row.size_bytes for level, row in caches if level == last and cpu_set(row.cpus) & cpus]
    if not sizes:
        return ""
    size = units.format_bytes(sizes[0])
    return f"L{last} {len(sizes)} × {size}" if len(sizes) > 1 else f"L{last} {size}"


def _devices(topology: TopologyRecord) -> tuple[dict[int, list[Device]], tuple[Device, ...]]:
    """Devices by NUMA node, network ahead of GPUs, and those whose node is not known."""
    homes = _homes(topology)
    only = homes[0].node if len(homes) == 1 else None
    home_of = {row.node: row.node if row in homes else _nearest(row, homes) for row in topology.numa_nodes}
    placed: dict[int, list[Device]] = defaultdict(list)
    loose: list[Device] = []
    for numa_node, device in [*_network(topology), *_gpus(topology)]:
        node = home_of.get(numa_node, only)
        if node is not None:
            placed[node].append(device)
        else:
            loose.append(device)
    return placed, tuple(loose)


def _gpus(topology: TopologyRecord) -> list[tuple[int | None, Device]]:
    gpus = []
    for row in topology.gpus:
        lines = [_gpu_name(visible(row.name, 60), visible(row.vendor, 20))]
        if row.memory_bytes is not None:
            lines.append(units.format_bytes(row.memory_bytes))
        lines += _pcie(row.pcie)
        title = f"GPU {'' if row.index is None else row.index}"
        device = Device(id=visible(row.id, 80), kind="gpu", title=title, lines=tuple(filter(None, lines)))
        gpus.append((row.numa_node, device))
    return gpus


def _gpu_name(full_name: str, vendor: str) -> str:
    """A GPU's name without its vendor's and without the memory, which stands below: ``H100 HBM3``."""
    return " ".join(word for word in full_name.split() if word != vendor and not word.upper().endswith("GB"))


def _pcie(pcie: PcieRow) -> list[str]:
    lines = []
    if pcie.width:
        generation = PCIE.get(pcie.max_speed_gt_s or pcie.speed_gt_s or 0, "")
        reduced = f" of {pcie.max_width}" if pcie.max_width and pcie.max_width > pcie.width else ""
        lines.append(f"PCIe {generation} ×{pcie.width}{reduced}".replace("  ", " "))
    if pcie.peak_bytes_per_s:
        lines.append(units.format_rate(pcie.peak_bytes_per_s))
    return lines


def _network(topology: TopologyRecord) -> list[tuple[int | None, Device]]:
    interfaces = []
    for port in topology.fabric_ports:
        title = f"{visible(port.device, 40)}/{'' if port.port is None else visible(port.port, 80)}"
        kind = FABRIC_WORDS.get(port.kind, visible(port.kind, 80))
        lines = [kind, _bits(port.rate_bits_per_s), visible(port.netdev, 40)]
        if port.state and not port.state.upper().endswith("ACTIVE"):
            lines.append(visible(port.state, 20).lower())
        device = Device(id=visible(port.id, 80), kind="port", title=title, lines=tuple(filter(None, lines)))
        interfaces.append((port.numa_node, device))
    behind = {port.netdev for port in topology.fabric_ports}
    for nic in topology.nics:
        if nic.virtual or nic.name in behind:
            continue
        speed = _bits(nic.speed_bits_per_s) or "speed not known"
        down = "" if nic.state in ("up", "unknown", "") else visible(nic.state, 20)
        lines = ["Ethernet", speed, down]
        device = Device(
            id=visible(nic.id, 80), kind="nic", title=visible(nic.name, 40), lines=tuple(filter(None, lines))
        )
        interfaces.append((nic.numa_node, device))
    return interfaces


def _bits(rate: float | None) -> str:
    return "" if rate is None else units.format_si(rate, "bit/s").replace(".00 ", " ").replace(".0 ", " ")
