"""One process: what every other scheme is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from perfscope.runners.job import Job
from perfscope.runners.schemes.base import OF_TORCH, Axes, Batch, Scheme
from perfscope.runners.schemes.update_rules import make_optimizer
from perfscope.runners.traffic import Traffic
from perfscope.vocabulary.taxonomy import Optimization, Parallelism, StatePlacement, Synchrony, Topology


class Serial(Scheme):
    """Plain minibatch SGD."""

    name = "serial"
    summary = "One process, plain minibatch SGD: the reference."
    rule = "w <- w - eta * mean gradient of the batch (with momentum if asked for)."
    volume = "nothing"
    axes = Axes(
        (Parallelism.NONE,),
        Optimization.NONE,
        Synchrony.NONE,
        Topology.NONE,
        StatePlacement.LOCAL,
        "none",
    )
    splits = ()
    backends = OF_TORCH

    def build(self, model: nn.Sequential) -> None:
        """See Scheme."""
        self.model = model
        self.optimizer = make_optimizer(self, model.parameters())

    def step(self, batch: Batch) -> torch.Tensor:
        """See Scheme."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.passes.run(self.model, batch)
        self.passes.update(self.optimizer)
        return loss

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """See Scheme."""
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    @classmethod
    def traffic(cls, job: Job, rank: int) -> Sequence[Traffic]:
        """See Scheme."""
        return ()
