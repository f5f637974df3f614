"""Codecs whose messages cannot be summed on the way: every rank gathers all of them, and adds them up itself.

A message is one packed row of bytes, so that a step pays one latency. Every rank adds in rank order: replicas
stay equal bit for bit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence

import torch
from torch.nn import functional

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.compression.state import Later, Residuals
from perfscope.runners.exchange import Exchange, PendingExchange, Sent

BLOCK = 1024  # elements that share a scale
Parts = tuple[torch.Tensor, ...]


def in_blocks(flat: torch.Tensor) -> torch.Tensor:
    """(n,) as (blocks, BLOCK), the last one filled up with zeros."""
    missing = -flat.numel() % BLOCK
    return (functional.pad(flat, (0, missing)) if missing else flat).view(-1, BLOCK)


class GatheringExchange(Exchange):
    """Error feedback around an encoder: residual <- (gradient + residual) - what was sent of it."""

    def __init__(self) -> None:
        self.residuals = Residuals()

    def _start_on(self, key: Hashable, flat: torch.Tensor, group: Group) -> PendingExchange:
        """See Exchange."""
        if not self.sends(flat.numel(), flat.element_size(), group.size):
            return Later(None, lambda: flat)
        residual = self.residuals.of(key, group, flat)
        flat.add_(residual)
        parts = self.encode(flat, residual, (key, group.axis, group.index))
        row = pack(parts)
        rows = row.new_empty(group.size * row.numel())  # gloo wants it flat, as it is sent
        work = comm.all_gather(rows, row, group, async_op=True)

        def finish() -> torch.Tensor:
            flat.zero_()
            for row in rows.view(group.size, -1):
                self.add_decoded(flat, unpack(row, parts))
            return flat.div_(group.size)

        return Later(work, finish)

    def sends(self, numel: int, element_size: int, num_ranks: int, key: Hashable = None) -> Sequence[Sent]:
        """See Exchange."""
        if num_ranks < 2 or not numel:
            return []
        return [Sent("all_gather", num_ranks * self.message_bytes(numel, element_size))]

    @abstractmethod
    def encode(self, flat: torch.Tensor, residual: torch.Tensor, names: Hashable) -> Parts:
        """The message for `flat` (n,); what it leaves out is written into `residual` (n,).

        `names` name buffer, axis and place in the group, for codecs that draw random numbers.
        """

    @abstractmethod
    def add_decoded(self, flat: torch.Tensor, parts: Parts) -> None:
        """Adds what a message says to `flat` (n,)."""

    @abstractmethod
    def message_bytes(self, numel: int, element_size: int) -> int:
        """Bytes of one rank's message."""


def pack(parts: Parts) -> torch.Tensor:
    """The 1-d parts one behind the other, as bytes."""
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts])


def unpack(row: torch.Tensor, like: Parts) -> Parts:
    """Parts of the types and sizes of `like` from a row of bytes."""
    parts, begin = [], 0
    for part in like:
        end = begin + comm.num_bytes(part)
        # The slice may begin at an odd address for its type; a copy does not.
        parts.append(row[begin:end].clone().view(part.dtype))
        begin = end
    return tuple(parts)
