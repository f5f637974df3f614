"""The gradient noise scale: how many samples it takes until their mean gradient is more signal than noise.

McCandlish et al. 2018 (arXiv 1812.06162), appendix A.1: from the squared norms of gradients of small and
large batches, E |G_b|^2 = |G|^2 + tr(S) / b for independent samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.comm import Group
from perfscope.runners.schemes.base import Batch, Feed
from perfscope.runners.schemes.local import loss_of

_MOST_PARTS = 8  # small batches that a step's batch is cut into


class NoiseNorms(NamedTuple):
    """One measurement.

    `small_sq` is the mean squared norm over small batches, `big_sq` the squared norm of their mean gradient.
    """

    small_batch: int
    big_batch: int
    small_sq: float
    big_sq: float


class NoiseMeasurement:
    """Gradients of several small batches on each rank, at the same weights.

    Of synthetic data no step uses their samples; of stored data they are training samples of later epochs.

    A small batch is B / k samples, k the largest divisor of B up to 8; there are at least k of them (two for
    k = 1), so that a measurement costs about a step.
    """

    def __init__(self, feed: Feed, batch: int, first_step: int, group: Group) -> None:
        """
        Args:
            feed: of the run, asked for steps from `first_step` on.
            batch: B.
            first_step: behind the run's last.
            group: ranks that share the measurement.
        """
        self._feed, self._group, self._next = feed, group, first_step
        self._parts = next(k for k in range(min(_MOST_PARTS, batch), 0, -1) if batch % k == 0)
        self._small = batch // self._parts
        self._own = -(-max(self._parts, 2) // group.size)

    def measure(self, model: nn.Module) -> NoiseNorms:
        """On every rank of the group; the weights are the same on all. Gradients are left cleared."""
        params = [param for param in model.parameters() if param.requires_grad]
        total = torch.zeros(sum(param.numel() for param in params) + 1, dtype=torch.float64)
        total = total.to(params[0].device)
        model.train()
        for index in range(self._own):
            step = self._next + index * self._group.size + self._group.index
            gradient = _gradient(model, params, self._feed, step, self._parts)
            total[:-1] += gradient
            total[-1] += gradient.square().sum()
        self._next += self._own * self._group.size
        comm.all_reduce(total, self._group)
        count = self._own * self._group.size
        total /= count
        return NoiseNorms(
            self._small, self._small * count, float(total[-1]), float(total[:-1].square().sum())
        )


def _gradient(
    model: nn.Module, params: list[nn.Parameter], feed: Feed, step: int, parts: int
) -> torch.Tensor:
    """(num_params,), float64."""
    model.zero_grad(set_to_none=True)
    device, batch = params[0].device, feed.batch(step, 0, parts)
    loss_of(model, Batch(batch.inputs.to(device), batch.targets.to(device))).backward()
    flat = torch.cat([param.grad.double().flatten() for param in params if param.grad is not None])
    model.zero_grad(set_to_none=True)
    return flat
