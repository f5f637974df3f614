"""`srun perfscope doctor --links` on a real Slurm: one rank on each of two nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.run_support import PERFSCOPE
from tests.slurm.mini_slurm import MiniSlurm

pytestmark = pytest.mark.slurm


@pytest.mark.torch
def test_links_between_the_nodes_of_a_step_are_measured_and_printed_once(
    cluster: MiniSlurm, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    doctor = [*PERFSCOPE, "doctor", "--links", "--budget", "60", "--json"]
    # The nodes of this Slurm are one machine, whose name server does not know their names.
    command = ["env", "MASTER_ADDR=127.0.0.1", "srun", "-N2", "-n2", "--ntasks-per-node=1", *doctor]
    ended = cluster.run(command, cwd=tmp_path, timeout=240)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)  # of rank 0 alone
    (links,) = document["links"]
    measured = {(call["transport"], call["collective"], call["num_ranks"]) for call in links["calls"]}
    assert measured >= {("tcp", "send", 2), ("gloo", "all_reduce", 2)}, (links["missing"], ended.stderr)
    # Both nodes are this machine, so the ranks meet over loopback.
    assert {call["link_class"] for call in links["calls"]} == {"loopback"}
    assert all(fit["bytes_per_s"] > 0 for fit in links["fits"])
