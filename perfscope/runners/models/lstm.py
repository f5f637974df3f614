"""Language models of LSTM layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners.models.stack import Fill, Stack
from perfscope.runners.models.transformer import DAMPING, add_head


@dataclass(frozen=True, slots=True, kw_only=True)
class LstmSize:
    """Layers in the layout of Zaremba et al. 2014 (arXiv 1409.2329), all of one width."""

    width: int
    num_layers: int


class Lstm(nn.Module):
    """One layer: (b, T, in) to (b, T, width), from a state of zeros.

    Gates of a step are weight @ (x_t, h_(t-1)) + bias, in the order input, forget, cell, output.
    """

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.empty(4 * width, width_in + width))
        self.bias = nn.Parameter(torch.empty(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The part that follows from the inputs is computed for all steps at once."""
        from_input, from_state = self.weight.split((self.weight.shape[1] - self.width, self.width), dim=1)
        inputs = functional.linear(x, from_input, self.bias)
        state = cell = inputs.new_zeros(len(x), self.width)
        states = []
        for step in inputs.unbind(dim=1):
            gates = step + functional.linear(state, from_state)
            entered, kept, candidate, shown = gates.chunk(4, dim=-1)
            cell = kept.sigmoid() * cell + entered.sigmoid() * candidate.tanh()
            state = shown.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


def lstm(size: LstmSize) -> Fill:
    """What fills a Stack with a model of that size; the classes are the tokens."""
    return partial(_fill, size)


def _fill(size: LstmSize, stack: Stack, num_classes: int, dropout: float) -> None:
    """Each layer is a top-level child, so that pipelines can be cut between them."""
    (length,), width = stack.shape, size.width
    shape = (length, width)
    embed = nn.Embedding(num_classes, width)
    stack.add("embed", embed, shape)
    stack.fan_ins[embed] = 1.0
    for index in range(1, size.num_layers + 1):
        layer = Lstm(width, width)
        stack.dropout(f"drop{index}", dropout)
        stack.add(f"lstm{index}", layer, shape)
        stack.fan_ins[layer] = DAMPING * float(width)
    stack.dropout("drop", dropout)
    add_head(stack, num_classes, None, bias=True)
