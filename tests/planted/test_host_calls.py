"""Trainings that sync files or exchange Python objects in every step: what is named, and its time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
spent = 0.0
with open(os.path.join(sys.argv[2], f"log.{rank}"), "w") as log:
    for step in range(100):
        loss = model(torch.randn(256, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        begin = time.perf_counter()
        if sys.argv[1] == "fsync":
            for _ in range(20):
                log.write("x" * 4096)
                log.flush()
                os.fsync(log.fileno())
        if sys.argv[1] == "objects":
            state = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
            dist.all_gather_object([None] * world, [state] * 4)
        spent += time.perf_counter() - begin if step >= 10 else 0.0
        optimizer.step()
if rank == 0:
    print("spent", spent / 90 * 1e9, loss.item())
dist.destroy_process_group()
"""


def trained(folder: Path, mode: str) -> tuple[float, dict[str, Any]]:
    """(ns per step that rank 0 spent in the calls by its own clock, report) of two ranks."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    cli = [sys.executable, "-m", "perfscope"]
    out = str(folder / "run")
    command = [*cli, "run", "--ceilings", "off", "-o", out, "--", *ranks, str(program), mode, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    spent = next(line for line in done.stdout.splitlines() if line.startswith("spent"))
    report = subprocess.run(
        [*cli, "report", out, "--json"], capture_output=True, text=True, timeout=120, check=True
    )
    return float(spent.split()[1]), json.loads(report.stdout)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    ("mode", "kind", "name"),
    [("fsync", "file_sync", "os.fsync"), ("objects", "object_collectives", "all_gather_object")],
)
def test_calls_in_every_step_are_named_with_their_time(
    tmp_path: Path, mode: str, kind: str, name: str
) -> None:
    pytest.importorskip("torch")
    spent_ns, report = trained(tmp_path, mode)
    finding = next(entry for entry in report["findings"] if entry["id"] == kind)
    assert name in finding["title"]
    phase = next(entry for entry in report["phases"] if entry["path"] == [name])
    assert 0.8 < phase["per_step_ns"] / spent_ns < 1.25
    # Where ranks come at different times, one of them waits in a collective; both sync their own files.
    assert 0.3 < finding["gain_ns"] / spent_ns < 1.5
    if mode == "objects":
        communication = ("comm_bound", "slow_link", "no_overlap", "small_collectives")
        beside = [entry for entry in report["findings"] if entry["id"] in communication]
        assert report["findings"].index(finding) <= min(map(report["findings"].index, beside), default=99)
