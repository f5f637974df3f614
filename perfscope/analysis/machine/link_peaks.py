"""What links carry at most: as `perfscope doctor --links` measured it on this host, else their speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.lines import SampledLine
from perfscope.analysis.machine.peaks import Peak
from perfscope.analysis.predict.measured_links import largest_rate
from perfscope.rundir.host_records import LinkCall
from perfscope.vocabulary.links import LinkClass, Transport

LINK_SPEED = "link speed"
_PERCENTILE = 95
_EXCEEDED = 1.1  # times what one connection reached: then several share the link, and it carries more
MEASURED_LINK = "measured, doctor --links"
_DIRECTIONS = {"sent": "d2h", "received": "h2d"}  # seen from the device


def interface_peak(host: Host, interface: str, line: SampledLine) -> Peak | None:
    """Per direction. TCP between this host and another, the fastest pair; loopback: within the host.

    The measurement has one connection. Where the traffic is faster than that, it has several, and what was
    measured is no peak: the link's speed is, if it is known.

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
    if fastest is not None and reached <= _EXCEEDED * fastest.value:
        return fastest
    nic = host.topology.nics.get(interface)
    return Peak(value=nic.bytes_per_s, source=LINK_SPEED) if nic and nic.bytes_per_s else None


def gpu_link_peak(host: Host, gpu: str, metric: str, direction: str) -> Peak | None:
    """Per direction. PCIe: copies from and to pinned memory, else its speed; between GPUs: its speed."""
    gpu_facts = host.topology.gpus.get(int(gpu)) if gpu.isdecimal() else None
    if "pcie" in metric:
        way, device = _DIRECTIONS.get(direction), f"cuda:{gpu}"
        measured = _peak(
            _calls(host, lambda row: row.device == device and row.direction == way and row.memory == "pinned")
        )
        if measured is not None:
            return measured
    if gpu_facts is None:
        return None
    value = gpu_facts.pcie_bytes_per_s if "pcie" in metric else gpu_facts.link_bytes_per_s
    return Peak(value=value, source=LINK_SPEED) if value else None


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
