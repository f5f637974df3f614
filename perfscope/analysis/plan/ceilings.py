"""What one rank of a host computes and moves per second, from the host's measured ceilings."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.rundir.host_records import MeasuredCeiling
from perfscope.vocabulary.ceilings import CeilingKind

_PRODUCTS = (CeilingKind.DEVICE_GEMM, CeilingKind.GEMM)
_MEMORY = (CeilingKind.DEVICE_COPY, CeilingKind.TRIAD)


def flops_of_rank(entries: Sequence[MeasuredCeiling], dtype: str, sharing: int) -> float | None:
    """FLOP/s of products in a dtype.

    Args:
        entries: of the host.
        dtype: float32 ...
        sharing: ranks that divide the host's figures; a device's figure is a rank's own.

    Returns:
        None where none was measured.
    """
    return _per_rank(_best(entries, _PRODUCTS, dtype), sharing)


def bandwidth_of_rank(entries: Sequence[MeasuredCeiling], sharing: int) -> float | None:
    """Bytes/s of memory, as `flops_of_rank`."""
    return _per_rank(_best(entries, _MEMORY, None), sharing)


def _best(
    entries: Sequence[MeasuredCeiling], kinds: Sequence[str], dtype: str | None
) -> MeasuredCeiling | None:
    for kind in kinds:
        matching = [
            entry
            for entry in entries
            if entry.kind == kind and entry.node is None and entry.dtype in (dtype, None) and entry.value > 0
        ]
        if matching:
            return max(matching, key=lambda entry: entry.value)
    return None


def _per_rank(entry: MeasuredCeiling | None, sharing: int) -> float | None:
    if entry is None:
        return None
    is_device = entry.kind in (CeilingKind.DEVICE_GEMM, CeilingKind.DEVICE_COPY)
    return entry.value if is_device else entry.value / sharing
