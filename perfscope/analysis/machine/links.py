"""Traffic of every link that carried any, against what it can carry: as measured there, else its speed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfscope.analysis.machine.counters import Rates
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.lines import SampledLine, rate_line, summed
from perfscope.analysis.machine.link_peaks import (
    LINK_SPEED,
    cross_numa_peak,
    gpu_link_peak,
    interface_peak,
)
from perfscope.analysis.machine.peaks import memory_peak
from perfscope.analysis.machine.results import LinkTraffic
from perfscope.analysis.machine.tracks import gpu_link_counters, memory_lines
from perfscope.rundir.samples import SampleSeries
from perfscope.vocabulary.links import LinkClass

NO_PEAK = "loopback has no peak"
_LEAST_BYTES = 1_000
_PERCENTILE = 95


def traffic(host: Host) -> list[LinkTraffic]:
    """Over the steps' time (else all readings), of every class of links."""
    if not host.has_samples or host.counted_ns is None:
        return []
    parts = (_memory(host), _monitored(host), _gpus(host), _fabric(host), _network(host))
    return [link for part in parts for link in part]


def _link(
    host: Host,
    link_class: LinkClass,
    name: str,
    direction: str,
    line: SampledLine,
    *,
    peak: float | None = None,
    peak_source: str = "",
    no_peak: str = "",
    errors: int | None = None,
    numa_node: int | None = None,
) -> LinkTraffic | None:
    assert host.counted_ns is not None
    start, end = host.counted_ns
    inside = (line.t_ns >= start) & (line.t_ns <= end)
    if not inside.any():
        return None
    rates, weight = line.values[inside], line.weight[inside]
    moved = float((rates * weight).sum() / 1e9)
    if moved < _LEAST_BYTES:
        return None
    return LinkTraffic(
        host=host.name,
        link_class=link_class,
        name=name,
        direction=direction,
        bytes=round(moved),
        mean_bytes_per_s=moved * 1e9 / float(weight.sum()),
        p95_bytes_per_s=float(np.percentile(rates, _PERCENTILE)),
        peak_bytes_per_s=peak,
        peak_source=peak_source if peak else no_peak,
        quality=line.quality,
        errors=errors,
        numa_node=numa_node,
    )


def _memory(host: Host) -> Iterator[LinkTraffic]:
    for metric, word, direction in (
        ("dram_read_bytes", "DRAM", "read"),
        ("dram_write_bytes", "DRAM", "written"),
        ("mcdram_read_bytes", "MCDRAM", "read"),
        ("mcdram_write_bytes", "MCDRAM", "written"),
    ):
        for name, line, nodes in memory_lines(host, metric):
            peak = memory_peak(host, nodes) if word == "DRAM" else None
            link = _link(
                host,
                LinkClass.MEMORY,
                f"{name} {word}",
                direction,
                line,
                peak=peak.value if peak else None,
                peak_source=peak.source if peak else "",
                numa_node=nodes[0] if len(nodes) == 1 else None,
            )
            if link is not None:
                yield link


def _monitored(host: Host) -> Iterator[LinkTraffic]:
    """Memory traffic by L3 domain (resctrl): what did not stay on the own node crossed over."""
    local = {_domain(series): counted for series, counted in host.counters("mbm_local_bytes")}
    for series, counted in host.counters("mbm_total_bytes"):
        near = local.get(_domain(series))
        domain, group = _domain(series)
        name = f"L3 domain {domain} memory traffic" + (f" ({group})" if group else "")
        if near is None or not np.array_equal(near.start_ns, counted.start_ns):
            parts = [(LinkClass.MEMORY, rate_line(counted))]
        else:
            total = rate_line(counted)
            far = np.maximum(total.values - near.per_s, 0.0)
            parts = [
                (LinkClass.INTRA_NUMA, rate_line(near)),
                (
                    LinkClass.CROSS_NUMA,
                    SampledLine(t_ns=total.t_ns, values=far, weight=total.weight, quality=total.quality),
                ),
            ]
        for link_class, line in parts:
            peak = cross_numa_peak(host) if link_class is LinkClass.CROSS_NUMA else None
            link = _link(
                host,
                link_class,
                name,
                "read and written",
                line,
                peak=peak.value if peak else None,
                peak_source=peak.source if peak else "",
            )
            if link is not None:
                yield link


def _domain(series: SampleSeries) -> tuple[str, str]:
    return series.labels.get("domain", "?"), series.labels.get("group", "")


def _gpus(host: Host) -> Iterator[LinkTraffic]:
    for counter in gpu_link_counters(host):
        line, peak = (
            summed([host.rates(series) for series in counter.members]),
            gpu_link_peak(host, counter.gpu, counter.metric, counter.direction),
        )
        gpu = host.topology.gpus.get(int(counter.gpu)) if counter.gpu.isdecimal() else None
        link = line and _link(
            host,
            counter.link_class,
            f"GPU {counter.gpu} {counter.link_name}",
            counter.direction,
            line,
            peak=peak.value if peak else None,
            peak_source=peak.source if peak else "",
            numa_node=gpu.node if gpu else None,
        )
        if link:
            yield link


def _fabric(host: Host) -> Iterator[LinkTraffic]:
    for metric, direction in (("fabric_tx_bytes", "sent"), ("fabric_rx_bytes", "received")):
        for series, counted in host.counters(metric):
            name = series.labels.get("port", "?")
            port = host.topology.ports.get(name)
            link = _link(
                host,
                LinkClass.FABRIC,
                name,
                direction,
                rate_line(counted),
                peak=port.bytes_per_s
                if port and not port.virtual
                else None,  # software devices make theirs up
                peak_source=LINK_SPEED,
                errors=_sum(host, "fabric_errors", port=name),
                numa_node=port.node if port else None,
            )
            if link is not None:
                yield link


def _network(host: Host) -> Iterator[LinkTraffic]:
    sent = {
        (_namespace(sample), sample.labels.get("interface", "?")): c
        for sample, c in host.counters("net_tx_bytes")
    }
    several = len({namespace for namespace, _ in sent}) > 1
    for metric, direction in (("net_tx_bytes", "sent"), ("net_rx_bytes", "received")):
        for series, counted in host.counters(metric):
            interface, namespace = series.labels.get("interface", "?"), _namespace(series)
            nic = host.topology.nics.get(interface)
            errors = _sum(host, "net_errors", interface=interface, netns=namespace)
            if direction == "sent" and interface == _busiest(sent, namespace):
                again = _sum(host, "tcp_retransmits", netns=namespace)
                errors = errors if again is None else (errors or 0) + again
            line = rate_line(counted)
            peak = interface_peak(host, interface, line)
            link = _link(
                host,
                LinkClass.LOOPBACK if interface == "lo" else LinkClass.ETHERNET,
                f"{interface} (namespace {namespace})" if several else interface,
                direction,
                line,
                peak=peak.value if peak else None,
                peak_source=peak.source if peak else "",
                no_peak=NO_PEAK if interface == "lo" else "",
                errors=errors,
                numa_node=nic.node if nic else None,
            )
            if link is not None:
                yield link


def _namespace(series: SampleSeries) -> str:
    return series.labels.get("netns", "")


def _busiest(sent: dict[tuple[str, str], Rates], namespace: str) -> str | None:
    """The interface to which a namespace's retransmissions are laid: the one that sent most, not loopback."""
    in_namespace = {
        name: counted.total for (space, name), counted in sent.items() if space == namespace and name != "lo"
    }
    return max(in_namespace, key=lambda name: in_namespace[name]) if in_namespace else None


def _sum(host: Host, metric: str, **labels: str) -> int | None:
    """What counters of that name counted over the run; None where there are none."""
    wanted = {name: value for name, value in labels.items() if value}
    counters = host.counters(metric, **wanted)
    return round(sum(counted.total for _, counted in counters)) if counters else None
