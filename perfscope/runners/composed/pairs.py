"""What tensor parallelism divides in a transformer, from the model's shapes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from perfscope.runners.models.llama import LlamaBlock
from perfscope.runners.models.shapes import ATTENTION, LayerShape, ModelShape
from perfscope.runners.models.transformer import TransformerBlock

_PAIRS = (*TransformerBlock.pairs, *LlamaBlock.pairs)


class TensorPair(NamedTuple):
    """Linear layers of one child of a block: the first are cut along outputs, the last along inputs.

    Attributes:
        block: name of the top-level child.
        child: `attention` or `mlp`.
        columns, row: names inside the child.
        units: (layer, how many, of what) that the parts must divide.
        size: elements per sample that enter and leave.
    """

    block: str
    child: str
    columns: tuple[str, ...]
    row: str
    units: tuple[tuple[str, int, str], ...]
    size: int


@lru_cache(maxsize=64)
def tensor_pairs(shape: ModelShape) -> tuple[TensorPair, ...]:
    """The pairs of all blocks, in forward order."""
    layers = {layer.name: layer for layer in shape.layers if layer.kind == "linear"}
    head_width = {
        layer.name.split(".")[0]: layer.in_shape[-1] for layer in shape.products if layer.kind == ATTENTION
    }
    pairs = []
    for block in shape.blocks:
        for child, columns, row in _PAIRS:
            path = f"{block}.{child}"
            if f"{path}.{row}" in layers and all(f"{path}.{name}" in layers for name in columns):
                units = tuple(
                    _unit(layers[f"{path}.{name}"], child, head_width.get(block)) for name in columns
                )
                pairs.append(TensorPair(block, child, columns, row, units, layers[f"{path}.{row}"].out_size))
    return tuple(pairs)


def local_shape(shape: ModelShape, name: str, whole: tuple[int, ...], parts: int) -> tuple[int, ...]:
    """Shape of what one of so many ranks holds of a parameter."""
    layer, _, kind = name.rpartition(".")
    for pair in tensor_pairs(shape) if parts > 1 else ():
        path = f"{pair.block}.{pair.child}"
        if layer in {f"{path}.{column}" for column in pair.columns}:
            return (whole[0] // parts, *whole[1:])
        if layer == f"{path}.{pair.row}" and kind == "weight":
            return (whole[0], whole[1] // parts)
    return whole


def _unit(layer: LayerShape, child: str, head_width: int | None) -> tuple[str, int, str]:
    outputs = layer.weight_shape[0]
    if child != "attention" or not head_width:
        return layer.name, outputs, "outputs"
    return layer.name, outputs // head_width // (3 if layer.name.endswith(".qkv") else 1), "heads"
