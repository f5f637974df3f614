"""What every scheme does alike on its own rank: the loss and the learning rate."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from perfscope.runners.config import BenchConfig


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """Mean cross entropy of a `base.Batch`."""
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
