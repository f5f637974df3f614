"""Activation checkpointing of a real training: what the report says is computed again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.run_support import PERFSCOPE, run, user_environment

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Writes the share of each step in which `Part` runs again inside the backward pass, by its own clock.
TRAIN = """
import json, sys, time, torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0); torch.set_num_threads(1)
again = 0.0
class Part(nn.Sequential):
    def forward(self, x):
        global again
        began = time.perf_counter()
        try:
            return super().forward(x)
        finally:  # once it has what it needs, checkpoint leaves by an exception
            if torch._C._current_graph_task_id() != -1: again += time.perf_counter() - began
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = nn.Linear(256, 256)
        self.part = Part(*(nn.Linear(256, 256) for _ in range(4)))
    def forward(self, x):
        x = self.kept(x)
        return checkpoint(self.part, x, use_reentrant=False) if sys.argv[1] == "again" else self.part(x)
net = Net(); optimizer = torch.optim.SGD(net.parameters(), 0.01)
shares, x = [], torch.randn(512, 256)
for _ in range(12):
    began, again = time.perf_counter(), 0.0
    optimizer.zero_grad(); net(x).pow(2).mean().backward(); optimizer.step()
    shares.append(again / (time.perf_counter() - began))
print(json.dumps(shares))
"""


def trained(folder: Path, mode: str) -> tuple[dict[str, Any], list[float], str]:
    """The JSON of the run's rank, the shares by the program's own clock in traced steps, and the text."""
    finished = run(sys.executable, "-c", TRAIN, mode, cwd=folder, options=("--windows", "1"))
    assert finished.returncode == 0, finished.stderr
    shares = json.loads(finished.stdout)
    lines = (folder / "run" / "ranks" / "0" / "steps.jsonl").read_text().splitlines()
    columns = json.loads(lines[0])["columns"]
    steps = [dict(zip(columns, json.loads(line), strict=True)) for line in lines[1:]]
    traced = [shares[step["step"]] for step in steps if step["window"] >= 0]
    assert traced
    texts = [
        subprocess.run(
            [*PERFSCOPE, "report", "run", option],
            cwd=folder,
            env=user_environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for option in ("--json", "--text")
    ]
    return json.loads(texts[0])["ranks"][0], traced, " ".join(texts[1].split())


def test_forward_calls_in_the_backward_pass_are_recomputation(tmp_path: Path) -> None:
    rank, traced, text = trained(tmp_path, "again")
    share = rank["recompute_ns"] / rank["breakdown_step_ns"]
    assert 0.5 * min(traced) < share < 1.1 * max(traced)
    assert rank["recompute_ns"] < rank["breakdown_ns"]["compute"]
    assert "is recomputation: forward calls of layers that run again in the backward pass" in text


def test_without_checkpointing_nothing_is_computed_again(tmp_path: Path) -> None:
    rank, traced, text = trained(tmp_path, "never")
    assert rank["recompute_ns"] == 0 and set(traced) == {0.0}
    assert rank["breakdown_ns"]["compute"] > 0
    assert "recomputation" not in text
