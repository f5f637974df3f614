"""A torch model of models/ as a list of layers in plain words, for programs of any framework.

A layer is a dict: `op` and `name` (as in the model's state dict; its weights are NAME.weight and NAME.bias),
and by op
    conv        in, out, kernel, stride, padding (each (height, width)), bias (True or False)
    norm        channels, eps, momentum (part of the new batch in running statistics, as torch has it)
    relu
    max_pool    kernel, stride, padding (padding is -inf); windows that do not fit are left out
    mean_pool   kernel (= stride)
    flatten     shape (C, H, W) of its input
    linear      in, out, flattened ((C, H, W) where its inputs are flattened maps, else None); has a bias
    residual    body, shortcut: lists of layers; relu of their sum
    branches    branches: [{"name", "layers"}], concatenated along channels
Layers that do nothing (identities, dropout of probability 0) are left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from perfscope.runners.config import BenchError
from perfscope.runners.models.blocks import Branches, Residual

Layer = dict[str, Any]


def layers_of(model: nn.Sequential, input_shape: tuple[int, ...]) -> list[Layer]:
    """The layers of a model on the meta device.

    Args:
        model: on torch.device("meta").
        input_shape: (C, H, W).

    Raises:
        BenchError: a layer cannot be said in these words.
    """
    # Two samples: a BatchNorm over 1 x 1 maps refuses one.
    return _sequence(model, torch.empty((2, *input_shape), device="meta"), "")[0]


def _sequence(model: nn.Module, x: torch.Tensor, prefix: str) -> tuple[list[Layer], torch.Tensor]:
    layers: list[Layer] = []
    flattened = None
    for key, module in model.named_children():
        layer = _layer(module, x, f"{prefix}{key}")
        if layer is not None:
            if layer["op"] == "flatten":
                flattened = layer["shape"]
            if layer["op"] == "linear":
                layer["flattened"], flattened = flattened, None
            layers.append(layer)
        x = module(x)
    return layers, x


def _layer(module: nn.Module, x: torch.Tensor, name: str) -> Layer | None:
    if isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and module.p == 0):
        return None
    if isinstance(module, Residual):
        body = _sequence(module.body, x, f"{name}.body.")[0]
        return {"op": "residual", "name": name, "body": body, "shortcut": _branch(module.shortcut, x, name)}
    if isinstance(module, Branches):
        branches = [
            {"name": f"{name}.{key}", "layers": _sequence(branch, x, f"{name}.{key}.")[0]}
            for key, branch in module.named_children()
        ]
        return {"op": "branches", "name": name, "branches": branches}
    layer_facts = _words(module, x, name)
    return None if layer_facts is None else {"name": name, **layer_facts}


def _branch(shortcut: nn.Module, x: torch.Tensor, name: str) -> list[Layer]:
    return _sequence(shortcut, x, f"{name}.shortcut.")[0] if isinstance(shortcut, nn.Sequential) else []


def _words(module: nn.Module, x: torch.Tensor, name: str) -> Layer | None:
    if isinstance(module, nn.Conv2d) and module.groups == 1:
        window = {word: _pair(getattr(module, attribute)) for word, attribute in _WINDOW.items()}
        bias = module.bias is not None
        return {"op": "conv", "in": module.in_channels, "out": module.out_channels, "bias": bias, **window}
    if isinstance(module, nn.BatchNorm2d):
        channels = {"channels": module.num_features, "eps": module.eps, "momentum": module.momentum}
        return {"op": "norm", **channels}
    if isinstance(module, nn.ReLU):
        return {"op": "relu"}
    if isinstance(module, nn.MaxPool2d) and not module.ceil_mode:
        return {
            "op": "max_pool",
            **{word: _pair(getattr(module, attribute)) for word, attribute in _WINDOW.items()},
        }
    if isinstance(module, nn.AdaptiveAvgPool2d):
        return _mean_pool(module, x, name)
    if isinstance(module, nn.Flatten):
        return {"op": "flatten", "shape": list(x.shape[1:])}
    if isinstance(module, nn.Linear) and module.bias is not None:
        return {"op": "linear", "in": module.in_features, "out": module.out_features, "flattened": None}
    raise BenchError(f"layer {name} ({type(module).__name__}) is known to the torch runners only")


_WINDOW = {"kernel": "kernel_size", "stride": "stride", "padding": "padding"}


def _pair(value: int | tuple[int, int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def _mean_pool(module: nn.AdaptiveAvgPool2d, x: torch.Tensor, name: str) -> Layer | None:
    """Adaptive pools of other frameworks cut maps differently: only equal windows are the same everywhere."""
    sizes, wanted = list(x.shape[2:]), _pair(module.output_size)
    if any(size % parts for size, parts in zip(sizes, wanted, strict=True)):
        raise BenchError(
            f"at this input {name} would pool {sizes[0]}x{sizes[1]} maps to {wanted[0]}x{wanted[1]}, which "
            "frameworks do in different ways; choose an --input whose maps divide, e.g. CHANNELSx32x32"
        )
    kernel = [size // parts for size, parts in zip(sizes, wanted, strict=True)]
    return None if kernel == [1, 1] else {"op": "mean_pool", "kernel": kernel}
