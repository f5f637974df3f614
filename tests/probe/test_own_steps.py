"""Steps that a program without a known framework marks itself, with `perfscope.step()`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    summary = ingest_run(recorded.run, jobs=1)[0]
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
