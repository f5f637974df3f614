"""Forward and backward passes of one rank's step: in micro-batches, in mixed precision, with a loss scale."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from perfscope.runners.config import BenchConfig
from perfscope.runners.schemes.local import loss_of


class Passes:
    """What `--accumulate` and `--dtype` do to a step, for every scheme alike.

    Attributes:
        last: the backward pass under way is the step's last: gradients are complete with it.
    """

    def __init__(self, config: BenchConfig, device: torch.device) -> None:
        self._parts = config.accumulate
        self._device = device.type
        self._reduced = getattr(torch, config.dtype) if config.is_mixed else None
        scaled = config.dtype == "float16"
        self._scaler = torch.amp.GradScaler(device.type) if scaled else None
        self._num_skipped = 0
        self.last = True

    def run(
        self,
        model: nn.Module,
        batch: Any,
        apart: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> torch.Tensor:
        """Adds the gradient of the batch's mean loss to the parameters' `.grad`.

        Args:
            model: of this rank.
            batch: this rank's samples of the step; `--accumulate` divides it.
            apart: context of passes whose gradients are not exchanged yet.

        Returns:
            The mean loss, detached.
        """
        inputs, targets = batch.inputs.chunk(self._parts), batch.targets.chunk(self._parts)
        losses = []
        for number, (inputs_of_part, wanted) in enumerate(zip(inputs, targets, strict=True)):
            part = type(batch)(inputs_of_part, wanted)
            self.last = number == self._parts - 1
            with nullcontext() if self.last else apart():
                with torch.autocast(self._device, self._reduced, enabled=self._reduced is not None):
                    loss = loss_of(model, part)
                scaled = loss if self._parts == 1 else loss / self._parts
                (scaled if self._scaler is None else self._scaler.scale(scaled)).backward()
            losses.append(loss.detach())
        return losses[0] if self._parts == 1 else torch.stack(losses).mean()

    def rehearse(self, model: nn.Module, batch: Any) -> None:
        """The passes of one micro-batch, without a loss scale; hooks take it as one with others to follow."""
        self.last = False
        part = type(batch)(batch.inputs.chunk(self._parts)[0], batch.targets.chunk(self._parts)[0])
        with torch.autocast(self._device, self._reduced, enabled=self._reduced is not None):
            loss = loss_of(model, part)
        loss.backward()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """One step of the optimizer; none where a gradient in float16 is not finite."""
        if self._scaler is None:
            optimizer.step()
            return
        before = self._scaler.get_scale()
        self._scaler.step(optimizer)
        self._scaler.update()
        if self._scaler.get_scale() < before:
            self._num_skipped += 1

    def details(self) -> dict[str, Any]:
        """For the record of the run: the loss scale at its end, and how many updates were skipped."""
        if self._scaler is None:
            return {}
        return {"loss_scale": self._scaler.get_scale(), "skipped_updates": self._num_skipped}
