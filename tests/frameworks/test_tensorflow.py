"""Custom training loops of TensorFlow: one process, and two workers of MultiWorkerMirroredStrategy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.tensorflow_support import (
    EXAMPLES,
    GRADIENT_BYTES,
    LAYERS,
    PERFSCOPE,
    Recorded,
    attempt,
    both_workers,
    layer_times,
    record,
    record_code,
    tf_configs,
    train,
)

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
pytestmark = pytest.mark.frameworks
STEPS = 12
EXAMPLE = (sys.executable, str(EXAMPLES / "train_tensorflow.py"), "--steps", str(STEPS))

HEAD = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np, tensorflow as tf
tf.random.set_seed(0)
x, y = tf.random.normal((8, 4)), tf.random.normal((8, 1))
layers = [tf.keras.Input((4,)), tf.keras.layers.Dense(3, name="a"), tf.keras.layers.Dense(1, name="b")]
model = tf.keras.Sequential(layers)
sgd = tf.keras.optimizers.SGD(0.1)
def loss_of(x, y): return tf.reduce_mean((model(x, training=True) - y) ** 2)
"""
EAGER = """
for _ in range(10):
    with tf.GradientTape() as tape: loss = loss_of(x, y)
    sgd.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""
GRADIENTS_ONLY = """
@tf.function
def gradients(x, y):
    with tf.GradientTape() as tape: loss = loss_of(x, y)
    return tape.gradient(loss, model.trainable_variables)
for _ in range(10): sgd.apply_gradients(zip(gradients(x, y), model.trainable_variables))
"""
ACCUMULATION = """
@tf.function
def gradients(x, y):
    with tf.GradientTape() as tape: loss = loss_of(x, y)
    return tape.gradient(loss, model.trainable_variables)
for _ in range(10):
    parts = [gradients(x, y) for _ in range(3)]
    sums = [sum(one) for one in zip(*parts)]
    sgd.apply_gradients(zip(sums, model.trainable_variables))
"""
GAN = """
other = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1, name="c")])
adam = tf.keras.optimizers.Adam()
@tf.function
def first(x, y):
    with tf.GradientTape() as tape: loss = loss_of(x, y)
    sgd.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
@tf.function
def second(x, y):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(other(x) - y)
    adam.apply_gradients(zip(tape.gradient(loss, other.trainable_variables), other.trainable_variables))
for _ in range(10): first(x, y); second(x, y)
"""
EAGER_GAN = """
other = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1, name="c")])
adam = tf.keras.optimizers.Adam()
data = tf.data.Dataset.from_tensor_slices((np.zeros((80, 4), "f"), np.zeros((80, 1), "f"))).batch(8)
for x, y in data:
    with tf.GradientTape() as tape: loss = loss_of(x, y)
    sgd.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    with tf.GradientTape() as tape: loss = tf.reduce_mean(other(x) - y)
    adam.apply_gradients(zip(tape.gradient(loss, other.trainable_variables), other.trainable_variables))
"""
SAME_CLASS = """
class Player:
    def __init__(self, name):
        self.model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1, name=name)])
        self.optimizer = tf.keras.optimizers.SGD(0.1)
    @tf.function
    def train_step(self, x, y):
        with tf.GradientTape() as tape: loss = tf.reduce_mean((self.model(x) - y) ** 2)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
players = Player("c"), Player("d")
for _ in range(10):
    for player in players: player.train_step(x, y)
"""
SESSION = """
v1 = tf.compat.v1
with tf.Graph().as_default():
    given = v1.placeholder(tf.float32, (None, 4))
    weights = v1.get_variable("layer/w", (4, 1))
    loss = tf.reduce_mean((given @ weights - 1) ** 2)
    update = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for step in range(10):
            session.run(tf.group(update) if step == 0 else update, {given: np.ones((8, 4))})
            session.run(loss, {given: np.ones((80, 4))})
"""
EVALUATING = """
@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape: loss = loss_of(x, y)
    sgd.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss
@tf.function
def evaluate(x, y): return tf.reduce_mean((model(x) - y) ** 2)
for epoch in range(2):
    for _ in range(5): train_step(x, y)
    for _ in range(200): evaluate(x, y)
"""
ITERATOR = """
@tf.function
def train_step(batches):
    x, y = next(batches)
    with tf.GradientTape() as tape: loss = loss_of(x, y)
    sgd.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
data = tf.data.Dataset.from_tensor_slices((np.zeros((40, 4), "f"), np.zeros((40, 1), "f")))
data = data.batch(8, drop_remainder=True)
for epoch in range(2):
    batches = iter(data)
    try:
        while True: train_step(batches)
    except tf.errors.OutOfRangeError: pass
"""
METHODS = """
class Trainer:
    @tf.function
    def one(self, x, y):
        with tf.GradientTape() as tape: loss = loss_of(x, y)
        self.update(tape.gradient(loss, model.trainable_variables))
    @tf.function
    def update(self, gradients): sgd.apply_gradients(zip(gradients, model.trainable_variables))
trainer = Trainer()
for _ in range(10): trainer.one(x, y)
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(*EXAMPLE, cwd=tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def report(alone: Recorded) -> dict[str, Any]:
    return alone.report()


def test_every_call_of_the_train_function_is_a_step(alone: Recorded) -> None:
    assert alone.errors() == []
    steps = alone.steps()
    assert [one["step"] for one in steps] == list(range(STEPS))
    assert {one["samples"] for one in steps} == {16}
    assert all(one["input_ns"] > 0 for one in steps[:-1])  # each waits for the next one's batch
    meta = alone.meta()
    assert meta["framework"]["name"] == "tensorflow"
    assert (meta["finished"], meta["device"], meta["gradient_bytes"]) == (True, "cpu", GRADIENT_BYTES)


def test_the_report_names_layers_and_splits_forward_and_backward(report: dict[str, Any]) -> None:
    assert report["throughput_samples_per_s"] > 0
    times = layer_times(report)
    for layer in LAYERS:
        assert times[layer][0] > 0, layer
        assert times[layer][1] > 0, layer
    parts = report["ranks"][0]["breakdown_ns"]
    assert parts["compute"] > 0
    assert parts["optimizer"] > 0
    assert parts["exposed_comm"] == 0


def test_training_and_what_it_prints_are_as_without_perfscope(alone: Recorded, tmp_path: Path) -> None:
    plain = train(*EXAMPLE, cwd=tmp_path)
    assert plain.stdout == "".join(line for line in alone.stdout.splitlines(True) if "perfscope" not in line)
    own = [line for line in alone.stderr.splitlines() if "profiler" in line.lower()]
    assert own == []


@pytest.mark.parametrize(
    ("loop", "samples"),
    [
        (EAGER, None), (GRADIENTS_ONLY, 8), (ACCUMULATION, 24), (GAN, 8), (EVALUATING, 8), (ITERATOR, 8),
        (METHODS, 8), (EAGER_GAN, 8), (SAME_CLASS, 8), (SESSION, 8),
    ],
    ids=[
        "eager", "gradients only", "accumulation", "gan", "evaluating", "iterator", "methods", "eager gan",
        "two of a class", "session",
    ],
)  # fmt: skip
def test_ten_updates_are_ten_steps(tmp_path: Path, loop: str, samples: int | None) -> None:
    recorded = record_code(HEAD + loop, tmp_path)
    assert recorded.errors() == []
    assert len(recorded.steps()) == 10
    assert {one["samples"] for one in recorded.steps()} == {samples}


def test_a_process_that_infers_leaves_nothing(tmp_path: Path) -> None:
    code = HEAD + "infer = tf.function(model)\nfor _ in range(20): infer(x)\n"
    recorded = record_code(code, tmp_path)
    assert recorded.errors() == []
    assert not list(recorded.run.glob("ranks/*"))


def test_a_training_that_profiles_itself_gets_its_profile(tmp_path: Path) -> None:
    code = HEAD + """
@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape: loss = loss_of(x, y)
    sgd.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
for step in range(12):
    if step == 4: tf.profiler.experimental.start("own")
    train_step(x, y)
    if step == 8: tf.profiler.experimental.stop()
import glob
print(len(glob.glob("own/**/*.xplane.pb", recursive=True)), "profile of its own")
"""  # fmt: skip
    recorded = record_code(code, tmp_path)
    assert "1 profile of its own" in recorded.stdout
    assert recorded.errors() == []
    assert len(recorded.steps()) == 12


def test_a_failing_training_fails_as_it_would(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(HEAD + EVALUATING + "raise SystemExit(7)\n")
    run = (*PERFSCOPE, "run", "-o", str(tmp_path / "run"), "--", sys.executable, str(script))
    ended = attempt(*run, cwd=tmp_path)
    assert ended.returncode == 7
    assert len(Recorded(tmp_path / "run", "", "").steps()) == 10


def pair(folder: Path, **changes: str) -> Recorded:
    command = both_workers(folder, *EXAMPLE, TF_CONFIG=tf_configs())
    return record(*command, cwd=folder, **changes)


def test_two_workers_are_two_ranks_with_steps_and_without_windows(tmp_path: Path) -> None:
    recorded = pair(tmp_path)
    assert recorded.errors() == []
    for rank in (0, 1):
        meta = recorded.meta(rank)
        assert (meta["rank"], meta["world_size"], meta["rank_source"]) == (rank, 2, "TF_CONFIG")
        assert len(recorded.steps(rank)) == STEPS
        assert meta["gradient_bytes"] == GRADIENT_BYTES
        assert any("crashes" in one["reason"] for one in meta["missing"])
    assert not list(recorded.run.glob("ranks/*/windows/*"))
    report = recorded.report()
    assert report["throughput_samples_per_s"] > 0


def test_collectives_of_two_workers_carry_the_gradients(tmp_path: Path) -> None:
    """The profiler crashes a worker now and then, which is why it is off: then it is tried again."""
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = both_workers(folder, *EXAMPLE, TF_CONFIG=tf_configs())
        run = (*PERFSCOPE, "run", "-o", str(folder / "run"), "--", *command)
        ended = attempt(*run, cwd=folder, PERFSCOPE_TF_PROFILE="1")
        if ended.returncode == 0:
            break
    else:
        pytest.fail(f"crashed four times: {ended.stderr[-3000:]}")
    recorded = Recorded(folder / "run", "", "")
    report = recorded.report()
    reduces = [one for one in report["collectives"] if one["collective"] == "all_reduce"]
    steps = {rank["num_traced_steps"] for rank in report["ranks"]}
    assert len(steps) == 1
    # Beside the gradients of a step only its loss, a float32, is reduced.
    assert sum(one["bytes"] for one in reduces) == (GRADIENT_BYTES + 4) * steps.pop()
    assert {(one["group"], one["group_size"]) for one in reduces} == {("workers", 2)}
    assert layer_times(report)["conv_b"][1] > 0
