"""Vision transformers: images as sequences of patches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from perfscope.runners.models.stack import Fill, Shape, Stack
from perfscope.runners.models.transformer import add_blocks

_PATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class VitSize:
    """An encoder with patches of 16 x 16 pixels (Dosovitskiy et al. 2021, arXiv 2010.11929)."""

    width: int
    num_blocks: int
    num_heads: int


class _Grid(NamedTuple):
    """Patches down and across, and the padding of maps smaller than a patch."""

    height: int
    width: int
    pads: tuple[int, ...]

    @classmethod
    def of(cls, shape: Shape) -> _Grid:
        pads = tuple(max(0, -((size - _PATCH) // 2)) for size in shape[1:])
        height, width = ((size + 2 * pad) // _PATCH for size, pad in zip(shape[1:], pads, strict=True))
        return cls(height, width, pads)


class PatchEmbedding(nn.Module):
    """Patches behind a class token, with their positions: (b, C, H, W) to (b, 1 + patches, width).

    Pixels beyond the last whole patch are left out.
    """

    def __init__(self, channels: int, width: int, grid: _Grid) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, _PATCH, stride=_PATCH, padding=grid.pads)
        self.token = nn.Embedding(1, width)
        self.positions = nn.Embedding(1 + grid.height * grid.width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both."""
        patches = self.conv(x).flatten(2).transpose(1, 2)
        token = self.token(torch.zeros(len(x), 1, dtype=torch.int64, device=x.device))
        places = torch.arange(1 + patches.shape[1], device=x.device)[None]
        return torch.cat((token.to(patches.dtype), patches), dim=1) + self.positions(places)


class ClassToken(nn.Module):
    """The first of a sequence: (b, T, width) to (b, width)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the class is read from."""
        return x[:, 0]


def vit(size: VitSize) -> Fill:
    """What fills a Stack with a model of that size."""
    return partial(_fill, size)


def _fill(size: VitSize, stack: Stack, num_classes: int, dropout: float) -> None:
    """Each block is a top-level child, so that pipelines can be cut between blocks."""
    channels, width, grid = stack.shape[0], size.width, _Grid.of(stack.shape)
    shape = (1 + grid.height * grid.width, width)
    embed = PatchEmbedding(channels, width, grid)
    stack.add("embed", embed, shape)
    stack.fan_ins |= {embed.conv: float(channels * _PATCH**2), embed.token: 32.0, embed.positions: 32.0}
    add_blocks(stack, shape, size.num_blocks, size.num_heads, dropout, causal=False)
    stack.add("class_token", ClassToken(), (width,))
    stack.linear("head", num_classes)
