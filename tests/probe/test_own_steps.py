"""Steps that a program without a known framework marks itself, with `perfscope.step()`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.ingest.run import ingest_run
from tests.probe.conftest import Train

LOOP = """
import time, perfscope
for number in range(8):
    perfscope.step(samples=4)
    time.sleep(0.01)
perfscope.step()
print("done")
"""


def test_a_loop_that_calls_step_is_cut_into_its_steps(train: Train) -> None:
    recorded = train(LOOP, overhead=0.5)
    assert recorded.errors() == []
    steps = recorded.steps()
    assert [step["step"] for step in steps] == list(range(9))[:-1]
    assert all(step["samples"] == 4 for step in steps)
    assert all(step["dur_ns"] > 8e6 for step in steps)
    meta = recorded.meta()
    assert meta["framework"]["name"] == "python" and meta["finished"] and meta["num_steps"] == 8
    assert recorded.process.stdout == "done\n"


def test_its_windows_hold_the_steps_and_ingest_takes_the_rest_for_computation(train: Train) -> None:
    recorded = train(LOOP, overhead=0.5)
    (recorded.run / "run.json").write_text(json.dumps({"schema_version": 1, "perfscope_version": "0"}))
    summary = ingest_run(recorded.run)[0]
    assert [step for step, _, _ in summary.steps] == [3, 4, 5]
    assert summary.events_kept == 3 and summary.lanes[0].role == "main"


def test_outside_perfscope_step_does_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOP], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "done\n" and done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_is_a_rank_of_its_own_only_once_it_steps(train: Train) -> None:
    recorded = train(
        """
        import os, perfscope
        for _ in range(4):
            perfscope.step()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert recorded.errors() == []
    assert [path.name for path in (recorded.run / "ranks").iterdir()] == ["0"]
    assert len(recorded.steps()) == 3


def test_a_training_of_torch_keeps_its_own_steps(train: Train) -> None:
    recorded = train(
        """
        import torch, perfscope
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            perfscope.step(samples=999)
        """
    )
    assert recorded.errors() == []
    assert [step["samples"] for step in recorded.steps()] == [2] * 6
    assert recorded.meta()["framework"]["name"] == "torch"


def test_what_is_no_number_of_samples_is_unknown_and_breaks_nothing(train: Train) -> None:
    recorded = train(
        """
        import perfscope
        for samples in (-1, "x", None, 2):
            perfscope.step(samples)
        perfscope.step()
        """
    )
    assert recorded.errors() == []
    assert [step["samples"] for step in recorded.steps()] == [None, None, None, 2]


MARKED_TORCH = """
    import torch, perfscope
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(72, 4))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=6):
        perfscope.step(samples=6)
        {update}
    perfscope.step()
"""
OPTIMIZER = """model.zero_grad(); model(batch).sum().backward(); optimizer.step()"""
BY_HAND = """
        gradients = torch.autograd.grad(model(batch).sum(), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.data -= 0.1 * gradient
"""


@pytest.mark.parametrize("update", ["an optimizer", "by hand, without a backward pass"])
def test_steps_that_a_torch_training_marks_have_its_layers_and_its_trace(train: Train, update: str) -> None:
    code = MARKED_TORCH.format(update=OPTIMIZER if update == "an optimizer" else BY_HAND)
    if update == "an optimizer":
        code = code.replace("for (", "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    for (", 1)
    recorded = train(code, overhead=0.5, windows=1)
    assert recorded.errors() == []
    steps = recorded.steps()
    assert [step["samples"] for step in steps] == [6] * 12
    assert [step["window"] for step in steps[:8]] == [-1, -1, -1, 0, 0, 0, -1, -1]
    assert recorded.marks("step") == ["3", "4", "5"]
    assert recorded.marks() == ["Sequential", "0", "1", "2"] * 3
    meta = recorded.meta()
    assert meta["framework"]["name"] == "torch" and meta["root"]["name"] == "Sequential"
    assert all(0 < step["input_ns"] < step["dur_ns"] for step in steps[:-1])
    if update == "an optimizer":
        assert all(0 < step["optimizer_ns"] < step["dur_ns"] for step in steps)
    layers = json.loads((recorded.rank() / "layers.json").read_text())["layers"]
    assert [row["layer"] for row in layers] == ["Sequential", "0", "1", "2"]


def test_an_evaluation_inside_a_marked_step_ends_its_window(train: Train) -> None:
    recorded = train(
        """
        import torch, perfscope
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(9):
            perfscope.step()
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            if number == 4:
                model.eval()
                with torch.no_grad():
                    for _ in range(50):
                        model(torch.randn(2, 4))
                model.train()
        perfscope.step()
        """,
        overhead=0.5,
        windows=1,
    )
    assert recorded.errors() == []
    assert len(recorded.steps()) == 9
    assert recorded.marks() == ["Linear"] * 2
