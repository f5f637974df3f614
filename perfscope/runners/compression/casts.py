"""fp16 and bf16: gradients are summed in half precision."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.compression.state import Later
from perfscope.runners.exchange import Exchange, PendingExchange, Sent


class CastExchange(Exchange):
    """Divides by P, rounds to `dtype`, sums there, and widens again. Keeps nothing between steps.

    The division comes first so that a mean which fits does not overflow as a sum. A value of more than
    65504 * P becomes infinite in fp16, and shows.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def _start_on(self, key: Hashable, flat: torch.Tensor, group: Group) -> PendingExchange:
        """See Exchange."""
        if not self.sends(flat.numel(), flat.element_size(), group.size):
            return Later(None, lambda: flat)
        half = flat.div_(group.size).to(self._dtype)
        work = comm.all_reduce(half, group, async_op=True)
        return Later(work, lambda: flat.copy_(half))

    def sends(self, numel: int, element_size: int, num_ranks: int, key: Hashable = None) -> Sequence[Sent]:
        """See Exchange."""
        return [Sent("all_reduce", 2 * numel)] if num_ranks > 1 and numel else []
