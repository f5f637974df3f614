"""Theoretical peaks of common parts, each with where the figure is from. Dense arithmetic only.

Vendors print doubled figures "with sparsity"; none of those is here. A part that is not in the table has no
peak: nothing is guessed from a name that is only like another. Bandwidths are per direction unless the
part has only one (memory). GB = 1e9 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from perfscope.collectors.gpu.registry import gpu_peaks
from perfscope.collectors.peak import BYTES, NOT_REREAD, TheoreticalPeak
from perfscope.vocabulary.ceilings import DRAM

_SKYLAKE = (
    "https://besthub.dev/articles/"
    "understanding-cpu-memory-controllers-channels-bandwidth-and-dimm-types-skylake-server-cpus-3bf7755dedf4"
)
_CASCADE_LAKE = (
    "https://www.advancedhpc.com/blogs/adams-blog/memory-configuration-and-performance-on-scalable-processors"
)
_DELL = "https://infohub.delltechnologies.com/en-us/p/"
_ICE_LAKE = (
    f"{_DELL}memory-bandwidth-for-next-gen-poweredge-servers-"
    "significantly-improved-with-sapphire-rapids-architecture/"
)
_GENOA = (
    f"{_DELL}ddr5-memory-bandwidth-for-next-generation-poweredge-servers-"
    "featuring-4th-gen-amd-epyc-processors/"
)
_PCI_SIG = "lanes x transfers/s x line code (8b/10b, 128b/130b), before packet overhead"
_IB_RATES = "https://www.aicplight.com/article_detail/92"


class _Cpu(NamedTuple):
    """DRAM of a socket: channels of 8 bytes at the highest speed the processor is sold with."""

    pattern: str
    channels: int
    mega_transfers: float
    source: str


_CPUS = (
    _Cpu(r"Xeon\(R\) (?:Platinum 81|Gold 61)\d\d", 6, 8000 / 3, _SKYLAKE),
    _Cpu(r"Xeon\(R\) (?:Platinum 82|Gold 62)\d\d", 6, 8800 / 3, _CASCADE_LAKE),
    _Cpu(r"Xeon\(R\) (?:Platinum 83|Gold 63)\d\d(?!H)", 8, 3200, _ICE_LAKE),
    _Cpu(r"Xeon\(R\) (?:Platinum 84\d\d|Gold 64\d\d|CPU Max 94\d\d|Max 94\d\d)", 8, 4800, _ICE_LAKE),
    _Cpu(r"Xeon Phi\(TM\) CPU 72[59]\d", 6, 2400, NOT_REREAD),
    _Cpu(r"EPYC 7\w\w[23]", 8, 3200, _GENOA),
    _Cpu(r"EPYC 9\w\w4", 12, 4800, _GENOA),
)
# Signalling to data rate where the line code is 8b/10b or 64b/66b (sysfs prints the former), in Gb/s.
_IB_DATA = {10: 8.0, 20: 16.0, 40: 32.0, 56: 54.54}


def dram_peak(cpu_model: str | None) -> TheoreticalPeak | None:
    """DRAM bandwidth of one socket by the processor's name, all channels filled; None = not in the table."""
    row = next((row for row in _CPUS if re.search(row.pattern, cpu_model or "")), None)
    if row is None:
        return None
    value = row.channels * 8 * row.mega_transfers * 1e6
    source = f"{row.channels} channels x 8 B x {row.mega_transfers:.0f} MT/s; {row.source}"
    return TheoreticalPeak(what=DRAM, value=value, unit=BYTES, source=source)


def port_peak(kind: str, rate_bits_per_s: float | None) -> TheoreticalPeak | None:
    """What a fabric port carries in one direction, from the rate in sysfs; None = rate not known."""
    if not rate_bits_per_s:
        return None
    giga = rate_bits_per_s / 1e9
    if kind == "infiniband" and round(giga) in _IB_DATA:
        return TheoreticalPeak(
            what="port", value=_IB_DATA[round(giga)] * 1e9 / 8, unit=BYTES, source=_IB_RATES
        )
    return TheoreticalPeak(what="port", value=rate_bits_per_s / 8, unit=BYTES, source="rate of the link")


def theoretical_peaks(topology: Mapping[str, object]) -> list[dict[str, object]]:
    """Entries `theoretical` of ceilings.json, for what a topology.json names."""
    return [_entry(where, peak) for where, peak in _all(topology)]


def _all(topology: Mapping[str, object]) -> Iterator[tuple[str, TheoreticalPeak]]:
    model = topology.get("cpu_model")
    dram = dram_peak(model if isinstance(model, str) else None)
    if dram is not None:
        for package in _rows(topology, "packages"):
            yield f"socket {package.get('package')}", dram
    for gpu in _rows(topology, "gpus"):
        where = str(gpu.get("id"))
        yield from ((where, peak) for peak in gpu_peaks(str(gpu.get("name") or "")))
        pcie = gpu.get("pcie")
        value = pcie.get("peak_bytes_per_s") if isinstance(pcie, dict) else None
        if isinstance(value, (int, float)):
            yield where, TheoreticalPeak(what="PCIe", value=float(value), unit=BYTES, source=_PCI_SIG)
    for port in _rows(topology, "fabric_ports"):
        rate = port.get("rate_bits_per_s")
        peak = port_peak(str(port.get("kind")), float(rate) if isinstance(rate, (int, float)) else None)
        if peak is not None:
            yield str(port.get("id")), peak


def _entry(where: str, peak: TheoreticalPeak) -> dict[str, object]:
    titles = {"memory": "device memory", "port": "link"}
    what = titles.get(peak.what, peak.what)
    if peak.what == "arithmetic":
        what = f"{peak.dtype} {'matrix' if peak.tensor else 'vector'} arithmetic"
    entry: dict[str, object] = {
        "what": what,
        "where": where,
        "value": peak.value,
        "unit": peak.unit,
        "source": peak.source,
    }
    if peak.dtype:
        entry["dtype"] = peak.dtype
    return entry


def _rows(topology: Mapping[str, object], key: str) -> Sequence[Mapping[str, object]]:
    rows = topology.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
