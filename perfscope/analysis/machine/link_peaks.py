"""What links carry at most: as `perfscope doctor --links` measured it on this host, else their speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.lines import SampledLine
from perfscope.analysis.machine.peaks import Peak
from perfscope.analysis.machine.topology import Gpu
from perfscope.analysis.predict.link_rates import largest_rate
from perfscope.rundir.host_records import LinkCall
from perfscope.vocabulary.links import LinkClass, Transport

LINK_SPEED = "link speed"
_PERCENTILE = 95
# Of what one connection reaches inside the host, where both ends share its CPUs: beyond, a connection between
# hosts may be limited by a CPU at either end, not by the link.
_CONNECTION = 0.4
# bytes/s of a connection from which that may be so where nothing was measured inside the host: a core copies
# and checks several 10^9 bytes/s, a TCP connection of 1 GB/s takes a good part of it.
_FAST = 1e9
_LINK = 0.8  # of the link's speed: a connection that reaches this fills the link
_EXCEEDED = 1.1  # times what one connection reached: then several share the link, and it carries more
MEASURED_LINK = "measured, doctor --links"
_DIRECTIONS = {"sent": "d2h", "received": "h2d"}  # seen from the device


def interface_peak(host: Host, interface: str, line: SampledLine) -> Peak | None:
    """Per direction. TCP between this host and another, the fastest pair; loopback: within the host.

    The measurement has one connection. Where the traffic is faster than that, it has several, and what was
    measured is no peak: the link's speed is, if it is known. So it is where the connection, not the link, may
    have been the limit: it was far below the link's speed, and as fast as CPUs move bytes.

    Args:
        host: of the interface.
        interface: its name.
        line: its traffic, bytes/s.
    """
    reached = float(np.percentile(line.values, _PERCENTILE)) if len(line.values) else 0.0
    if interface == "lo":
        inside = _peak(_calls(host, lambda row: _is_tcp(row) and row.link_class == LinkClass.LOOPBACK))
        return inside if inside is not None and reached <= _EXCEEDED * inside.value else None
    between = _calls(host, lambda row: _is_tcp(row) and (host.name, interface) in _ends(row))
    pairs = {row.hosts for row in between}
    peaks = [_peak([row for row in between if row.hosts == pair]) for pair in pairs]
    fastest = max((peak for peak in peaks if peak), key=lambda peak: peak.value, default=None)
    nic = host.topology.nics.get(interface)
    speed = nic.bytes_per_s if nic and not nic.virtual else None
    is_of_link = fastest is not None and (
        (speed is not None and fastest.value >= _LINK * speed) or not _may_be_full(host, fastest.value)
    )
    if fastest is not None and is_of_link and reached <= _EXCEEDED * fastest.value:
        return fastest
    if speed is None or (fastest is not None and speed < fastest.value):
        return None
    return Peak(value=speed, source=LINK_SPEED)


def _may_be_full(host: Host, value: float) -> bool:
    """Whether one TCP connection moves not much more than that, bytes/s, over any link."""
    inside = _peak(_calls(host, lambda row: _is_tcp(row) and row.link_class == LinkClass.LOOPBACK))
    return value >= (_FAST if inside is None else _CONNECTION * inside.value)


def gpu_link_peak(host: Host, gpu: str, metric: str, direction: str) -> Peak | None:
    """Per direction. PCIe: copies from and to pinned memory, else its speed; between GPUs: its speed."""
    gpu_facts = host.topology.gpus.get(int(gpu)) if gpu.isdecimal() else None
    if "pcie" in metric:
        way = _DIRECTIONS.get(direction)
        rows = _calls(host, lambda row: row.direction == way and row.memory == "pinned")
        measured = _peak([row for row in rows if _is_of(host, gpu, gpu_facts, row)])
        if measured is not None:
            return measured
    if gpu_facts is None:
        return None
    value = gpu_facts.pcie_bytes_per_s if "pcie" in metric else gpu_facts.link_bytes_per_s
    return Peak(value=value, source=LINK_SPEED) if value else None


def _is_of(host: Host, gpu: str, facts: Gpu | None, row: LinkCall) -> bool:
    """Whether a copy is of the GPU that samples number `gpu`.

    PyTorch numbers the devices that it is left with. Without uuid and address, its number is the driver's
    only where it saw every GPU.
    """
    if facts is not None and row.uuid and facts.uuid:
        return row.uuid == facts.uuid
    if facts is not None and row.pci and facts.pci:
        return row.pci == facts.pci
    seen = {call.device for call in _calls(host, lambda call: bool(call.device))}
    return row.device == f"cuda:{gpu}" and len(seen) == max(1, len(host.topology.gpus))


def cross_numa_peak(host: Host) -> Peak | None:
    """The CPUs of one NUMA node with the memory of another, the fastest pair; None: not measured."""
    rates = [
        cell.bytes_per_s
        for record in host.ceilings.links
        if record.host == host.name
        for cell in record.numa
        if cell.cpu_node != cell.memory_node and cell.bytes_per_s
    ]
    return Peak(value=max(rates), source=MEASURED_LINK) if rates else None


def _calls(host: Host, wanted: Callable[[LinkCall], bool]) -> list[LinkCall]:
    return [
        row
        for record in host.ceilings.links
        for row in record.calls
        if host.name in row.hosts and wanted(row)
    ]


def _is_tcp(row: LinkCall) -> bool:
    return row.transport == Transport.TCP


def _ends(row: LinkCall) -> Iterable[tuple[str, str | None]]:
    return zip(row.hosts, row.interfaces, strict=False)


def _peak(rows: list[LinkCall]) -> Peak | None:
    rate = largest_rate(rows)
    return Peak(value=rate, source=MEASURED_LINK) if rate else None
