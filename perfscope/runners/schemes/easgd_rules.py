"""The update rules of elastic averaging, as functions on vectors and as optimizers.

W worker, Wb center, G gradient at W, eta step, a = eta * rho moving rate, mu momentum, N workers.
All right-hand sides are values at time t.

    (1) W  <- W - eta G - a (W - Wb)
    (2) Wb <- Wb + a SUM_i (W^i - Wb)          with one worker's term only where workers come one by one
    (5) V  <- mu V - eta G
    (6) W  <- W + V - a (W - Wb)

You, Buluc, Demmel, SC'17, arXiv 1708.02983; Zhang, Choromanska, LeCun, NIPS 2015, arXiv 1412.6651.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from perfscope.runners.config import BenchConfig, BenchError


def elastic_worker_update(
    weights: torch.Tensor,
    gradient: torch.Tensor,
    center: torch.Tensor,
    rate: float,
    moving_rate: float,
    velocity: torch.Tensor | None = None,
    momentum: float = 0.0,
) -> None:
    """(1); with a velocity (5), (6). Weights and velocity change in place; all (num_params,)."""
    pull = weights - center
    if velocity is None:
        weights.add_(gradient, alpha=-rate)
    else:
        velocity.mul_(momentum).add_(gradient, alpha=-rate)
        weights.add_(velocity)
    weights.add_(pull, alpha=-moving_rate)


def elastic_center_update(
    center: torch.Tensor, total: torch.Tensor, num_workers: int, moving_rate: float
) -> None:
    """(2), given the sum of the workers' weights (one worker's own for num_workers 1). In place."""
    center.add_(total - num_workers * center, alpha=moving_rate)


class ElasticWorker(torch.optim.Optimizer):
    """A worker: (1), or (5) and (6) with momentum. Where the worker keeps the center as well: (2) behind it.

    Args:
        weights: (num_params,), its gradient in `.grad`.
        center: (num_params,), what the worker knows of it when step() is called.
        rate: eta.
        moving_rate: a.
        momentum: mu; None for the rule without a velocity.
    """

    def __init__(
        self,
        weights: torch.Tensor,
        center: torch.Tensor,
        rate: float,
        moving_rate: float,
        momentum: float | None = None,
    ) -> None:
        super().__init__([weights], {"lr": rate, "moving_rate": moving_rate, "momentum": momentum or 0.0})
        self.weights, self.center = weights, center
        self.velocity = None if momentum is None else torch.zeros_like(weights)

    def step(self, total: torch.Tensor | None = None, num_workers: int = 1) -> None:
        """One update; with `total`, the sum of num_workers workers' weights at time t, the center's too."""
        with torch.no_grad():
            gradient = self.weights.grad
            if gradient is None:
                raise RuntimeError("step() before a gradient was made")
            group = self.param_groups[0]
            elastic_worker_update(
                self.weights,
                gradient,
                self.center,
                group["lr"],
                group["moving_rate"],
                self.velocity,
                group["momentum"],
            )
            if total is not None:
                elastic_center_update(self.center, total, num_workers, group["moving_rate"])


class ElasticCenter(torch.optim.Optimizer):
    """The center on a rank without samples: (2) for all workers at once, or as they arrive.

    Args:
        center: (num_params,).
        moving_rate: a.
    """

    def __init__(self, center: torch.Tensor, moving_rate: float) -> None:
        super().__init__([center], {"moving_rate": moving_rate})
        self.center = center

    def step(self, totals: Iterator[torch.Tensor], num_workers: int = 1) -> None:
        """Each of `totals` is the sum of num_workers workers' weights, applied before the next is asked."""
        with torch.no_grad():
            for total in totals:
                elastic_center_update(self.center, total, num_workers, self.param_groups[0]["moving_rate"])


def settle_moving_rate(name: str, config: BenchConfig, num_workers: int) -> float:
    """a = eta * rho: as asked for, else 0.9 / N.

    With zero gradients the mean distance of workers and center is multiplied by 1 - a (N + 1) per step, so
    that it does not shrink from a = 2 / (N + 1) on.

    Raises:
        BenchError: it diverges, or is not above 0; the line names the bound.
    """
    moving_rate = 0.9 / num_workers if config.moving_rate is None else config.moving_rate
    bound = 2 / (num_workers + 1)
    if not 0 < moving_rate < bound:
        reason = (
            f"the distance between workers and center would not shrink: it is multiplied by "
            f"|1 - a (N + 1)| = {abs(1 - moving_rate * (num_workers + 1)):.3g} in every step"
            if moving_rate >= bound
            else "nothing would pull workers and center together"
        )
        raise BenchError(
            f"{name}: with a moving rate a = eta*rho = {moving_rate:g} and {num_workers} workers {reason}; "
            f"it must be above 0 and below 2/(N+1) = {bound:.4g} (default 0.9/N = {0.9 / num_workers:.4g})"
        )
    return moving_rate


def require_every_step(name: str, config: BenchConfig) -> None:
    """Raises BenchError for a period that these rules do not have."""
    if config.period not in (None, 1):
        raise BenchError(f"{name} exchanges in every step; period must be 1, not {config.period}")
