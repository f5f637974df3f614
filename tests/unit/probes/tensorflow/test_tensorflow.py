"""Parts of the TensorFlow and Keras probes that need neither: places, batch sizes, stderr, versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import perfscope
from perfscope.probes.keras import describe as keras_describe
from perfscope.probes.tensorflow import describe as tensorflow_describe
from perfscope.probes.tensorflow.graphs import GraphUpdates
from perfscope.probes.tensorflow.stderr_filter import without_lines

BOOTSTRAP = Path(perfscope.__file__).parent / "probes" / "bootstrap"
CLUSTER = {"chief": ["n0:1"], "worker": ["n0:2", "n1:1"], "ps": ["n9:1"]}


def place(monkeypatch: pytest.MonkeyPatch, kind: str, index: int) -> Any:
    config = {"cluster": CLUSTER, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    return tensorflow_describe.identity()


def test_ranks_are_the_tasks_of_tf_config_with_the_chief_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place(monkeypatch, "chief", 0)[:3] == (0, 0, 3)
    assert place(monkeypatch, "worker", 0)[:3] == (1, 1, 3)
    assert place(monkeypatch, "worker", 1)[:3] == (2, 0, 3)
    assert place(monkeypatch, "ps", 0) is None  # it trains nothing


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"cluster": {"worker": ["a:1"]}}', '{"cluster": 3, "task": 4}']
)
def test_a_tf_config_that_says_nothing_is_passed_over(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    assert tensorflow_describe.identity() is None


def test_samples_are_the_leading_dimension_of_the_first_tensor() -> None:
    images, step = np.zeros((7, 3)), np.zeros(())
    assert tensorflow_describe.samples_of(((step, images), {})) == 7
    assert tensorflow_describe.samples_of(((), {"batch": {"x": [images]}})) == 7
    assert tensorflow_describe.samples_of((("text", 3, None), {})) is None
    replicas = type("PerReplica", (), {"values": (np.zeros((2, 1)), np.zeros((3, 1)))})()
    assert tensorflow_describe.samples_of((replicas,)) == 5


def test_the_sizes_of_an_epochs_batches_add_up_to_its_samples() -> None:
    adapter = SimpleNamespace(batch_size=16, num_batches=5, partial_batch_size=6)
    source = SimpleNamespace(data_adapter=adapter, steps_per_epoch=None)
    one, two = keras_describe.EpochBatches(source, 1), keras_describe.EpochBatches(source, 2)
    assert [one.of(first) for first in range(5)] == [16, 16, 16, 16, 6]
    assert [two.of(first) for first in (0, 2, 4)] == [32, 32, 6]
    assert one.exact
    short = SimpleNamespace(data_adapter=adapter, steps_per_epoch=3)
    assert [keras_describe.EpochBatches(short, 1).of(first) for first in range(3)] == [16, 16, 16]


def test_a_source_that_says_nothing_gives_no_sizes() -> None:
    assert keras_describe.EpochBatches(None, 1).of(0) is None


def test_only_marked_lines_are_kept_from_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with without_lines((b"profiler_session.cc",)):
        os.write(2, b"I0000 profiler_session.cc:117] Profiler session initializing.\nmine\n")
        os.write(2, b"half a line")
    os.write(2, b", afterwards\n")
    assert capfd.readouterr().err == "mine\nhalf a line, afterwards\n"


@pytest.mark.parametrize("name", ["tensorflow", "keras"])
def test_an_unknown_version_trains_on_and_one_line_says_what_is_not_recorded(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / f"{name}.py").write_text("__version__ = '9.0'\n")
    script = tmp_path / "train.py"
    script.write_text(f"import {name}\nprint('trained')\n")
    run = tmp_path / "run"
    run.mkdir()
    environment = {
        **os.environ,
        "PERFSCOPE_RUN_DIR": str(run),
        "PERFSCOPE_AGENT": str(BOOTSTRAP / "agent.py"),
        "PERFSCOPE_CONFIG": "{}",
        "PYTHONPATH": str(BOOTSTRAP / "site"),
    }
    ended = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "trained\n", "")
    (line,) = (run / "boot-errors.txt").read_text().splitlines()
    assert f"{name} 9.0 has none of the calls perfscope knows: its training is not recorded" in line
    assert not (run / "ranks").exists()


def operator(graph: object, name: str, *before: Any, control: tuple[Any, ...] = ()) -> Any:
    inputs = [SimpleNamespace(op=one) for one in before]
    return SimpleNamespace(graph=graph, name=name, inputs=inputs, control_inputs=control)


def test_a_run_of_a_session_trains_when_what_it_fetches_depends_on_an_update() -> None:
    graph, other = object(), object()
    loss = operator(graph, "loss")
    update = operator(graph, "update", loss)
    average = operator(graph, "average", control=(update,))
    names = {"average": average, "loss": loss}
    session = SimpleNamespace(graph=SimpleNamespace(as_graph_element=names.__getitem__))
    updates = GraphUpdates()
    assert not updates.known
    updates.add(update, 7)
    assert updates.known
    assert updates.reached_by(session, [SimpleNamespace(op=average), {"l": loss}]) == {7}
    assert updates.reached_by(session, "average") == {7}
    assert updates.reached_by(session, ["loss", None]) == set()
    assert updates.reached_by(session, operator(other, "update")) == set()  # of the same name elsewhere
    updates.add(average, 8)
    assert updates.reached_by(session, average) == {7, 8}
