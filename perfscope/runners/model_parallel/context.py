"""Attention of sequences that are divided over ranks: what each rank has of them, and what it exchanges.

Own code for all three: torch's context_parallel dispatches to CUDA's fused kernels only, in no float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.model_parallel.operators import exchange_rows, gather_partial
from perfscope.runners.models.shapes import LayerShape
from perfscope.runners.models.transformer import repeated

_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class AttentionCall(NamedTuple):
    """Calls of one kind that an attention layer makes per pass forward and backward.

    Attributes:
        collective: as the ledger notes it.
        size: elements per sample.
        times: how many.
        what: is in them.
    """

    collective: str
    size: int
    times: int
    what: str


class ContextAttention(nn.Module):
    """Causal attention of the i-th part of the positions on the i-th rank of a group.

    Attributes:
        shares_heads: whether ranks must be able to share the heads.
    """

    shares_heads: ClassVar[bool] = False

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    @staticmethod
    def calls(layer: LayerShape, parts: int, tensor_parts: int) -> Iterator[AttentionCall]:
        """What a rank calls in a forward and a backward pass.

        Args:
            layer: of the whole model.
            parts: c, of the sequence.
            tensor_parts: of the heads, before attention.
        """
        raise NotImplementedError


class GatheredAttention(ContextAttention):
    """The rank's queries, and the keys and values of all positions.

    all_gather of keys and values forward, reduce_scatter of their gradients backward.
    """

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(b, heads, T / c, head width) of each to the shape of the queries."""
        keys, values = (repeated(gather_partial(part, 2, self.group), q.shape[1]) for part in (k, v))
        length = q.shape[2]
        mask = torch.ones(length, keys.shape[2], dtype=torch.bool, device=q.device)
        mask = mask.tril(diagonal=self.group.index * length)  # the first query's position
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

    @staticmethod
    def calls(layer: LayerShape, parts: int, tensor_parts: int) -> Iterator[AttentionCall]:
        """See ContextAttention."""
        size = layer.kv_size // tensor_parts
        yield AttentionCall("all_gather", size, 2, "keys and values")
        yield AttentionCall("reduce_scatter", size, 2, "their gradients")


class RingAttention(ContextAttention):
    """Keys and values go around the ring, and the softmax is merged block by block (arXiv 2310.01889).

    Forward each block makes c - 1 hops. Backward it makes them once more, and its gradients follow it with
    one hop behind, home: c hops.
    """

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(b, heads, T / c, head width) of each to the shape of the queries."""
        return _Ring.apply(q, k, v, self.group)

    @staticmethod
    def calls(layer: LayerShape, parts: int, tensor_parts: int) -> Iterator[AttentionCall]:
        """See ContextAttention."""
        size = 2 * layer.kv_size // tensor_parts // parts
        yield AttentionCall("send", size, 2 * (parts - 1), "keys and values")
        yield AttentionCall("send", size, parts, "their gradients")


class AllToAllAttention(ContextAttention):
    """All positions, of the rank's part of the heads (DeepSpeed-Ulysses, arXiv 2309.14509).

    An all-to-all of queries, keys and values before attention, one of its result behind it; backward the
    same.
    """

    shares_heads: ClassVar[bool] = True

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(b, heads, T / c, head width) of each to the shape of the queries."""
        parts = self.group.size
        by_rank = [part.unflatten(1, (parts, -1)) for part in (q, k, v)]
        mixed = torch.cat(by_rank, dim=2).movedim(1, 0)  # (c, b, heads / c of all three, T / c, width)
        all_positions = self._exchanged(mixed).movedim(0, 2).flatten(2, 3)
        queries, *keys_and_values = all_positions.split([part.shape[2] for part in by_rank], dim=1)
        keys, values = (repeated(part, queries.shape[1]) for part in keys_and_values)
        result = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        back = self._exchanged(result.unflatten(2, (parts, -1)).movedim(2, 0))
        return back.movedim(0, 1).flatten(1, 2)

    def _exchanged(self, x: torch.Tensor) -> torch.Tensor:
        """The i-th entry goes to rank i."""
        each = [1] * self.group.size
        return exchange_rows(x, each, each, self.group)

    @staticmethod
    def calls(layer: LayerShape, parts: int, tensor_parts: int) -> Iterator[AttentionCall]:
        """See ContextAttention."""
        queries, keys = (size // tensor_parts // parts for size in (layer.in_size, layer.kv_size))
        yield AttentionCall("all_to_all", queries + 2 * keys, 2, "queries, keys and values")
        yield AttentionCall("all_to_all", queries, 2, "results of attention")


CONTEXT_ATTENTION: Mapping[str, type[ContextAttention]] = {
    "gather": GatheredAttention,
    "ring": RingAttention,
    "all-to-all": AllToAllAttention,
}


def _grouped(q: torch.Tensor, num_shared: int) -> torch.Tensor:
    """Queries (b, heads, T, width), by the heads of keys that they share: (b, shared, each, T, width)."""
    return q.unflatten(1, (num_shared, -1))


def _scores(q: torch.Tensor, k: torch.Tensor, *, is_own: bool) -> torch.Tensor:
    """Of grouped queries with the keys of a block; in the own block positions see earlier ones only."""
    scores = q @ k.unsqueeze(2).mT * q.shape[-1] ** -0.5
    if is_own:
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(unseen, -torch.inf)
    return scores


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Group) -> torch.Tensor:
        queries = _grouped(q, k.shape[1])
        result = torch.zeros_like(queries, memory_format=torch.contiguous_format)
        norm = result.new_full((*result.shape[:-1], 1), -torch.inf)  # log of the sum of exponentials
        block = torch.stack((k, v))
        for turn in range(group.size):
            arriving = torch.empty_like(block)
            hop = comm.start_hop(block, arriving, group) if turn + 1 < group.size else None
            if turn <= group.index:  # later positions are not seen
                scores = _scores(queries, block[0], is_own=turn == 0)
                part = scores.logsumexp(-1, keepdim=True)
                merged = torch.logaddexp(norm, part)
                result *= (norm - merged).exp()
                result += (scores - merged).exp() @ block[1].unsqueeze(2)
                norm = merged
            if hop is not None:
                hop.wait()
                block = arriving
        ctx.save_for_backward(q, k, v, result, norm)
        ctx.group = group
        return result.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        q, k, v, result, norm = ctx.saved_tensors
        group: Group = ctx.group
        queries, grads = _grouped(q, k.shape[1]), _grouped(grad, k.shape[1])
        mean = (grads * result).sum(-1, keepdim=True)
        grad_q = torch.zeros_like(queries, memory_format=torch.contiguous_format)
        block = torch.stack((k, v))
        sums = torch.zeros_like(block)  # gradients of the block that is here
        for turn in range(group.size):
            arriving, before = torch.empty_like(block), torch.empty_like(sums)
            hop = comm.start_hop(block, arriving, group) if turn + 1 < group.size else None
            if turn <= group.index:
                grad_q_part, of_block = _block_gradients(
                    (queries, block[0], block[1]), (grads, mean, norm), is_own=turn == 0
                )
                grad_q += grad_q_part
                sums += of_block
            if group.size > 1:
                comm.start_hop(sums, before, group).wait()
                sums = before
            if hop is not None:
                hop.wait()
                block = arriving
        return grad_q.flatten(1, 2), sums[0], sums[1], None


def _block_gradients(inputs: _Three, outputs: _Three, *, is_own: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(of the queries, of the keys and the values in one tensor) by one block.

    Args:
        inputs: queries, keys, values; the first grouped.
        outputs: gradients of the results, their products with the results summed over the head width, and
            the logarithms of the sums of exponentials over all blocks.
        is_own: see _scores.
    """
    (q, k, v), (grad, mean, norm) = inputs, outputs
    weights = (_scores(q, k, is_own=is_own) - norm).exp()
    of_scores = weights * (grad @ v.unsqueeze(2).mT - mean) * q.shape[-1] ** -0.5
    of_keys, of_values = (of_scores.mT @ q).sum(2), (weights.mT @ grad).sum(2)
    return of_scores @ k.unsqueeze(2), torch.stack((of_keys, of_values))
