"""Train a small CNN on random images with TensorFlow: a custom loop around one `tf.function`.

    python train_tensorflow.py

Two workers on one machine, each in its own shell:

    cluster='"cluster": {"worker": ["localhost:9901", "localhost:9902"]}'
    TF_CONFIG="{$cluster, \"task\": {\"type\": \"worker\", \"index\": 0}}" python train_tensorflow.py
    TF_CONFIG="{$cluster, \"task\": {\"type\": \"worker\", \"index\": 1}}" python train_tensorflow.py
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf


def build() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((16, 16, 3)),
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
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16, help="images of one worker's step")
    arguments = parser.parse_args()

    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    worker = config.get("task", {}).get("index", 0)
    workers = len(config.get("cluster", {}).get("worker", [])) or 1
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if workers > 1 else tf.distribute.get_strategy()
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build()
        optimizer = tf.keras.optimizers.SGD(0.05)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(images: Any, labels: Any) -> Any:
        def one_replica(images: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, model(images, training=True)) / (arguments.batch * workers)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(one_replica, args=(images, labels)), axis=None)

    dataset = tf.data.Dataset.from_tensor_slices(random_images(8 * arguments.batch, worker))
    batches = iter(dataset.repeat().batch(arguments.batch).prefetch(1))
    for step in range(arguments.steps):
        images, labels = next(batches)
        loss = train_step(images, labels)
        if worker == 0 and step % 10 == 0:
            print(f"step {step}: loss {float(loss):.4f}")
    if worker == 0:
        print(f"trained {arguments.steps} steps, loss {float(loss):.6f}")
        if workers > 1:
            time.sleep(3)  # it coordinates the others: they fail when it leaves before them


if __name__ == "__main__":
    main()
