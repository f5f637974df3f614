"""Lines over the whole run, group by group. What never moves is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from msgspec import Struct

from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.lines import SampledLine, gauge_line, rate_line, summed, track
from perfscope.analysis.machine.link_peaks import LINK_SPEED, gpu_link_peak, interface_peak
from perfscope.analysis.machine.memory import TOTAL, occupancy_tracks
from perfscope.analysis.machine.ost_lines import ost_tracks
from perfscope.analysis.machine.peaks import Peak, memory_peak
from perfscope.analysis.machine.results import CounterTrack
from perfscope.rundir.metrics import GAUGE
from perfscope.rundir.samples import SampleSeries
from perfscope.vocabulary.gpu import (
    GPU_METRICS,
    LINK_RX,
    LINK_TX,
    MEMORY_TOTAL,
    MEMORY_USED,
    PCIE_RX,
    PCIE_TX,
)
from perfscope.vocabulary.links import LinkClass

_QUIET_BYTES = 100_000  # an interface that moved less over the run is not shown
_MOST_RANKS = 8  # single ranks; more are added up


class _Plain(Struct, frozen=True, kw_only=True):
    """A metric of which every series becomes one line, in the unit that the series was recorded in."""

    metric: str
    group: str
    title: str  # with labels in braces
    unit: str = ""  # "" = by the series, see `_unit`
    factor: float = 1.0
    labels: Mapping[str, str] = {}
    peak: float | None = None


# What a counter of these counts per second is in; of anything else, so many per second.
_RATES = {"ns": "ratio", "bytes": "bytes_per_s", "joules": "watts"}


def _share(metric: str, group: str, title: str, **labels: str) -> _Plain:
    """A counter of ns as a share of the time."""
    return _Plain(metric=metric, group=group, title=title, labels=labels, peak=1.0)


def _level(metric: str, group: str, title: str) -> _Plain:
    return _Plain(metric=metric, group=group, title=title)


def _unit(series: SampleSeries) -> tuple[str, float]:
    """Unit of a series' line, and the factor to it: of a counter its rate, of ns the share of the time."""
    if series.kind == GAUGE:
        return series.unit, 1.0
    return _RATES.get(series.unit, "per_s"), 1e-9 if series.unit == "ns" else 1.0


_PRESSURE = (
    _share("pressure_some", "pressure", "CPU pressure, job", scope="job", resource="cpu"),
    _share("pressure_some", "pressure", "CPU pressure, host", scope="system", resource="cpu"),
    _share("pressure_some", "pressure", "memory pressure, job", scope="job", resource="memory"),
    _share("pressure_some", "pressure", "memory pressure, host", scope="system", resource="memory"),
    _share("pressure_some", "pressure", "I/O pressure, job", scope="job", resource="io"),
    _share("pressure_some", "pressure", "I/O pressure, host", scope="system", resource="io"),
    _share("pressure_full", "pressure", "CPU pressure, job (full)", scope="job", resource="cpu"),
    _share("pressure_full", "pressure", "memory pressure, job (full)", scope="job", resource="memory"),
    _share("pressure_full", "pressure", "memory pressure, host (full)", scope="system", resource="memory"),
)
_JOB_MEMORY = (
    _level("job_memory_anon", "memory", "node {node}, the job's own memory"),
    _level("job_memory_file", "memory", "node {node}, the job's file cache"),
)
_NUMA = (  # of machines with several nodes
    _level("local_node", "numa", "node {node}, pages allocated by its own CPUs"),
    _level("other_node", "numa", "node {node}, pages allocated by CPUs elsewhere"),
    _level("numa_miss", "numa", "node {node}, pages allocated though another node was wanted"),
    _level("interleave_hit", "numa", "node {node}, pages interleaved"),
    _level("numa_pages_migrated", "numa", "pages migrated between nodes"),
    _level("numa_hint_faults", "numa", "NUMA hint faults"),
)


def _gpu(group: str) -> tuple[_Plain, ...]:
    """Lines of the catalogue's metrics in a chart."""
    return tuple(
        _Plain(metric=metric.name, group=group, title=metric.title, peak=metric.peak)
        for metric in GPU_METRICS
        if metric.group == group and metric.title
    )


_POWER = (
    _level("rapl_energy", "power", "{domain}"),
    *_gpu("power"),
)
_CLOCKS = (
    _level("cpu_frequency", "clocks", "node {node} CPU clock"),
    *_gpu("clocks"),
    _share("thermal_throttle_time", "clocks", "package {package} throttled by heat"),
)
_IO = (
    _level("job_read_bytes", "io", "{device} read by the job"),
    _level("job_written_bytes", "io", "{device} written by the job"),
    _level("mount_read_bytes", "io", "{mount} read, all processes"),
    _level("mount_written_bytes", "io", "{mount} written, all processes"),
)
_FABRIC_EVENTS = (_level("fabric_xmit_wait", "fabric", "{port} waited for credits, ticks"),)
_TCP = (_level("tcp_retransmits", "network", "TCP retransmits"),)

Tracks = Iterable[CounterTrack]


def tracks(host: Host) -> list[CounterTrack]:
    """Every line of one host, in the order of the charts."""
    if not host.has_samples:
        return []
    parts: tuple[Tracks, ...] = (
        _cpu(host),
        _all(host, _PRESSURE),
        _per_rank(host, "rank_runqueue_wait", "pressure", "rank {} waits for a CPU", 1e-9),
        _bandwidth(host),
        _memory(host),
        occupancy_tracks(host),
        _all(host, _JOB_MEMORY),
        _all(host, _NUMA if len(host.topology.nodes) > 1 else ()),
        _network(host),
        _all(host, _TCP),
        _fabric(host),
        _all(host, _FABRIC_EVENTS),
        _all(host, _gpu("gpu")),
        _gpu_links(host),
        _all(host, _gpu("gpu_link")),
        _all(host, _POWER),
        _all(host, _CLOCKS),
        _all(host, _IO),
        ost_tracks(host),
        _rank_io(host),
    )
    return list(chain.from_iterable(parts))


def _key(series: SampleSeries) -> str:
    labels = ",".join(f"{name}={value}" for name, value in sorted(series.labels.items()))
    return f"{series.metric}{{{labels}}}" if labels else series.metric


def _titled(template: str, labels: Mapping[str, str]) -> str:
    named: dict[str, str] = defaultdict(lambda: "?")
    named.update(labels)
    return template.format_map(named)


def _line(host: Host, series: SampleSeries) -> SampledLine:
    return gauge_line(series) if series.kind == GAUGE else rate_line(host.rates(series))


def _all(host: Host, plains: Iterable[_Plain]) -> Iterator[CounterTrack]:
    for plain in plains:
        for series in host.samples.find(plain.metric, **plain.labels):
            unit, factor = (plain.unit, plain.factor) if plain.unit else _unit(series)
            line = _line(host, series).times(factor)
            if line.moves:
                title = _titled(plain.title, series.labels)
                yield track(host, plain.group, title, unit, line, key=_key(series), peak=plain.peak)


def _cpu(host: Host) -> Iterator[CounterTrack]:
    """Everything as a share of all CPUs, or of those of a node."""
    num_cpus = host.topology.num_cpus
    if not num_cpus:
        return
    share = 1e-9 / num_cpus
    yield from _all(
        host,
        [
            _Plain(
                metric=metric, group="cpu", title=title, unit="ratio", factor=share, labels=labels, peak=1.0
            )
            for metric, title, labels in (
                ("cpu_busy", "CPUs busy", {"cpu": "all"}),
                ("neighbour_cpu", "CPUs used by other processes", {}),
                ("cpu_steal", "CPU steal", {"cpu": "all"}),
                ("cpu_iowait", "I/O wait", {"cpu": "all"}),
                ("job_cpu", "CPUs used by the job's control group", {}),
                ("job_throttled", "CPUs withheld by the CPU quota", {}),
            )
        ],
    )
    nodes = host.topology.nodes.values()
    yield from _all(
        host,
        [
            _Plain(
                metric="cpu_busy",
                group="cpu",
                title="node {node} CPUs busy",
                unit="ratio",
                factor=1e-9 / len(node.cpus),
                labels={"node": str(node.number)},
                peak=1.0,
            )
            for node in nodes
            if node.cpus and len(nodes) > 1
        ],
    )
    yield from _per_rank(host, "rank_cpu", "cpu", "rank {} CPU use", share)


def _per_rank(host: Host, metric: str, group: str, title: str, factor: float) -> Iterator[CounterTrack]:
    """One line per rank, or one for all if there are many."""
    ranks = host.rank_of_pid()
    by_rank = [
        (sample, counted) for sample, counted in host.counters(metric) if sample.labels.get("pid") in ranks
    ]
    if len(by_rank) > _MOST_RANKS:
        line = summed([counted for _, counted in by_rank])
        if line is not None and line.moves:
            mean = (
                factor if group == "cpu" else factor / len(by_rank)
            )  # shares of the machine add up, waits do not
            name = title.format("(all)") if group == "cpu" else title.format("(mean of all)")
            yield track(host, group, name, "ratio", line.times(mean), key=metric)
        return
    for series, counted in sorted(by_rank, key=lambda item: ranks[item[0].labels["pid"]]):
        line = rate_line(counted).times(factor)
        if line.moves:
            name = title.format(ranks[series.labels["pid"]])
            yield track(host, group, name, "ratio", line, key=_key(series))


def _bandwidth(host: Host) -> Iterator[CounterTrack]:
    """What the memory controllers moved; channels of one socket are added up."""
    for metric, title in (
        ("dram_read_bytes", "DRAM read"),
        ("dram_write_bytes", "DRAM written"),
        ("mcdram_read_bytes", "MCDRAM read"),
        ("mcdram_write_bytes", "MCDRAM written"),
    ):
        for node_name, line, nodes in memory_lines(host, metric):
            peak = memory_peak(host, nodes) if metric.startswith("dram") else None
            if line.moves:
                yield _peaked(host, "memory", f"{node_name} {title}", line, f"{metric}{{{node_name}}}", peak)
    for metric, title in (("mbm_total_bytes", "memory traffic"), ("mbm_local_bytes", "local memory traffic")):
        for series, counted in host.counters(metric):
            line = rate_line(counted)
            if line.moves:
                name = f"L3 domain {series.labels.get('domain', '?')} {title}"
                group = series.labels.get("group")
                yield _peaked(
                    host, "memory", f"{name} ({group})" if group else name, line, _key(series), None
                )


def memory_lines(host: Host, metric: str) -> list[tuple[str, SampledLine, tuple[int, ...]]]:
    """Rates of a memory controller metric per socket or node: (name, line, NUMA nodes behind it)."""
    groups: dict[tuple[str, str], list[SampleSeries]] = defaultdict(list)
    for series, _ in host.counters(metric):
        name = "node" if "node" in series.labels else "socket"
        groups[name, series.labels.get(name, "0")].append(series)
    lines = []
    for (name, number), members in sorted(groups.items()):
        line = summed([host.rates(series) for series in members])
        index = int(number) if number.isdecimal() else 0
        nodes = (index,) if name == "node" else host.topology.nodes_of_package(index)
        if line is not None:
            lines.append((f"{name} {number}", line, nodes))
    return lines


def _peaked(
    host: Host, group: str, title: str, line: SampledLine, key: str, peak: Peak | None
) -> CounterTrack:
    value, source = (peak.value, peak.source) if peak else (None, "")
    return track(host, group, title, "bytes_per_s", line, key=key, peak=value, peak_source=source)


def _memory(host: Host) -> Iterator[CounterTrack]:
    """Memory in use per NUMA node and GPU."""
    for series in host.samples.find("node_memory_free"):
        node = series.labels.get("node", "?")
        node_facts = host.topology.nodes.get(int(node)) if node.isdecimal() else None
        size = host.last("node_memory_total", node=node) or (node_facts.memory_bytes if node_facts else None)
        if size and len(series.values):
            free = gauge_line(series)
            used = SampledLine(
                t_ns=free.t_ns, values=size - free.values, weight=free.weight, quality=free.quality
            )
            title = f"node {node} memory in use"
            yield track(host, "memory", title, "bytes", used, key=_key(series), peak=size, peak_source=TOTAL)
    for series in host.samples.find(MEMORY_USED.name):
        gpu = series.labels.get("gpu", "?")
        line, size = gauge_line(series), host.last(MEMORY_TOTAL.name, gpu=gpu)
        if line.moves:
            title, source = f"GPU {gpu} memory in use", TOTAL if size else ""
            yield track(
                host, "gpu", title, series.unit, line, key=_key(series), peak=size, peak_source=source
            )


def _network(host: Host) -> Iterator[CounterTrack]:
    names = {series.labels.get("netns") for series in host.samples.find("net_tx_bytes")}
    for metric, word in (("net_tx_bytes", "sent"), ("net_rx_bytes", "received")):
        for series, counted in host.counters(metric):
            name = series.labels.get("interface", "?")
            if counted.total < _QUIET_BYTES:
                continue
            where = f" (namespace {series.labels.get('netns')})" if len(names) > 1 else ""
            line = rate_line(counted)
            peak = None if name == "lo" else interface_peak(host, name, line)
            yield _peaked(host, "network", f"{name}{where} {word}", line, _key(series), peak)


def _fabric(host: Host) -> Iterator[CounterTrack]:
    for metric, word in (("fabric_tx_bytes", "sent"), ("fabric_rx_bytes", "received")):
        for series, counted in host.counters(metric):
            name = series.labels.get("port", "?")
            line, port = rate_line(counted), host.topology.ports.get(name)
            has_peak = port is not None and not port.virtual and port.bytes_per_s
            peak = (
                Peak(value=port.bytes_per_s, source=LINK_SPEED)
                if has_peak and port and port.bytes_per_s
                else None
            )
            if line.moves:
                yield _peaked(host, "fabric", f"{name} {word}", line, _key(series), peak)


def _gpu_links(host: Host) -> Iterator[CounterTrack]:
    """PCIe per GPU, and its links to other GPUs added up."""
    for counter in gpu_link_counters(host):
        line = summed([host.rates(series) for series in counter.members])
        if line is not None and line.moves:
            title = f"GPU {counter.gpu} {counter.link_name} {counter.direction}"
            key = f"{counter.metric}{{gpu={counter.gpu}}}"
            yield _peaked(
                host,
                "gpu_link",
                title,
                line,
                key,
                gpu_link_peak(host, counter.gpu, counter.metric, counter.direction),
            )


class GpuLinkCounters(Struct, frozen=True, kw_only=True):
    """Counters of one GPU's PCIe port, or of all its links to other GPUs, in one direction."""

    gpu: str
    metric: str
    link_class: LinkClass
    link_name: str  # "PCIe", "NVLink": the vendor's
    direction: str  # sent, received
    members: tuple[SampleSeries, ...]


def gpu_link_counters(host: Host) -> Iterator[GpuLinkCounters]:
    """Every GPU's, by metric and GPU."""
    for metric, link_class, direction in (
        (PCIE_TX.name, LinkClass.PCIE, "sent"),
        (PCIE_RX.name, LinkClass.PCIE, "received"),
        (LINK_TX.name, LinkClass.GPU_LINK, "sent"),
        (LINK_RX.name, LinkClass.GPU_LINK, "received"),
    ):
        groups: dict[str, list[SampleSeries]] = defaultdict(list)
        for series, _ in host.counters(metric):
            groups[series.labels.get("gpu", "?")].append(series)
        for gpu, members in sorted(groups.items()):
            name = "PCIe" if link_class is LinkClass.PCIE else members[0].labels.get("kind", "link")
            yield GpuLinkCounters(
                gpu=gpu,
                metric=metric,
                link_class=link_class,
                link_name=name,
                direction=direction,
                members=tuple(members),
            )


def _rank_io(host: Host) -> Iterator[CounterTrack]:
    """All ranks' reads from storage, where the control group does not tell."""
    if any(counted.total for _, counted in host.counters("job_read_bytes")):
        return
    line = summed([counted for _, counted in host.counters("rank_read_bytes")])
    if line is not None and line.moves:
        yield track(host, "io", "disk reads by ranks", "bytes_per_s", line, key="rank_read_bytes")
