"""Lines over the whole run, group by group. What never moves is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.lines import Line, gauge_line, rate_line, summed, track
from perfscope.analysis.machine.peaks import Peak, memory_peak
from perfscope.analysis.machine.results import CounterTrack
from perfscope.rundir.metrics import GAUGE
from perfscope.rundir.samples import SampleSeries

_QUIET_BYTES = 100_000  # an interface that moved less over the run is not shown
_MOST_RANKS = 8  # single ranks; more are added up
_INSTALLED, _LINK_SPEED = "installed", "link speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    """A metric of which every series becomes one line."""

    metric: str
    group: str
    title: str  # with labels in braces
    unit: str
    factor: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    peak: float | None = None


def _share(metric: str, group: str, title: str, **labels: str) -> _Plain:
    """A counter of ns as a share of the time."""
    return _Plain(metric=metric, group=group, title=title, unit="ratio", factor=1e-9, labels=labels, peak=1.0)


def _events(metric: str, group: str, title: str) -> _Plain:
    return _Plain(metric=metric, group=group, title=title, unit="per_s")


def _level(metric: str, group: str, title: str, unit: str, peak: float | None = None) -> _Plain:
    return _Plain(metric=metric, group=group, title=title, unit=unit, peak=peak)


_PRESSURE = (
    _share("pressure_some", "pressure", "some of the job waits for a CPU", scope="job", resource="cpu"),
    _share("pressure_some", "pressure", "some task waits for a CPU", scope="system", resource="cpu"),
    _share("pressure_some", "pressure", "some of the job waits for memory", scope="job", resource="memory"),
    _share("pressure_some", "pressure", "some task waits for memory", scope="system", resource="memory"),
    _share("pressure_some", "pressure", "some of the job waits for storage", scope="job", resource="io"),
    _share("pressure_some", "pressure", "some task waits for storage", scope="system", resource="io"),
    _share("pressure_full", "pressure", "all of the job waits for a CPU", scope="job", resource="cpu"),
    _share("pressure_full", "pressure", "all of the job waits for memory", scope="job", resource="memory"),
    _share("pressure_full", "pressure", "all tasks wait for memory", scope="system", resource="memory"),
)
_JOB_MEMORY = (
    _level("job_memory_anon", "memory", "node {node}, the job's own memory", "bytes"),
    _level("job_memory_file", "memory", "node {node}, the job's file cache", "bytes"),
)
_NUMA = (  # of machines with several nodes
    _events("local_node", "numa", "node {node}, pages allocated by its own CPUs"),
    _events("other_node", "numa", "node {node}, pages allocated by CPUs elsewhere"),
    _events("numa_miss", "numa", "node {node}, pages allocated though another node was wanted"),
    _events("interleave_hit", "numa", "node {node}, pages interleaved"),
    _events("numa_pages_migrated", "numa", "pages migrated between nodes"),
    _events("numa_hint_faults", "numa", "NUMA hint faults"),
)
_GPU = (
    _level("gpu_utilization", "gpu", "GPU {gpu} busy", "ratio", 1.0),
    _level("gpu_memory_utilization", "gpu", "GPU {gpu} memory busy", "ratio", 1.0),
    _level("gpm_sm_activity", "gpu", "GPU {gpu} SMs active", "ratio", 1.0),
    _level("gpm_sm_occupancy", "gpu", "GPU {gpu} occupancy", "ratio", 1.0),
    _level("gpm_tensor_activity", "gpu", "GPU {gpu} tensor cores active", "ratio", 1.0),
    _level("gpm_dram_activity", "gpu", "GPU {gpu} DRAM active", "ratio", 1.0),
    _share("gpu_throttle_time", "gpu", "GPU {gpu} held back: {reason}"),
)
_GPU_RATES = (
    _level("gpm_pcie_tx_rate", "gpu_link", "GPU {gpu} PCIe sent", "bytes_per_s"),
    _level("gpm_pcie_rx_rate", "gpu_link", "GPU {gpu} PCIe received", "bytes_per_s"),
    _level("pcie_tx_rate", "gpu_link", "GPU {gpu} PCIe sent, 20 ms in each second", "bytes_per_s"),
    _level("pcie_rx_rate", "gpu_link", "GPU {gpu} PCIe received, 20 ms in each second", "bytes_per_s"),
    _level("gpm_nvlink_tx_rate", "gpu_link", "GPU {gpu} NVLink sent", "bytes_per_s"),
    _level("gpm_nvlink_rx_rate", "gpu_link", "GPU {gpu} NVLink received", "bytes_per_s"),
)
_POWER = (
    _level("rapl_energy", "power", "{domain}", "watts"),
    _level("gpu_power", "power", "GPU {gpu}", "watts"),
    _level("gpu_temperature", "power", "GPU {gpu} temperature", "celsius"),
)
_CLOCKS = (
    _level("cpu_frequency", "clocks", "node {node} CPU clock", "hz"),
    _level("gpu_sm_clock", "clocks", "GPU {gpu} SM clock", "hz"),
    _level("gpu_memory_clock", "clocks", "GPU {gpu} memory clock", "hz"),
    _share("thermal_throttle_time", "clocks", "package {package} held back by heat"),
)
_IO = (
    _level("job_read_bytes", "io", "{device} read by the job", "bytes_per_s"),
    _level("job_written_bytes", "io", "{device} written by the job", "bytes_per_s"),
)
_FABRIC_EVENTS = (_events("fabric_xmit_wait", "fabric", "{port} waited for credits, ticks"),)
_TCP = (_events("tcp_retransmits", "network", "TCP segments sent again"),)

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
        _all(host, _JOB_MEMORY),
        _all(host, _NUMA if len(host.topology.nodes) > 1 else ()),
        _network(host),
        _all(host, _TCP),
        _fabric(host),
        _all(host, _FABRIC_EVENTS),
        _all(host, _GPU),
        _gpu_links(host),
        _all(host, _GPU_RATES),
        _all(host, _POWER),
        _all(host, _CLOCKS),
        _all(host, _IO),
        _rank_io(host),
    )
    return list(chain.from_iterable(parts))


def _key(series: SampleSeries) -> str:
    labels = ",".join(f"{name}={value}" for name, value in sorted(series.labels.items()))
    return f"{series.metric}{{{labels}}}" if labels else series.metric


def _titled(template: str, labels: Mapping[str, str]) -> str:
    named: dict[str, str] = defaultdict(lambda: "?")
    named.update(
        {name: value.replace("_", " ") if name == "reason" else value for name, value in labels.items()}
    )
    return template.format_map(named)


def _line(host: Host, series: SampleSeries) -> Line:
    return gauge_line(series) if series.kind == GAUGE else rate_line(host.rates(series))


def _all(host: Host, plains: Iterable[_Plain]) -> Iterator[CounterTrack]:
    for plain in plains:
        for series in host.samples.find(plain.metric, **plain.labels):
            line = _line(host, series).times(plain.factor)
            if line.moves:
                title = _titled(plain.title, series.labels)
                yield track(host, plain.group, title, plain.unit, line, key=_key(series), peak=plain.peak)


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
                ("neighbour_cpu", "CPUs used by others", {}),
                ("cpu_steal", "CPUs taken by the hypervisor", {"cpu": "all"}),
                ("cpu_iowait", "CPUs idle, waiting for storage", {"cpu": "all"}),
                ("job_cpu", "CPUs used by the job's control group", {}),
                ("job_throttled", "CPUs withheld by the control group's quota", {}),
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
    found = [(one, counted) for one, counted in host.counters(metric) if one.labels.get("pid") in ranks]
    if len(found) > _MOST_RANKS:
        line = summed([counted for _, counted in found])
        if line is not None and line.moves:
            mean = (
                factor if group == "cpu" else factor / len(found)
            )  # shares of the machine add up, waits do not
            name = title.format("(all)") if group == "cpu" else title.format("(mean of all)")
            yield track(host, group, name, "ratio", line.times(mean), key=metric)
        return
    for series, counted in sorted(found, key=lambda item: ranks[item[0].labels["pid"]]):
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
        for place, line, nodes in memory_lines(host, metric):
            peak = memory_peak(host, nodes) if metric.startswith("dram") else None
            if line.moves:
                yield _peaked(host, "memory", f"{place} {title}", line, f"{metric}{{{place}}}", peak)
    for metric, title in (("mbm_total_bytes", "memory traffic"), ("mbm_local_bytes", "local memory traffic")):
        for series, counted in host.counters(metric):
            line = rate_line(counted)
            if line.moves:
                name = f"L3 domain {series.labels.get('domain', '?')} {title}"
                group = series.labels.get("group")
                yield _peaked(
                    host, "memory", f"{name} ({group})" if group else name, line, _key(series), None
                )


def memory_lines(host: Host, metric: str) -> list[tuple[str, Line, tuple[int, ...]]]:
    """Rates of a memory controller metric per socket or node: (name, line, NUMA nodes behind it)."""
    groups: dict[tuple[str, str], list[SampleSeries]] = defaultdict(list)
    for series, _ in host.counters(metric):
        name = "node" if "node" in series.labels else "socket"
        groups[name, series.labels.get(name, "0")].append(series)
    found = []
    for (name, number), members in sorted(groups.items()):
        line = summed([host.rates(series) for series in members])
        index = int(number) if number.isdecimal() else 0
        nodes = (index,) if name == "node" else host.topology.nodes_of_package(index)
        if line is not None:
            found.append((f"{name} {number}", line, nodes))
    return found


def _peaked(host: Host, group: str, title: str, line: Line, key: str, peak: Peak | None) -> CounterTrack:
    value, source = (peak.value, peak.source) if peak else (None, "")
    return track(host, group, title, "bytes_per_s", line, key=key, peak=value, peak_source=source)


def _memory(host: Host) -> Iterator[CounterTrack]:
    """Memory in use per NUMA node and GPU."""
    for series in host.samples.find("node_memory_free"):
        node = series.labels.get("node", "?")
        known = host.topology.nodes.get(int(node)) if node.isdecimal() else None
        size = _last(host, "node_memory_total", node=node) or (known.memory_bytes if known else None)
        if size and len(series.values):
            free = gauge_line(series)
            used = Line(t_ns=free.t_ns, values=size - free.values, weight=free.weight, quality=free.quality)
            title = f"node {node} memory in use"
            yield track(
                host, "memory", title, "bytes", used, key=_key(series), peak=size, peak_source=_INSTALLED
            )
    for series in host.samples.find("gpu_memory_used"):
        gpu = series.labels.get("gpu", "?")
        line, size = gauge_line(series), _last(host, "gpu_memory_total", gpu=gpu)
        if line.moves:
            title, source = f"GPU {gpu} memory in use", _INSTALLED if size else ""
            yield track(host, "gpu", title, "bytes", line, key=_key(series), peak=size, peak_source=source)


def _last(host: Host, metric: str, **labels: str) -> float | None:
    """The last reading of a gauge."""
    for series in host.samples.find(metric, **labels):
        if len(series.values):
            return float(series.values[-1]) * series.scale
    return None


def _network(host: Host) -> Iterator[CounterTrack]:
    names = {series.labels.get("netns") for series in host.samples.find("net_tx_bytes")}
    for metric, word in (("net_tx_bytes", "sent"), ("net_rx_bytes", "received")):
        for series, counted in host.counters(metric):
            name = series.labels.get("interface", "?")
            if counted.total < _QUIET_BYTES:
                continue
            where = f" (namespace {series.labels.get('netns')})" if len(names) > 1 else ""
            nic = host.topology.nics.get(name)
            peak = Peak(value=nic.bytes_per_s, source=_LINK_SPEED) if nic and nic.bytes_per_s else None
            yield _peaked(host, "network", f"{name}{where} {word}", rate_line(counted), _key(series), peak)


def _fabric(host: Host) -> Iterator[CounterTrack]:
    for metric, word in (("fabric_tx_bytes", "sent"), ("fabric_rx_bytes", "received")):
        for series, counted in host.counters(metric):
            name = series.labels.get("port", "?")
            line, port = rate_line(counted), host.topology.ports.get(name)
            known = port is not None and not port.virtual and port.bytes_per_s
            peak = (
                Peak(value=port.bytes_per_s, source=_LINK_SPEED)
                if known and port and port.bytes_per_s
                else None
            )
            if line.moves:
                yield _peaked(host, "fabric", f"{name} {word}", line, _key(series), peak)


def _gpu_links(host: Host) -> Iterator[CounterTrack]:
    """PCIe per GPU, and its NVLinks added up."""
    for metric, title in (
        ("pcie_tx_bytes", "PCIe sent"),
        ("pcie_rx_bytes", "PCIe received"),
        ("nvlink_tx_bytes", "NVLink sent"),
        ("nvlink_rx_bytes", "NVLink received"),
    ):
        groups: dict[str, list[SampleSeries]] = defaultdict(list)
        for series, _ in host.counters(metric):
            groups[series.labels.get("gpu", "?")].append(series)
        for gpu, members in sorted(groups.items()):
            line = summed([host.rates(series) for series in members])
            if line is not None and line.moves:
                peak = gpu_link_peak(host, gpu, metric)
                yield _peaked(host, "gpu_link", f"GPU {gpu} {title}", line, f"{metric}{{gpu={gpu}}}", peak)


def gpu_link_peak(host: Host, gpu: str, metric: str) -> Peak | None:
    """Per direction, by the topology."""
    known = host.topology.gpus.get(int(gpu)) if gpu.isdecimal() else None
    if known is None:
        return None
    value = known.pcie_bytes_per_s if "pcie" in metric else known.nvlink_bytes_per_s
    return Peak(value=value, source=_LINK_SPEED) if value else None


def _rank_io(host: Host) -> Iterator[CounterTrack]:
    """All ranks' reads from storage, where the control group does not tell."""
    if any(counted.total for _, counted in host.counters("job_read_bytes")):
        return
    line = summed([counted for _, counted in host.counters("rank_read_bytes")])
    if line is not None and line.moves:
        yield track(host, "io", "read from storage by the ranks", "bytes_per_s", line, key="rank_read_bytes")
