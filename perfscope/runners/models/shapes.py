"""What each layer with parameters takes in, gives out and holds: the numbers every prediction starts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import nn

from perfscope.runners.models.dlrm import ClickFeatures, DotInteraction
from perfscope.runners.models.llama import ExpertLinear
from perfscope.runners.models.lstm import Lstm
from perfscope.runners.models.transformer import DotProductAttention, TiedHead

ATTENTION, TIED, EXPERTS, INTERACTION, LSTM = "attention", "tied", "experts", "interaction", "lstm"
_WITHOUT_PARAMS = (ATTENTION, TIED, INTERACTION)
_NO_MEMORY = (nn.Identity, nn.Flatten, nn.Dropout)
_KINDS: dict[type[nn.Module], str] = {
    nn.Conv2d: "conv",
    nn.Conv3d: "conv3d",
    nn.Linear: "linear",
    nn.BatchNorm2d: "norm",
    nn.LayerNorm: "layer_norm",
    nn.RMSNorm: "layer_norm",
    nn.Embedding: "embedding",
    DotProductAttention: ATTENTION,
    TiedHead: TIED,
    ExpertLinear: EXPERTS,
    Lstm: LSTM,
    DotInteraction: INTERACTION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One layer with parameters, in the order of the forward pass. Numbers of elements, per sample.

    Attributes:
        name: qualified module path, e.g. `conv1` or `inception3a.branch2.conv2`.
        kind: conv, conv3d, linear, norm (over a batch), layer_norm (and RMSNorm), embedding, experts, lstm
            (weights of input and state together); attention, tied (a head with the embedding's weights) and
            interaction (dot products) have no parameters.
        block: index of the top-level child that holds it.
        in_shape, out_shape: (C, H, W), (T, width), (F,), of experts (routed tokens, width); of tables ().
        weight_shape: of the weight; (K, C, kh, kw), (K, F) or (C,), of experts (number, K, F); (0,) without.
        kv_size: of attention, elements of the keys, and as many of the values.
        has_bias: whether there is a bias of weight_shape[0] elements.
        stride, padding: (vertical, horizontal); (1, 1) and (0, 0) for others than conv.
        flops: of one forward pass, 2 per multiply-add.
        needs_input_grad: False for layers that see the samples themselves.
    """

    name: str
    kind: str
    block: int
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    has_bias: bool
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    flops: int = 0
    kv_size: int = 0
    needs_input_grad: bool = True

    @property
    def in_size(self) -> int:
        """|x|."""
        return prod(self.in_shape)

    @property
    def out_size(self) -> int:
        """|y|."""
        return prod(self.out_shape)

    @property
    def num_weights(self) -> int:
        """|w| without the bias."""
        return prod(self.weight_shape)

    @property
    def num_params(self) -> int:
        """|w| with the bias."""
        return self.num_weights + (self.weight_shape[0] if self.has_bias else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model without its values.

    Attributes:
        layers: layers with parameters, in forward order.
        params: (name, shape) of every parameter, in the order of `model.named_parameters()`.
        blocks: names of the top-level children, in order.
        products: operations without parameters of their own that multiply (attention, tied heads, dot
            products), in forward order.
        cuts: elements per sample that leave each top-level child (per block, in order).
        activations: elements per sample that leave the innermost modules; views and dropout do not count.
    """

    layers: tuple[LayerShape, ...]
    params: tuple[tuple[str, tuple[int, ...]], ...]
    blocks: tuple[str, ...]
    cuts: tuple[tuple[int, ...], ...]
    activations: int
    products: tuple[LayerShape, ...] = ()

    @property
    def is_tied(self) -> bool:
        """Whether the last layer has the weights of the first."""
        return any(product.kind == TIED for product in self.products)

    @property
    def tied_block(self) -> str | None:
        """The block whose weights the head uses again; None if there is none."""
        return self.blocks[0] if self.is_tied else None

    @property
    def num_params(self) -> int:
        """Parameters of the whole model."""
        return sum(prod(shape) for _, shape in self.params)

    def flops(self, block: int | None = None) -> int:
        """FLOPs of one sample's forward pass, of one top-level child or of all."""
        every = (*self.layers, *self.products)
        return sum(layer_shape.flops for layer_shape in every if block is None or layer_shape.block == block)

    def block_params(self, first: int, last: int) -> int:
        """Parameters of the top-level children first .. last-1."""
        names = set(self.blocks[first:last])
        return sum(prod(shape) for name, shape in self.params if name.split(".")[0] in names)


def describe(model: nn.Sequential, input_shape: Sequence[int]) -> ModelShape:
    """Shapes of a model (on any device, meta included), from one forward pass in evaluation mode.

    Args:
        model: as from `models.registry.build_model`.
        input_shape: of one sample.
    """
    layers: list[LayerShape] = []
    cuts: list[tuple[int, ...]] = []
    activations: list[int] = []
    block_of = {name: index for index, (name, _) in enumerate(model.named_children())}
    handles = []
    for name, module in model.named_modules():
        if type(module) in _KINDS:
            handles.append(module.register_forward_hook(_note(name, block_of[name.split(".")[0]], layers)))
    handles += [
        child.register_forward_hook(lambda _m, _x, y: cuts.append(tuple(y.shape[1:])))
        for child in model.children()
    ]
    handles += [
        module.register_forward_hook(lambda _m, _x, y: activations.append(y.numel()))
        for module in model.modules()
        if not any(module.children()) and not isinstance(module, _NO_MEMORY)
    ]
    sample = example_input(model, input_shape)
    was_training = model.training
    try:
        model.eval()
        with torch.no_grad():
            model(sample)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    sees_samples = tuple(input_shape)
    layer_shapes = tuple(
        replace(layer, needs_input_grad=False)
        if index == 0 and layer.in_shape in (sees_samples, (prod(sees_samples),))
        else layer
        for index, layer in enumerate(
            layer_shape for layer_shape in layers if layer_shape.kind not in _WITHOUT_PARAMS
        )
    )
    products = tuple(layer_shape for layer_shape in layers if layer_shape.kind in _WITHOUT_PARAMS)
    params = tuple((name, tuple(value.shape)) for name, value in model.named_parameters())
    return ModelShape(
        layers=layer_shapes,
        params=params,
        blocks=tuple(block_of),
        cuts=tuple(cuts),
        activations=sum(activations),
        products=products,
    )


def example_input(model: nn.Module, input_shape: Sequence[int], num_samples: int = 1) -> torch.Tensor:
    """Zeros of the shape and dtype that a model takes, on its device."""
    first = next(model.parameters())
    modules = list(model.modules())
    takes_rows = len(input_shape) > 1 or any(isinstance(module, ClickFeatures) for module in modules)
    takes_tokens = not takes_rows and any(isinstance(module, nn.Embedding) for module in modules)
    dtype = torch.int64 if takes_tokens else first.dtype
    return torch.zeros(num_samples, *input_shape, device=first.device, dtype=dtype)


def _note(name: str, block: int, layers: list[LayerShape]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        kind = _KINDS[type(module)]
        weight = getattr(module, "weight", None)
        weight_shape = (0,) if weight is None else tuple(weight.shape)
        rows = 0 if kind == EXPERTS else 1  # of the sample's tokens, routed; else the sample itself
        in_shape, out_shape = tuple(inputs[0].shape[rows:]), tuple(output.shape[rows:])
        is_conv = kind == "conv"
        flops = {
            "conv": 2 * prod(weight_shape) * prod(out_shape[1:]),
            "conv3d": 2 * prod(weight_shape) * prod(out_shape[1:]),
            LSTM: 2 * prod(weight_shape) * out_shape[0],
            "linear": 2 * prod(weight_shape) * prod(out_shape[:-1]),
            TIED: 2 * prod(in_shape) * out_shape[-1],
            EXPERTS: 2 * prod(weight_shape[1:]) * out_shape[0],
            # Two products of T x T for each head; what a causal mask leaves out counts, as is usual.
            ATTENTION: 4 * in_shape[-2] * prod(in_shape) if kind == ATTENTION else 0,
            INTERACTION: 2 * in_shape[0] * prod(in_shape) if kind == INTERACTION else 0,
        }
        layers.append(
            LayerShape(
                name=name,
                kind=kind,
                block=block,
                in_shape=in_shape,
                out_shape=out_shape,
                weight_shape=weight_shape,
                has_bias=getattr(module, "bias", None) is not None,
                stride=tuple(module.stride) if is_conv else (1, 1),
                padding=tuple(module.padding) if is_conv else (0, 0),
                flops=flops.get(kind, 0),
                kv_size=prod(inputs[1].shape[1:]) if kind == ATTENTION else 0,
            )
        )

    return hook
