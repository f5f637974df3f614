"""A theoretical peak of a part, and where its figure is from."""

from __future__ import annotations

from dataclasses import dataclass

BYTES, FLOPS = "bytes_per_s", "flops_per_s"
NOT_REREAD = "general knowledge, not re-read"


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoreticalPeak:
    """One theoretical peak.

    Attributes:
        what: "memory", "DRAM", "PCIe", "port", "arithmetic", or the vendor's name of links between GPUs.
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
