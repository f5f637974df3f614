"""The CNN in MXNet's Gluon: `python train_mxnet.py CONFIG.json`. MXNet is retired upstream.

Several processes: a dist_sync kvstore (DMLC_* variables); this program is worker, server and scheduler, as
DMLC_ROLE says: a server or scheduler never gets beyond importing mxnet.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn

if TYPE_CHECKING:
    from perfscope.runners.frameworks.train_common import CellProcess, main

    Layer = dict[str, Any]
else:
    from train_common import CellProcess, main


class Residual(gluon.HybridBlock):  # mxnet is Any here
    """relu(body(x) + shortcut(x))."""

    def __init__(self, body: Any, shortcut: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.body = body
            self.shortcut = shortcut

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """The sum, rectified."""
        return F.relu(self.body(x) + self.shortcut(x))


class Branches(gluon.HybridBlock):
    """Children side by side, concatenated along channels."""

    def __init__(self, branches: list[Any]) -> None:
        super().__init__()
        with self.name_scope():
            for branch in branches:
                self.register_child(branch)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """All branches."""
        return F.concat(*[branch(x) for branch in self._children.values()], dim=1)


class Builder:
    """The network, and its parameters by torch's names."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}

    def network(self, layers: list[Layer]) -> Any:
        """A Gluon block; maps (N, C, H, W), weights laid out as torch's."""
        net = nn.HybridSequential()
        for layer in layers:
            net.add(self._block(layer))
        return net

    def _block(self, layer: Layer) -> Any:
        op, name = layer["op"], layer["name"]
        if op == "conv":
            size = [tuple(layer[word]) for word in ("kernel", "stride", "padding")]
            block = nn.Conv2D(layer["out"], *size, use_bias=layer["bias"], in_channels=layer["in"])
            return self._weighed(name, block, block.weight, block.bias)
        if op == "norm":
            keep = 1 - layer["momentum"]  # torch's momentum is the new batch's part
            block = nn.BatchNorm(momentum=keep, epsilon=layer["eps"], in_channels=layer["channels"])
            return self._weighed(name, block, block.gamma, block.beta)
        if op == "relu":
            return nn.Activation("relu")
        if op == "max_pool":
            return nn.MaxPool2D(*[tuple(layer[word]) for word in ("kernel", "stride", "padding")])
        if op == "mean_pool":
            return nn.AvgPool2D(tuple(layer["kernel"]), tuple(layer["kernel"]))
        if op == "flatten":
            return nn.Flatten()
        if op == "linear":
            block = nn.Dense(layer["out"], in_units=layer["in"])
            return self._weighed(name, block, block.weight, block.bias)
        if op == "residual":
            return Residual(self.network(layer["body"]), self.network(layer["shortcut"]))
        assert op == "branches", op
        return Branches([self.network(branch["layers"]) for branch in layer["branches"]])

    def _weighed(self, name: str, block: Any, weight: Any, bias: Any) -> Any:
        self.params[name + ".weight"] = weight
        if bias is not None:
            self.params[name + ".bias"] = bias
        return block


def train(cell: CellProcess) -> None:
    """The whole training."""
    builder = Builder()
    net = builder.network(cell.layers)
    context = mx.gpu() if cell.device == "cuda" else mx.cpu()
    net.initialize(mx.init.Zero(), ctx=context)
    for name, value in cell.weights().items():
        builder.params[name].set_data(mx.nd.array(value))
    net.hybridize()
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    store = mx.kv.create("dist_sync") if cell.size > 1 else None
    settings = {"learning_rate": cell.learning_rate, "momentum": cell.momentum, "wd": 0.0}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings, kvstore=store)
    cell.tell(version=mx.__version__)
    cell.begin()
    for inputs, labels in cell.batches():
        with autograd.record():
            logits = net(mx.nd.array(inputs, ctx=context))
            losses = loss_of(logits, mx.nd.array(labels, ctx=context))  # one per sample
        losses.backward()  # their sum: `step` divides by the samples of all workers
        trainer.step(cell.batch)
        loss = losses.mean()
        mx.nd.waitall()  # MXNet returns at once; a step lasts until its update is done
        cell.step_done(loss.asscalar())
    if store is not None:
        store._barrier()


if __name__ == "__main__":
    sys.exit(main(train))
