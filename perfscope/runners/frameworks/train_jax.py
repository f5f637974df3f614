"""The CNN in plain JAX: `python train_jax.py CONFIG.json`.

Several processes: jax.distributed with gloo, one device each, the step under shard_map with pmean.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from perfscope.runners.frameworks.layouts import conv_to_hwio, linear_to_in_out
    from perfscope.runners.frameworks.train_common import CellProcess, main

    Arrays = dict[str, Any]
else:
    from layouts import conv_to_hwio, linear_to_in_out
    from train_common import CellProcess, main

_MAPS = ("NHWC", "HWIO", "NHWC")


def initial(layers: list[dict[str, Any]], weights: Arrays) -> tuple[Arrays, Arrays]:
    """(weights that are trained, running statistics), by name, in JAX's layout."""
    params: Arrays = {}
    running: Arrays = {}
    for layer in layers:
        name, op = layer["name"], layer["op"]
        if op in ("residual", "branches"):
            inner = [layer["body"], layer["shortcut"]] if op == "residual" else layer["branches"]
            for part in inner:
                more = initial(part if op == "residual" else part["layers"], weights)
                params.update(more[0])
                running.update(more[1])
        elif op == "conv":
            params[name + ".weight"] = conv_to_hwio(weights[name + ".weight"])
        elif op == "linear":
            params[name + ".weight"] = linear_to_in_out(weights[name + ".weight"], layer["flattened"])
        elif op == "norm":
            params[name + ".weight"] = weights[name + ".weight"]
            running[name + ".mean"] = np.zeros(layer["channels"], np.float32)
            running[name + ".var"] = np.ones(layer["channels"], np.float32)
        if op in ("conv", "linear", "norm") and name + ".bias" in weights:
            params[name + ".bias"] = weights[name + ".bias"]
    return params, running


def forward(layers: list[dict[str, Any]], params: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    """(outputs, running statistics after this batch); x: (N, H, W, C)."""
    for layer in layers:
        with jax.named_scope(layer["name"]):
            x, running = _apply(layer, params, running, x)
    return x, running


def _apply(layer: dict[str, Any], params: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    op, name = layer["op"], layer["name"]
    if op == "conv":
        pads = [(pad, pad) for pad in layer["padding"]]
        x = lax.conv_general_dilated(
            x, params[name + ".weight"], layer["stride"], pads, dimension_numbers=_MAPS
        )
        return (x + params[name + ".bias"] if layer["bias"] else x), running
    if op == "norm":
        return _norm(layer, params, running, x)
    if op == "relu":
        return jax.nn.relu(x), running
    if op == "max_pool":
        pads = [(0, 0), *((pad, pad) for pad in layer["padding"]), (0, 0)]
        window, stride = (1, *layer["kernel"], 1), (1, *layer["stride"], 1)
        return lax.reduce_window(x, -jnp.inf, lax.max, window, stride, pads), running
    if op == "mean_pool":
        window = (1, *layer["kernel"], 1)
        return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / np.prod(window), running
    if op == "flatten":
        return x.reshape(len(x), -1), running
    if op == "linear":
        return x @ params[name + ".weight"] + params[name + ".bias"], running
    if op == "residual":
        body, running = forward(layer["body"], params, running, x)
        shortcut, running = forward(layer["shortcut"], params, running, x)
        return jax.nn.relu(body + shortcut), running
    assert op == "branches", op
    outputs = []
    for branch in layer["branches"]:
        out, running = forward(branch["layers"], params, running, x)
        outputs.append(out)
    return jnp.concatenate(outputs, axis=-1), running


def _norm(layer: dict[str, Any], params: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    name, momentum = layer["name"], layer["momentum"]
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    keep = 1 - momentum  # torch's momentum is the new batch's part
    running = {
        **running,
        name + ".mean": keep * running[name + ".mean"] + momentum * lax.stop_gradient(mean),
        name + ".var": keep * running[name + ".var"] + momentum * lax.stop_gradient(var),
    }
    scale = params[name + ".weight"] * lax.rsqrt(var + layer["eps"])
    return (x - mean) * scale + params[name + ".bias"], running


def loss_of(
    params: Arrays, running: Arrays, x: Any, labels: Any, layers: list[dict[str, Any]]
) -> tuple[Any, Arrays]:
    """(mean cross entropy, running statistics)."""
    logits, running = forward(layers, params, running, x)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)
    return -picked.mean(), running


def train_step(
    params: Arrays, velocity: Arrays, running: Arrays, x: Any, labels: Any, cell: CellProcess
) -> tuple[Arrays, Arrays, Arrays, Any]:
    """One update by SGD: v = mu v + g, w = w - eta v, as torch has it."""
    of_loss = functools.partial(loss_of, layers=cell.layers)
    (loss, running), grads = jax.value_and_grad(of_loss, has_aux=True)(params, running, x, labels)
    if cell.size > 1:
        grads, loss = lax.pmean((grads, loss), "data")
    if cell.momentum:
        grads = velocity = jax.tree.map(lambda v, g: cell.momentum * v + g, velocity, grads)
    params = jax.tree.map(lambda w, g: w - cell.learning_rate * g, params, grads)
    return params, velocity, running, loss


def train(cell: CellProcess) -> None:
    """The whole training."""
    params, running = initial(cell.layers, cell.weights())
    velocity = jax.tree.map(np.zeros_like, params) if cell.momentum else {}
    step = functools.partial(train_step, cell=cell)
    make_array: Any = jnp.asarray
    if cell.size > 1:
        mesh = jax.make_mesh((cell.size,), ("data",))
        replicated, parts = PartitionSpec(), PartitionSpec("data")
        split = NamedSharding(mesh, parts)
        every = NamedSharding(mesh, replicated)
        step = jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(replicated, replicated, replicated, parts, parts),
            out_specs=replicated,
            check_vma=False,  # gradients stay local until our pmean; statistics differ from rank to rank
        )
        make_array = functools.partial(jax.make_array_from_process_local_data, split)
        copy = functools.partial(jax.make_array_from_process_local_data, every)
        params, velocity, running = jax.tree.map(copy, (params, velocity, running))
    compiled = jax.jit(step)
    cell.tell(version=jax.__version__)
    cell.begin()
    for inputs, labels in cell.batches():
        x, y = make_array(inputs), make_array(labels)
        params, velocity, running, loss = compiled(params, velocity, running, x, y)
        jax.block_until_ready((params, loss))  # JAX returns at once; a step lasts until its update is done
        cell.step_done(float(loss))


def start(cell: CellProcess) -> None:
    """Meet the other processes, train, part."""
    if cell.size > 1:
        import os

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], cell.size, cell.rank)
    train(cell)
    if cell.size > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    sys.exit(main(start))
