"""int8: eight bits per element and one scale per block, with error feedback."""

from __future__ import annotations

from collections.abc import Hashable
from math import ceil

import torch

from perfscope.runners.compression.gathering import BLOCK, GatheringExchange, Parts, in_blocks

_LEVELS = 127


class Int8Exchange(GatheringExchange):
    """q = round(x / s) with s = max|x| / 127 of each block of 1024 elements; the receiver takes q * s.

    Sums of int8 would overflow inside an all_reduce, so messages are gathered. A block that holds a NaN or an
    infinity becomes NaN as a whole.
    """

    def encode(self, flat: torch.Tensor, residual: torch.Tensor, names: Hashable) -> Parts:
        """See GatheringExchange."""
        blocks = in_blocks(flat)
        # The smallest normal number: a block of zeros must not divide by zero.
        scales = blocks.abs().amax(dim=1).div_(_LEVELS).clamp_min_(torch.finfo(flat.dtype).tiny)
        rounded = (blocks / scales[:, None]).round_().clamp_(-_LEVELS, _LEVELS)
        # A NaN has no int8; its block's scale carries it.
        numbers = rounded.nan_to_num_(0).to(torch.int8)
        torch.sub(flat, _decoded(numbers, scales, flat.numel()), out=residual)
        return scales, numbers.reshape(-1)[: flat.numel()]

    def add_decoded(self, flat: torch.Tensor, parts: Parts) -> None:
        """See GatheringExchange."""
        scales, numbers = parts
        flat.add_(_decoded(in_blocks(numbers), scales, flat.numel()))

    def message_bytes(self, numel: int, element_size: int) -> int:
        """See GatheringExchange."""
        return numel + element_size * ceil(numel / BLOCK)


def _decoded(numbers: torch.Tensor, scales: torch.Tensor, numel: int) -> torch.Tensor:
    return (numbers * scales[:, None]).reshape(-1)[:numel]
