"""`fit` of Keras on its three backends: one process each, and two where the backend has a way."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.frameworks.tensorflow_support import (
    EXAMPLES,
    GRADIENT_BYTES,
    LAYERS,
    Recorded,
    both_workers,
    free_ports,
    layer_times,
    record,
    record_code,
    tf_configs,
    train,
)

pytest.importorskip("keras", reason="Keras is not installed")
pytestmark = pytest.mark.frameworks
EPOCHS, BATCHES, BATCH = 2, 8, 16
STEPS = EPOCHS * BATCHES
EXAMPLE = (
    *(sys.executable, str(EXAMPLES / "train_keras.py")),
    *("--epochs", str(EPOCHS), "--batches", str(BATCHES), "--batch", str(BATCH)),
)
BACKENDS = ("tensorflow", "jax", "torch")

HEAD = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np, keras
keras.utils.set_random_seed(0)
x, y = np.random.rand(70, 4).astype("f"), np.random.rand(70, 1).astype("f")
layers = [keras.Input((4,)), keras.layers.Dense(3, name="a"), keras.layers.Dense(1, name="b")]
model = keras.Sequential(layers)
"""


def need(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")


@pytest.fixture(scope="module", params=BACKENDS)
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Recorded]:
    backend = str(request.param)
    need(backend)
    return backend, record(*EXAMPLE, cwd=tmp_path_factory.mktemp(backend), KERAS_BACKEND=backend)


def test_every_batch_of_fit_is_a_step(alone: tuple[str, Recorded]) -> None:
    backend, recorded = alone
    assert recorded.errors() == []
    steps = recorded.steps()
    assert [one["step"] for one in steps] == list(range(STEPS))
    assert {one["samples"] for one in steps} == {BATCH}
    meta = recorded.meta()
    assert (meta["framework"]["name"], meta["framework"]["backend"]) == ("keras", backend)
    assert (meta["finished"], meta["gradient_bytes"]) == (True, GRADIENT_BYTES)
    if backend != "tensorflow":
        assert sum(one["input_ns"] > 0 for one in steps) >= STEPS - EPOCHS  # an epoch's last waits for none


def test_the_report_has_throughput_and_layers(alone: tuple[str, Recorded]) -> None:
    backend, recorded = alone
    report = recorded.report()
    assert report["throughput_samples_per_s"] > 0
    parts = report["ranks"][0]["breakdown_ns"]
    assert parts["compute"] > 0
    times = layer_times(report)
    for layer in LAYERS:
        assert times[layer][0] > 0, layer
        assert times[layer][1] > 0, layer
    if backend != "jax":
        assert parts["optimizer"] > 0


def test_the_loss_is_that_of_a_training_without_perfscope(
    alone: tuple[str, Recorded], tmp_path: Path
) -> None:
    backend, recorded = alone
    plain = train(*EXAMPLE, cwd=tmp_path, KERAS_BACKEND=backend)
    assert "loss" in plain.stdout
    assert plain.stdout in recorded.stdout
    assert [line for line in recorded.stderr.splitlines() if "profiler" in line.lower()] == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_train_on_batch_is_a_step_and_evaluation_none(backend: str, tmp_path: Path) -> None:
    need(backend)
    code = HEAD + """
model.compile("sgd", "mse")
for i in range(10):
    model.train_on_batch(x[:8], y[:8])
    if i % 3 == 0: model.evaluate(x, y, verbose=0); model.predict(x, verbose=0)
"""  # fmt: skip
    recorded = record_code(code, tmp_path, KERAS_BACKEND=backend)
    assert recorded.errors() == []
    assert [one["samples"] for one in recorded.steps()] == [8] * 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_validation_is_in_no_step_and_the_last_batch_counts_what_it_holds(
    backend: str, tmp_path: Path
) -> None:
    need(backend)
    code = HEAD + """
import time
class Slow(keras.callbacks.Callback):
    def on_test_begin(self, logs=None): time.sleep(1.5)
model.compile("sgd", "mse")
model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x, y), callbacks=[Slow()])
"""  # fmt: skip
    recorded = record_code(code, tmp_path, KERAS_BACKEND=backend)
    assert recorded.errors() == []
    steps = recorded.steps()
    assert [one["samples"] for one in steps] == [16, 16, 16, 16, 6] * 2
    assert all(one["dur_ns"] < 1_500_000_000 for one in steps[5:])


def test_several_updates_in_one_execution_are_one_step_and_it_is_said(tmp_path: Path) -> None:
    need("tensorflow")
    code = HEAD + """
model.compile("sgd", "mse", steps_per_execution=4)
model.fit(x[:64], y[:64], batch_size=8, epochs=3, verbose=0)
"""  # fmt: skip
    recorded = record_code(code, tmp_path, KERAS_BACKEND="tensorflow")
    assert [one["samples"] for one in recorded.steps()] == [32] * 6
    assert any("steps_per_execution=4" in note for note in recorded.meta()["notes"])


def test_the_last_batch_of_a_dataset_is_not_guessed(tmp_path: Path) -> None:
    need("tensorflow")
    code = HEAD + """
import tensorflow as tf
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
model.fit(data, epochs=2, verbose=0)
def parts():
    for at in range(0, 70, 20): yield x[at : at + 20], y[at : at + 20]
model.fit(parts(), verbose=0)  # the fifth batch is begun and never comes
"""  # fmt: skip
    recorded = record_code(code, tmp_path, KERAS_BACKEND="tensorflow")
    assert [one["samples"] for one in recorded.steps()] == [16, 16, 16, 16, None] * 2 + [None] * 4


def test_a_loop_of_ones_own_on_torch_is_cut_at_its_updates(tmp_path: Path) -> None:
    need("torch")
    code = HEAD + """
import torch
optimizer = keras.optimizers.SGD(0.1)
for _ in range(10):
    loss = ((model(x, training=True) - torch.tensor(y)) ** 2).mean()
    model.zero_grad(); loss.backward()
    gradients = [v.value.grad for v in model.trainable_weights]
    with torch.no_grad(): optimizer.apply(gradients, model.trainable_weights)
"""  # fmt: skip
    recorded = record_code(code, tmp_path, KERAS_BACKEND="torch")
    assert recorded.errors() == []
    assert len(recorded.steps()) == 10
    assert recorded.meta()["framework"]["name"] == "keras"


def test_a_loop_of_ones_own_on_tensorflow_is_tensorflows(tmp_path: Path) -> None:
    need("tensorflow")
    code = HEAD + """
import tensorflow as tf
optimizer = keras.optimizers.Adam()
@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape: loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
for _ in range(10): train_step(x, y)
"""  # fmt: skip
    recorded = record_code(code, tmp_path, KERAS_BACKEND="tensorflow")
    assert recorded.meta()["framework"]["name"] == "tensorflow"
    assert len(recorded.steps()) == 10


def test_two_processes_on_jax(tmp_path: Path) -> None:
    need("jax")
    command = both_workers(tmp_path, *EXAMPLE, JAX_PROCESS_ID=("0", "1"))
    address = f"localhost:{free_ports(1)[0]}"
    recorded = record(
        *command, cwd=tmp_path, KERAS_BACKEND="jax", JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES="2"
    )
    assert recorded.errors() == []
    for rank in (0, 1):
        assert recorded.meta(rank)["world_size"] == 2
        assert len(recorded.steps(rank)) == STEPS
    check_gradients(recorded.report())


def test_two_workers_of_tf_keras(tmp_path: Path) -> None:
    if importlib.util.find_spec("tf_keras") is None:
        pytest.skip("tf_keras is not installed")
    code = """
import json, os, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np, tensorflow as tf, tf_keras as keras
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    layers = [keras.layers.Dense(3, name="a", input_shape=(4,)), keras.layers.Dense(1, name="b")]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
x, y = np.random.rand(64, 4).astype("f"), np.random.rand(64, 1).astype("f")
model.fit(x, y, batch_size=16, epochs=3, verbose=0)
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0: time.sleep(3)
"""
    script = tmp_path / "train.py"
    script.write_text(code)
    command = both_workers(tmp_path, sys.executable, str(script), TF_CONFIG=tf_configs())
    recorded = record(*command, cwd=tmp_path, TF_USE_LEGACY_KERAS="1")
    assert recorded.errors() == []
    for rank in (0, 1):
        assert recorded.meta(rank)["framework"]["package"] == "tf_keras"
        assert [one["samples"] for one in recorded.steps(rank)] == [8] * 12


def check_gradients(report: dict[str, object]) -> None:
    """All-reduces of a mean step carry the gradients and little besides (a loss, counters)."""
    collectives = report["collectives"]
    assert isinstance(collectives, list)
    reduces = [one for one in collectives if one["collective"] == "all_reduce"]
    assert reduces
    traced = [rank["num_traced_steps"] for rank in report["ranks"]]  # type: ignore[attr-defined]
    per_step = sum(one["bytes"] for one in reduces) / max(traced)
    assert GRADIENT_BYTES <= per_step <= GRADIENT_BYTES + 256
