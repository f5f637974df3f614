"""A chain of blocks over P ranks; each block has own samples, or all samples and a slice of its outputs.

"data" blocks see the rank's B/P samples and hold all weights; their gradients are averaged. "model" blocks
see the samples of all P ranks and hold 1/P of the output features (rows of the weight); their weights never
move. Between them activations move:

    own samples, all features -> model block: all_gather over samples, backward reduce_scatter
    all samples, own features -> model block: all_gather over features, backward reduce_scatter
    all samples, own features -> data block or loss: all_to_all both ways (intel/MLSL, InitPeerConnection)

Blocks without parameters work on whatever comes: they act on each sample and each channel by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.model_parallel.operators import gather_partial, own_part
from perfscope.runners.models.shapes import ModelShape

DATA_MODE, MODEL_MODE = "data", "model"
GATHER_SAMPLES, GATHER_FEATURES, TO_OWN = "gather samples", "gather features", "to own samples"


@dataclass(frozen=True, slots=True)
class Move:
    """Activations that change ranks.

    Attributes:
        kind: GATHER_SAMPLES, GATHER_FEATURES or TO_OWN.
        before: block in front of which it happens; None = in front of the loss.
        size: elements per sample, all features.
    """

    kind: str
    before: str | None
    size: int

    def calls(self) -> tuple[str, str]:
        """The collective forward and the one backward."""
        return ("all_to_all",) * 2 if self.kind == TO_OWN else ("all_gather", "reduce_scatter")

    def elements(self, batch: int, num_ranks: int) -> int:
        """Elements of one call, as comm.py counts them."""
        return batch * self.size // (num_ranks if self.kind == TO_OWN else 1)


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """What happens where, the same on all ranks.

    Attributes:
        sliced: names of the model blocks.
        moves: in forward order.
        starts_whole: the chain begins with a model block: ranks take all samples, nothing is gathered there.
    """

    sliced: tuple[str, ...]
    moves: tuple[Move, ...]
    starts_whole: bool


def plan_chain(shape: ModelShape, modes: Mapping[str, str]) -> ChainPlan:
    """Which activations move where.

    Args:
        shape: of the model.
        modes: DATA_MODE or MODEL_MODE of each top-level block with parameters.
    """
    chosen = [modes[block] for block in shape.blocks if block in modes]
    starts_whole = chosen[0] == MODEL_MODE
    state = "whole" if starts_whole else "own"
    moves = []
    for index, block in enumerate(shape.blocks):
        mode = modes.get(block)
        if mode is None:
            continue
        size = prod(shape.cuts[index - 1]) if index else 0
        if mode == MODEL_MODE:
            if state != "whole":
                moves.append(Move(GATHER_SAMPLES if state == "own" else GATHER_FEATURES, block, size))
            state = "sliced"
        elif state == "sliced":
            moves.append(Move(TO_OWN, block, size))
            state = "own"
    if state == "sliced":
        moves.append(Move(TO_OWN, None, prod(shape.cuts[-1])))
    sliced = tuple(block for block in shape.blocks if modes.get(block) == MODEL_MODE)
    return ChainPlan(sliced, tuple(moves), starts_whole)


class Chain(nn.Module):
    """The blocks under their own names, with the moves between them.

    Takes this rank's samples (all samples if the plan starts whole); gives the logits of this rank's samples.
    """

    def __init__(self, model: nn.Sequential, plan: ChainPlan, group: Group) -> None:
        super().__init__()
        self._group = group
        self._moves = {move.before: move.kind for move in plan.moves}
        for name, block in model.named_children():
            if name in plan.sliced:
                _keep_slice(block, group)
            self.add_module(name, block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        for name, block in self.named_children():
            x = block(self._moved(x, name))
        return self._moved(x, None)

    def _moved(self, x: torch.Tensor, before: str | None) -> torch.Tensor:
        """Moves what a block needs; at the end (None) the logits, which are the whole chain's."""
        kind = self._moves.get(before)
        if kind is None:
            return x
        group = self._group.serving(before or type(self).__name__)
        if kind == TO_OWN:
            moved: torch.Tensor = _ToOwnSamples.apply(x, group)
            return moved
        return gather_partial(x, 0 if kind == GATHER_SAMPLES else 1, group)


def trained_blocks(shape: ModelShape) -> Iterator[str]:
    """Top-level blocks with parameters, in order."""
    for index, block in enumerate(shape.blocks):
        if shape.block_params(index, index + 1):
            yield block


def _keep_slice(layer: nn.Module, group: Group) -> None:
    for name in ("weight", "bias"):
        full = getattr(layer, name)
        if full is not None:
            setattr(layer, name, nn.Parameter(own_part(full.detach(), 0, group).clone()))
    width = layer.weight.shape[0]
    if isinstance(layer, nn.Conv2d):
        layer.out_channels = width
    elif isinstance(layer, nn.Linear):
        layer.out_features = width


class _ToOwnSamples(torch.autograd.Function):
    """(B, F/P, ...) -> (B/P, F, ...): rank i gets the i-th part of the samples with everybody's features."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        samples = x.shape[0] // group.size
        parts = x.contiguous().view(group.size, samples, *x.shape[1:])
        received = torch.empty_like(parts)
        comm.all_to_all(received, parts, group)
        return received.transpose(0, 1).reshape(samples, group.size * x.shape[1], *x.shape[2:])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        group = ctx.group
        samples, features = grad.shape[:2]
        parts = grad.reshape(samples, group.size, features // group.size, *grad.shape[2:])
        parts = parts.transpose(0, 1).contiguous()
        received = torch.empty_like(parts)
        comm.all_to_all(received, parts, group)
        return received.reshape(group.size * samples, *received.shape[2:]), None
