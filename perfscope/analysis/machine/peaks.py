"""ceilings.json, typed: the measured peaks of a host, and where nothing was measured the theoretical ones."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.results import Ceiling
from perfscope.messages import machine as texts
from perfscope.rundir.host_records import CeilingsRecord, MeasuredCeiling, TheoreticalCeiling
from perfscope.rundir.old_words import ceiling_kind
from perfscope.vocabulary.ceilings import DRAM, CeilingKind

_WIDE_SPREAD = 0.1
_PRESSED = 0.1  # CPUs waited for in this share of the time: the ceiling may be too low
MEASURED = "measured"


class Peak(Struct, frozen=True, kw_only=True):
    """A figure and where it is from."""

    value: float
    source: str
    is_shared: bool = False  # a rank's part of what several ranks share


def ceilings(host: Host) -> list[Ceiling]:
    """Every ceiling of one host: measured ones first, then theoretical ones."""
    pressed = _pressure(host.ceilings)
    entries = [_measured(host.name, row, pressed) for row in host.ceilings.entries]
    entries += [_theoretical(host.name, row) for row in host.ceilings.theoretical]
    return entries


def thread_memory_peak(host: Host, threads: int) -> Peak | None:
    """The best triad measured with so many threads, on nodes with CPUs."""
    with_cpus = {node.number for node in host.topology.nodes.values() if node.cpus}
    values = [
        row.value
        for row in host.ceilings.entries
        if row.kind == CeilingKind.TRIAD
        and row.threads == threads
        and (row.node is None or not with_cpus or row.node in with_cpus)
    ]
    return Peak(value=max(values), source=MEASURED) if any(values) else None


def memory_peak(host: Host, nodes: Iterable[int] | None = None) -> Peak | None:
    """Bandwidth of some NUMA nodes together, or of the whole host (None): the best measured triad.

    The triad's figure counts 24 bytes per element; with reads for ownership counters see a third more.
    """
    triads = [row for row in host.ceilings.entries if row.kind == CeilingKind.TRIAD]
    if nodes is None:
        node_rows = [row.value for row in triads if row.node is None]
        if any(node_rows):
            return Peak(value=max(node_rows), source=MEASURED)
        wanted = {row.node for row in triads}
    else:
        wanted = set(nodes)
    best = {node: max((row.value for row in triads if row.node == node), default=0.0) for node in wanted}
    if best and all(best.values()):
        return Peak(value=sum(best.values()), source=MEASURED)
    if nodes is None or len(host.topology.nodes) <= len(wanted):
        node_rows = [row.value for row in triads]
        if any(node_rows):
            return Peak(value=max(node_rows), source=MEASURED)
        return _sheet(host, "bytes_per_s")
    return None


def flops_peaks(host: Host, gpu: int | None, threads: int | None = None) -> dict[str, Peak]:
    """dtype -> the best measured GEMM of the host's CPUs (with so many threads), or of one GPU."""
    kind = CeilingKind.GEMM if gpu is None else CeilingKind.DEVICE_GEMM
    best: dict[str, Peak] = {}
    for row in host.ceilings.entries:
        if row.kind != kind or (gpu is not None and row.device != f"cuda:{gpu}"):
            continue
        if threads is not None and row.threads != threads:
            continue
        dtype, value = row.dtype or "", row.value
        if value > 0 and (dtype not in best or value > best[dtype].value):
            best[dtype] = Peak(value=value, source=MEASURED)
    return best


def most_threads(host: Host) -> int | None:
    """Threads of the widest measurement on the host's CPUs."""
    rows = [row for row in host.ceilings.entries if row.kind in (CeilingKind.TRIAD, CeilingKind.GEMM)]
    return max((row.threads for row in rows if row.threads is not None), default=None)


def device_memory_peak(host: Host, gpu: int) -> Peak | None:
    """The best measured copy on one GPU, bytes read and written together."""
    values = [
        row.value
        for row in host.ceilings.entries
        if row.kind == CeilingKind.DEVICE_COPY and row.device == f"cuda:{gpu}"
    ]
    return Peak(value=max(values), source=MEASURED) if any(values) else None


def why_missing(host: Host, kind: CeilingKind) -> str:
    """Why ceilings.json has no such entry, in its own words."""
    for row in host.ceilings.missing:
        if ceiling_kind(row.kind, row.what) is kind:
            return row.reason or "not measured"
    if host.ceilings.is_empty:
        return host.no_ceilings or texts.CEILINGS_NOT_MEASURED
    return texts.NOT_MEASURED_HERE


def _sheet(host: Host, unit: str) -> Peak | None:
    """What the theoretical peaks add up to, of one unit; DRAM of several sockets is added."""
    rows = [row for row in host.ceilings.theoretical if row.unit == unit and row.what == DRAM]
    total = sum(row.value for row in rows)
    return Peak(value=total, source=f"theoretical: {rows[0].source or 'not named'}") if total else None


def _measured(host: str, row: MeasuredCeiling, pressed: float | None) -> Ceiling:
    spread, dtype = row.spread_ratio, row.dtype or None
    where = "all nodes" if row.node is None else f"node {row.node}"
    if not row.is_of_cpus:
        where = f"GPU {(row.device or '').partition(':')[2] or 0}"
    wide_spread = spread if spread is not None and spread > _WIDE_SPREAD else None
    pressure = pressed if row.is_of_cpus else None
    title = texts.ceiling_title(row.kind)
    return Ceiling(
        host=host,
        what=f"{title} {dtype}" if dtype else title,
        where=where,
        threads=row.threads,
        value=row.value,
        unit=row.unit,
        dtype=dtype,
        source=MEASURED,
        note=texts.ceiling_note(wide_spread, pressure),
        spread_ratio=wide_spread,
        pressure_ratio=pressure,
    )


def _theoretical(host: str, row: TheoreticalCeiling) -> Ceiling:
    return Ceiling(
        host=host,
        what=row.what,
        where=row.where,
        threads=None,
        value=row.value,
        unit=row.unit,
        dtype=row.dtype or None,
        source=f"theoretical: {row.source or 'not named'}",
    )


def _pressure(record: CeilingsRecord) -> float | None:
    """None: none worth a note."""
    ratio = record.pressure.cpu_some_ratio
    return None if ratio is None or ratio < _PRESSED else ratio
