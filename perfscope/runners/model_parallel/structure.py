"""The order and the sizes of everything that a model's samples pass, modules without parameters included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from perfscope.runners.config import BenchConfig
from perfscope.runners.models.blocks import Branches, Residual
from perfscope.runners.models.registry import build_model
from perfscope.runners.models.shapes import example_input

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """A model without values.

    Attributes:
        model: on the meta device.
        in_shapes: per sample, what each module takes in, by qualified name: (C, H, W) or (F,).
        out_shapes: what it gives out.
    """

    model: nn.Sequential
    in_shapes: dict[str, Shape]
    out_shapes: dict[str, Shape]

    def last_layer(self) -> str:
        """Name of the last convolution or linear layer in the order of the forward pass."""
        names: list[str] = [name for name, module in self.model.named_modules() if has_weights(module)]
        return names[-1]


def read_structure(config: BenchConfig) -> Structure:
    """The structure of the configured model.

    Raises:
        BenchError: there is no such model, or its input is too small for it.
    """
    with torch.device("meta"):
        model = build_model(config)
    return trace(model, config.input_shape)


def trace(model: nn.Sequential, input_shape: Sequence[int]) -> Structure:
    """Shapes of every module of a model on the meta device, from one forward pass."""
    in_shapes: dict[str, Shape] = {}
    out_shapes: dict[str, Shape] = {}
    handles = [
        module.register_forward_hook(_note(name, in_shapes, out_shapes))
        for name, module in model.named_modules()
        if name
    ]
    model.eval()
    with torch.no_grad():
        model(example_input(model, input_shape))
    for handle in handles:
        handle.remove()
    return Structure(model, in_shapes, out_shapes)


def _note(name: str, in_shapes: dict[str, Shape], out_shapes: dict[str, Shape]):  # type: ignore[no-untyped-def]
    def hook(_module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        in_shapes[name], out_shapes[name] = tuple(inputs[0].shape[1:]), tuple(output.shape[1:])

    return hook


def has_weights(module: nn.Module) -> bool:
    """Whether it is a layer that multiplies: these are what is split."""
    return isinstance(module, nn.Conv2d | nn.Linear)


def holds_weights(module: nn.Module) -> bool:
    """Whether it is such a layer, or one is somewhere in it."""
    return any(has_weights(module_) for module_ in module.modules())


def paths_of(container: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of the parallel ways through a Branches or a Residual."""
    if isinstance(container, Residual):
        yield "body", container.body
        yield "shortcut", container.shortcut
    elif isinstance(container, Branches):
        yield from container.named_children()


def is_container(module: nn.Module) -> bool:
    """Whether samples take several ways through it."""
    return isinstance(module, Branches | Residual)


def join(prefix: str, name: str) -> str:
    """Qualified name of a child."""
    return f"{prefix}.{name}" if prefix else name


def steps_of(way: nn.Module, prefix: str) -> list[tuple[str, str, nn.Module]]:
    """(own name, qualified name, module) of what a way through a container (or a whole model) is made of."""
    if isinstance(way, nn.Sequential):
        return [(name, join(prefix, name), module) for name, module in way.named_children()]
    return [("only", prefix, way)]
