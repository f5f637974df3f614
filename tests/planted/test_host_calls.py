"""Trainings that sync files or exchange Python objects in every step: what is named, and its time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NUM_STEPS = 100
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
spent = 0
with open(os.path.join(sys.argv[2], f"log.{rank}"), "w") as log:
    for step in range(int(sys.argv[3])):
        loss = model(torch.randn(256, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if sys.argv[1] == "fsync":
            for _ in range(20):
                log.write("x" * 4096)
                log.flush()
                begin = time.perf_counter_ns()
                os.fsync(log.fileno())
                spent += time.perf_counter_ns() - begin
        if sys.argv[1] == "objects":
            state = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
            begin = time.perf_counter_ns()
            dist.all_gather_object([None] * world, [state] * 4)
            spent += time.perf_counter_ns() - begin
        optimizer.step()
with open(os.path.join(sys.argv[2], f"spent.{rank}"), "w") as file:
    file.write(str(spent))
dist.destroy_process_group()
"""


def trained(folder: Path, mode: str) -> tuple[list[int], dict[str, Any]]:
    """(ns that each of two ranks spent in the calls, by the program's clock; report)."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    cli = [sys.executable, "-m", "perfscope"]
    out = str(folder / "run")
    command = [
        *cli,
        "run",
        "--ceilings",
        "off",
        "-o",
        out,
        "--",
        *ranks,
        str(program),
        mode,
        str(folder),
        str(NUM_STEPS),
    ]
    subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    report = subprocess.run(
        [*cli, "report", out, "--json"], capture_output=True, text=True, timeout=120, check=True
    )
    spent = [int((folder / f"spent.{rank}").read_text(encoding="utf-8")) for rank in range(2)]
    return spent, json.loads(report.stdout)


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
    spent, report = trained(tmp_path, mode)
    finding = next(entry for entry in report["findings"] if entry["id"] == kind)
    assert name in finding["title"]
    phase = next(entry for entry in report["phases"] if entry["path"] == [name])
    for recorded, spent_ns in zip(phase["ranks"], spent, strict=True):
        assert 0.9 < recorded["ns"] / spent_ns < 1.1
    # Where ranks come at different times, one of them waits in a collective; both sync their own files.
    assert 0.3 < finding["gain_ns"] * NUM_STEPS / max(spent) < 1.5
    if mode == "objects":
        communication = ("comm_bound", "slow_link", "no_overlap", "small_collectives")
        beside = [entry for entry in report["findings"] if entry["id"] in communication]
        assert report["findings"].index(finding) <= min(map(report["findings"].index, beside), default=99)
