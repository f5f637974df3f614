"""Layers divided by torch's parallelize_module: tensor parallelism, and sequences between such layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from perfscope.runners.comm import local_part
from perfscope.runners.composed.experts import expert_layers
from perfscope.runners.composed.pairs import TensorPair, tensor_pairs
from perfscope.runners.models.shapes import ModelShape

_SEQUENCE = 1  # dim of activations (b, T, width)


def divide_layers(
    model: nn.Module, shape: ModelShape, blocks: frozenset[str], mesh: Any, *, sequence: bool
) -> dict[str, torch.Tensor]:
    """Divides the pairs of linear layers of these blocks in place.

    Args:
        model: whole.
        shape: of it.
        blocks: that this rank has.
        mesh: torch's, of one dim.
        sequence: whether ranks have their part of the sequence between the pairs.

    Returns:
        Layer -> order of its rows: of a layer that holds queries, keys and values those of one rank's heads
        lie side by side. `rows[order.argsort()]` are as they were.
    """
    orders = {}
    for pair in tensor_pairs(shape):
        if pair.block in blocks:
            module = model.get_submodule(f"{pair.block}.{pair.child}")
            if pair.columns == ("qkv",):
                orders[f"{pair.block}.{pair.child}.qkv"] = _by_heads(module.get_submodule("qkv"), mesh.size())
            _divide_pair(module, pair, mesh, sequence=sequence)
    if sequence:
        _divide_sequence(model, shape, blocks, mesh)
    return orders


def settle_gradients(params: list[nn.Parameter]) -> None:
    """Sums gradients of which each rank has the part of its tokens: those of norms between the pairs."""
    for value in params:
        placements = getattr(value.grad, "placements", ())
        if any(placement.is_partial() for placement in placements):
            value.grad = value.grad.redistribute(placements=value.placements)


def whole_tensor(value: torch.Tensor) -> torch.Tensor:
    """A distributed tensor's whole on every rank; any other tensor itself.

    One dim of its mesh after the other: torch warns of two at once.
    """
    from torch.distributed.tensor import Replicate

    placements = list(getattr(value, "placements", ()))
    for dim in range(len(placements)):
        placements[dim] = Replicate()
        value = value.redistribute(placements=placements)
    return local_part(value)


def norms(shape: ModelShape) -> list[str]:
    """Layers that normalize each position by itself."""
    return [layer.name for layer in shape.layers if layer.kind == "layer_norm"]


def mixtures(shape: ModelShape) -> list[str]:
    """Children of blocks that are no pair: every rank computes them for the whole sequence."""
    return [layer.path.rpartition(".")[0] for layer in expert_layers(shape)]


def _by_heads(layer: nn.Linear, parts: int) -> torch.Tensor:
    order = torch.arange(layer.out_features).view(3, parts, -1).transpose(0, 1).flatten()
    with torch.no_grad():
        for value in layer.parameters():
            value.copy_(value[order].clone())
    return order


def _divide_pair(module: nn.Module, pair: TensorPair, mesh: Any, *, sequence: bool) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tensor_parallel

    outside = Shard(_SEQUENCE) if sequence else Replicate()
    tensor_parallel.parallelize_module(
        module,
        mesh,
        {
            "": tensor_parallel.PrepareModuleInput(
                input_layouts=(outside,), desired_input_layouts=(Replicate(),)
            ),
            **{name: tensor_parallel.ColwiseParallel() for name in pair.columns},
            pair.row: tensor_parallel.RowwiseParallel(output_layouts=outside),
        },
    )


def _divide_sequence(model: nn.Module, shape: ModelShape, blocks: frozenset[str], mesh: Any) -> None:
    """From the output of the first block to the input of the last one each rank has T / sp positions."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tensor_parallel

    part, full = (Shard(_SEQUENCE),), (Replicate(),)
    gather = tensor_parallel.PrepareModuleInput(
        input_layouts=part, desired_input_layouts=full, use_local_output=True
    )
    cut = tensor_parallel.PrepareModuleOutput(output_layouts=full, desired_output_layouts=part)
    styles = [(name, tensor_parallel.SequenceParallel(use_local_output=True)) for name in norms(shape)]
    styles += [(name, style) for name in mixtures(shape) for style in (gather, cut)]
    styles += [(shape.blocks[0], cut), (shape.blocks[-1], gather)]
    for name, style in styles:
        if name.split(".")[0] in blocks:
            tensor_parallel.parallelize_module(model.get_submodule(name), mesh, style)
