"""The machine in words, as a small tree, and as the lines a bug report needs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from perfscope import units
from perfscope.collectors.survey import Survey
from perfscope.messages.lists import counted
from perfscope.rundir.host_records import (
    GpuRow,
    LinkRow,
    NicRow,
    NodeRow,
    PortRow,
    TopologyRecord,
    with_document,
)
from perfscope.rundir.typed import read_as

Item = Mapping[str, object]
_MOST_DEVICES = 16  # of one place in the tree


def topology_of(survey: Survey) -> TopologyRecord:
    """The topology that was just read, as a run's reader would give it."""
    return read_as(TopologyRecord, with_document(survey.topology))


def machine_words(survey: Survey) -> str:
    """One line: processor, sockets, NUMA nodes, memory, devices; what is not known is left out."""
    topology, kernel = topology_of(survey), survey.surroundings.get("kernel")
    parts = [
        topology.cpu_model,
        _count(topology.sockets, "socket"),
        _count(topology.logical_cpus, "CPU"),
        _count(len(topology.numa_nodes) or None, "NUMA node"),
        _bytes(topology.memory_bytes),
        _count(len(topology.gpus) or None, "GPU"),
        f"Linux {kernel}" if kernel else "",
    ]
    return " · ".join(part for part in parts if part) or "the machine did not say what it is"


def machine_tree(survey: Survey) -> list[str]:
    """Packages, their NUMA nodes, and the devices at each node."""
    topology = topology_of(survey)
    nodes = topology.numa_nodes
    lines: list[str] = []
    placed_nodes: set[int | None] = set()
    for package in topology.packages:
        members = [node for node in nodes if node.node in package.nodes]
        members += [node for node in nodes if node.package == package.package and node not in members]
        placed_nodes |= {node.node for node in members}
        lines.append(f"Socket {package.package}: CPUs {package.cpus}")
        lines += _branches([(_node_words(node), _devices(topology, node.node)) for node in members])
    for node in nodes:
        if node.node not in placed_nodes:
            lines.append(_node_words(node))
            lines += _branches([(device, []) for device in _devices(topology, node.node)])
    floating = _devices(topology, None, {node.node for node in nodes})
    if floating:
        lines.append("At no known node")
        lines += _branches([(device, []) for device in floating])
    lines += [_link_words(link) for link in topology.links[:_MOST_DEVICES]]
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


def _node_words(node: NodeRow) -> str:
    kinds = {"memory_only": "memory only", "mcdram": "MCDRAM", "fast": "fast memory"}
    cpus = f"CPUs {node.cpus}" if node.cpus else "no CPUs"
    parts = [cpus, _bytes(node.memory_bytes), kinds.get(node.kind, "")]
    return f"NUMA node {node.node}: " + ", ".join(part for part in parts if part)


def _devices(topology: TopologyRecord, node: int | None, nodes: set[int | None] | None = None) -> list[str]:
    """Devices at a node; with `nodes`, those at none of them. Ports stand for their network devices."""
    rows = topology.numa_nodes
    only = rows[0] if len(rows) == 1 else None  # then everything is near it, whatever the firmware says

    def here(device: GpuRow | PortRow | NicRow) -> bool:
        numa_node = device.numa_node if only is None else only.node
        return numa_node == node if nodes is None else numa_node not in nodes

    devices = [_gpu_words(gpu) for gpu in topology.gpus if here(gpu)]
    devices += [_port_words(port) for port in topology.fabric_ports if here(port)]
    nics = [nic for nic in topology.nics if here(nic)]
    devices += [_nic_words(nic) for nic in nics if not nic.virtual]
    hidden = sum(nic.virtual for nic in nics)
    if hidden:
        devices.append(counted(hidden, "virtual network interface"))
    if len(devices) > _MOST_DEVICES:
        devices = [*devices[:_MOST_DEVICES], f"{len(devices) - _MOST_DEVICES} more"]
    return devices


def _gpu_words(gpu: GpuRow) -> str:
    lanes = f"PCIe ×{gpu.pcie.width}" if gpu.pcie.width else ""
    parts = [gpu.name or "unknown model", _bytes(gpu.memory_bytes), lanes]
    return f"GPU {'?' if gpu.index is None else gpu.index}: " + ", ".join(part for part in parts if part)


def _port_words(port: PortRow) -> str:
    parts = [port.kind, _bits(port.rate_bits_per_s), port.state]
    return f"{port.device}/{port.port}: " + ", ".join(part for part in parts if part)


def _nic_words(nic: NicRow) -> str:
    parts = [_bits(nic.speed_bits_per_s) or "speed unknown", nic.state]
    return f"{nic.name}: " + ", ".join(part for part in parts if part)


def _link_words(link: LinkRow) -> str:
    peak = link.peak_bytes_per_s
    most = "" if peak is None else f", {units.format_rate(peak)} at most"
    return f"{link.a} – {link.b}: {link.path} ({link.link_class}{most})"


def _branches(items: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    lines = []
    for index, (text, below) in enumerate(items):
        last = index == len(items) - 1
        lines.append(f"{'└─' if last else '├─'} {text}")
        stem = "   " if last else "│  "
        lines += [f"{stem}{'└─' if k == len(below) - 1 else '├─'} {word}" for k, word in enumerate(below)]
    return lines


def _count(number: int | None, noun: str) -> str:
    return "" if number is None else counted(number, noun)


def _bytes(value: object) -> str:
    return units.format_bytes(value) if isinstance(value, int | float) else ""


def _bits(value: float | None) -> str:
    return "" if value is None else units.format_si(value, "bit/s")
