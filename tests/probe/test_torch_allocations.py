"""The allocator's events of a real training: only where they are asked for, and as large as the tensors."""

from __future__ import annotations

import json

import pytest

from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.rundir.reader import RunReader
from tests.probe.conftest import Recorded, Train

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WIDTH = 1024
TRAINING = f"""
import torch, torch.nn as nn
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, {WIDTH}))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(12):
    optimizer.zero_grad(); net(torch.randn({WIDTH}, 8)).square().mean().backward(); optimizer.step()
"""


def num_events(recorded: Recorded) -> int:
    trace = json.loads((recorded.rank() / "windows" / "0.json").read_text())
    return sum(event.get("name") == "[memory]" for event in trace["traceEvents"])


def test_a_window_has_the_peak_of_memory_and_its_layer_where_allocations_are_asked_for(train: Train) -> None:
    recorded = train(TRAINING, windows=1, allocations=True)
    assert num_events(recorded) > 0
    (recorded.run / "run.json").write_text(
        json.dumps({"schema_version": 1, "origin": "run", "status": "finished"})
    )
    ingest_run(recorded.run)
    [window] = analyze_run(RunReader(recorded.run)).allocations
    output = 4 * WIDTH * WIDTH  # bytes of the activations of the last layer: by far the largest tensors
    assert 2 * output <= window.peak_allocated_bytes < 6 * output
    assert window.peak_phase in ("forward", "backward")


def test_without_the_option_no_allocation_is_recorded(train: Train) -> None:
    assert num_events(train(TRAINING, windows=1)) == 0
