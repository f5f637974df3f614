"""onebit: one bit per element and two values per block, with error feedback."""

from __future__ import annotations

from collections.abc import Hashable
from math import ceil

import torch
from torch.nn import functional

from perfscope.runners.compression.gathering import BLOCK, GatheringExchange, Parts, in_blocks

_BYTE = 8


class OneBitExchange(GatheringExchange):
    """The receiver takes the mean of a block's elements from 0 on for each of them, else that of the others.

    A NaN makes the mean of its side NaN.
    """

    def encode(self, flat: torch.Tensor, residual: torch.Tensor, names: Hashable) -> Parts:
        """See GatheringExchange."""
        blocks = in_blocks(flat)
        is_high = in_blocks(flat >= 0)
        highs = torch.where(is_high, blocks, 0).sum(1) / is_high.sum(1).clamp_min(1)
        is_low = in_blocks(~(flat >= 0))
        lows = torch.where(is_low, blocks, 0).sum(1) / is_low.sum(1).clamp_min(1)
        torch.sub(flat, _decoded(is_high, highs, lows, flat.numel()), out=residual)
        return highs, lows, _packed(is_high.view(-1)[: flat.numel()])

    def add_decoded(self, flat: torch.Tensor, parts: Parts) -> None:
        """See GatheringExchange."""
        highs, lows, packed = parts
        flat.add_(_decoded(in_blocks(_unpacked(packed, flat.numel())), highs, lows, flat.numel()))

    def message_bytes(self, numel: int, element_size: int) -> int:
        """See GatheringExchange."""
        return ceil(numel / _BYTE) + 2 * element_size * ceil(numel / BLOCK)


def _decoded(is_high: torch.Tensor, highs: torch.Tensor, lows: torch.Tensor, numel: int) -> torch.Tensor:
    return torch.where(is_high, highs[:, None], lows[:, None]).view(-1)[:numel]


def _packed(bits: torch.Tensor) -> torch.Tensor:
    """(n,) bool as (ceil(n / 8),) uint8, the first element in the lowest bit."""
    rows = functional.pad(bits, (0, -bits.numel() % _BYTE)).view(-1, _BYTE).to(torch.uint8)
    return (rows << torch.arange(_BYTE, dtype=torch.uint8, device=bits.device)).sum(1, dtype=torch.uint8)


def _unpacked(packed: torch.Tensor, numel: int) -> torch.Tensor:
    shifts = torch.arange(_BYTE, dtype=torch.uint8, device=packed.device)
    return (packed[:, None] >> shifts).bitwise_and_(1).bool().view(-1)[:numel]
