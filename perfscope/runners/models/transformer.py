"""A small decoder-only transformer language model."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners.models.stack import Stack

_WIDTH, NUM_HEADS, _NUM_BLOCKS, _EXPANSION = 64, 4, 4, 4
_DAMPING = 3  # weights behind a LayerNorm get 1 / (_DAMPING * fan-in) of the gain of those behind a ReLU


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


class DotProductAttention(nn.Module):
    """Causal scaled dot-product attention of queries, keys and values, each (b, heads, T, head width)."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """Causal multi-head self-attention: (b, T, width) to the same shape.

    A rank that holds some of the heads (rows of `qkv`, columns of `out`) computes its part of the sum.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.head_width = width // num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.product = DotProductAttention()
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each position attends to itself and those before it."""
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


class TransformerBlock(nn.Module):
    """x + attention(norm1(x)), then the same with the feed-forward layers (pre-LN, arXiv 2002.04745)."""

    def __init__(self, width: int, num_heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.drop1 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, hidden)
        self.drop2 = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, T, width) to the same shape."""
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.mlp(self.norm2(x)))


def transformer(stack: Stack, num_classes: int, dropout: float) -> None:
    """GPT-2's layout (Radford et al. 2019) with 4 blocks of width 64 and 4 heads; the classes are the tokens.

    Each block is a top-level child, so that pipelines can be cut between blocks. The head has weights of its
    own.
    """
    (length,) = stack.shape
    shape = (length, _WIDTH)
    embed = TokenEmbedding(num_classes, length, _WIDTH)
    stack.add("embed", embed, shape)
    stack.fan_ins |= {embed.tokens: 1.0, embed.positions: 32.0}
    for index in range(1, _NUM_BLOCKS + 1):
        block = TransformerBlock(_WIDTH, NUM_HEADS, _EXPANSION * _WIDTH, dropout)
        stack.add(f"block{index}", block, shape)
        hidden = {block.attention.qkv: _WIDTH, block.mlp.fc1: _WIDTH}
        residual = {block.attention.out: _WIDTH, block.mlp.fc2: _EXPANSION * _WIDTH}
        stack.fan_ins |= {layer: _DAMPING * float(size) for layer, size in hidden.items()}
        stack.fan_ins |= {layer: 2.0 * _NUM_BLOCKS * _DAMPING * size for layer, size in residual.items()}
    stack.add("norm", nn.LayerNorm(_WIDTH), shape)
    head = nn.Linear(_WIDTH, num_classes)
    stack.fan_ins[head] = float(_WIDTH)
    stack.add("head", head, (length, num_classes))
