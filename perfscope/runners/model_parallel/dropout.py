"""Dropout on several ranks: torch's generator does not know who must drop the same activations."""

from __future__ import annotations

import torch
from torch import nn

from perfscope.runners.model_parallel.structure import Structure, join


class SeededDropout(nn.Module):
    """Dropout that draws from a generator of its own."""

    def __init__(self, probability: float, seed: int, device: torch.device) -> None:
        super().__init__()
        self.probability = probability
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x, thinned out and scaled by 1 / (1 - p) while training."""
        if not self.training or self.probability == 0:
            return x
        drawn = torch.rand(x.shape, generator=self.generator, device=x.device, dtype=x.dtype)
        return x * (drawn >= self.probability).to(x.dtype) / (1 - self.probability)


class DropoutSeeds:
    """Seeds for every dropout layer of a model on one rank."""

    def __init__(self, structure: Structure, seed: int, device: torch.device, index: int) -> None:
        """`seed`: one for a group, another in every data part; `index`: this rank's place in its group."""
        self._paths = list(structure.in_shapes)
        self._seed, self._device, self._index = seed, device, index

    def seeded(self, module: nn.Module, path: str, *, split: bool) -> nn.Module:
        """`module`, with every dropout in it (or itself) replaced.

        Args:
            module: changed in place.
            path: its qualified name.
            split: whether ranks hold different activations there; else all drop the same ones.
        """
        if isinstance(module, nn.Dropout):
            if module.p == 0:
                return module
            stream = 1 + self._index if split else 0
            seed = (self._seed * 1_000_003 + self._paths.index(path)) * 4099 + stream
            return SeededDropout(module.p, seed, self._device)
        for name, child in list(module.named_children()):
            setattr(module, name, self.seeded(child, join(path, name), split=split))
        return module
