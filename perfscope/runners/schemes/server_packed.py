"""A model as one vector: all parameters, and all gradients, one behind the other."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from perfscope.runners.comm import Ledger
from perfscope.runners.schemes.base import Batch
from perfscope.runners.schemes.passes import Passes


class PackedModel:
    """A model whose parameters are views into one vector, and whose gradients are views into another.

    So the whole model is one message (You et al. 2017: packed exchange), and nothing is copied to send it.

    Attributes:
        model: the model, its parameters moved.
        weights: (num_params,), on the model's device; its `.grad` is `gradient`.
        gradient: (num_params,).
    """

    def __init__(self, model: nn.Module, ledger: Ledger, passes: Passes) -> None:
        params = list(model.parameters())
        self.model = model
        self._ledger, self._passes = ledger, passes
        self.weights = self.buffer()
        self.gradient = self.buffer()
        self.weights.grad = self.gradient
        offset = 0
        for param in params:
            end = offset + param.numel()
            piece = self.weights[offset:end].view_as(param)
            piece.copy_(param.detach())
            param.data = piece
            param.grad = self.gradient[offset:end].view_as(param)
            offset = end

    def buffer(self, device: str | None = None) -> torch.Tensor:
        """Memory for another such vector, on the model's device if None."""
        return self._ledger.flat(self.model, device=device)

    def backward(self, batch: Batch) -> torch.Tensor:
        """Fills `gradient` with that of the batch's mean loss, which is returned, detached."""
        self.gradient.zero_()
        return self._passes.run(self.model, batch)

    def state(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """A state dict with parameters from `weights` (num_params,) and this model's own buffers."""
        names = {name for name, _ in self.model.named_parameters()}
        state = {}
        offset = 0
        for name, value in self.model.state_dict().items():
            if name in names:
                end = offset + value.numel()
                state[name] = weights[offset:end].view_as(value).detach().clone()
                offset = end
            else:
                state[name] = value.detach().clone()
        return state


def buffers_of(model: nn.Module) -> Iterable[torch.Tensor]:
    """The model's buffers that are no weights: running statistics of normalizations."""
    return (buffer for buffer in model.buffers() if buffer.numel())
