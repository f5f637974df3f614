"""Trains a small CNN in plain JAX on images it makes itself, data parallel if started as several processes.

python examples/train_jax.py --steps 40
export JAX_COORDINATOR_ADDRESS=localhost:29400 JAX_NUM_PROCESSES=2
JAX_PROCESS_ID=0 python examples/train_jax.py & JAX_PROCESS_ID=1 python examples/train_jax.py; wait
srun -n 2 python examples/train_jax.py            # with JAX_COORDINATOR_ADDRESS set, or names that resolve
"""

import argparse
import functools
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

NUM_CLASSES = 4
SIZE = 32
CHANNELS = ((3, 32), (32, 32), (32, 64), (64, 128))
POOLED = (1, 2)  # blocks followed by a pooling


def join() -> None:
    """Find the other processes: JAX's variables, else Slurm's."""
    num = int(os.environ.get("JAX_NUM_PROCESSES") or os.environ.get("SLURM_NTASKS") or 1)
    if num == 1:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if "JAX_COORDINATOR_ADDRESS" not in os.environ:
        jax.distributed.initialize()
        return
    process = int(os.environ.get("JAX_PROCESS_ID") or os.environ["SLURM_PROCID"])
    jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], num, process)


def batches(size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images of stripes; the class is their direction. Noise makes the task honest."""
    y, x = np.meshgrid(np.arange(SIZE), np.arange(SIZE), indexing="ij")
    patterns = np.stack([np.sin(phase * 0.8) for phase in (x, y, x + y, x - y)])[..., None]
    generator = np.random.default_rng(seed)
    while True:
        labels = generator.integers(0, NUM_CLASSES, size)
        noise = generator.standard_normal((size, SIZE, SIZE, 3), np.float32)
        yield (patterns[labels] + 2.0 * noise).astype(np.float32), labels.astype(np.int32)


def init(key: jax.Array) -> dict[str, Any]:
    keys = iter(jax.random.split(key, len(CHANNELS) + 2))
    normal = jax.nn.initializers.he_normal()
    params = {
        f"conv{index}": {"w": normal(next(keys), (3, 3, inputs, outputs)), "b": jnp.zeros(outputs)}
        for index, (inputs, outputs) in enumerate(CHANNELS)
    }
    params["hidden"] = {"w": normal(next(keys), (128, 256)), "b": jnp.zeros(256)}
    params["head"] = {"w": normal(next(keys), (256, NUM_CLASSES)), "b": jnp.zeros(NUM_CLASSES)}
    return params


def model(params: dict[str, Any], x: jax.Array) -> jax.Array:
    for index in range(len(CHANNELS)):
        with jax.named_scope(f"conv{index}"):
            layer = params[f"conv{index}"]
            x = jax.lax.conv_general_dilated(
                x, layer["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x + layer["b"])
        if index in POOLED:
            with jax.named_scope(f"pool{index}"):
                x = x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).max((2, 4))
    with jax.named_scope("hidden"):
        x = jax.nn.relu(x.mean((1, 2)) @ params["hidden"]["w"] + params["hidden"]["b"])
    with jax.named_scope("head"):
        return x @ params["head"]["w"] + params["head"]["b"]


def loss_of(params: dict[str, Any], images: jax.Array, labels: jax.Array) -> jax.Array:
    logits = model(params, images)
    with jax.named_scope("loss"):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


def step(state: dict[str, Any], images: jax.Array, labels: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """One update by SGD with momentum; runs on each device with its share of the batch."""
    loss, gradients = jax.value_and_grad(loss_of)(state["params"], images, labels)
    gradients = jax.lax.pmean(gradients, "data")
    with jax.named_scope("optimizer"):
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
        params = jax.tree.map(lambda p, m: p - 0.02 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, loss[None]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    args = parser.parse_args()
    join()

    mesh = Mesh(np.array(jax.devices()), ("data",))
    replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    spread = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=(P(), P("data")), check_vma=False
    )
    train_step = jax.jit(spread, donate_argnums=0)

    params = jax.jit(init, out_shardings=replicated)(jax.random.key(0))
    state = {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params)}
    own = functools.partial(jax.make_array_from_process_local_data, split)
    data = batches(args.batch_size, seed=jax.process_index())
    for number in range(args.steps):
        images, labels = next(data)
        state, loss = train_step(state, own(images), own(labels))
        if number % 8 == 0 and jax.process_index() == 0:
            own_loss = loss.addressable_data(0)[0]
            print(f"step {number:3d} loss {float(own_loss):.4f}", flush=True)
    jax.block_until_ready(state)


if __name__ == "__main__":
    main()
