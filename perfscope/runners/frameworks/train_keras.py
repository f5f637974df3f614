"""The CNN in Keras 3, on the backend that KERAS_BACKEND names: `python train_keras.py CONFIG.json`.

One process: compile and fit. Several: on JAX keras.distribution.DataParallel and fit; on torch the loop of
Keras's guide, DistributedDataParallel around the Keras model. On TensorFlow fit does not work under
MultiWorkerMirroredStrategy (keras issue 20585).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if os.environ.get("KERAS_BACKEND") == "jax" and int(os.environ.get("WORLD_SIZE") or 1) > 1:
    import jax  # must meet the other processes before Keras asks it for devices

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    )

import keras

if TYPE_CHECKING:
    from perfscope.runners.frameworks.layouts import conv_to_hwio, linear_to_in_out
    from perfscope.runners.frameworks.train_common import CellProcess, main

    Layer = dict[str, Any]
else:
    from layouts import conv_to_hwio, linear_to_in_out
    from train_common import CellProcess, main


class Pad(keras.layers.Layer):  # keras is Any here
    """Pads maps with -inf: what a max pool of torch sees beyond the edge."""

    def __init__(self, pads: list[int], **how: Any) -> None:
        super().__init__(**how)
        self.pads = [[0, 0], *([pad, pad] for pad in pads), [0, 0]]

    def call(self, x: Any) -> Any:
        """(N, H, W, C) to a larger (N, H, W, C)."""
        return keras.ops.pad(x, self.pads, constant_values=float("-inf"))

    def compute_output_shape(self, shape: Any) -> Any:
        """Of the padded maps."""
        return tuple(size and size + sum(pad) for size, pad in zip(shape, self.pads))  # noqa: B905 - 3.8


def build(cell: CellProcess) -> Any:
    """The model, with its initial weights."""
    channels, height, width = cell.input_shape
    inputs = keras.Input((height, width, channels))
    model = keras.Model(inputs, _forward(cell.layers, inputs))
    _load(model, cell.layers, cell.weights())
    return model


def _forward(layers: list[Layer], x: Any) -> Any:
    for layer in layers:
        x = _apply(layer, x)
    return x


def _apply(layer: Layer, x: Any) -> Any:
    op, name = layer["op"], _legal(layer["name"])
    if op == "conv":
        return _conv(layer, name, x)
    if op == "norm":
        keep = 1 - layer["momentum"]  # torch's momentum is the new batch's part
        return keras.layers.BatchNormalization(momentum=keep, epsilon=layer["eps"], name=name)(x)
    if op == "relu":
        return keras.layers.ReLU(name=name)(x)
    if op == "max_pool":
        if any(layer["padding"]):
            x = Pad(layer["padding"], name=name + "_pad")(x)
        return keras.layers.MaxPooling2D(tuple(layer["kernel"]), tuple(layer["stride"]), name=name)(x)
    if op == "mean_pool":
        return keras.layers.AveragePooling2D(tuple(layer["kernel"]), name=name)(x)
    if op == "flatten":
        return keras.layers.Flatten(name=name)(x)
    if op == "linear":
        return keras.layers.Dense(layer["out"], name=name)(x)
    if op == "residual":
        total = keras.layers.Add(name=name)([_forward(layer["body"], x), _forward(layer["shortcut"], x)])
        return keras.layers.ReLU(name=name + "_relu")(total)
    assert op == "branches", op
    return keras.layers.Concatenate(name=name)(
        [_forward(branch["layers"], x) for branch in layer["branches"]]
    )


def _conv(layer: Layer, name: str, x: Any) -> Any:
    padding = "valid"
    if any(layer["padding"]):
        same = all(size == 2 * pad + 1 for size, pad in zip(layer["kernel"], layer["padding"]))  # noqa: B905
        if same and layer["stride"] == [1, 1]:
            padding = "same"  # the same at stride 1; at others Keras pads the right edge more
        else:
            x = keras.layers.ZeroPadding2D(tuple(layer["padding"]), name=name + "_pad")(x)
    return keras.layers.Conv2D(
        layer["out"], layer["kernel"], layer["stride"], padding, use_bias=layer["bias"], name=name
    )(x)


def _load(model: Any, layers: list[Layer], weights: dict[str, Any]) -> None:
    for layer in layers:
        name, op = layer["name"], layer["op"]
        if op == "residual":
            _load(model, layer["body"] + layer["shortcut"], weights)
        elif op == "branches":
            for branch in layer["branches"]:
                _load(model, branch["layers"], weights)
        elif op in ("conv", "linear", "norm"):
            weight = weights[name + ".weight"]
            if op == "conv":
                weight = conv_to_hwio(weight)
            elif op == "linear":
                weight = linear_to_in_out(weight, layer["flattened"])
            target = model.get_layer(_legal(name))
            target.trainable_variables[0].assign(weight)
            if name + ".bias" in weights:
                target.trainable_variables[1].assign(weights[name + ".bias"])


def _legal(name: str) -> str:
    return name.replace(".", "_")


class OwnLoss(keras.metrics.Metric):
    """Mean cross entropy of the last batch alone: the loss that Keras tells is the epoch's mean so far."""

    def __init__(self) -> None:
        super().__init__(name="own_loss", dtype="float32")
        self.last = self.add_variable(shape=(), initializer="zeros", name="last")

    def update_state(self, labels: Any, logits: Any, sample_weight: Any = None) -> None:
        """Of a batch."""
        self.last.assign(_cross_entropy()(labels, logits))

    def result(self) -> Any:
        """Of the last batch."""
        return self.last.value


def _cross_entropy() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class StepCallback(keras.callbacks.Callback):
    """Tells the cell that a step is done."""

    def __init__(self, cell: CellProcess) -> None:
        super().__init__()
        self._cell = cell

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Reading the loss waits for the update on backends that return at once."""
        self._cell.step_done(float(logs["own_loss"]))


def train(cell: CellProcess) -> None:
    """The whole training."""
    backend = keras.backend.backend()
    _limit_threads(backend, cell.threads)
    cell.tell(version=keras.__version__, backend=backend)
    if cell.size > 1 and backend == "torch":
        _train_ddp(cell)
        return
    if cell.size > 1:
        assert backend == "jax", "not supported: see registry.py"
        keras.utils.set_random_seed(0)  # what weights are before ours: must be alike on all processes, too
        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    model = build(cell)
    optimizer = keras.optimizers.SGD(cell.learning_rate, momentum=cell.momentum)
    model.compile(optimizer, _cross_entropy(), metrics=[OwnLoss()])
    cell.begin()
    model.fit(
        cell.batches(),
        steps_per_epoch=cell.num_steps,
        shuffle=False,
        verbose=0,
        callbacks=[StepCallback(cell)],
    )
    if cell.size > 1:
        jax.distributed.shutdown()


def _train_ddp(cell: CellProcess) -> None:
    import torch
    import torch.distributed as dist

    if TYPE_CHECKING:
        from perfscope.runners.frameworks.train_torch import backend_of, data_parallel
    else:
        from train_torch import backend_of, data_parallel

    dist.init_process_group(backend_of(cell.device))
    model = data_parallel(build(cell))
    loss_of = _cross_entropy()
    optimizer = torch.optim.SGD(model.parameters(), lr=cell.learning_rate, momentum=cell.momentum)
    cell.begin()
    for inputs, labels in cell.batches():
        optimizer.zero_grad()
        images = torch.from_numpy(inputs).to(cell.device)
        loss = loss_of(torch.from_numpy(labels).to(cell.device), model(images, training=True))
        loss.backward()
        optimizer.step()
        cell.step_done(loss.item())
    dist.barrier()
    dist.destroy_process_group()


def _limit_threads(backend: str, threads: int) -> None:
    if backend == "torch":
        import torch

        torch.set_num_threads(threads)
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


if __name__ == "__main__":
    sys.exit(main(train))
