"""The CNN in TensorFlow, without Keras but for its SGD: `python train_tensorflow.py CONFIG.json`.

Several processes: MultiWorkerMirroredStrategy (TF_CONFIG), a custom loop in a tf.function.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from perfscope.runners.frameworks.layouts import conv_to_hwio, linear_to_in_out
    from perfscope.runners.frameworks.train_common import CellProcess, main

    Layer = dict[str, Any]
else:
    from layouts import conv_to_hwio, linear_to_in_out
    from train_common import CellProcess, main


class TfNetwork:
    """The variables of a network, and what it computes; images (N, H, W, C).

    Attributes:
        trained: variables that the optimizer changes, by name.
        running: statistics of normalization, by name.
    """

    def __init__(self, layers: list[Layer], weights: dict[str, Any]) -> None:
        self.layers = layers
        self.trained: dict[str, Any] = {}
        self.running: dict[str, Any] = {}
        self._make(layers, weights)

    def _make(self, layers: list[Layer], weights: dict[str, Any]) -> None:
        for layer in layers:
            name, op = layer["name"], layer["op"]
            if op == "residual":
                self._make(layer["body"], weights)
                self._make(layer["shortcut"], weights)
            elif op == "branches":
                for branch in layer["branches"]:
                    self._make(branch["layers"], weights)
            elif op == "conv":
                self._variable(name + ".weight", conv_to_hwio(weights[name + ".weight"]))
            elif op == "linear":
                flat = linear_to_in_out(weights[name + ".weight"], layer["flattened"])
                self._variable(name + ".weight", flat)
            elif op == "norm":
                self._variable(name + ".weight", weights[name + ".weight"])
                for what, value in (("mean", 0.0), ("var", 1.0)):
                    self.running[name + "." + what] = tf.Variable(
                        tf.fill([layer["channels"]], value),
                        trainable=False,
                        synchronization=tf.VariableSynchronization.ON_READ,  # every process has its own
                        aggregation=tf.VariableAggregation.MEAN,
                        name=_legal(name) + "/" + what,
                    )
            if op in ("conv", "linear", "norm") and name + ".bias" in weights:
                self._variable(name + ".bias", weights[name + ".bias"])

    def _variable(self, name: str, value: Any) -> None:
        self.trained[name] = tf.Variable(value, name=_legal(name))

    def __call__(self, x: Any) -> Any:
        """Logits."""
        return self._forward(self.layers, x)

    def _forward(self, layers: list[Layer], x: Any) -> Any:
        for layer in layers:
            with tf.name_scope(_legal(layer["name"])):
                x = self._apply(layer, x)
        return x

    def _apply(self, layer: Layer, x: Any) -> Any:
        op, name = layer["op"], layer["name"]
        if op == "conv":
            x = tf.nn.conv2d(x, self.trained[name + ".weight"], layer["stride"], _pads(layer))
            return tf.nn.bias_add(x, self.trained[name + ".bias"]) if layer["bias"] else x
        if op == "norm":
            return self._norm(layer, x)
        if op == "relu":
            return tf.nn.relu(x)
        if op == "max_pool":
            if any(layer["padding"]):
                x = tf.pad(x, _pads(layer), constant_values=x.dtype.min)
            return tf.nn.max_pool2d(x, layer["kernel"], layer["stride"], "VALID")
        if op == "mean_pool":
            return tf.nn.avg_pool2d(x, layer["kernel"], layer["kernel"], "VALID")
        if op == "flatten":
            return tf.reshape(x, [tf.shape(x)[0], -1])
        if op == "linear":
            return tf.nn.bias_add(tf.matmul(x, self.trained[name + ".weight"]), self.trained[name + ".bias"])
        if op == "residual":
            return tf.nn.relu(self._forward(layer["body"], x) + self._forward(layer["shortcut"], x))
        assert op == "branches", op
        return tf.concat([self._forward(branch["layers"], x) for branch in layer["branches"]], axis=-1)

    def _norm(self, layer: Layer, x: Any) -> Any:
        name, part = layer["name"], layer["momentum"]  # torch's momentum is the new batch's part
        # The operator itself: tf.compat.v1.nn.fused_batch_norm silently raises small epsilons to 1.001e-5.
        y, mean, var, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=self.trained[name + ".weight"],
            offset=self.trained[name + ".bias"],
            mean=[],
            variance=[],
            epsilon=layer["eps"],
            exponential_avg_factor=1.0,
            data_format="NHWC",
            is_training=True,
        )
        for what, value in (("mean", mean), ("var", var)):
            old = self.running[name + "." + what]
            old.assign((1 - part) * old + part * value)
        return y


def _legal(name: str) -> str:
    return name.replace(".", "/")


def _pads(layer: Layer) -> list[list[int]]:
    return [[0, 0], *([pad, pad] for pad in layer["padding"]), [0, 0]]


def _meet(cell: CellProcess) -> Any:
    """The strategy: where variables live and how gradients are averaged."""
    tf.config.threading.set_intra_op_parallelism_threads(cell.threads)
    tf.config.threading.set_inter_op_parallelism_threads(cell.threads)
    if cell.size == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG


def make_step(cell: CellProcess, strategy: Any, network: TfNetwork, optimizer: Any) -> Any:
    """One update as a tf.function of (images, labels); returns the mean loss of this process's samples."""
    params = list(network.trained.values())

    def replica(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = network(images)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
            part = loss / cell.size  # the optimizer adds the gradients of all processes
        grads = tape.gradient(part, params)
        optimizer.apply_gradients([(grads[index], param) for index, param in enumerate(params)])
        return loss

    def train_step(images: Any, labels: Any) -> Any:
        return strategy.run(replica, args=(images, labels))

    return tf.function(train_step)


def train(cell: CellProcess) -> None:
    """The whole training."""
    strategy = _meet(cell)
    with strategy.scope():
        network = TfNetwork(cell.layers, cell.weights())
        optimizer = tf.keras.optimizers.SGD(cell.learning_rate, momentum=cell.momentum)
        step = make_step(cell, strategy, network, optimizer)
    cell.tell(version=tf.__version__)
    cell.begin()
    for inputs, labels in cell.batches():
        loss = step(tf.constant(inputs), tf.constant(labels))
        cell.step_done(float(loss))


if __name__ == "__main__":
    sys.exit(main(train))
