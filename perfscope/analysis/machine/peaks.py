"""ceilings.json, typed: the measured peaks of a host, and where nothing was measured the theoretical ones."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.results import Ceiling
from perfscope.analysis.source import Document
from perfscope.units import format_ratio

TRIAD, GEMM, DEVICE_COPY, DEVICE_GEMM = "stream_triad", "gemm", "device_copy", "device_gemm"
_WORDS = {TRIAD: "STREAM triad", GEMM: "GEMM", DEVICE_COPY: "device copy", DEVICE_GEMM: "device GEMM"}
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
    ceilings_found = [_measured(host.name, row, pressed) for row in _rows(host.ceilings, "entries")]
    ceilings_found += [_theoretical(host.name, row) for row in _rows(host.ceilings, "theoretical")]
    return ceilings_found


def thread_memory_peak(host: Host, threads: int) -> Peak | None:
    """The best triad measured with so many threads, on nodes with CPUs."""
    with_cpus = {node.number for node in host.topology.nodes.values() if node.cpus}
    values = [
        _value(row)
        for row in _rows(host.ceilings, "entries")
        if row.get("kind") == TRIAD
        and row.get("threads") == threads
        and (_node(row) is None or not with_cpus or _node(row) in with_cpus)
    ]
    return Peak(value=max(values), source=MEASURED) if any(values) else None


def memory_peak(host: Host, nodes: Iterable[int] | None = None) -> Peak | None:
    """Bandwidth of some NUMA nodes together, or of the whole host (None): the best measured triad.

    The triad's figure counts 24 bytes per element; with reads for ownership counters see a third more.
    """
    triads = [row for row in _rows(host.ceilings, "entries") if row.get("kind") == TRIAD]
    if nodes is None:
        of_host = [_value(row) for row in triads if _node(row) is None]
        if any(of_host):
            return Peak(value=max(of_host), source=MEASURED)
        wanted = {_node(row) for row in triads}
    else:
        wanted = set(nodes)
    best = {node: max((_value(row) for row in triads if _node(row) == node), default=0.0) for node in wanted}
    if best and all(best.values()):
        return Peak(value=sum(best.values()), source=MEASURED)
    if nodes is None or len(host.topology.nodes) <= len(wanted):
        of_host = [_value(row) for row in triads]
        if any(of_host):
            return Peak(value=max(of_host), source=MEASURED)
        return _sheet(host, "bytes_per_s")
    return None


def flops_peaks(host: Host, gpu: int | None, threads: int | None = None) -> dict[str, Peak]:
    """dtype -> the best measured GEMM of the host's CPUs (with so many threads), or of one GPU."""
    kind = GEMM if gpu is None else DEVICE_GEMM
    best: dict[str, Peak] = {}
    for row in _rows(host.ceilings, "entries"):
        if row.get("kind") != kind or (gpu is not None and row.get("device") != f"cuda:{gpu}"):
            continue
        if threads is not None and row.get("threads") != threads:
            continue
        dtype, value = str(row.get("dtype") or ""), _value(row)
        if value > 0 and (dtype not in best or value > best[dtype].value):
            best[dtype] = Peak(value=value, source=MEASURED)
    return best


def most_threads(host: Host) -> int | None:
    """Threads of the widest measurement on the host's CPUs."""
    rows = [row for row in _rows(host.ceilings, "entries") if row.get("kind") in (TRIAD, GEMM)]
    counts = [threads for row in rows if isinstance(threads := row.get("threads"), int)]
    return max(counts, default=None)


def device_memory_peak(host: Host, gpu: int) -> Peak | None:
    """The best measured copy on one GPU, bytes read and written together."""
    values = [
        _value(row)
        for row in _rows(host.ceilings, "entries")
        if row.get("kind") == DEVICE_COPY and row.get("device") == f"cuda:{gpu}"
    ]
    return Peak(value=max(values), source=MEASURED) if any(values) else None


def why_missing(host: Host, what: str) -> str:
    """Why ceilings.json has no such entry, in its own words."""
    for row in _rows(host.ceilings, "missing"):
        if what.lower() in str(row.get("what", "")).lower():
            return str(row.get("reason") or "not measured")
    if not host.ceilings:
        return host.no_ceilings or "its ceilings were not measured"
    return "it was not measured on this host"


def _sheet(host: Host, unit: str) -> Peak | None:
    """What the theoretical peaks add up to, of one unit; DRAM of several sockets is added."""
    rows = [row for row in _rows(host.ceilings, "theoretical") if row.get("unit") == unit]
    rows = [row for row in rows if "dram" in str(row.get("what", "")).lower()]
    rows = [row for row in rows if "gpu" not in str(row.get("where", "")).lower()]
    total = sum(_value(row) for row in rows)
    return Peak(value=total, source=f"theoretical: {rows[0].get('source') or 'not named'}") if total else None


def _node(row: Document) -> int | None:
    node = row.get("node")
    return node if isinstance(node, int) else None


def _measured(host: str, row: Document, pressed: str) -> Ceiling:
    node, device, spread = _node(row), str(row.get("device") or "cpu"), row.get("spread_ratio")
    where = "all nodes" if node is None else f"node {node}"
    if device != "cpu":
        where = f"GPU {device.partition(':')[2] or 0}"
    notes = []
    if isinstance(spread, (int, float)) and spread > _WIDE_SPREAD:
        notes.append(f"repetitions differ by {format_ratio(spread, 0)}")
    if pressed and device == "cpu":
        notes.append(pressed)
    threads = row.get("threads")
    dtype = str(row["dtype"]) if row.get("dtype") else None
    word = _WORDS.get(str(row.get("kind")), str(row.get("kind")))
    return Ceiling(
        host=host,
        what=f"{word} {dtype}" if dtype and word.endswith("GEMM") else word,
        where=where,
        threads=threads if isinstance(threads, int) else None,
        value=_value(row),
        unit=str(row.get("unit") or ""),
        dtype=dtype,
        source=MEASURED,
        note="; ".join(notes),
    )


def _theoretical(host: str, row: Document) -> Ceiling:
    return Ceiling(
        host=host,
        what=str(row.get("what") or ""),
        where=str(row.get("where") or ""),
        threads=None,
        value=_value(row),
        unit=str(row.get("unit") or ""),
        dtype=str(row["dtype"]) if row.get("dtype") else None,
        source=f"theoretical: {row.get('source') or 'not named'}",
    )


def _pressure(document: Document) -> str:
    pressure = document.get("pressure")
    ratio = pressure.get("cpu_some_ratio") if isinstance(pressure, dict) else None
    if not isinstance(ratio, (int, float)) or ratio < _PRESSED:
        return ""
    return f"CPUs were waited for in {format_ratio(ratio, 0)} of the time: it may be too low"


def _rows(document: Document, key: str) -> list[Document]:
    rows = document.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _value(row: Document) -> float:
    value = row.get("value")
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
