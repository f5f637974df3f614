"""Decoder-only transformer language models in GPT-2's layout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners.models.blocks import Block, Pair
from perfscope.runners.models.stack import Fill, Stack

_EXPANSION = 4
DAMPING = 3  # weights behind a norm get 1 / (DAMPING * fan-in) of the gain of those behind a ReLU
TIED_SPREAD = 10.0  # a tied embedding starts with as small scores as a head of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSize:
    """A decoder of GPT-2's layout (Radford et al. 2019).

    Attributes:
        width, num_blocks, num_heads: as they say; the feed-forward layers have 4 * width hidden features.
        tied: whether the head has the weights of the token embedding; else its own.
        head_bias: whether a head of its own has a bias, too.
    """

    width: int
    num_blocks: int
    num_heads: int
    tied: bool = False
    head_bias: bool = False


class TokenEmbedding(nn.Module):
    """Tokens and their positions as vectors: (b, T) int64 to (b, T, width)."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.first_position = 0  # of the tokens that are given: ranks may have a part of each sequence

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both."""
        first = self.first_position
        return self.tokens(x) + self.positions(torch.arange(first, first + x.shape[1], device=x.device)[None])


def repeated(heads: torch.Tensor, num: int) -> torch.Tensor:
    """Keys or values (b, heads, T, head width) for `num` query heads: each is shared by equally many."""
    return heads if heads.shape[1] == num else heads.repeat_interleave(num // heads.shape[1], dim=1)


class DotProductAttention(nn.Module):
    """Scaled dot-product attention of queries, keys and values, each (b, heads, T, head width).

    There may be fewer heads of keys and values than of queries.

    Args:
        causal: each position attends to itself and those before it; else to all.
    """

    def __init__(self, *, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The shape of the queries."""
        num = q.shape[1]
        keys, values = repeated(k, num), repeated(v, num)
        return functional.scaled_dot_product_attention(q, keys, values, is_causal=self.causal)


class TiedHead(nn.Module):
    """Scores of all tokens by the weights of their embedding, which alone owns them (arXiv 1608.05859)."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = (embedding,)  # in a tuple: no child, its parameters are listed once

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, T, width) to (b, T, vocabulary)."""
        return functional.linear(x, self.embedding[0].weight)


class Attention(nn.Module):
    """Multi-head self-attention: (b, T, width) to the same shape.

    A rank that holds some of the heads (rows of `qkv`, columns of `out`) computes its part of the sum.
    """

    def __init__(self, width: int, num_heads: int, *, causal: bool = True) -> None:
        super().__init__()
        self.head_width = width // num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.product = DotProductAttention(causal=causal)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See DotProductAttention."""
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in parts)
        return self.out(self.product(q, k, v).transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two linear layers with a GELU between them, on each position by itself."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.add_module("fc1", nn.Linear(width, hidden))
        self.add_module("gelu", nn.GELU())
        self.add_module("fc2", nn.Linear(hidden, width))


class TransformerBlock(Block):
    """x + attention(norm1(x)), then the same with the feed-forward layers (pre-LN, arXiv 2002.04745)."""

    pairs: ClassVar[tuple[Pair, ...]] = (
        Pair("attention", ("qkv",), "out"),
        Pair("mlp", ("fc1",), "fc2"),
    )

    def __init__(
        self, width: int, num_heads: int, hidden: int, dropout: float, *, causal: bool = True
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, causal=causal)
        self.drop1 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, hidden)
        self.drop2 = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, T, width) to the same shape."""
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.mlp(self.norm2(x)))


def gpt(size: GptSize) -> Fill:
    """What fills a Stack with a model of that size; the classes are the tokens."""
    return partial(_fill, size)


def add_blocks(
    stack: Stack, shape: tuple[int, int], num_blocks: int, num_heads: int, dropout: float, *, causal: bool
) -> None:
    """Blocks as top-level children `block1`, ..., and the last norm.

    Args:
        stack: of the model.
        shape: (sequence, width).
        num_blocks: of them.
        num_heads: of each.
        dropout: probability.
        causal: whether a position sees only those before it.
    """
    width = shape[1]
    for index in range(1, num_blocks + 1):
        block = TransformerBlock(width, num_heads, _EXPANSION * width, dropout, causal=causal)
        stack.add(f"block{index}", block, shape)
        hidden = {block.attention.qkv: width, block.mlp.fc1: width}
        residual = {block.attention.out: width, block.mlp.fc2: _EXPANSION * width}
        stack.fan_ins |= {layer: DAMPING * float(num) for layer, num in hidden.items()}
        stack.fan_ins |= {layer: 2.0 * num_blocks * DAMPING * num for layer, num in residual.items()}
    stack.add("norm", nn.LayerNorm(width), shape)


def _fill(size: GptSize, stack: Stack, num_classes: int, dropout: float) -> None:
    """Each block is a top-level child, so that pipelines can be cut between blocks."""
    (length,), width = stack.shape, size.width
    shape = (length, width)
    embed = TokenEmbedding(num_classes, length, width)
    stack.add("embed", embed, shape)
    stack.fan_ins |= {embed.tokens: 1.0, embed.positions: 32.0}
    add_blocks(stack, shape, size.num_blocks, size.num_heads, dropout, causal=True)
    add_head(stack, num_classes, embed.tokens if size.tied else None, bias=size.head_bias)


def add_head(stack: Stack, num_classes: int, tied: nn.Embedding | None, *, bias: bool = False) -> None:
    """Scores of all tokens from (T, width), with the weights of an embedding or its own."""
    length, width = stack.shape
    head = TiedHead(tied) if tied is not None else nn.Linear(width, num_classes, bias=bias)
    if tied is not None:
        stack.fan_ins[tied] = TIED_SPREAD * width
    else:
        stack.fan_ins[head] = float(width)
    stack.add("head", head, (length, num_classes))
