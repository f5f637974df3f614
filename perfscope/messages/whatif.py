"""What-if questions, in English."""

from __future__ import annotations

from perfscope.units import format_ns

_PARTS = {
    "compute": "operators of no layer",
    "optimizer": "the optimizer",
    "copy": "copies",
    "idle": "no operator (Python, sleep, or another process on its core)",
}


def slower_than_peers(
    rank: int,
    excess_ns: float,
    part_excess_ns: float,
    *,
    layer: str | None,
    phase: str | None,
    part: str,
    has_layers: bool,
) -> str:
    """``rank 3 takes 6 ms more per step than its peers for the same work, 5 ms of it in conv2 (forward)``.

    Args:
        rank: the slow one.
        excess_ns: more per step than its peers.
        part_excess_ns: of it in the layer, or part, with most.
        layer, phase: None: not a layer's.
        part: compute, optimizer, copy or idle.
        has_layers: the traces name layers.
    """
    where = f"{layer} ({phase})" if layer else _PARTS[part]
    if part == "compute" and not has_layers:
        where = "computation"
    return (
        f"rank {rank} takes {format_ns(excess_ns)} more per step than its peers for the same work, "
        f"{format_ns(part_excess_ns)} of it in {where}"
    )
