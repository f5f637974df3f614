"""Theoretical peaks of common parts, each with where the figure is from. Dense arithmetic only.

Vendors print doubled figures "with sparsity"; none of those is here. A part that is not in the table has no
peak: nothing is guessed from a name that is only like another. Bandwidths are per direction unless the
part has only one (memory). GB = 1e9 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BYTES, FLOPS = "bytes_per_s", "flops_per_s"
NOT_REREAD = "general knowledge, not re-read"
_H100 = "https://glennklockwood.com/garden/processors/h100"
_A100 = "https://glennklockwood.com/garden/processors/A100"
_B200 = "https://glennklockwood.com/garden/processors/B200"
_A100_PCIE = "https://www.thundercompute.com/blog/nvidia-a100-specs-full-guide"
_H100_FORMS = "https://www.server-parts.eu/post/nvidia-h100-pcie-vs-sxm5-gpu-comparison"
_H100_PCIE = "https://io.net/p/faq-what-is-the-difference-between-h100-sxm-and-pcie"
_H100_NVL = "https://www.spheron.network/blog/h100-nvl-vs-sxm5-vs-pcie-form-factor-guide/"
_H200 = "https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html"
_TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/main/torchtitan/tools/utils.py (get_peak_flops)"
_V100_PCIE = "https://www.io-tech.fi/uutinen/nvidia-esitteli-tesla-v100-pci-express-kiihdyttimen-tieteelliseen-laskentaan/"
_V100_MEMORY = "https://m.leiphone.com/category/iot/45VPDfmdFFzqdOxR.html"
_V100_TENSOR = "https://developer.nvidia.com/programming-tensor-cores-cuda-9-0"
_V100_VECTOR = "https://fudzilla.com./news/ai/50832-nvidia-unveils-the-a100-tensor-core-gpu"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One theoretical peak.

    Attributes:
        what: "memory", "DRAM", "NVLink", "PCIe", "port", or "arithmetic".
        dtype: of arithmetic: "float64", "float32", "tf32", "bfloat16", "float16", "float8"; "" else.
        value: in `unit`.
        unit: bytes_per_s or flops_per_s.
        tensor: arithmetic by matrix units.
        source: a page that says so and was read, a formula, or "general knowledge, not re-read".
    """

    what: str
    value: float
    unit: str
    source: str
    dtype: str = ""
    tensor: bool = False


class _Gpu(NamedTuple):
    """A row: the pattern must match NVML's whole name; figures as (value, source)."""

    pattern: str
    memory: tuple[float, str]  # GB/s
    nvlink: tuple[float, str] | None  # GB/s per direction, all links
    vector: tuple[float, float, str]  # TFLOP/s of float64, float32
    matrix: Mapping[str, float]  # TFLOP/s by dtype
    matrix_source: str


def _halves(tera: float) -> dict[str, float]:
    return {"float16": tera, "bfloat16": tera}


_AMPERE = {"float64": 19.5, "tf32": 156.0, **_halves(312.0)}
_HOPPER = {"float64": 66.9, "tf32": 494.7, **_halves(989.4), "float8": 1978.9}
# Order matters: the first that matches.
_GPUS = (
    _Gpu(
        r"(?:NVIDIA |Tesla )*V100-SXM2-.*",
        (900.0, _V100_MEMORY),
        (150.0, _V100_VECTOR),
        (7.8, 15.7, _V100_VECTOR),
        {"float16": 125.0},
        _V100_TENSOR,
    ),
    _Gpu(
        r"(?:NVIDIA |Tesla )*V100-PCIE-.*",
        (900.0, _V100_PCIE),
        None,
        (7.0, 14.0, _V100_PCIE),
        {"float16": 112.0},
        _V100_PCIE,
    ),
    _Gpu(
        r"(?:NVIDIA )?A100-SXM.*80GB.*",
        (2039.0, _A100),
        (300.0, _A100),
        (9.7, 19.5, _A100),
        _AMPERE,
        _A100,
    ),
    _Gpu(
        r"(?:NVIDIA )?A100-SXM.*40GB.*",
        (1555.0, _A100),
        (300.0, _A100),
        (9.7, 19.5, _A100),
        _AMPERE,
        _A100,
    ),
    _Gpu(
        r"(?:NVIDIA )?A100[- ](?:80GB[- ]PCIe|PCIE?-80GB).*",
        (1935.0, _A100_PCIE),
        None,
        (9.7, 19.5, _A100),
        _AMPERE,
        _A100,
    ),
    _Gpu(
        r"(?:NVIDIA )?A100[- ]PCI[Ee](?:-40GB)?",
        (1555.0, _A100_PCIE),
        None,
        (9.7, 19.5, _A100),
        _AMPERE,
        _A100,
    ),
    _Gpu(
        r"(?:NVIDIA )?H100 NVL",
        (3938.0, _H100_NVL),
        (300.0, _H100_FORMS),
        (0.0, 0.0, ""),
        _halves(835.0),
        _TORCHTITAN,
    ),
    _Gpu(
        r"(?:NVIDIA )?H100 PCIe",
        (2000.0, _H100_PCIE),
        None,
        (25.6, 51.0, NOT_REREAD),
        _halves(756.0),
        _TORCHTITAN,
    ),
    _Gpu(
        r"(?:NVIDIA )?H100(?: SXM5)?(?: 80GB HBM3)?",
        (3350.0, _H100),
        (450.0, _H100),
        (33.5, 66.9, _H100),
        _HOPPER,
        _H100,
    ),
    _Gpu(
        r"(?:NVIDIA )?H200",
        (4800.0, _H200),
        (450.0, _H200),
        (33.5, 66.9, _H100),
        _HOPPER,
        _H100,
    ),
    _Gpu(
        r"(?:NVIDIA )?B200",
        (8000.0, _B200),
        (900.0, _B200),
        (40.0, 80.0, _B200),
        {"float64": 40.0, "tf32": 1100.0, **_halves(2250.0), "float8": 4500.0},
        _B200,
    ),
)


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


def gpu_peaks(name: str | None) -> tuple[Peak, ...]:
    """Peaks of a GPU by NVML's name, ``NVIDIA H100 80GB HBM3``; () = not in the table."""
    row = next((row for row in _GPUS if re.fullmatch(row.pattern, (name or "").strip())), None)
    if row is None:
        return ()
    peaks = [Peak(what="memory", value=row.memory[0] * 1e9, unit=BYTES, source=row.memory[1])]
    if row.nvlink:
        peaks.append(Peak(what="NVLink", value=row.nvlink[0] * 1e9, unit=BYTES, source=row.nvlink[1]))
    for dtype, tera in zip(("float64", "float32"), row.vector[:2], strict=True):
        if tera:
            peaks.append(_arithmetic(dtype, tera, row.vector[2], tensor=False))
    peaks += [_arithmetic(dtype, tera, row.matrix_source, tensor=True) for dtype, tera in row.matrix.items()]
    return tuple(peaks)


def dram_peak(cpu_model: str | None) -> Peak | None:
    """DRAM bandwidth of one socket by the processor's name, all channels filled; None = not in the table."""
    row = next((row for row in _CPUS if re.search(row.pattern, cpu_model or "")), None)
    if row is None:
        return None
    value = row.channels * 8 * row.mega_transfers * 1e6
    source = f"{row.channels} channels x 8 B x {row.mega_transfers:.0f} MT/s; {row.source}"
    return Peak(what="DRAM", value=value, unit=BYTES, source=source)


def port_peak(kind: str, rate_bits_per_s: float | None) -> Peak | None:
    """What a fabric port carries in one direction, from the rate in sysfs; None = rate not known."""
    if not rate_bits_per_s:
        return None
    giga = rate_bits_per_s / 1e9
    if kind == "infiniband" and round(giga) in _IB_DATA:
        return Peak(what="port", value=_IB_DATA[round(giga)] * 1e9 / 8, unit=BYTES, source=_IB_RATES)
    return Peak(what="port", value=rate_bits_per_s / 8, unit=BYTES, source="rate of the link")


def theoretical_peaks(topology: Mapping[str, object]) -> list[dict[str, object]]:
    """Entries `theoretical` of ceilings.json, for what a topology.json names."""
    return [_entry(where, peak) for where, peak in _all(topology)]


def _all(topology: Mapping[str, object]) -> Iterator[tuple[str, Peak]]:
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
            yield where, Peak(what="PCIe", value=float(value), unit=BYTES, source=_PCI_SIG)
    for port in _rows(topology, "fabric_ports"):
        rate = port.get("rate_bits_per_s")
        peak = port_peak(str(port.get("kind")), float(rate) if isinstance(rate, (int, float)) else None)
        if peak is not None:
            yield str(port.get("id")), peak


def _entry(where: str, peak: Peak) -> dict[str, object]:
    words = {"memory": "device memory", "port": "link"}
    what = words.get(peak.what, peak.what)
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


def _arithmetic(dtype: str, tera: float, source: str, *, tensor: bool) -> Peak:
    return Peak(what="arithmetic", value=tera * 1e12, unit=FLOPS, source=source, dtype=dtype, tensor=tensor)


def _rows(topology: Mapping[str, object], key: str) -> Sequence[Mapping[str, object]]:
    rows = topology.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
