"""Llama-style decoders, dense and as a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners.models.blocks import Block, Pair
from perfscope.runners.models.stack import Fill, Stack
from perfscope.runners.models.transformer import DAMPING, DotProductAttention, add_head

_EPSILON = 1e-5  # of RMSNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSize:
    """A decoder with RMSNorm, rotary positions, SwiGLU and grouped-query attention (arXiv 2302.13971).

    Attributes:
        width, hidden: features of a token, and between the feed-forward layers (of one expert).
        num_blocks: blocks.
        num_heads, num_kv_heads: heads of the queries, and of the keys and values that groups of them share.
        theta: base of the rotary angles.
        num_experts: feed-forward networks per block of which each token takes `top_k`; 1 = a dense model.
        tied: whether the head has the weights of the token embedding.
    """

    width: int
    hidden: int
    num_blocks: int
    num_heads: int
    num_kv_heads: int
    theta: float = 10_000.0
    num_experts: int = 1
    top_k: int = 2
    tied: bool = False


class Rotary(nn.Module):
    """Rotates pairs of features by angles that grow with the position (arXiv 2104.09864).

    Features i and i + half are a pair, as in the published weights for transformers.
    """

    def __init__(self, head_width: int, theta: float) -> None:
        super().__init__()
        self.head_width, self.theta = head_width, theta
        self.first_position = 0  # of the tokens that are given: ranks may have a part of each sequence

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, heads, T, head width) to the same shape."""
        exact = torch.float64 if x.dtype is torch.float64 else torch.float32
        half = torch.arange(0, self.head_width, 2, device=x.device, dtype=exact)
        positions = torch.arange(x.shape[2], device=x.device, dtype=exact) + self.first_position
        angles = positions[:, None] * self.theta ** (-half / self.head_width)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class GroupedAttention(nn.Module):
    """Causal self-attention in which several query heads share one key and value head (arXiv 2305.13245).

    A rank that holds some of the heads (rows of `q`, `k` and `v`, columns of `out`) computes its part of the
    sum.
    """

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.head_width = size.width // size.num_heads
        shared = size.num_kv_heads * self.head_width
        self.q = nn.Linear(size.width, size.width, bias=False)
        self.k = nn.Linear(size.width, shared, bias=False)
        self.v = nn.Linear(size.width, shared, bias=False)
        self.rotary = Rotary(self.head_width, size.theta)
        self.product = DotProductAttention()
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, T, width) to the same shape."""
        parts = (layer(x) for layer in (self.q, self.k, self.v))
        q, k, v = (part.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in parts)
        return self.out(self.product(self.rotary(q), self.rotary(k), v).transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) on each position by itself (arXiv 2002.05202)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., width) to the same shape."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class ExpertLinear(nn.Module):
    """One linear layer without bias per expert: weight (experts, out, in)."""

    def __init__(self, num_experts: int, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, width_out, width_in))

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Rows (n, in), those of the first expert first, `counts` of each expert, to (n, out)."""
        if x.is_meta:  # counts have no values
            return x.new_empty(len(x), self.weight.shape[1])
        rows = x.split(counts.tolist())
        return torch.cat([functional.linear(a, b) for a, b in zip(rows, self.weight, strict=True)])


class Experts(nn.Module):
    """A SwiGLU per expert."""

    def __init__(self, num_experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = ExpertLinear(num_experts, width, hidden)
        self.up = ExpertLinear(num_experts, width, hidden)
        self.down = ExpertLinear(num_experts, hidden, width)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Rows (n, width), those of the first expert first, `counts` of each expert, to the same shape."""
        return self.down(functional.silu(self.gate(x, counts)) * self.up(x, counts), counts)


class Mixture(nn.Module):
    """Each token's sum of `top_k` experts, weighted by their router scores (Mixtral, arXiv 2401.04088).

    No token is dropped, and the loss has no term that balances the experts.
    """

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.top_k, self.num_experts = size.top_k, size.num_experts
        self.router = nn.Linear(size.width, size.num_experts, bias=False)
        self.experts = Experts(size.num_experts, size.width, size.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, T, width) to the same shape."""
        scores, chosen = self.router(x).topk(self.top_k, dim=-1)
        shares = scores.softmax(dim=-1).flatten(0, -2)
        chosen, tokens = chosen.flatten(), x.flatten(0, -2)
        order = chosen.argsort(stable=True)  # rows of one expert together, tokens in order
        counts = functional.one_hot(chosen, self.num_experts).sum(dim=0)
        routed = self.experts(tokens[order // self.top_k], counts)
        weighted = torch.empty_like(routed).index_copy(0, order, routed).unflatten(0, (-1, self.top_k))
        return (weighted * shares[..., None]).sum(dim=1).view_as(x)


class LlamaBlock(Block):
    """x + attention(norm1(x)), then the same with the feed-forward network or the experts."""

    pairs: ClassVar[tuple[Pair, ...]] = (
        Pair("attention", ("q", "k", "v"), "out"),
        Pair("mlp", ("gate", "up"), "down"),
    )

    def __init__(self, size: LlamaSize, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(size.width, eps=_EPSILON)
        self.attention = GroupedAttention(size)
        self.drop1 = nn.Dropout(dropout)
        self.norm2 = nn.RMSNorm(size.width, eps=_EPSILON)
        self.mlp = Mixture(size) if size.num_experts > 1 else SwiGLU(size.width, size.hidden)
        self.drop2 = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, T, width) to the same shape."""
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.mlp(self.norm2(x)))


class MixtureBlock(LlamaBlock):
    """With experts; every rank of a model group computes all of them."""

    pairs: ClassVar[tuple[Pair, ...]] = LlamaBlock.pairs[:1]


def llama(size: LlamaSize) -> Fill:
    """What fills a Stack with a model of that size."""
    return partial(_fill, size)


def _fill(size: LlamaSize, stack: Stack, num_classes: int, dropout: float) -> None:
    """Each block is a top-level child, so that pipelines can be cut between blocks."""
    (length,) = stack.shape
    shape = (length, size.width)
    embed = nn.Embedding(num_classes, size.width)
    stack.add("embed", embed, shape)
    stack.fan_ins[embed] = 1.0
    for index in range(1, size.num_blocks + 1):
        block = (MixtureBlock if size.num_experts > 1 else LlamaBlock)(size, dropout)
        stack.add(f"block{index}", block, shape)
        attention, mlp = block.attention, block.mlp
        layers = mlp.experts if size.num_experts > 1 else mlp
        inner = [attention.q, attention.k, attention.v, layers.gate, layers.up]
        if size.num_experts > 1:
            inner.append(mlp.router)
        residual = {attention.out: size.width, layers.down: size.hidden}
        stack.fan_ins |= {layer: DAMPING * float(size.width) for layer in inner}
        stack.fan_ins |= {layer: 2.0 * size.num_blocks * DAMPING * n for layer, n in residual.items()}
    stack.add("norm", nn.RMSNorm(size.width, eps=_EPSILON), shape)
    add_head(stack, num_classes, embed if size.tied else None)
