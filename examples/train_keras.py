"""Train a small CNN on random images with Keras's `fit`, on any backend.

    KERAS_BACKEND=tensorflow python train_keras.py        (or jax, or torch)

Two processes (Keras distributes `fit` on JAX), each in its own shell, with JAX_PROCESS_ID=0 and 1:

    KERAS_BACKEND=jax JAX_COORDINATOR_ADDRESS=localhost:9911 JAX_NUM_PROCESSES=2 \
        JAX_PROCESS_ID=0 python train_keras.py
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np


def join_others() -> int:
    """Meets the other processes, if there are any; this one's number."""
    if os.environ["KERAS_BACKEND"] == "jax" and "JAX_COORDINATOR_ADDRESS" in os.environ:
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            os.environ["JAX_COORDINATOR_ADDRESS"],
            int(os.environ["JAX_NUM_PROCESSES"]),
            int(os.environ["JAX_PROCESS_ID"]),
        )
        return int(jax.process_index())
    return 0


def build(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu", name="conv_a"),
            layers.Conv2D(16, 3, activation="relu", name="conv_b"),
            layers.MaxPooling2D(name="pool"),
            layers.Flatten(name="flatten"),
            layers.Dense(10, name="head"),
        ]
    )


def random_images(number: int, seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    images = random.standard_normal((number, 16, 16, 3)).astype("float32")
    return images, random.integers(0, 10, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batches", type=int, default=20, help="batches of an epoch")
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()

    number = join_others()
    import keras  # after the processes have met: it looks for devices

    if os.environ["KERAS_BACKEND"] == "jax" and "JAX_COORDINATOR_ADDRESS" in os.environ:
        # Each process has images of its own: nothing is to be shared out.
        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    keras.utils.set_random_seed(0)
    model = build(keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss=loss)
    images, labels = random_images(arguments.batches * arguments.batch, seed=number)
    history = model.fit(
        images, labels, batch_size=arguments.batch, epochs=arguments.epochs, shuffle=False, verbose=0
    )
    if number == 0:
        print(f"trained {arguments.epochs} epochs, loss {history.history['loss'][-1]:.6f}")


if __name__ == "__main__":
    main()
