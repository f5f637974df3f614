"""torch with mpi4py: torch cuts the steps and names the layers, MPI tells ranks, groups and calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.mpi_support import NEEDS_MPI, mpi, program, record

pytest.importorskip("torch")
pytestmark = [pytest.mark.frameworks, NEEDS_MPI]
TRAIN = """
import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
for name in range(20):  # a loop of its own, before anything is trained
    comm.bcast("setting up")
    comm.Barrier()
torch.manual_seed(comm.rank)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    loss = model(torch.randn(8, 20)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        comm.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
    optimizer.step()
    comm.Barrier()
"""
GRADIENT_BYTES = 4 * (20 * 30 + 30 + 30 * 2 + 2)


def test_calls_of_mpi_stand_in_torchs_windows(tmp_path: Path) -> None:
    found = record(mpi(2, program(tmp_path, TRAIN)), tmp_path)
    assert found.done.returncode == 0, found.done.stderr
    assert found.errors() == []
    for rank in (0, 1):
        meta = found.rank(rank)
        assert (meta["rank"], meta["world_size"], meta["rank_source"]) == (rank, 2, "mpi4py")
        assert meta["framework"]["name"] == "torch"
        assert [one["ranks"] for one in meta["groups"]] == [[0, 1]]
        assert len(found.steps(rank)) == 12
    report = found.report()
    traced = report["ranks"][0]["num_traced_steps"]
    reduce = next(one for one in report["collectives"] if one["collective"] == "all_reduce")
    assert (reduce["group"], reduce["group_size"], reduce["dtype"]) == ("world", 2, "float32")
    assert reduce["count"] == reduce["num_matched"] == 4 * traced
    assert reduce["bytes"] == GRADIENT_BYTES * traced
    assert {"0", "2"} <= {one["layer"] for one in report["layers"]}
    for one in report["ranks"]:
        parts = one["breakdown_ns"]
        assert parts["compute"] > 0 and parts["exposed_comm"] > 0
    # Nobody says that the two ranks share a batch: one rank's samples are neither doubled nor taken for all.
    assert report["throughput_samples_per_s"] is None
