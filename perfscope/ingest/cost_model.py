"""FLOPs and bytes of an operator, modeled from the shapes the trace recorded.

Conventions:
- a multiply and an add are 2 FLOPs; convolutions and matrix products count those and nothing else
  (no bias), like `torch.utils.flop_counter`;
- elementwise operators: 1 FLOP per element of the largest operand; reductions 1 per input element;
  pooling 1 per window element; softmax 5 and its backward 4, normalization 5 and its backward 8,
  per element. These are orders of magnitude, not instruction counts;
- bytes: each input read once, each output written once, at the size of its dtype: what must cross the
  memory at least, if nothing stays in a cache from one operator to the next;
- a `TensorList` names no dtype in the trace; its tensors are taken as 4 bytes per element unless
  another input of the same operator has a dtype.

`cost` is None where the shapes do not suffice; nothing is guessed. It depends only on its arguments, so
callers keep one result per distinct shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from msgspec import Struct

from perfscope.ingest.classify import ACCUMULATE
from perfscope.ingest.operator_call import OperatorInputs, Shape


class Cost(Struct, frozen=True):
    """Modeled work of one call: FLOPs, bytes read, bytes written."""

    flops: int
    read: int
    written: int


_MOST = 1 << 62  # more is no size of a real operator, and no column holds it
_Model = Callable[[OperatorInputs], Cost | None]


def known(name: str) -> bool:
    """Whether operator `name` has a model."""
    return name in _MODELS


def cost(name: str, dims: Sequence[Any], types: Sequence[Any], concrete: Sequence[Any]) -> Cost | None:
    """Modeled cost of one call of operator `name`; None without a model or with too little recorded."""
    model = _MODELS.get(name)
    if model is None:
        return None
    try:
        found = model(OperatorInputs(dims, types, concrete))
    except (ValueError, IndexError, TypeError, ZeroDivisionError):
        return None  # a shape that is missing or does not fit the operator: no figure rather than a wrong one
    if found is None or not all(0 <= number < _MOST for number in (found.flops, found.read, found.written)):
        return None  # a damaged shape
    return found


# Matrix products


def _matmul_cost(call: OperatorInputs, out: int, inner: int, first: int, second: int) -> Cost:
    """out elements, each a sum of `inner` products of elements of inputs `first` and `second`."""
    return Cost(2 * out * inner, call.read(), out * call.size)


def _mm(call: OperatorInputs) -> Cost:
    (rows, inner), (_, columns) = call.shape(0), call.shape(1)
    return _matmul_cost(call, rows * columns, inner, 0, 1)


def _addmm(call: OperatorInputs) -> Cost:
    (rows, inner), (_, columns) = call.shape(1), call.shape(2)
    return _matmul_cost(call, rows * columns, inner, 1, 2)


def _bmm(call: OperatorInputs) -> Cost:
    (batch, rows, inner), (_, _, columns) = call.shape(0), call.shape(1)
    return _matmul_cost(call, batch * rows * columns, inner, 0, 1)


def _baddbmm(call: OperatorInputs) -> Cost:
    (batch, rows, inner), (_, _, columns) = call.shape(1), call.shape(2)
    return _matmul_cost(call, batch * rows * columns, inner, 1, 2)


def _matvec(call: OperatorInputs) -> Cost:
    rows, inner = call.shape(0)
    return _matmul_cost(call, rows, inner, 0, 1)


def _linear(call: OperatorInputs) -> Cost:
    *batch, inner = call.shape(0)
    weight = call.shape(1)
    columns = weight[0] if len(weight) == 2 else 1
    return _matmul_cost(call, prod(batch) * columns, inner, 0, 1)


def _matmul(call: OperatorInputs) -> Cost:
    left, right = call.shape(0), call.shape(1)
    inner = left[-1]
    rows = left[-2] if len(left) > 1 else 1
    columns = right[-1] if len(right) > 1 else 1
    batch = _broadcast(left[:-2], right[:-2])
    return _matmul_cost(call, prod(batch) * rows * columns, inner, 0, 1)


def _broadcast(left: Shape, right: Shape) -> Shape:
    length = max(len(left), len(right))
    left, right = (1,) * (length - len(left)) + left, (1,) * (length - len(right)) + right
    return tuple(b if a == 1 else a for a, b in zip(left, right, strict=True))


# Recurrent layers: every position of every sequence is multiplied once by each weight matrix


def _recurrent(
    weights: Callable[[OperatorInputs], list[Shape]],
    num_outputs: Callable[[OperatorInputs], int],
    passes: int,
) -> _Model:
    """Model of a fused recurrent layer or stack.

    Args:
        weights: shapes of all its weights, over layers, directions, inputs, states and projections; biases
            count nothing.
        num_outputs: width of the output at one position.
        passes: 1 forward; 2 backward, which has a product for the input's and one for the weight's gradient.
    """

    def model(call: OperatorInputs) -> Cost:
        *positions, _ = call.shape(0)  # [seq, batch], [batch, seq], or the sum of lengths of packed sequences
        matrices = [shape for shape in weights(call) if len(shape) == 2]
        if not matrices:
            raise ValueError("no weights recorded")
        products = prod(positions) * sum(map(prod, matrices))
        written = prod(positions) * num_outputs(call) if passes == 1 else sum(map(prod, matrices))
        return Cost(2 * passes * products, call.read(), written * call.size)

    return model


def _onednn_weights(call: OperatorInputs) -> list[Shape]:
    """One layer in one direction: (input, weight of the input, weight of the state, biases ...)."""
    return [call.shape(1), call.shape(2)]


def _stacked_weights(call: OperatorInputs) -> list[Shape]:
    return call.list_shapes(1)


def _stacked_width(directions_at: int) -> Callable[[OperatorInputs], int]:
    def width(call: OperatorInputs) -> int:
        """The second weight of a layer has the columns that the state, and with it the output, has."""
        return call.list_shapes(1)[1][1] * (1 + call.flag(directions_at))

    return width


# Convolutions


def _conv_output(
    spatial: Sequence[int], kernel: Sequence[int], stride: list[int], padding: list[int], dilation: list[int]
) -> list[int]:
    return [
        (size + 2 * pad - dil * (k - 1) - 1) // step + 1
        for size, k, step, pad, dil in zip(spatial, kernel, stride, padding, dilation, strict=True)
    ]


def _conv(stride_at: int, transposed_at: int | None) -> _Model:
    """Model of a forward convolution (input, weight, bias, ..., stride, padding, dilation, ...)."""

    def model(call: OperatorInputs) -> Cost:
        (batch, *spatial), weight = _batched(call, 0), call.shape(1)
        rank = len(weight) - 2
        spatial = spatial[1:]
        stride, padding, dilation = (call.ints(stride_at + i, rank) for i in range(3))
        if transposed_at is not None and call.flag(transposed_at):
            extra = call.ints(transposed_at + 1, rank)
            out = [
                (size - 1) * step - 2 * pad + dil * (k - 1) + more + 1
                for size, k, step, pad, dil, more in zip(
                    spatial, weight[2:], stride, padding, dilation, extra, strict=True
                )
            ]
            channels = weight[1] * call.ints(transposed_at + 2)[0]
            products = batch * prod(spatial) * prod(weight)
        else:
            out = _conv_output(spatial, weight[2:], stride, padding, dilation)
            channels = weight[0]
            products = batch * prod(out) * prod(weight)
        return Cost(2 * products, call.read(), batch * channels * prod(out) * call.size)

    return model


def _mkldnn_conv(call: OperatorInputs) -> Cost:
    """input, weight, bias, padding, stride, dilation, groups: padding and stride change places."""
    (batch, *spatial), weight = _batched(call, 0), call.shape(1)
    rank = len(weight) - 2
    padding, stride, dilation = (call.ints(3 + i, rank) for i in range(3))
    out = _conv_output(spatial[1:], weight[2:], stride, padding, dilation)
    return Cost(2 * batch * prod(out) * prod(weight), call.read(), batch * weight[0] * prod(out) * call.size)


def _batched(call: OperatorInputs, index: int) -> list[int]:
    shape, weight = call.shape(index), call.shape(1)
    return [1, *shape] if len(shape) == len(weight) - 1 else list(shape)


def _conv_backward(call: OperatorInputs) -> Cost:
    """grad_output, input, weight, bias sizes, stride, ..., transposed, output padding, groups, mask."""
    grad, data, weight = call.shape(0), call.shape(1), call.shape(2)
    transposed = call.flag(7)
    mask = call.flags(10)
    spatial = data[2:] if transposed else grad[2:]
    products = grad[0] * prod(spatial) * prod(weight)
    written = mask[0] * prod(data) + mask[1] * prod(weight) + mask[2] * grad[1]
    return Cost(2 * products * (mask[0] + mask[1]), call.read(), written * call.size)


# Attention


def _attention_shapes(call: OperatorInputs, first: int, heads_first: bool) -> tuple[int, int, int, int, int]:
    """(batch * heads, query length, key length, query width, value width)."""
    query, key, value = (call.shape(first + i) for i in range(3))
    if len(query) < 3:
        raise ValueError("attention needs at least three axes")
    if not heads_first:
        query, key, value = ((*s[:-3], s[-2], s[-3], s[-1]) for s in (query, key, value))
    return prod(query[:-2]), query[-2], key[-2], query[-1], value[-1]


def _attention(heads_first: bool) -> _Model:
    def model(call: OperatorInputs) -> Cost:
        batch, queries, keys, width, value_width = _attention_shapes(call, 0, heads_first)
        flops = 2 * batch * queries * keys * (width + value_width)
        return Cost(flops, call.read(), batch * queries * value_width * call.size)

    return model


def _attention_backward(heads_first: bool) -> _Model:
    """Scores again, then the gradients of values, scores, queries and keys: five products."""

    def model(call: OperatorInputs) -> Cost:
        batch, queries, keys, width, value_width = _attention_shapes(call, 1, heads_first)
        flops = 2 * batch * queries * keys * (3 * width + 2 * value_width)
        written = sum(call.num_bytes(index) for index in (1, 2, 3))
        return Cost(flops, call.read(), written)

    return model


# Everything that touches each element a few times


def _elementwise(flops: int, *, writes: int = 1) -> _Model:
    """`flops` per element of the broadcast inputs; `writes` outputs of that size."""

    def model(call: OperatorInputs) -> Cost:
        shapes = [call.shape(index) for index in range(len(call)) if call.is_tensor(index)]
        if not shapes:
            raise ValueError("no tensor")
        out: Shape = ()
        for shape in shapes:
            out = _broadcast(out, shape)
        first = next(index for index in range(len(call)) if call.is_tensor(index))
        size = call.num_bytes(first) // max(1, call.elements(first))
        return Cost(flops * prod(out), call.read(), writes * prod(out) * size)

    return model


def _on_first(flops: int) -> _Model:
    """`flops` per element of the first tensor, which has the size of the output."""

    def model(call: OperatorInputs) -> Cost:
        return Cost(flops * call.elements(0), call.read(), call.num_bytes(0))

    return model


def _norm_backward(call: OperatorInputs) -> Cost:
    return Cost(8 * call.elements(0), call.read(), call.num_bytes(0))


def _fill(call: OperatorInputs) -> Cost:
    return Cost(0, 0, call.num_bytes(0))


def _copy(call: OperatorInputs) -> Cost:
    """copy_(self, source): reads the source, writes self."""
    return Cost(0, call.num_bytes(1), call.num_bytes(0))


def _clone(call: OperatorInputs) -> Cost:
    return Cost(0, call.num_bytes(0), call.num_bytes(0))


def _cat(call: OperatorInputs) -> Cost:
    return Cost(0, call.num_bytes(0), call.num_bytes(0))


def _reduce(call: OperatorInputs) -> Cost:
    """sum(self, dims, ...) and friends: one value per element that is not reduced."""
    shape = call.shape(0)
    try:
        axes = call.ints(1)
    except ValueError:
        axes = []
    axes = axes or list(range(len(shape)))
    reduced = prod(shape[axis] for axis in set(a % len(shape) for a in axes)) if shape else 1
    elements = prod(shape)
    return Cost(elements, call.num_bytes(0), elements // max(1, reduced) * call.size)


def _reduce_all(call: OperatorInputs) -> Cost:
    return Cost(call.elements(0), call.num_bytes(0), call.size)


def _pool(call: OperatorInputs) -> Cost:
    """max_pool2d, avg_pool2d (self, kernel, stride, padding, ...)."""
    shape = call.shape(0)
    kernel = call.ints(1)
    rank = len(kernel) if len(kernel) > 1 else 2
    kernel = kernel * rank if len(kernel) == 1 else kernel
    stride = call.ints(2) or kernel
    stride = stride * rank if len(stride) == 1 else stride
    padding = call.ints(3, rank)
    out = _conv_output(shape[-rank:], kernel, stride, padding, [1] * rank)
    elements = prod(shape[:-rank]) * prod(out)
    return Cost(elements * prod(kernel), call.num_bytes(0), elements * call.size)


def _adaptive_pool(call: OperatorInputs) -> Cost:
    shape, out = call.shape(0), call.ints(1)
    elements = prod(shape[: -len(out)]) * prod(out)
    return Cost(prod(shape), call.num_bytes(0), elements * call.size)


def _pool_backward(call: OperatorInputs) -> Cost:
    """(grad_output, self, ...): writes a gradient of self's size."""
    return Cost(call.elements(1), call.num_bytes(0), call.num_bytes(1))


def _embedding(call: OperatorInputs) -> Cost:
    """(weight, indices): reads and writes one row per index."""
    moved = call.elements(1) * call.shape(0)[-1] * (call.num_bytes(0) // max(1, call.elements(0)))
    return Cost(0, moved + call.num_bytes(1), moved)


def _embedding_backward(call: OperatorInputs) -> Cost:
    """(grad_output, indices, num_weights, ...): adds one row per index into a zeroed table."""
    rows = call.ints(2)[0]
    return Cost(call.elements(0), call.read(), rows * call.shape(0)[-1] * call.size)


def _foreach(flops: int) -> _Model:
    """Operators over lists of tensors; the first list is the result."""

    def model(call: OperatorInputs) -> Cost:
        elements = call.list_elements(0)
        if not elements:
            raise ValueError("no tensor list")
        return Cost(flops * elements, call.read(), elements * call.size)

    return model


def _fused_optimizer(flops: int, state_lists: int) -> _Model:
    """_fused_sgd_ and the like: parameters, gradients, states; parameters and states are written."""

    def model(call: OperatorInputs) -> Cost:
        elements = call.list_elements(0)
        if not elements:
            raise ValueError("no tensor list")
        return Cost(flops * elements, call.read(), elements * call.size * (1 + state_lists))

    return model


def _table() -> dict[str, _Model]:
    models: dict[str, _Model] = {
        "mm": _mm, "addmm": _addmm, "addmm_": _addmm, "_addmm_activation": _addmm, "bmm": _bmm,
        "baddbmm": _baddbmm, "baddbmm_": _baddbmm, "mv": _matvec, "linear": _linear, "matmul": _matmul,
        "mkldnn_convolution": _mkldnn_conv, "mkldnn_linear": _linear,
        "convolution_backward": _conv_backward, "convolution_backward_overrideable": _conv_backward,
        "batch_norm": _on_first(5), "native_batch_norm": _on_first(5), "cudnn_batch_norm": _on_first(5),
        "miopen_batch_norm": _on_first(5), "_native_batch_norm_legit": _on_first(5),
        "_batch_norm_impl_index": _on_first(5), "_batch_norm_with_update": _on_first(5),
        "layer_norm": _on_first(5), "native_layer_norm": _on_first(5), "group_norm": _on_first(5),
        "native_group_norm": _on_first(5), "instance_norm": _on_first(5), "rms_norm": _on_first(4),
        "_fused_rms_norm": _on_first(4),
        "native_batch_norm_backward": _norm_backward, "cudnn_batch_norm_backward": _norm_backward,
        "miopen_batch_norm_backward": _norm_backward, "native_layer_norm_backward": _norm_backward,
        "native_group_norm_backward": _norm_backward, "batch_norm_backward": _norm_backward,
        "softmax": _on_first(5), "_softmax": _on_first(5), "log_softmax": _on_first(5),
        "_log_softmax": _on_first(5), "_softmax_backward_data": _on_first(4),
        "_log_softmax_backward_data": _on_first(4),
        "copy_": _copy, "clone": _clone, "cat": _cat, "stack": _cat, "fill_": _fill,
        "zero_": _fill, "normal_": _fill, "uniform_": _fill, "random_": _fill, "bernoulli_": _fill,
        "sum": _reduce, "mean": _reduce, "amax": _reduce, "amin": _reduce, "max": _reduce_all,
        "min": _reduce_all, "norm": _reduce_all, "linalg_vector_norm": _reduce_all,
        "max_pool2d": _pool, "max_pool2d_with_indices": _pool, "avg_pool2d": _pool, "max_pool1d": _pool,
        "adaptive_avg_pool2d": _adaptive_pool, "_adaptive_avg_pool2d": _adaptive_pool,
        "adaptive_avg_pool3d": _adaptive_pool, "adaptive_max_pool2d": _adaptive_pool,
        "max_pool2d_with_indices_backward": _pool_backward, "avg_pool2d_backward": _pool_backward,
        "_adaptive_avg_pool2d_backward": _pool_backward,
        "embedding": _embedding, "embedding_dense_backward": _embedding_backward,
        "mkldnn_rnn_layer": _recurrent(_onednn_weights, lambda call: call.shape(2)[1], 1),
        "mkldnn_rnn_layer_backward": _recurrent(_onednn_weights, lambda call: call.shape(2)[1], 2),
    }  # fmt: skip
    # input, weights, stride, [cuDNN: buffer,] state, cell, mode, hidden, [cuDNN: projection,] layers,
    # batch first, dropout, train, bidirectional
    for library, directions_at in (("_cudnn_rnn", 13), ("miopen_rnn", 11)):
        models[library] = _recurrent(_stacked_weights, _stacked_width(directions_at), 1)
        models[library + "_backward"] = _recurrent(_stacked_weights, lambda call: 0, 2)
    # input, weight, bias, stride, padding, dilation, [transposed, output padding,] groups
    for name in ("conv1d", "conv2d", "conv3d"):
        models[name] = _conv(3, None)
    for name in ("convolution", "_convolution", "convolution_overrideable"):
        models[name] = _conv(3, 6)
    for name in _ELEMENTWISE:
        models[name] = _elementwise(1)
        models[name + "_"] = _elementwise(1)
    for name in ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
                 "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
                 "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
                 "_scaled_dot_product_attention_math"):  # fmt: skip
        models[name] = _attention(heads_first=True)
        models[name + "_backward"] = _attention_backward(heads_first=True)
    for name in ("_flash_attention_forward", "_efficient_attention_forward"):
        models[name] = _attention(heads_first=False)
        models[name.replace("forward", "backward")] = _attention_backward(heads_first=False)
    for name, flops in _FOREACH.items():
        models["_foreach_" + name] = _foreach(flops)
        models[f"_foreach_{name}_"] = _foreach(flops)
    models["_fused_sgd_"] = _fused_optimizer(4, 1)
    models["_fused_adam_"] = models["_fused_adamw_"] = _fused_optimizer(14, 2)
    models["_fused_adagrad_"] = _fused_optimizer(6, 1)
    return {"aten::" + name: model for name, model in models.items()}


def _gradient(call: OperatorInputs) -> Cost | None:
    """A gradient that is kept as it is."""
    return Cost(0, 0, call.num_bytes(0)) if call.is_tensor(0) else None


_ELEMENTWISE = (
    "add", "sub", "mul", "div", "pow", "neg", "exp", "log", "sqrt", "rsqrt", "abs", "sign", "sin", "cos",
    "tanh", "sigmoid", "relu", "gelu", "silu", "hardswish", "hardtanh", "leaky_relu", "elu", "softplus",
    "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "where", "masked_fill", "lerp", "addcmul",
    "addcdiv", "dropout", "native_dropout", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and",
    "logical_not", "threshold", "threshold_backward", "sigmoid_backward", "tanh_backward", "gelu_backward",
    "silu_backward", "hardswish_backward", "hardtanh_backward", "leaky_relu_backward", "elu_backward",
    "softplus_backward", "native_dropout_backward", "mse_loss", "reciprocal", "square",
)  # fmt: skip
_FOREACH = {
    "add": 1, "sub": 1, "mul": 1, "div": 1, "sqrt": 1, "neg": 1, "reciprocal": 1, "pow": 1, "lerp": 2,
    "addcmul": 3, "addcdiv": 3, "maximum": 1, "abs": 1, "zero": 0, "copy": 0, "norm": 2,
}  # fmt: skip

_MODELS = {**_table(), ACCUMULATE: _gradient}
