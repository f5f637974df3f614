"""Real JAX trainings with the agent in place: steps, samples, windows, layers, collectives."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfscope.ingest.formats.jax import read_jax
from tests.probe.conftest import Recorded, environment

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed here"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_jax.py"
CHANNELS = ((3, 32), (32, 32), (32, 64), (64, 128))
NUM_PARAMS = sum(9 * i * o + o for i, o in CHANNELS) + (128 * 256 + 256) + (256 * 4 + 4)
LAYERS = {"conv0", "conv1", "conv2", "conv3", "hidden", "head"}
HEAD = """
import functools, os, sys
import jax, jax.numpy as jnp, numpy as np
x, y = np.ones((6, 4), np.float32), np.ones((6, 3), np.float32)
p = {"w": jnp.full((4, 3), 0.1), "b": jnp.zeros(3)}
def loss_of(p, x, y): return ((x @ p["w"] + p["b"] - y) ** 2).mean()
def sgd(p, g): return jax.tree.map(lambda a, b: a - 0.1 * b, p, g)
def update(p, x, y):
    loss, g = jax.value_and_grad(loss_of)(p, x, y)
    return sgd(p, g), loss
"""

Train = Callable[..., Recorded]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    def run(code: str, *args: str, script: Path | None = None, **config: Any) -> Recorded:
        if script is None:
            script = tmp_path / "train.py"
            script.write_text(HEAD + textwrap.dedent(code))
        run_dir = tmp_path / "run"
        run_dir.mkdir(exist_ok=True)
        variables = {**environment(run_dir, **config), "NPROC": "1", "JAX_PLATFORMS": "cpu"}
        process = subprocess.run(
            [sys.executable, str(script), *args],
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        recorded = Recorded(run_dir, process)
        assert recorded.errors() == []
        return recorded

    return run


def samples(recorded: Recorded, rank: int = 0) -> list[int | None]:
    return [one["samples"] for one in recorded.steps(rank)]


# -- which calls are steps --------------------------------------------------------------------------------

LOOP = """
step = jax.jit(update)
for _ in range(12): p, loss = step(p, x, y)
"""
OTHERS = """
step = jax.jit(update, donate_argnums=0)
evaluate = jax.jit(lambda p, x, y: loss_of(p, x, y))
init = jax.jit(lambda key: {"w": jax.random.normal(key, (4, 3)), "b": jnp.zeros(3)})
@jax.jit
def augment(key, x):
    key, own = jax.random.split(key)
    return key, x + jax.random.normal(own, x.shape)
@jax.jit
def mean(total, loss): return total * 0.9 + loss
key, total, p = jax.random.key(0), jnp.float32(0), init(jax.random.key(1))
for i in range(12):
    key, batch = augment(key, x)
    p, loss = step(p, batch, y)
    total = mean(total, loss)
    if i % 4 == 3:
        for _ in range(9): evaluate(p, x, y)
"""
AVERAGED = """
step = jax.jit(update)
@jax.jit
def average(old, new): return jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old, new)
ema = jax.tree.map(jnp.copy, p)
for _ in range(12):
    ema = average(ema, p)
    p, loss = step(p, x, y)
"""
TWO_FUNCTIONS = """
gradients, apply = jax.jit(jax.value_and_grad(loss_of)), jax.jit(sgd)
for _ in range(12):
    loss, g = gradients(p, x, y)
    p = apply(p, g)
"""
MICRO_BATCHES = """
gradients, apply = jax.jit(jax.grad(loss_of)), jax.jit(sgd)
for _ in range(12):
    g = gradients(p, x[:2], y[:2])
    for part in (slice(2, 4), slice(4, 6)):
        g = jax.tree.map(jnp.add, g, gradients(p, x[part], y[part]))
    p = apply(p, g)
"""
ADDED_UP = """
gradients, apply = jax.jit(jax.grad(loss_of)), jax.jit(sgd, donate_argnums=0)
add = jax.jit(lambda one, other: jax.tree.map(jnp.add, one, other))
for _ in range(12):
    g = gradients(p, x[:1], y[:1])
    for part in range(1, 6): g = add(g, gradients(p, x[part : part + 1], y[part : part + 1]))
    p = apply(p, g)
"""
THREE_FUNCTIONS = """
gradients = jax.jit(jax.grad(loss_of))
moments = jax.jit(lambda g, m: (jax.tree.map(lambda a, b: 0.9 * a + b, m, g), jax.tree.map(jnp.negative, g)))
apply = jax.jit(lambda p, u: jax.tree.map(lambda a, b: a + 0.1 * b, p, u))
m = jax.tree.map(jnp.zeros_like, p)
for _ in range(12):
    m, u = moments(gradients(p, x, y), m)
    p = apply(p, u)
"""
GIVEN_AWAY = """
step = jax.jit(update)
average = jax.jit(lambda p: jax.tree.map(lambda a: 0.9 * a, p), donate_argnums=0)
for _ in range(12):
    p, loss = step(p, x, y)
    p = average(p)
"""
UPDATE_OUTSIDE = """
gradients = jax.jit(jax.grad(loss_of))
for _ in range(12): p = sgd(p, gradients(p, x, y))
"""
JITTED_EACH_TIME = """
for _ in range(12): p, loss = jax.jit(update)(p, x, y)
"""
METHOD = """
class Trainer:
    @functools.partial(jax.jit, static_argnums=(0,), static_argnames=("flag",))
    def step(self, p, batch, flag=False): return update(p, batch["image"], batch["target"])
trainer = Trainer()
for _ in range(12): p, loss = trainer.step(p, batch={"image": x, "target": y}, flag=True)
"""
PMAP = """
step = jax.pmap(update)
p = jax.tree.map(lambda a: a[None], p)
for _ in range(12): p, loss = step(p, x[None], y[None])
"""
NEW_FUNCTION_EACH_EPOCH = """
for epoch in range(3):
    step = jax.jit(functools.partial(lambda rate, p, x, y: update(p, x, y), 0.1 * epoch))
    for _ in range(4): p, loss = step(p, x, y)
"""
AHEAD_OF_TIME = """
step = jax.jit(update).lower(p, x, y).compile()
for _ in range(12): p, loss = step(p, x, y)
"""


@pytest.mark.parametrize(
    "loop",
    [
        LOOP, OTHERS, AVERAGED, TWO_FUNCTIONS, MICRO_BATCHES, ADDED_UP, THREE_FUNCTIONS, GIVEN_AWAY,
        UPDATE_OUTSIDE, JITTED_EACH_TIME, METHOD, PMAP, NEW_FUNCTION_EACH_EPOCH, AHEAD_OF_TIME,
    ],
    ids=[
        "loop", "other functions", "average of weights", "two functions", "micro-batches",
        "gradients added up", "three functions", "results given away", "update outside jit",
        "jitted each time", "method", "pmap", "a function an epoch", "ahead of time",
    ],
)  # fmt: skip
def test_twelve_updates_are_twelve_steps(train: Train, loop: str) -> None:
    recorded = train(loop)
    assert [one["step"] for one in recorded.steps()] == list(range(12))
    assert samples(recorded) == [6] * 12
    assert recorded.meta()["framework"]["name"] == "jax"
    assert recorded.meta()["finished"] is True


def test_a_scan_through_the_batch_is_one_step_of_many_updates(train: Train) -> None:
    recorded = train(
        """
        @jax.jit
        def epoch(p, xs, ys): return jax.lax.scan(lambda p, batch: update(p, *batch), p, (xs, ys))
        for _ in range(8): p, losses = epoch(p, np.stack([x] * 5), np.stack([y] * 5))
        """
    )
    assert samples(recorded)[4:] == [5 * 6] * 4
    assert set(samples(recorded)) <= {5 * 6, None}
    assert any("makes 5 updates" in note for note in recorded.meta()["notes"])


SLOW = """
import time
def slow(v): time.sleep(0.03); return v
@jax.jit
def step(p, x, y):
    p, loss = update(p, x, y)
    return p, jax.pure_callback(slow, jax.ShapeDtypeStruct((), jnp.float32), loss)
for _ in range(12): p, loss = step(p, x, y)
"""


@pytest.mark.parametrize(
    "read",
    [
        "jax.block_until_ready(loss)",
        "p['w'].block_until_ready()",
        "print(loss)",
        "float(loss)",
        "loss.item()",
    ],
)
def test_reading_a_result_ends_the_last_steps(train: Train, read: str) -> None:
    recorded = train(SLOW + read, trace=False)
    steps = recorded.steps()
    assert len(steps) == 12
    assert sum(one["dur_ns"] for one in steps[1:]) >= 11 * 30_000_000  # sleeps are lower bounds
    assert recorded.meta()["notes"] == []


def test_what_a_step_was_compiled_is_its_own_time(train: Train) -> None:
    recorded = train(
        """
        import time
        def slow(v): time.sleep(0.01); return v
        def wait(p, x, y):
            time.sleep(0.5)  # while it is traced: once for each shape
            p, loss = update(p, x, y)
            return p, jax.pure_callback(slow, jax.ShapeDtypeStruct((), jnp.float32), loss)
        step = jax.jit(wait)
        for i in range(12): p, loss = step(p, x[: 5 if i == 8 else 6], y[: 5 if i == 8 else 6])
        float(loss)
        """,
        trace=False,
    )
    times = [one["dur_ns"] for one in recorded.steps()]
    assert times[8] >= 500_000_000
    assert max(times[5:8] + times[9:]) < times[8] / 2


def test_what_gives_nothing_back_is_no_training(train: Train) -> None:
    recorded = train(
        """
        infer = jax.jit(lambda p, x: x @ p["w"] + p["b"])
        @jax.jit
        def count(total, loss): return total + loss
        total = jnp.float32(0)
        for _ in range(30): total = count(total, infer(p, x).mean())
        """
    )
    assert list(recorded.run.iterdir()) == []


def test_two_steps_are_enough(train: Train) -> None:
    assert len(train("step = jax.jit(update)\nfor _ in range(2): p, loss = step(p, x, y)\n").steps()) == 2


def test_steps_that_the_program_marks_come_first(train: Train) -> None:
    recorded = train(
        """
        import perfscope
        step = jax.jit(update)
        for _ in range(5):
            perfscope.step(samples=17)
            for _ in range(4): p, loss = step(p, x, y)
        perfscope.step()
        """
    )
    assert samples(recorded)[:5] == [17] * 5
    assert recorded.meta()["framework"]["name"] == "jax"
    # Windows are by JAX's own profiler all the same, and hold the work of whole steps.
    rows = read_jax(recorded.rank() / "windows" / "0.jax.xplane.pb").table(0, 0).to_pylist()
    work = Counter(row["step"] for row in rows if row["kind"] == "compute" and row["flops"])
    assert set(work) == {3, 4} and work[3] == work[4] >= 4


# -- jax.jit stays what it was ----------------------------------------------------------------------------


def test_jitted_functions_can_do_all_they_could(train: Train) -> None:
    recorded = train(
        """
        import inspect, pickle, weakref
        from jax import jit
        @functools.partial(jit, static_argnames=("n",))
        def power(x, n):
            "Doc."
            return x ** n
        assert power(jnp.float32(3), n=2) == 9
        assert power.__name__ == "power" and power.__doc__ == "Doc." and power.__module__ == "__main__"
        assert list(inspect.signature(power).parameters) == ["x", "n"]
        assert power.__wrapped__(2, 3) == 8
        assert "power" in repr(power) and weakref.ref(power)() is power and {power: 1}[power] == 1
        assert "HloModule" in power.lower(jnp.float32(3), n=2).compile().as_text()
        assert power.trace(jnp.float32(3), n=2).jaxpr is not None
        assert power.eval_shape(jnp.float32(3), n=2).shape == ()
        assert isinstance(power, jax.stages.Wrapped) and isinstance(power, type(jit(update)))
        assert power._cache_size() == 1
        power.clear_cache()
        assert power._cache_size() == 0
        power.note = 5
        assert power.note == 5
        square = jit(lambda x: (x ** 2).sum())
        assert jax.grad(square)(jnp.float32(3)) == 6
        assert jax.vmap(square)(jnp.arange(3.0)).tolist() == [0, 1, 4]
        assert jit(square)(jnp.float32(3)) == 9 and jit(jit(square))(jnp.float32(2)) == 4
        assert jax.jacfwd(square)(jnp.float32(3)) == 6 and jax.hessian(square)(jnp.float32(3)) == 2
        assert "jit[" in str(jax.make_jaxpr(square)(3.0))
        assert jax.lax.map(square, jnp.arange(3.0)).tolist() == [0, 1, 4]
        assert jax.checkpoint(square)(jnp.float32(3)) == 9
        assert jax.eval_shape(square, jnp.float32(3)).shape == ()
        from jax import export
        assert export.export(square)(jax.ShapeDtypeStruct((), jnp.float32)).call(jnp.float32(3)) == 9
        class Box:
            @functools.partial(jit, static_argnums=0)
            def twice(self, x): return 2 * x
            @jit
            def both(x): return x
        assert Box().twice(3) == 6 and Box.both(3) == 3
        buffer = jnp.ones(1000)
        jit(lambda a: a + 1, donate_argnums=0)(buffer)
        assert buffer.is_deleted()
        try: power(3)
        except TypeError as error: assert "n" in str(error)
        else: raise SystemExit("no error")
        with jax.disable_jit(): assert square(jnp.float32(3)) == 9
        decorator = jit(static_argnums=1) if "fun" in inspect.signature(jit).parameters else None
        assert inspect.signature(jit).parameters
        """
    )
    assert list(recorded.run.iterdir()) == []


def test_an_error_inside_a_step_is_the_same(train: Train) -> None:
    recorded = train(
        """
        step = jax.jit(lambda p, x: p @ x)
        try: step(jnp.ones((2, 3)), jnp.ones((2, 3)))
        except TypeError as error: print(error)
        """
    )
    assert "dot_general requires contracting dimensions to have the same shape" in recorded.process.stdout


def test_a_profiler_of_the_training_gets_its_trace(train: Train, tmp_path: Path) -> None:
    recorded = train(
        """
        step = jax.jit(update)
        for i in range(12):
            if i == 4: jax.profiler.start_trace("own")
            p, loss = step(p, x, y)
            if i == 6: jax.profiler.stop_trace()
        """
    )
    assert len(recorded.steps()) == 12
    assert list((tmp_path / "own").rglob("*.xplane.pb"))
    assert (recorded.rank() / "windows" / "0.jax.xplane.pb").exists()


def test_an_unknown_profiler_costs_the_windows_and_nothing_else(train: Train) -> None:
    recorded = train("import jax._src.profiler as own; del own._profiler\n" + LOOP)
    assert len(recorded.steps()) == 12
    assert any("no profiler session" in note for note in recorded.meta()["notes"])
    assert not (recorded.rank() / "windows").exists()


def test_steps_that_run_ahead_share_the_time_their_work_took(train: Train) -> None:
    steps = train(SLOW + "jax.block_until_ready((p, loss))", trace=False).steps()
    assert all(one["start_ns"] + one["dur_ns"] == two["start_ns"] for one, two in pairwise(steps))


def test_a_jax_that_nobody_knows_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("__version__ = '99.0'\ndef jit(fun): return fun\n")
    run = tmp_path / "run"
    run.mkdir()
    code = "import jax; print(jax.jit(lambda x: x + 1)(1))"
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(run),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (process.stdout, process.stderr) == ("2\n", "")
    errors = (run / "boot-errors.txt").read_text().splitlines()
    assert len(errors) == 1
    assert "JAX 99.0" in errors[0] and "its steps are not recorded" in errors[0]


# -- the example ------------------------------------------------------------------------------------------


def table(run: Path, rank: int = 0, window: int = 0) -> Any:
    """The timeline of a window as rows, steps only."""
    path = run / "derived" / "timeline" / f"rank-{rank:05d}-window-{window:03d}.parquet"
    return [row for row in pq.read_table(path, partitioning=None).to_pylist() if row["step"] >= 0]


def report(run: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "perfscope", "report", str(run), "--json"]
    told = subprocess.run(command, capture_output=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def perfscope_run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "perfscope", "run", "-o", str(folder / "run"), "--", *command]
    return subprocess.run(
        launch,
        env={**os.environ, "NPROC": "1", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run directory of the example in one process, and what it printed."""
    folder = tmp_path_factory.mktemp("alone")
    process = perfscope_run(folder, sys.executable, str(EXAMPLE), "--steps", "10", "--batch-size", "8")
    return folder / "run", process.stdout


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with two processes."""
    folder = tmp_path_factory.mktemp("pair")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    both = (
        "JAX_PROCESS_ID=1 $0 $1 --steps 10 --batch-size 8 & other=$!; "
        "JAX_PROCESS_ID=0 $0 $1 --steps 10 --batch-size 8 && wait $other"
    )
    address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    perfscope_run(folder, "sh", "-c", both, sys.executable, str(EXAMPLE), **address)
    return folder / "run"


def test_losses_are_those_of_a_training_without_perfscope(alone: tuple[Path, str]) -> None:
    bare = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps", "10", "--batch-size", "8"],
        env={**os.environ, "NPROC": "1", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    losses = re.findall(r"loss ([\d.]+)", bare.stdout)
    assert len(losses) == 2
    assert re.findall(r"loss ([\d.]+)", alone[1]) == losses


def test_the_report_of_one_process_has_speed_and_layers_both_ways(alone: tuple[Path, str]) -> None:
    found = report(alone[0])
    assert found["throughput_samples_per_s"] > 0
    layers = {one["layer"]: one for one in found["layers"]}
    assert set(layers) >= LAYERS
    for name in LAYERS:
        assert layers[name]["forward_ns"] > 0 and layers[name]["backward_ns"] > 0
    for index, (inputs, outputs) in enumerate(CHANNELS):
        side = 32 // (1, 1, 2, 4)[index]
        forward = 2 * 8 * side * side * 9 * inputs * outputs
        layer = layers[f"conv{index}"]
        assert layer["num_params"] == 9 * inputs * outputs + outputs
        assert layer["forward_flops"] == forward
        # the first layer's input needs no gradient
        assert layer["backward_flops"] == (forward if index == 0 else 2 * forward)
    assert found["collectives"] == []  # a mean over one device moves nothing
    parts = found["ranks"][0]["breakdown_ns"]
    assert parts["compute"] > 0.2 * sum(part or 0 for part in parts.values())
    assert parts["optimizer"] > 0 and parts["exposed_comm"] == 0


def test_most_of_the_operators_time_has_a_layer(alone: tuple[Path, str]) -> None:
    report(alone[0])
    rows = [row for row in table(alone[0]) if row["kind"] == "compute"]
    total = sum(row["dur_ns"] for row in rows)
    assert sum(row["dur_ns"] for row in rows if row["layer"]) > 0.6 * total
    assert {row["phase"] for row in rows} >= {"forward", "backward", "optimizer"}
    assert {row["layer"] for row in rows if row["phase"] == "optimizer"} == {"optimizer"}
    assert not any("Execute" in row["name"] for row in rows)  # what encloses others is no computation


def test_two_processes_are_two_ranks_that_reduce_their_gradients(pair: Path) -> None:
    for rank in (0, 1):
        recorded = Recorded(pair, subprocess.CompletedProcess([], 0, "", ""))
        assert recorded.errors() == []
        assert samples(recorded, rank) == [8] * 10
        meta = recorded.meta(rank)
        assert (meta["rank_source"], meta["world_size"], meta["backend"]) == ("jax.distributed", 2, "gloo")
        assert meta["groups"][0]["ranks"] == [0, 1]
        assert meta["root"]["dp_size"] == 2
    found = report(pair)
    assert len(found["collectives"]) == 1
    reduce = found["collectives"][0]
    assert (reduce["collective"], reduce["group"], reduce["group_size"]) == ("all_reduce", "jax", 2)
    assert reduce["num_matched"] == 2
    assert reduce["bytes"] == 2 * 4 * NUM_PARAMS  # of two traced steps, float32
    for rank in (0, 1):
        calls = [row for row in table(pair, rank) if row["kind"] == "comm"]
        assert [row["in_bytes"] for row in calls] == [4 * NUM_PARAMS] * 2
    steps = [Recorded(pair, subprocess.CompletedProcess([], 0, "", "")).steps(rank) for rank in (0, 1)]
    assert [one["window"] for one in steps[0]] == [one["window"] for one in steps[1]]
    assert found["throughput_samples_per_s"] > 0
