"""Models by name, and their weights; catalogue.py lists them."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from math import pi, sqrt

import torch
from torch import nn

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.inputs import InputKind
from perfscope.runners.models.blocks import LinearResidual, Residual
from perfscope.runners.models.catalogue import MODELS, ModelInfo
from perfscope.runners.models.stack import Stack

_GAIN, _LAST_GAIN = 2 / (1 - 1 / pi), 0.3


def find_model(name: str) -> ModelInfo:
    """The model of that name.

    Raises:
        BenchError: there is none; the line names the nearest.
    """
    for model in MODELS:
        if model.name == name:
            return model
    names = [model.name for model in MODELS]
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
    raise BenchError(f"there is no model {name!r}; {hint}")


def build_model(config: BenchConfig) -> nn.Sequential:
    """The configured model in training mode, on the device of the surrounding `torch.device` (CPU without).

    Its weights follow from config.seed: equal on every rank, device and machine, and the same numbers in
    float32 and float64. No random state of the caller is used or changed.

    Raises:
        BenchError: unknown name, or an input of another kind than the model takes.
    """
    info = find_model(config.model)
    if len(config.input_shape) != info.input.num_dims:
        size = "x".join(map(str, config.input_shape))
        raise BenchError(
            f"{info.name} takes {info.input} inputs: --input is {info.input.spelling}, not {size}"
        )
    _check_clicks(config, info)
    if info.input is InputKind.VOLUME and config.num_classes != 2:
        raise BenchError(f"{info.name} has two classes per voxel: use --classes 2, not {config.num_classes}")
    target = torch.empty(0).device
    stack = Stack(config.input_shape)
    with torch.device("meta"):  # no memory, and no random numbers for weights that are replaced anyway
        info.fill(stack, config.num_classes, config.dropout)
        model = stack.sequential().to(getattr(torch, config.weight_dtype))
    if target.type != "meta":
        model = model.to_empty(device=target)
        _draw_weights(stack.fan_ins, config.seed)
        _reset_norms(model)
    return model


def _check_clicks(config: BenchConfig, info: ModelInfo) -> None:
    num_tables = len(info.tables)
    if num_tables and config.input_shape[0] <= num_tables:
        raise BenchError(
            f"{info.name} has {num_tables} categorical features, and needs a dense one beside them: "
            f"use an --input of at least {num_tables + 1}"
        )
    if num_tables and config.num_classes != 2:
        raise BenchError(
            f"{info.name} has two classes, click or none: use --classes 2, not {config.num_classes}"
        )


def _draw_weights(fan_ins: Mapping[nn.Module, float], seed: int) -> None:
    """Weights of variance gain / fan-in, biases 0: plain SGD then trains deep networks without norm too.

    He's rule (arXiv 1502.01852) with one addition: behind the first layer, the weights from all channels to
    one output through one tap sum to 0. What rectifiers pass on is positive on average, and that average,
    alike for all samples, would be most of the signal after ten layers. The gain is 2 as He's, over the share
    of variance in a rectified normal's mean square, 1 - 1 / pi; it is 1 in the first layer and _LAST_GAIN in
    the last, so that training starts at a loss of about log(classes).

    Uniform and not normal, in float32 on the CPU whatever the model's dtype and device: a draw is then 24
    bits, the sum of draws is exact in float64, and every further operation rounds once. So ranks on unlike
    hosts start alike.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    first, last = next(iter(fan_ins)), next(reversed(fan_ins))
    with torch.no_grad():
        for layer, fan_in in fan_ins.items():
            gain = 1.0 if layer is first else _LAST_GAIN if layer is last else _GAIN
            drawn = torch.rand(layer.weight.shape, generator=generator, dtype=torch.float32, device="cpu")
            inputs = 2 if drawn.ndim == 3 else 1  # experts have a dim of their own
            if layer is first or drawn.shape[inputs] == 1:
                drawn.sub_(0.5)
            else:
                sums = drawn.sum(dim=inputs, keepdim=True, dtype=torch.float64)
                drawn.sub_((sums / drawn.shape[inputs]).to(torch.float32))
            layer.weight.copy_(drawn.mul_(sqrt(12 * gain / fan_in)))
            if getattr(layer, "bias", None) is not None:
                layer.bias.zero_()


def _reset_norms(model: nn.Sequential) -> None:
    # Scale 0 at the end of a residual block (Goyal et al. 2017, arXiv 1706.02677): it starts as its shortcut,
    # and an evaluation after few steps, with running statistics still far off, is not thrown by 16 of them.
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm | nn.RMSNorm):
            module.reset_parameters()
    for module in model.modules():
        if isinstance(module, Residual | LinearResidual):
            nn.init.zeros_(list(module.body)[-1].weight)
