"""Models against the literature's numbers, and what schemes rely on: equal weights, any input size."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import log
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.registry import held_out, open_feed
from perfscope.runners.inputs import InputKind
from perfscope.runners.models.blocks import Branches, Residual
from perfscope.runners.models.catalogue import MODELS
from perfscope.runners.models.llama import Rotary
from perfscope.runners.models.lstm import Lstm
from perfscope.runners.models.registry import build_model, find_model
from perfscope.runners.models.shapes import LayerShape, ModelShape, describe
from perfscope.runners.models.stack import _Windows
from perfscope.runners.planning import describe_model
from perfscope.runners.schemes.base import Batch
from perfscope.runners.schemes.local import loss_of

NAMES = tuple(model.name for model in MODELS)
OF_IMAGES = tuple(model.name for model in MODELS if model.input is InputKind.IMAGE)
DIVISIBLE = tuple(model.name for model in MODELS if model.name in OF_IMAGES and model.divisible)
LEAVES = (
    nn.Conv2d,
    nn.Linear,
    nn.BatchNorm2d,
    nn.ReLU,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Flatten,
    nn.Dropout,
    nn.Identity,
)


def config_of(name: str, **settings: Any) -> BenchConfig:
    info = find_model(name)
    if shape := info.default_input:
        settings = {"input_shape": shape, **settings}
    if info.input in (InputKind.CLICKS, InputKind.VOLUME):
        settings = {"num_classes": 2, **settings}
    return BenchConfig(**{"scheme": "serial", "model": name, "batch": 8, **settings})


def classic(name: str) -> ModelShape:
    info = find_model(name)
    classes = 1000 if info.classic_input[1] == 224 else 10
    return describe_model(config_of(name, input_shape=info.classic_input, num_classes=classes))


def weighted(shape: ModelShape) -> list[LayerShape]:
    return [layer for layer in shape.layers if layer.kind != "norm"]


# (parameters, tensors, W_conv and W_FC in M, forward GFLOP, sum of |x| behind the first layer in M, W / that)
# Parameters: Krizhevsky 2014 in torchvision's widths; Simonyan and Zisserman's D; Szegedy et al.'s table 1,
# with biases, without auxiliary classifiers; He et al.'s 50 layers; LeCun et al.'s LeNet-5, fully connected.
LITERATURE: dict[str, tuple[Any, ...]] = {
    "lenet": (61_706, 10, None, None, None, None, None),
    "alexnet": (61_100_840, 16, 2.47, 58.63, 1.43, 0.205, 298),
    "vgg16": (138_357_544, 32, 14.71, 123.64, 30.94, 8.965, 15.4),
    "googlenet": (6_998_552, 116, 5.97, 1.03, 3.17, 4.51, 1.6),
    "resnet50": (25_557_032, 161, 23.45, 2.05, 8.18, 10.51, 2.4),
}


@pytest.mark.parametrize("name", LITERATURE)
def test_numbers_of_the_literature(name: str) -> None:
    shape = classic(name)
    params, tensors, conv, linear, gflops, inputs, balance = LITERATURE[name]
    assert shape.num_params == params
    assert len(shape.params) == tensors
    if conv is None:
        return
    of_kind = {kind: [one for one in shape.layers if one.kind == kind] for kind in ("conv", "linear")}
    assert sum(one.num_params for one in of_kind["conv"]) / 1e6 == pytest.approx(conv, abs=0.005)
    assert sum(one.num_params for one in of_kind["linear"]) / 1e6 == pytest.approx(linear, abs=0.0051)
    assert sum(one.flops for one in shape.layers) / 1e9 == pytest.approx(gflops, abs=0.006)
    behind_the_first = sum(one.in_size for one in weighted(shape)[1:]) / 1e6
    assert behind_the_first == pytest.approx(inputs, abs=0.005)
    assert shape.num_params / 1e6 / behind_the_first == pytest.approx(
        balance, abs=0.05 if balance < 100 else 0.6
    )


# Parameters of the published weights.
OF_TEXT = {
    "gpt2-124m": 124_439_808,
    "tinyllama-1.1b": 1_100_048_384,
    "llama3.2-1b": 1_235_814_400,
    "llama2-7b": 6_738_415_616,
    "mixtral-8x7b": 46_702_792_704,
    "lstm-medium": 19_775_200,  # 20 M and 66 M in the paper: gates of one bias each
    "lstm-large": 66_022_000,
}


@pytest.mark.parametrize("name", OF_TEXT)
def test_language_models_have_the_parameters_of_the_published_weights(name: str) -> None:
    assert published(name).num_params == OF_TEXT[name]


def test_the_model_of_clicks_has_the_tables_and_layers_of_the_published_training() -> None:
    """33,762,577 rows of width 16; bottom 13-512-256-64-16, top 367-512-256-1 with 27 vectors' products."""
    shape = published("dlrm-kaggle")
    assert sum(layer.num_params for layer in shape.layers if layer.kind == "embedding") == 540_201_232
    linear = [layer.weight_shape for layer in shape.layers if layer.kind == "linear"]
    assert linear[:4] == [(512, 13), (256, 512), (64, 256), (16, 64)]
    assert linear[4:] == [(512, 367), (256, 512), (1, 256)]


# (parameters, G multiply-adds of a sample) of torchvision's models of the same names, and of DeiT's.
OF_TORCHVISION = {
    "vgg19": (143_667_240, 19.63),
    "resnet18": (11_689_512, 1.814),
    "resnet34": (21_797_672, 3.664),
    "resnet101": (44_549_160, 7.801),
    "resnet152": (60_192_808, 11.51),
    "vit-base": (86_567_656, 17.56),
    "vit-small": (22_050_664, 4.6),
    "vit-tiny": (5_717_416, 1.25),
    "mobilenet-v2": (3_504_872, 0.301),
    "densenet121": (7_978_856, 2.834),
    "inception-v3": (27_161_264 - 3_326_696, 5.713),  # less the auxiliary classifier
}


@pytest.mark.parametrize("name", OF_TORCHVISION)
def test_models_of_images_are_those_of_the_published_weights(name: str) -> None:
    params, multiply_adds = OF_TORCHVISION[name]
    shape = published(name)
    assert shape.num_params == params
    assert shape.flops() / 2e9 == pytest.approx(multiply_adds, rel=0.01)


def test_the_flood_filling_network_is_that_of_the_published_training() -> None:
    shape = published("flood-filling")
    assert shape.num_params == 472_353
    weights = sum(layer.num_weights for layer in shape.layers)
    assert shape.flops() == 2 * weights * 33**3  # each weight once per voxel
    assert shape.activations == (18 + 8 + 8 + 2) * 32 * 33**3 + 33**3 + 33**3 + 2 * 33**3


def test_flops_of_recurrent_layers_are_those_of_their_gates() -> None:
    """8 h (in + h) per token and layer, and 2 h V for the head."""
    assert published("lstm-medium").flops() == 35 * (2 * 8 * 650 * 1300 + 2 * 650 * 10_000)


def test_a_recurrent_layer_is_torchs() -> None:
    layer, reference = Lstm(5, 7).double(), nn.LSTM(5, 7, batch_first=True).double()
    with torch.no_grad():
        layer.weight.normal_()
        layer.bias.normal_()
        reference.weight_ih_l0.copy_(layer.weight[:, :5])
        reference.weight_hh_l0.copy_(layer.weight[:, 5:])
        reference.bias_ih_l0.copy_(layer.bias)
        reference.bias_hh_l0.zero_()
        x = torch.randn(3, 6, 5, dtype=torch.float64)
        assert torch.allclose(layer(x), reference(x)[0], rtol=0, atol=1e-12)


def test_patches_attend_to_all_patches_and_the_class_is_read_from_the_token() -> None:
    model = build_model(config_of("vit-tiny", dtype="float64", input_shape=(3, 32, 48))).eval()
    x = torch.randn(1, 3, 32, 48, dtype=torch.float64)
    with torch.no_grad():
        sequence = model.embed(x)
        assert sequence.shape == (1, 7, 192)
        one = x[0, :, 16:, 16:32].flatten() @ model.embed.conv.weight.flatten(1).T + model.embed.conv.bias
        one = one + model.embed.positions.weight[5]  # row 1, column 1, behind the token
        assert torch.allclose(sequence[0, 5], one, rtol=0, atol=1e-12)
        before = model(x)
        x[:, :, 16:, 32:] += 1  # the last patch
        assert float((model(x) - before).abs().max()) > 1e-9


def test_maps_of_a_dense_layer_follow_those_before_it() -> None:
    model = build_model(config_of("densenet121", input_shape=(3, 64, 64))).eval()
    x = torch.randn(2, 64, 16, 16)
    with torch.no_grad():
        found = model.dense1_1(x)
    assert found.shape == (2, 96, 16, 16) and torch.equal(found[:, :64], x)


def test_activations_are_the_outputs_of_the_layers() -> None:
    """Of LeNet-5, with a rectifier behind each layer but the last; mean maps of 5 x 5 before the first."""
    maps, pooled, linear = 6 * 28 * 28 + 16 * 10 * 10, 6 * 14 * 14 + 16 * 5 * 5, 120 + 84
    assert classic("lenet").activations == 2 * (maps + linear) + pooled + 16 * 5 * 5 + 10


# M elements that leave convolutions and linear layers, and in attention the scores and what they weight, as
# timm publishes them ("Activations") for its models of the same names.
OF_TIMM = {
    "resnet18": 2.48,
    "resnet34": 3.74,
    "resnet50": 11.11,
    "resnet101": 16.23,
    "resnet152": 22.56,
    "vgg16": 13.56,
    "vgg19": 14.86,
    "densenet121": 6.90,
    "inception-v3": 8.97,
    "mobilenet-v2": 6.68,
    "vit-tiny": 5.97,
    "vit-small": 11.95,
    "vit-base": 23.90,
}


@pytest.mark.parametrize("name", OF_TIMM)
def test_activations_are_the_published_ones(name: str) -> None:
    shape = published(name)
    elements = sum(layer.out_size for layer in shape.layers if layer.kind in ("conv", "linear"))
    for attention in shape.products:
        heads, tokens, _ = attention.out_shape
        elements += attention.out_size + heads * tokens**2
    assert elements / 1e6 == pytest.approx(OF_TIMM[name], abs=0.006)
    assert shape.activations > elements


def published(name: str) -> ModelShape:
    info = find_model(name)
    return describe_model(config_of(name, input_shape=info.classic_input, num_classes=info.classic_classes))


def test_flops_of_a_language_model_are_those_of_the_dense_formula() -> None:
    """2 N per token for the N weights that multiply, and 4 T d per block for attention (arXiv 2001.08361)."""
    for name, blocks, width in (("gpt2-124m", 12, 768), ("tinyllama-1.1b", 22, 2048)):
        shape = published(name)
        (length,) = find_model(name).classic_input
        multiplying = sum(layer.num_weights for layer in shape.layers if layer.kind == "linear")
        if shape.is_tied:
            multiplying += 50_257 * width
        assert shape.flops() == 2 * length * multiplying + blocks * 4 * length**2 * width
    shape, (length,) = published("mixtral-8x7b"), find_model("mixtral-8x7b").classic_input
    experts = [layer for layer in shape.layers if layer.kind == "experts"]
    assert sum(layer.flops for layer in experts) == 2 * length * sum(one.num_weights for one in experts) // 4
    active = shape.num_params - sum(layer.num_params for layer in experts) * 3 // 4
    assert active == 12_879_925_248  # 12.9 G of 46.7 G are used for a token (arXiv 2401.04088)


def test_tokens_are_routed_to_their_best_experts_and_weighted_by_their_scores() -> None:
    mixture = build_model(config_of("moe-nano", dtype="float64")).block2.mlp
    x = torch.randn(3, 5, 64, dtype=torch.float64)
    gate, up, down = (getattr(mixture.experts, one).weight for one in ("gate", "up", "down"))
    for token, found in zip(x.flatten(0, 1), mixture(x).flatten(0, 1), strict=True):
        scores, chosen = mixture.router(token).topk(2)
        outputs = [down[i] @ (nn.functional.silu(gate[i] @ token) * (up[i] @ token)) for i in chosen]
        expected = sum(share * one for share, one in zip(scores.softmax(0), outputs, strict=True))
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_rotary_scores_depend_on_distances_alone() -> None:
    rotary = Rotary(16, 10_000.0)
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)

    def score(at: int, other: int) -> float:
        rotary.first_position = at
        turned = rotary(q)
        rotary.first_position = other
        return float((turned * rotary(k)).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-9)
    assert score(0, 0) == pytest.approx(float((q * k).sum()), abs=1e-9)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-6)


def test_map_sizes_of_the_papers() -> None:
    sides = {
        name: {block: cut[-1] for block, cut in zip(shape.blocks, shape.cuts, strict=True) if len(cut) == 3}
        for name in ("alexnet", "vgg16", "googlenet", "resnet50")
        if (shape := classic(name))
    }
    assert [sides["alexnet"][one] for one in ("conv1", "pool1", "pool2", "conv5", "pool5")] == [
        55,
        27,
        13,
        13,
        6,
    ]
    assert [sides["vgg16"][f"pool{one}"] for one in range(1, 6)] == [112, 56, 28, 14, 7]
    found = [sides["googlenet"][one] for one in ("conv1", "pool1", "pool2", "pool3", "pool4", "inception5b")]
    assert found == [112, 56, 28, 14, 7, 7]
    found = [sides["resnet50"][one] for one in ("conv1", "pool1", "res2c", "res3d", "res4f", "res5c")]
    assert found == [112, 56, 56, 28, 14, 7]


def test_shapes_say_what_a_layer_holds_and_where() -> None:
    shape = classic("googlenet")
    layers = {layer.name: layer for layer in shape.layers}
    first, inner = shape.layers[0], layers["inception3a.branch3.conv2"]
    assert (first.in_shape, first.stride, first.padding) == ((3, 224, 224), (2, 2), (3, 3))
    assert (first.needs_input_grad, inner.needs_input_grad) == (False, True)
    assert inner.weight_shape == (32, 16, 5, 5)
    assert shape.blocks[inner.block] == "inception3a"
    assert (inner.in_shape, inner.out_shape) == ((16, 28, 28), (32, 28, 28))
    assert inner.flops == 2 * 32 * 16 * 25 * 28 * 28
    assert sum(shape.block_params(index, index + 1) for index in range(len(shape.blocks))) == shape.num_params
    assert classic("mlp").layers[0].needs_input_grad is False


@pytest.mark.parametrize("name", DIVISIBLE)
def test_models_are_made_of_the_parts_that_schemes_know(name: str) -> None:
    with torch.device("meta"):
        model = build_model(config_of(name, dropout=0.25))
    assert type(model) is nn.Sequential
    for module in model.modules():
        assert type(module) in (*LEAVES, nn.Sequential, Branches, Residual)
        if isinstance(module, nn.Dropout):
            assert module.p == 0.25
        if isinstance(module, Branches):
            assert all(type(child) is nn.Sequential for child in module.children())
        if isinstance(module, Residual):
            assert type(module.body) is nn.Sequential
            assert type(module.shortcut) in (nn.Sequential, nn.Identity)


@pytest.mark.parametrize("name", (*DIVISIBLE, "vit-tiny", "mobilenet-v2", "densenet121", "inception-v3"))
def test_any_input_size_fits_and_only_the_mlp_follows_it(name: str) -> None:
    """Tiny, small, odd, flat and gray inputs; a forward pass of shapes alone."""
    counts = set()
    shapes = ((3, 1, 1), (3, 2, 90), (3, 33, 64), (3, 7, 5), (3, 16, 16), (3, 65, 47), (1, 16, 20))
    for shape in shapes if name in DIVISIBLE else shapes[:3]:
        found = describe_model(config_of(name, input_shape=shape, num_classes=12))
        assert found.cuts[-1] == (12,)
        assert all(min(cut) >= 1 for cut in found.cuts)
        if shape[0] == 3:
            counts.add(found.num_params)
    if name.startswith("vit"):  # positions follow the number of patches
        return
    assert len(counts) == (1 if name != "mlp" else 6)


def test_windows_that_do_not_fit_are_left_out_along_one_dim_only() -> None:
    model = build_model(config_of("smallcnn", input_shape=(3, 1, 16)))
    assert (model.pool1.kernel_size, model.pool1.stride) == ((1, 2), (1, 2))
    assert model(torch.zeros(2, 3, 1, 16)).shape == (2, 16)
    model = build_model(config_of("smallcnn", input_shape=(3, 4, 4)))
    assert isinstance(model.pool3, nn.Identity)
    assert model(torch.zeros(2, 3, 4, 4)).shape == (2, 16)
    model = build_model(config_of("lenet", input_shape=(1, 3, 32)))
    assert (model.conv1.padding, model.conv2.padding) == ((2, 0), (2, 0))
    assert model(torch.zeros(2, 1, 3, 32)).shape == (2, 16)


@pytest.mark.parametrize(
    "name",
    [
        *("smallcnn", "lenet", "mlp", "googlenet", "resnet50", "transformer", "table_mlp", "moe-nano"),
        *("lstm-nano", "dlrm-nano", "mobilenet-v2", "vit-tiny"),
    ],
)
def test_weights_follow_from_the_seed_alone(name: str) -> None:
    config = config_of(name, seed=3)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build_model(config).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two = build_model(replace(config, batch=64, steps=1, dropout=0.5)).state_dict()
    wide = build_model(replace(config, dtype="float64")).state_dict()
    assert list(one) == list(two) == list(wide)
    for key, value in one.items():
        assert torch.equal(value, two[key])
        assert torch.equal(value.to(wide[key].dtype), wide[key])
        assert torch.isfinite(value).all()
        assert not value.is_floating_point() or (value.dtype, wide[key].dtype) == (
            torch.float32,
            torch.float64,
        )
    other = build_model(replace(config, seed=4)).state_dict()
    assert not any(torch.equal(one[key], other[key]) for key in one if one[key].ndim > 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_without_memory_has_the_same_shapes(name: str) -> None:
    with torch.device("meta"):
        model = build_model(config_of(name))
    assert all(value.is_meta for value in model.state_dict().values())
    assert model.training
    if name in ("smallcnn", "googlenet", "resnet50"):
        real = build_model(config_of(name))
        assert describe(real, (3, 32, 32)) == describe(model, (3, 32, 32))
        assert real.training


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", ["smallcnn", "lenet", "mlp", "googlenet", "vit-tiny", "mobilenet-v2"])
def test_training_starts_near_the_loss_of_guessing(name: str, size: int) -> None:
    """Signals neither die nor explode on their way through the layers, at any input size."""
    config = config_of(name, input_shape=(3, size, size), batch=32)
    batch, model = open_feed(config).batch(0, 0, 1), build_model(config)
    with torch.no_grad():
        spread = float(model(batch.inputs).std(dim=0).mean())
        loss = float(loss_of(model, batch))
    assert 0.05 < spread < 1  # samples differ at the last layer, by less than saturates a softmax
    assert loss == pytest.approx(log(16), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps", "share"), [("alexnet", 16, 0.85), ("googlenet", 40, 0.9), ("resnet50", 16, 0.9)]
)
def test_loss_falls_at_the_models_own_learning_rate(name: str, steps: int, share: float) -> None:
    config = config_of(name, input_shape=(3, 32, 32), batch=16)
    model, feed, unseen = build_model(config), open_feed(config), held_out(config)
    start = held_out_loss(model, unseen)
    optimizer = torch.optim.SGD(model.parameters(), lr=find_model(name).learning_rate)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, feed.batch(step, 0, 1)).backward()
        optimizer.step()
    assert held_out_loss(model, unseen) < share * start


def held_out_loss(model: nn.Module, unseen: Batch) -> float:
    model.eval()
    with torch.no_grad():
        loss = float(loss_of(model, unseen))
    model.train()
    return loss


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7, 11])
def test_mean_taps_are_those_of_all_windows(kernel: int) -> None:
    for size, stride, padding in product(range(1, 14), (1, 2, 3, 4), range(kernel)):
        windows = _Windows(size, kernel, stride, padding)
        if size + 2 * padding < kernel:
            continue
        starts = [index * stride - padding for index in range(windows.num)]
        inside = [len(set(range(start, start + kernel)) & set(range(size))) for start in starts]
        assert windows.mean_taps == pytest.approx(sum(inside) / windows.num), windows


def test_an_unknown_model_is_named_with_its_neighbour() -> None:
    with pytest.raises(BenchError, match=r"no model 'alexnett'; did you mean alexnet\?"):
        find_model("alexnett")
    with pytest.raises(BenchError, match="there are smallcnn, lenet, mlp"):
        find_model("xyz")
