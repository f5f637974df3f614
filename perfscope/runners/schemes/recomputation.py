"""Activation checkpointing: blocks that keep their inputs only, and compute the rest again when it is needed.

Chen et al. 2016 (arXiv 1604.06174), by torch.utils.checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Top-level children that have children of their own: blocks of a transformer or a residual network."""
    return [child for child in model.children() if next(child.children(), None) is not None]


def checkpoint_activations(model: nn.Module) -> None:
    """Checkpoints each block; of a chain without blocks, about sqrt(n) segments of its n layers.

    Names, parameters and state stay as they are.
    """
    blocks = blocks_of(model)
    for block in blocks:
        block.forward = partial(_recomputed, block.forward)
    if not blocks:
        layers = list(model.children())
        length = max(1, isqrt(len(layers)))
        segments = [layers[first : first + length] for first in range(0, len(layers), length)]
        model.forward = partial(_through_segments, segments)


def _through_segments(segments: list[list[nn.Module]], x: torch.Tensor) -> Any:
    for segment in segments:
        x = checkpoint(through, segment, x, use_reentrant=False)
    return x


def _recomputed(forward: Callable[..., Any], x: torch.Tensor) -> Any:
    return checkpoint(forward, x, use_reentrant=False)


def through(layers: Iterable[nn.Module], x: torch.Tensor) -> torch.Tensor:
    """The output of layers, one behind the other."""
    for layer in layers:
        x = layer(x)
    return x
