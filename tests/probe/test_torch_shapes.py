"""Shapes of operators' inputs are recorded in few windows where they serve FLOPs alone."""

from __future__ import annotations

import json

import pytest

from perfscope.analysis.run import analyze_run
from perfscope.ingest.run import ingest_run
from perfscope.rundir.reader import RunReader
from tests.probe.conftest import Recorded, Train

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAINING = """
import sys, time, torch, torch.nn as nn
torch.set_num_threads(1)
if "group" in sys.argv:
    torch.distributed.init_process_group("gloo")
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(600):
    optimizer.zero_grad(); net(torch.randn(8, 16)).sum().backward(); optimizer.step(); time.sleep(0.002)
"""
WINDOWS = 6


def with_shapes(recorded: Recorded) -> dict[int, bool]:
    """By window."""
    found = {}
    for path in sorted((recorded.rank() / "windows").glob("*.json")):
        trace = json.loads(path.read_text())
        has = any("Input Dims" in event.get("args", {}) for event in trace["traceEvents"])
        assert str(trace["record_shapes"]) == str(int(has))
        found[int(path.stem)] = has
    return found


def test_alone_few_windows_have_shapes_and_layers_have_all_their_flops(train: Train) -> None:
    recorded = train(TRAINING, windows=WINDOWS, overhead=10.0)
    has = with_shapes(recorded)
    assert len(has) == WINDOWS and [window for window in has if has[window]] == [0, 4]
    (recorded.run / "run.json").write_text(
        json.dumps({"schema_version": 1, "origin": "run", "status": "finished"})
    )
    ingest_run(recorded.run)
    layers = {layer.layer: layer for layer in analyze_run(RunReader(recorded.run)).layers}
    assert layers["0"].forward_flops == 2 * 8 * 16 * 32  # 2 x batch x inputs x outputs
    assert layers["2"].forward_flops == 2 * 8 * 32 * 4


def test_processes_that_communicate_have_shapes_in_every_window(train: Train) -> None:
    recorded = train(TRAINING, "group", nproc=1, windows=3, overhead=10.0)
    assert list(with_shapes(recorded).values()) == [True] * 3
