"""Data sheets of GPUs as rows of a table, and the peaks that a row stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perfscope.collectors.peak import BYTES, FLOPS, TheoreticalPeak


class DataSheet(NamedTuple):
    """One GPU. The pattern must match the whole name that the driver gives; figures as (value, source)."""

    pattern: str
    memory: tuple[float, str]  # GB/s
    links: tuple[float, str] | None  # GB/s per direction, all links to other GPUs
    vector: tuple[float, float, str]  # TFLOP/s of float64, float32
    matrix: Mapping[str, float]  # TFLOP/s by dtype
    matrix_source: str


def peaks_of(sheets: Sequence[DataSheet], link_name: str, name: str) -> tuple[TheoreticalPeak, ...]:
    """Peaks of the first sheet that matches a GPU's name; () = none does.

    Args:
        link_name: what the vendor calls its links between GPUs.
    """
    row = next((row for row in sheets if re.fullmatch(row.pattern, name.strip())), None)
    if row is None:
        return ()
    peaks = [TheoreticalPeak(what="memory", value=row.memory[0] * 1e9, unit=BYTES, source=row.memory[1])]
    if row.links:
        peaks.append(
            TheoreticalPeak(what=link_name, value=row.links[0] * 1e9, unit=BYTES, source=row.links[1])
        )
    for dtype, tera in zip(("float64", "float32"), row.vector[:2], strict=True):
        if tera:
            peaks.append(_arithmetic(dtype, tera, row.vector[2], tensor=False))
    peaks += [_arithmetic(dtype, tera, row.matrix_source, tensor=True) for dtype, tera in row.matrix.items()]
    return tuple(peaks)


def _arithmetic(dtype: str, tera: float, source: str, *, tensor: bool) -> TheoreticalPeak:
    return TheoreticalPeak(
        what="arithmetic", value=tera * 1e12, unit=FLOPS, source=source, dtype=dtype, tensor=tensor
    )
