"""What every scheme does alike on its own rank: the loss, the learning rate, the optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners.config import BenchConfig
from perfscope.runners.schemes.base import Batch, Scheme


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross entropy of the batch."""
    return cross_entropy(model(batch.inputs), batch.targets)


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over samples, (b, K) against (b,), or over all tokens, (b, T, K) against (b, T).

    Sequences are equally long: the mean of means over equal parts of a batch is the batch's.
    """
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def scaled_learning_rate(config: BenchConfig, effective_batch: int) -> float:
    """eta after the learning-rate rule.

    linear: eta * B_eff / base (Goyal et al. 2017); sqrt: eta * sqrt(B_eff / base) (Krizhevsky 2014).
    """
    ratio = effective_batch / (config.base_batch or config.batch)
    scale = {"none": 1.0, "linear": ratio, "sqrt": sqrt(ratio)}[config.lr_rule]
    return config.learning_rate * scale


def make_optimizer(scheme: Scheme, params: Iterable[torch.Tensor]) -> torch.optim.SGD:
    """SGD with the run's momentum and the rate that its rule gives for the scheme's effective batch."""
    rate = scaled_learning_rate(scheme.config, scheme.effective_batch(scheme.job))
    return torch.optim.SGD(params, lr=rate, momentum=scheme.config.momentum, foreach=False)
