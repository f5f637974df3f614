"""Modeled FLOPs and bytes against values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.ingest.cost_model import Cost, cost, known

F, NONE, LIST, SCALAR = "float", "", "ScalarList", "Scalar"


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "expected"),
    [
        # (4x8)(8x2): 4*2 outputs of 8 products; 32 + 16 values read, 8 written.
        ("aten::mm", [[4, 8], [8, 2]], [F, F], [], Cost(128, 192, 32)),
        ("aten::addmm", [[2], [4, 8], [8, 2], [], []], [F, F, F, SCALAR, SCALAR], [], Cost(128, 200, 32)),
        ("aten::bmm", [[3, 4, 8], [3, 8, 2]], [F, F], [], Cost(384, 576, 96)),
        ("aten::linear", [[5, 4, 8], [2, 8], [2]], [F, F, F], [], Cost(2 * 5 * 4 * 2 * 8, 4 * 178, 4 * 40)),
        (
            "aten::matmul",
            [[6, 1, 4, 8], [3, 8, 2]],
            [F, F],
            [],
            Cost(2 * 18 * 4 * 2 * 8, 4 * (192 + 48), 4 * 144),
        ),
        ("aten::matmul", [[8], [8, 2]], [F, F], [], Cost(32, 96, 8)),
        ("aten::mm", [[4, 8], [8, 2]], ["c10::Half", "c10::Half"], [], Cost(128, 96, 16)),
    ],
)
def test_matrix_products(
    name: str, dims: list[Any], types: list[str], concrete: list[str], expected: Cost
) -> None:
    assert cost(name, dims, types, concrete) == expected


CONV_TYPES = [F, F, F, LIST, LIST, LIST, SCALAR]


@pytest.mark.parametrize(
    ("data", "weight", "settings", "out"),
    [
        ([2, 3, 32, 32], [16, 3, 3, 3], ["[1, 1]", "[1, 1]", "[1, 1]", "1"], [2, 16, 32, 32]),
        ([2, 16, 32, 32], [32, 8, 3, 3], ["[2, 2]", "[0, 0]", "[1, 1]", "2"], [2, 32, 15, 15]),
        ([2, 4, 9, 9], [8, 4, 3, 3], ["[2]", "[1]", "[2]", "1"], [2, 8, 4, 4]),
        ([2, 4, 50], [8, 4, 5], ["[1]", "[2]", "[1]", "1"], [2, 8, 50]),
        ([1, 2, 8, 8, 8], [4, 2, 2, 2, 2], ["[2, 2, 2]", "[0, 0, 0]", "[1, 1, 1]", "1"], [1, 4, 4, 4, 4]),
        ([3, 8, 8], [4, 3, 3, 3], ["[1, 1]", "[0, 0]", "[1, 1]", "1"], [1, 4, 6, 6]),  # without a batch axis
    ],
    ids=["padding", "groups and stride", "dilation", "1d", "3d", "unbatched"],
)
def test_convolutions(data: list[int], weight: list[int], settings: list[str], out: list[int]) -> None:
    name = f"aten::conv{len(weight) - 2}d"
    dims = [data, weight, [weight[0]], [], [], [], []]
    found = cost(name, dims, CONV_TYPES, ["", "", "", *settings])
    outputs = products = 1
    for extent in out:
        outputs *= extent
    for extent in weight[1:]:
        products *= extent
    assert found is not None
    assert found.flops == 2 * outputs * products
    assert found.written == 4 * outputs
    # `convolution` and `_convolution` have `transposed` and `output padding` in between.
    more = [*settings[:3], "False", "[0, 0]", settings[3]]
    types = [F, F, F, LIST, LIST, LIST, SCALAR, LIST, SCALAR]
    assert cost("aten::convolution", [*dims, [], []], types, ["", "", "", *more]) == found


def test_transposed_convolution_does_the_work_of_the_forward_one_it_mirrors() -> None:
    types = [F, F, F, LIST, LIST, LIST, SCALAR, LIST, SCALAR]
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[1, 1]", "1"]
    found = cost("aten::convolution", [[2, 8, 4, 4], [8, 3, 3, 3], [], [], [], [], [], [], []], types, values)
    assert found is not None
    assert found.flops == 2 * 2 * 4 * 4 * 8 * 3 * 9
    assert found.written == 4 * 2 * 3 * 8 * 8


@pytest.mark.parametrize(
    ("mask", "passes", "written"),
    [
        ("[True, True, True]", 2, 2 * 3 * 64 + 16 * 27 + 16),
        ("[False, True, False]", 1, 16 * 27),
        ("[True, False, False]", 1, 2 * 3 * 64),
    ],
)
def test_convolution_backward_counts_what_its_mask_asks_for(mask: str, passes: int, written: int) -> None:
    dims = [[2, 16, 8, 8], [2, 3, 8, 8], [16, 3, 3, 3], *[[]] * 8]
    types = [F, F, F, LIST, LIST, LIST, LIST, SCALAR, LIST, SCALAR, LIST]
    values = ["", "", "", "[16]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask]
    found = cost("aten::convolution_backward", dims, types, values)
    assert found is not None
    assert found.flops == passes * 2 * 2 * 64 * 16 * 27
    assert found.written == 4 * written


def test_attention_forward_and_backward() -> None:
    heads = [[2, 4, 10, 8], [2, 4, 20, 8], [2, 4, 20, 16]]
    forward = cost("aten::scaled_dot_product_attention", heads, [F] * 3, [])
    assert forward == Cost(2 * 8 * 10 * 20 * (8 + 16), 4 * (640 + 1280 + 2560), 4 * 8 * 10 * 16)
    gradient = [[2, 4, 10, 16], *heads]
    backward = cost("aten::_scaled_dot_product_flash_attention_for_cpu_backward", gradient, [F] * 4, [])
    assert backward is not None
    assert backward.flops == 2 * 8 * 10 * 20 * (3 * 8 + 2 * 16)
    # The flash kernels have the heads behind the sequence.
    flash = cost(
        "aten::_flash_attention_forward", [[2, 10, 4, 8], [2, 20, 4, 8], [2, 20, 4, 16]], [F] * 3, []
    )
    assert flash is not None
    assert flash.flops == forward.flops


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "expected"),
    [
        ("aten::relu", [[4, 5]], [F], [], Cost(20, 80, 80)),
        ("aten::add", [[4, 5], [5], []], [F, F, SCALAR], [], Cost(20, 100, 80)),
        ("aten::mul", [[], [4, 5]], ["double", F], [], Cost(20, 88, 160)),
        ("aten::batch_norm", [[2, 3, 4, 4], [3], [3], [3], [3]], [F] * 5, [], Cost(480, 432, 384)),
        ("aten::_softmax", [[4, 5], [], []], [F, SCALAR, SCALAR], [], Cost(100, 80, 80)),
        ("aten::copy_", [[8], [8], []], [F, "long int", SCALAR], [], Cost(0, 64, 32)),
        ("aten::fill_", [[8], []], [F, SCALAR], [], Cost(0, 0, 32)),
        ("aten::cat", [[[2, 3], [4, 3]], []], ["TensorList", SCALAR], [], Cost(0, 72, 72)),
        ("aten::sum", [[4, 5], [], []], [F, LIST, SCALAR], ["", "[-1]", "True"], Cost(20, 80, 16)),
        ("aten::mean", [[4, 5], []], [F, ""], ["", ""], Cost(20, 80, 4)),
        ("aten::max_pool2d", [[2, 3, 8, 8], *[[]] * 5], [F, LIST, LIST, LIST, LIST, SCALAR],
         ["", "[2, 2]", "[]", "[0, 0]", "[1, 1]", "False"], Cost(2 * 3 * 16 * 4, 4 * 384, 4 * 96)),
        ("aten::adaptive_avg_pool2d", [[2, 3, 8, 8], []], [F, LIST], ["", "[1, 1]"], Cost(384, 1536, 24)),
        ("aten::embedding", [[100, 16], [4, 5]], [F, "long int"], [], Cost(0, 20 * 64 + 160, 1280)),
        ("aten::_foreach_add_", [[[4, 5], [6]], [[4, 5], [6]], []], ["TensorList", "TensorList", SCALAR], [],
         Cost(26, 208, 104)),
        ("aten::_fused_sgd_", [[[10]], [[10]], [[10]]], ["TensorList"] * 3, [], Cost(40, 120, 80)),
    ],
)  # fmt: skip
def test_operators_bound_by_memory(
    name: str, dims: list[Any], types: list[str], concrete: list[str], expected: Cost
) -> None:
    assert cost(name, dims, types, concrete) == expected


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete"),
    [
        ("aten::my_own", [[4, 8]], [F], []),
        ("aten::mm", [[4, 8]], [F], []),
        ("aten::mm", [[4, 8], [8]], [F, F], []),
        ("aten::mm", [[], []], ["", ""], []),
        (
            "aten::conv2d",
            [[2, 3, 8, 8], [4, 3, 3, 3], []],
            [F, F, ""],
            [],
        ),  # recorded without concrete inputs
        (
            "aten::conv2d",
            [[2, 3, 8, 8], [4, 3, 3, 3], *[[]] * 5],
            CONV_TYPES,
            ["", "", "", "x", "y", "z", "1"],
        ),
        ("aten::relu", [], [], []),
        ("aten::mm", [[4, 10**30], [10**30, 8]], [F, F], []),
        ("aten::mm", [[4, -(10**30)], [-(10**30), 8]], [F, F], []),  # a damaged file
    ],
)
def test_what_the_shapes_do_not_tell_is_no_figure(
    name: str, dims: list[Any], types: list[str], concrete: list[str]
) -> None:
    assert cost(name, dims, types, concrete) is None


def test_views_have_no_model() -> None:
    assert not any(
        known(f"aten::{name}") for name in ("view", "t", "transpose", "reshape", "as_strided", "empty")
    )


SEQ, BATCH, IN, HIDDEN = 35, 20, 64, 48


def test_a_recurrent_layer_multiplies_each_weight_once_at_each_position() -> None:
    gates = 4 * HIDDEN
    dims = [[SEQ, BATCH, IN], [gates, IN], [gates, HIDDEN], [gates], [gates]]
    products = SEQ * BATCH * gates * (IN + HIDDEN)
    forward = cost("aten::mkldnn_rnn_layer", dims, [F] * 5, [])
    backward = cost("aten::mkldnn_rnn_layer_backward", dims, [F] * 5, [])
    assert forward is not None and backward is not None
    assert forward.flops == 2 * products and forward.written == 4 * SEQ * BATCH * HIDDEN
    assert backward.flops == 2 * forward.flops


@pytest.mark.parametrize(
    "positions", [[SEQ, BATCH], [BATCH, SEQ], [SEQ * BATCH]], ids=["seq", "batch", "packed"]
)
@pytest.mark.parametrize("projection", [0, 16])
def test_a_stack_of_recurrent_layers_on_a_gpu(positions: list[int], projection: int) -> None:
    """Two layers in both directions; a GRU, or an LSTM with projections."""
    gates = (4 if projection else 3) * HIDDEN
    width = projection or HIDDEN
    weights: list[list[int]] = []
    for inputs in (IN, 2 * width):
        one = [[gates, inputs], [gates, width], [gates], [gates]]
        weights += 2 * (one + ([[projection, HIDDEN]] if projection else []))
    dims = [[*positions, IN], weights, [], [1], [4, BATCH, width], [], [], [], [], [], [], [], [], [], [], []]
    types = [F, "TensorList", SCALAR, F, F, *[""] * 11]
    concrete = [*[""] * 13, "True", "", ""]
    found = cost("aten::_cudnn_rnn", dims, types, concrete)
    assert found is not None
    per_position = sum(rows * columns for shape in weights if len(shape) == 2 for rows, columns in [shape])
    assert found.flops == 2 * SEQ * BATCH * per_position
    assert found.written == 4 * SEQ * BATCH * 2 * width
    backward = cost("aten::_cudnn_rnn_backward", dims, types, concrete)
    assert backward is not None and backward.flops == 2 * found.flops
