"""The optimizer of a run, torch's or of layer_rules, at the rate that rule and schedule give for a step."""

from __future__ import annotations

from collections.abc import Iterable
from math import cos, pi
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from perfscope.runners.config import LAYERWISE, BenchConfig
from perfscope.runners.schemes.base import Scheme
from perfscope.runners.schemes.layer_rules import Lamb, Lars, Layers, layers_of
from perfscope.runners.schemes.local import scaled_learning_rate

_STEP_AT, _STEP_FACTOR = (0.5, 0.75), 0.1  # He et al. 2016 (arXiv 1512.03385): a tenth at 1/2 and 3/4


def schedule_factor(config: BenchConfig, step: int) -> float:
    """What the learning rate is multiplied by in a step (from 0), in (0, 1].

    In the `warmup` first steps (t + 1) / warmup. Behind them, with x the part of the remaining steps that is
    over: constant 1; linear 1 - x; cosine (1 + cos(pi x)) / 2; step 1, 0.1 from x = 1/2, 0.01 from x = 3/4.
    Steps beyond config.steps (a run that goes on) keep the last one's factor.
    """
    if step < config.warmup:
        return (step + 1) / config.warmup
    remaining = config.steps - config.warmup
    over = min(step - config.warmup, remaining - 1) / remaining
    if config.schedule == "linear":
        return 1 - over
    if config.schedule == "cosine":
        return (1 + cos(pi * over)) / 2
    if config.schedule == "step":
        return float(_STEP_FACTOR ** sum(over >= point for point in _STEP_AT))
    return 1.0


def make_optimizer(
    scheme: Scheme, params: Iterable[torch.Tensor], layers: Layers | None = None
) -> torch.optim.Optimizer:
    """The run's optimizer for these parameters.

    Args:
        scheme: of this rank.
        params: that it updates.
        layers: that these are, for rules that need norms of layers; None = those of `scheme.model`.

    Before each of its steps it sets the step's learning rate and clips the gradient, as far as asked for.
    """
    values, config = list(params), scheme.config
    rate = scaled_learning_rate(config, scheme.effective_batch(scheme.job))
    if config.optimizer in LAYERWISE:
        optimizer = _layerwise(config, layers or layers_of(scheme.model), rate)
    else:
        optimizer = _made(config, values, rate)
    follow_schedule(optimizer, config, rate)
    if config.clip_norm is not None:
        limit = config.clip_norm
        optimizer.register_step_pre_hook(lambda *_: _clip(values, limit))
    return optimizer


def follow_schedule(optimizer: torch.optim.Optimizer, config: BenchConfig, rate: float) -> None:
    """Has each `step()` begin with the learning rate that the schedule gives for it."""
    if config.schedule == "constant" and not config.warmup:
        return
    step = 0

    def set_rate(*_: Any) -> None:
        nonlocal step
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule_factor(config, step)
        step += 1

    optimizer.register_step_pre_hook(set_rate)


def _made(config: BenchConfig, params: list[torch.Tensor], rate: float) -> torch.optim.Optimizer:
    if config.optimizer == "adamw":
        return torch.optim.AdamW(params, lr=rate, weight_decay=config.weight_decay, foreach=False)
    return torch.optim.SGD(
        params,
        lr=rate,
        momentum=config.momentum,
        nesterov=config.optimizer == "nesterov",
        weight_decay=config.weight_decay,
        foreach=False,
    )


def _layerwise(config: BenchConfig, layers: Layers, rate: float) -> torch.optim.Optimizer:
    if config.optimizer == "lars":
        return Lars(layers, lr=rate, momentum=config.momentum, weight_decay=config.weight_decay)
    return Lamb(layers, lr=rate, weight_decay=config.weight_decay)


def _clip(params: list[torch.Tensor], limit: float) -> None:
    clip_grad_norm_(params, limit)
