"""The machine in words, as a small tree, and as the lines a bug report needs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from perfscope import units
from perfscope.collectors.survey import Survey
from perfscope.messages.lists import counted

Item = Mapping[str, object]
_MOST_DEVICES = 16  # of one place in the tree


def machine_words(survey: Survey) -> str:
    """One line: processor, sockets, NUMA nodes, memory, devices; what is not known is left out."""
    topology, around = survey.topology, survey.surroundings
    nodes = _items(topology, "numa_nodes")
    parts = [
        str(topology.get("cpu_model") or ""),
        _count(topology.get("sockets"), "socket"),
        _count(topology.get("logical_cpus"), "CPU"),
        _count(len(nodes) or None, "NUMA node"),
        _bytes(topology.get("memory_bytes")),
        _count(len(_items(topology, "gpus")) or None, "GPU"),
        f"Linux {around['kernel']}" if around.get("kernel") else "",
    ]
    return " · ".join(part for part in parts if part) or "the machine did not say what it is"


def machine_tree(survey: Survey) -> list[str]:
    """Packages, their NUMA nodes, and the devices at each node."""
    topology = survey.topology
    nodes = _items(topology, "numa_nodes")
    packages = _items(topology, "packages")
    lines: list[str] = []
    placed_nodes: set[object] = set()
    for package in packages:
        members = package.get("nodes")
        package_nodes = [node for node in nodes if isinstance(members, list) and node.get("node") in members]
        package_nodes += [
            n for n in nodes if n.get("package") == package.get("package") and n not in package_nodes
        ]
        placed_nodes |= {node.get("node") for node in package_nodes}
        lines.append(f"Socket {package.get('package')}: CPUs {package.get('cpus')}")
        lines += _branches(
            [(_node_words(node), _devices(topology, node.get("node"))) for node in package_nodes]
        )
    unplaced = [node for node in nodes if node.get("node") not in placed_nodes]
    for node in unplaced:
        lines.append(_node_words(node))
        lines += _branches([(device, []) for device in _devices(topology, node.get("node"))])
    floating = _devices(topology, None, {node.get("node") for node in nodes})
    if floating:
        lines.append("At no known node")
        lines += _branches([(device, []) for device in floating])
    lines += [_link_words(link) for link in _items(topology, "links")[:_MOST_DEVICES]]
    return lines


def bug_report(survey: Survey, width: int) -> Iterator[str]:
    """Lines to copy. No host name, no address, no user."""
    around = survey.surroundings
    for line in _report_lines(survey, around):
        yield from textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
    if survey.captured:
        return
    yield "Add: the command you ran, what it printed, and the file that"
    yield "  perfscope doctor --json > doctor.json"
    yield "writes."


def _report_lines(survey: Survey, around: Item) -> Iterator[str]:
    software = [
        f"perfscope {around.get('perfscope')}",
        str(around.get("python") or ""),
        f"Linux {around.get('kernel') or 'unknown'} {around.get('machine') or ''}".strip(),
        str(around.get("distribution") or ""),
    ]
    yield ", ".join(part for part in software if part)
    yield f"machine: {machine_words(survey)}"
    kind, runtime = around.get("virtual_machine") or "no", around.get("container") or "no"
    yield f"virtual machine: {kind}; container: {runtime}"
    yield f"control group: {_group_words(around.get('cgroup'))}"
    yield f"kernel: {_settings(around.get('kernel_settings'))}"
    for name in ("packages", "launchers", "tools"):
        settings = around.get(name)
        if isinstance(settings, dict):
            yield f"{name}: {_present(settings)}"
    environment = around.get("environment")
    if isinstance(environment, dict) and environment:
        yield "environment: " + " ".join(f"{name}={value}" for name, value in environment.items())
    if isinstance(around.get("limits"), dict):
        yield f"limits: {_settings(around['limits'], 'unlimited')}"
    yield "sources: " + " ".join(_source_word(survey))
    for problem in survey.problems:
        yield f"problem: {problem}"


def _source_word(survey: Survey) -> Iterator[str]:
    for source in survey.sources:
        capability = source.capability
        sign = "-" if not capability.available else "!" if capability.absent else "+"
        yield f"{sign}{capability.collector}"


def _group_words(group: object) -> str:
    if not isinstance(group, dict) or not group.get("version"):
        return "none found"
    cpus, cpuset = group.get("cpus"), group.get("cpuset")
    memory = _bytes(group.get("memory_bytes"))
    return ", ".join(
        [
            str(group["version"]),
            f"{cpus:g} CPUs" if isinstance(cpus, float) else "no CPU limit",
            f"{memory} of memory" if memory else "no memory limit",
            *([f"CPUs {cpuset}"] if cpuset else []),
        ]
    )


def _settings(settings: object, nothing: str = "absent") -> str:
    if not isinstance(settings, dict):
        return "unknown"
    return " ".join(
        f"{name}={nothing if value is None else _plain(value)}" for name, value in settings.items()
    )


def _plain(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _present(settings: Mapping[str, object]) -> str:
    there = [
        name if value is True or value == "found" else f"{name} {value}"
        for name, value in settings.items()
        if value
    ]
    return ", ".join(there) or "none found"


def _node_words(node: Item) -> str:
    cpus, kind = str(node.get("cpus") or ""), str(node.get("kind") or "cpu")
    kinds = {"memory_only": "memory only", "mcdram": "MCDRAM", "fast": "fast memory"}
    parts = [f"CPUs {cpus}" if cpus else "no CPUs", _bytes(node.get("memory_bytes")), kinds.get(kind, "")]
    return f"NUMA node {node.get('node')}: " + ", ".join(part for part in parts if part)


def _devices(topology: Item, node: object, nodes: set[object] | None = None) -> list[str]:
    """Devices at a node; with `nodes`, those at none of them. Ports stand for their network devices."""

    only = len(_items(topology, "numa_nodes")) == 1  # then everything is near it, whatever the firmware says

    def here(item: Item) -> bool:
        numa_node = _items(topology, "numa_nodes")[0].get("node") if only else item.get("numa_node")
        return numa_node == node if nodes is None else numa_node not in nodes

    devices = [_gpu_words(gpu) for gpu in _items(topology, "gpus") if here(gpu)]
    devices += [_port_words(port) for port in _items(topology, "fabric_ports") if here(port)]
    nics = [nic for nic in _items(topology, "nics") if here(nic)]
    devices += [_nic_words(nic) for nic in nics if not nic.get("virtual")]
    hidden = len(nics) - sum(not nic.get("virtual") for nic in nics)
    if hidden:
        devices.append(counted(hidden, "virtual network interface"))
    if len(devices) > _MOST_DEVICES:
        devices = [*devices[:_MOST_DEVICES], f"{len(devices) - _MOST_DEVICES} more"]
    return devices


def _gpu_words(gpu: Item) -> str:
    pcie = gpu.get("pcie")
    lanes = f"PCIe ×{pcie['width']}" if isinstance(pcie, dict) and pcie.get("width") else ""
    parts = [str(gpu.get("name") or "unknown model"), _bytes(gpu.get("memory_bytes")), lanes]
    return f"GPU {gpu.get('index', '?')}: " + ", ".join(part for part in parts if part)


def _port_words(port: Item) -> str:
    parts = [str(port.get("kind") or ""), _bits(port.get("rate_bits_per_s")), str(port.get("state") or "")]
    return f"{port.get('device')}/{port.get('port')}: " + ", ".join(part for part in parts if part)


def _nic_words(nic: Item) -> str:
    parts = [_bits(nic.get("speed_bits_per_s")) or "speed unknown", str(nic.get("state") or "")]
    return f"{nic.get('name')}: " + ", ".join(part for part in parts if part)


def _link_words(link: Item) -> str:
    peak = link.get("peak_bytes_per_s")
    most = f", {units.format_rate(float(peak))} at most" if isinstance(peak, int | float) else ""
    return f"{link.get('a')} – {link.get('b')}: {link.get('path')} ({link.get('class')}{most})"


def _branches(items: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    lines = []
    for index, (text, below) in enumerate(items):
        last = index == len(items) - 1
        lines.append(f"{'└─' if last else '├─'} {text}")
        stem = "   " if last else "│  "
        lines += [f"{stem}{'└─' if k == len(below) - 1 else '├─'} {word}" for k, word in enumerate(below)]
    return lines


def _items(topology: Item, key: str) -> list[dict[str, object]]:
    items = topology.get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _count(number: object, noun: str) -> str:
    return counted(number, noun) if isinstance(number, int) else ""


def _bytes(value: object) -> str:
    return units.format_bytes(value) if isinstance(value, int | float) else ""


def _bits(value: object) -> str:
    return units.format_si(value, "bit/s") if isinstance(value, int | float) else ""
