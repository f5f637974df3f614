"""Windows of trainings outside the main thread, and of trainings that change threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.probe.conftest import Recorded, environment

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HEAD = """
import threading, torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
n = nn.Linear(64, 4); o = torch.optim.SGD(n.parameters(), 0.1)
def train(num_steps):
    for _ in range(num_steps): n(torch.randn(32, 64)).sum().backward(); o.step(); o.zero_grad()
def elsewhere(num_steps):
    thread = threading.Thread(target=train, args=(num_steps,)); thread.start(); thread.join()
"""
# A window of two steps is opened before the fourth update.
PROGRAMS = {
    "the thread ends within a window": ("elsewhere(4)", 4, [1], ""),
    "the training changes threads within a window": (
        "train(4); elsewhere(30); train(10)", 44, [0], "the training went on in another thread",
    ),
    "the program profiles while a thread trains": (
        "with torch.profiler.profile(): elsewhere(20)", 20, [], "the training itself was using the profiler",
    ),
    "a window ends": ("train(20); assert not torch.autograd.profiler._is_profiler_enabled", 20, [1], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_ends_as_without_perfscope(name: str, tmp_path: Path) -> None:
    code, num_steps, windows, note = PROGRAMS[name]
    script, run = tmp_path / "program.py", tmp_path / "run"
    script.write_text(HEAD + code)
    run.mkdir()
    process = subprocess.run(
        [sys.executable, str(script)],
        env=environment(run),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    recorded = Recorded(run, process)
    assert recorded.errors() == []
    assert recorded.meta(0)["num_steps"] == num_steps
    lines = recorded.rank(0) / "windows.jsonl"
    traced = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    assert [int(window["file"] is not None) for window in traced] == windows
    assert note in " ".join(recorded.meta(0)["notes"])
