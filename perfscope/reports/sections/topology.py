"""The topology picture as data: what is plugged in where on each kind of host, from topology.json.

The file may come from another version or be damaged, so nothing in it is taken for granted: what is not
there is left out of the picture.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from perfscope import units
from perfscope.kernel_text import cpu_set
from perfscope.messages.lists import counted
from perfscope.reports.display import visible
from perfscope.reports.model import Device, Machine, MemoryNode, Socket, TopologyPicture
from perfscope.reports.sections.links import device_names, rails

Json = Mapping[str, object]

KIND_WORDS = {"memory_only": "memory only", "mcdram": "MCDRAM", "fast": "fast memory"}
FABRIC_WORDS = {
    "infiniband": "InfiniBand",
    "omnipath": "Omni-Path",
    "roce": "RoCE",
    "rxe": "soft RoCE",
    "iwarp": "iWARP",
}
MOST_MACHINES = 6
DRAWN = ("numa_nodes", "gpus", "fabric_ports", "nics")
# What tells one machine from another of the same kind; equal machines are drawn once.
PERSONAL = frozenset(
    {"host", "uuid", "mac", "affinity", "notes", "cpu_limit", "state", "kernel", "speed_gt_s"}
)
# PCIe speeds in GT/s. A GPU at rest runs its link slower, so the generation is read from the fastest.
PCIE = {2.5: "1.0", 5.0: "2.0", 8.0: "3.0", 16.0: "4.0", 32.0: "5.0", 64.0: "6.0"}


def topology_block(topologies: Mapping[str, Json]) -> TopologyPicture | None:
    """One picture per kind of host; None where no host has a readable topology."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for host, topology in topologies.items():
        if isinstance(topology, Mapping) and any(rows(topology, key) for key in DRAWN):
            kinds[json.dumps(_shape(topology), sort_keys=True, default=str)].append(host)
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


def rows(document: Json, key: str) -> list[Json]:
    """The objects of a list in a JSON document; [] where it is absent or something else."""
    value = document.get(key)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def number(row: Json, key: str) -> float | None:
    """A finite figure; None where it is absent or something else."""
    return _figure(row.get(key))


def _figure(value: object) -> float | None:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if plain and math.isfinite(value) else None  # type: ignore[arg-type, return-value]


def name(row: Json, key: str) -> int | str | None:
    """A number or word by which rows are distinguished; None where it is absent or something else."""
    value = row.get(key)
    return value if isinstance(value, (int, str)) else None


def text(row: Json, key: str, longest: int = 80) -> str:
    value = row.get(key)
    return "" if value is None else visible(value, longest)


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


def _machine(hosts: Sequence[str], topology: Json) -> Machine:
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


def _summary(topology: Json, num_sockets: int) -> str:
    nodes = rows(topology, "numa_nodes")
    counts = ((num_sockets, "socket"), (len(nodes), "NUMA node"))
    parts = [counted(count, noun) for count, noun in counts if count]
    cpus = number(topology, "logical_cpus")
    if cpus is not None:
        parts.append(counted(int(cpus), "CPU"))
    memory = number(topology, "memory_bytes")
    if memory is not None:
        parts.append(units.format_bytes(memory))
    for key, noun in (("gpus", "GPU"), ("fabric_ports", "fabric port")):
        devices = rows(topology, key)
        if devices:
            parts.append(counted(len(devices), noun))
    cards = [device for _, device in _network(topology) if device.kind == "nic"]
    if cards:
        parts.append(counted(len(cards), "network interface"))
    model = text(topology, "cpu_model")
    sentence = f"{model}: {', '.join(parts)}." if model else f"{', '.join(parts)}."
    limit = number(topology, "cpu_limit")
    return f"{sentence} The job may use {limit:g} CPUs." if limit is not None else sentence


def _distances(row: Json) -> dict[int | str, float]:
    """How far the other nodes are by the firmware's table: 10 is a node's own memory."""
    nodes, distances = row.get("distance_nodes"), row.get("distances")
    if not isinstance(nodes, list) or not isinstance(distances, list):
        return {}
    pairs = ((other, _figure(distance)) for other, distance in zip(nodes, distances, strict=False))
    return {other: figure for other, figure in pairs if isinstance(other, (int, str)) and figure is not None}


def _between(topology: Json) -> str:
    """The largest NUMA distance between nodes of two sockets, as the firmware states it."""
    nodes = rows(topology, "numa_nodes")
    package = {name(row, "node"): name(row, "package") for row in nodes}
    far = [
        distance
        for row in nodes
        for other, distance in _distances(row).items()
        if None not in (name(row, "package"), package.get(other)) and package[other] != name(row, "package")
    ]
    return f"{max(far) / 10:.1f}× local" if far else ""


def _sockets(topology: Json, placed: Mapping[int, list[Device]]) -> tuple[Socket, ...]:
    nodes = rows(topology, "numa_nodes")
    homes = [row for row in nodes if _has_cpus(row)] or nodes[:1]
    near: dict[object, list[MemoryNode]] = defaultdict(list)
    for row in nodes:
        if row not in homes:
            near[_nearest(row, homes)].append(_node(row, (), ()))
    by_package: dict[object, list[MemoryNode]] = defaultdict(list)
    for row in homes:
        key = name(row, "node")
        devices = tuple(placed.get(key, ())) if isinstance(key, int) else ()
        by_package[name(row, "package")].append(_node(row, tuple(near[key]), devices))
    return tuple(
        Socket(title=_socket_title(topology, package), nodes=tuple(members))
        for package, members in by_package.items()
    )


def _has_cpus(row: Json) -> bool:
    return bool(row.get("cpus"))


def _nearest(row: Json, homes: Sequence[Json]) -> int | str | None:
    distances = _distances(row)
    nearest = min(homes, key=lambda home: distances.get(name(home, "node") or 0, 255))
    return name(nearest, "node")


def _node(row: Json, near: tuple[MemoryNode, ...], devices: tuple[Device, ...]) -> MemoryNode:
    kind = text(row, "kind") or "cpu"
    memory = number(row, "memory_bytes")
    lines = []
    if memory is not None:
        word = KIND_WORDS.get(kind, "")
        lines.append(f"{units.format_bytes(memory)}{f' {word}' if word else ''}")
    if _has_cpus(row):
        lines.append(f"CPUs {text(row, 'cpus').replace('-', '–').replace(',', ', ')}")
    hmat = row.get("hmat")
    bandwidth = number(hmat, "read_bandwidth_bytes_per_s") if isinstance(hmat, Mapping) else None
    if bandwidth is not None:
        lines.append(f"{units.format_rate(bandwidth)} by firmware")
    return MemoryNode(
        title=f"NUMA node {text(row, 'node')}",
        kind=kind if kind in (*KIND_WORDS, "cpu") else "cpu",
        lines=tuple(lines),
        near=near,
        devices=devices,
    )


def _socket_title(topology: Json, package: object) -> str:
    title = "Socket" if package is None else f"Socket {visible(package, 20)}"
    cache = _last_cache(topology, package)
    return f"{title} · {cache}" if cache else title


def _last_cache(topology: Json, package: object) -> str:
    """The largest level of cache and how much of it one socket has."""
    cpus = next(
        (row.get("cpus") for row in rows(topology, "packages") if name(row, "package") == package), None
    )
    caches = [row for row in rows(topology, "caches") if number(row, "size_bytes") and number(row, "level")]
    if not caches or not isinstance(cpus, str):
        return ""
    level = max(number(row, "level") or 0 for row in caches)
    cpus_of_node = cpu_set(cpus)
    mine = [
        row
        for row in caches
        if number(row, "level") == level and cpu_set(str(row.get("cpus"))) & cpus_of_node
    ]
    if not mine:
        return ""
    size = units.format_bytes(number(mine[0], "size_bytes"))
    return f"L{level:.0f} {len(mine)} × {size}" if len(mine) > 1 else f"L{level:.0f} {size}"


def _devices(topology: Json) -> tuple[dict[int, list[Device]], tuple[Device, ...]]:
    """Devices by NUMA node, network ahead of GPUs, and those whose node is not known."""
    nodes = rows(topology, "numa_nodes")
    homes = [row for row in nodes if _has_cpus(row)] or nodes[:1]
    only = homes[0].get("node") if len(homes) == 1 else None
    home_of = {
        name(row, "node"): name(row, "node") if row in homes else _nearest(row, homes) for row in nodes
    }
    placed: dict[int, list[Device]] = defaultdict(list)
    loose: list[Device] = []
    for row, device in [*_network(topology), *_gpus(topology)]:
        node = home_of.get(name(row, "numa_node"), only)
        if isinstance(node, int):
            placed[node].append(device)
        else:
            loose.append(device)
    return placed, tuple(loose)


def _gpus(topology: Json) -> list[tuple[Json, Device]]:
    gpus = []
    for row in rows(topology, "gpus"):
        lines = [_gpu_name(text(row, "name", 60), text(row, "vendor", 20))]
        memory = number(row, "memory_bytes")
        if memory is not None:
            lines.append(units.format_bytes(memory))
        lines += _pcie(row.get("pcie"))
        device = Device(
            id=text(row, "id"),
            kind="gpu",
            title=f"GPU {text(row, 'index')}",
            lines=tuple(filter(None, lines)),
        )
        gpus.append((row, device))
    return gpus


def _gpu_name(full_name: str, vendor: str) -> str:
    """A GPU's name without its vendor's and without the memory, which stands below: ``H100 HBM3``."""
    return " ".join(word for word in full_name.split() if word != vendor and not word.upper().endswith("GB"))


def _pcie(pcie: object) -> list[str]:
    if not isinstance(pcie, Mapping):
        return []
    speed = number(pcie, "max_speed_gt_s") or number(pcie, "speed_gt_s") or 0
    width = number(pcie, "width")
    peak, most = number(pcie, "peak_bytes_per_s"), number(pcie, "max_width")
    lines = []
    if width:
        generation = PCIE.get(speed, "")
        reduced = f" of {most:.0f}" if most and most > width else ""
        lines.append(f"PCIe {generation} ×{width:.0f}{reduced}".replace("  ", " "))
    if peak:
        lines.append(units.format_rate(peak))
    return lines


def _network(topology: Json) -> list[tuple[Json, Device]]:
    interfaces = []
    behind = set()
    for row in rows(topology, "fabric_ports"):
        behind.add(name(row, "netdev"))
        kind = FABRIC_WORDS.get(text(row, "kind"), text(row, "kind"))
        device = f"{text(row, 'device', 40)}/{text(row, 'port')}"
        lines = [kind, _bits(number(row, "rate_bits_per_s")), text(row, "netdev", 40)]
        state = text(row, "state", 20)
        if state and not state.upper().endswith("ACTIVE"):
            lines.append(state.lower())
        interfaces.append(
            (row, Device(id=text(row, "id"), kind="port", title=device, lines=tuple(filter(None, lines))))
        )
    for row in rows(topology, "nics"):
        if row.get("virtual") or name(row, "name") in behind:
            continue
        speed = _bits(number(row, "speed_bits_per_s")) or "speed not known"
        down = "" if text(row, "state") in ("up", "unknown", "") else text(row, "state", 20)
        facts = tuple(filter(None, ("Ethernet", speed, down)))
        interfaces.append(
            (row, Device(id=text(row, "id"), kind="nic", title=text(row, "name", 40), lines=facts))
        )
    return interfaces


def _bits(rate: float | None) -> str:
    return "" if rate is None else units.format_si(rate, "bit/s").replace(".00 ", " ").replace(".0 ", " ")
