"""`perfscope import` of dumps that PyTorch itself wrote, of a job of three ranks in which one is late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.run_support import PERFSCOPE, user_environment

JOB = """
import os, sys, threading, time
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as c10d
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
def step():
    dist.all_reduce(torch.ones(8))
def gather():
    dist.all_gather([torch.zeros(5) for _ in range(3)], torch.ones(5))
store = dist.distributed_c10d._get_default_store()
for _ in range(2):
    step()
if rank != 2:
    threading.Thread(target=gather, daemon=True).start()
    while c10d._dump_fr_trace_json().count(b"all_gather") == 0:
        time.sleep(0.05)
open(f"{folder}/dumps/nccl_trace_rank_{rank}", "wb").write(c10d._dump_fr_trace())
open(f"{folder}/json/rank_{rank}.flight.json", "wb").write(c10d._dump_fr_trace_json())
store.set(f"done{rank}", "1")
store.wait([f"done{rank}" for rank in range(3)])
os._exit(0)
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("flight")
    (folder / "train.py").write_text(JOB)
    for name in ("dumps", "json"):
        (folder / name).mkdir()
    environment = user_environment() | {"TORCH_FR_BUFFER_SIZE": "100"}
    ranks = [
        subprocess.Popen([sys.executable, "train.py", str(rank), str(folder)], cwd=folder, env=environment)
        for rank in range(3)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return folder


@pytest.mark.parametrize("kind", ["dumps", "json"])
def test_the_late_rank_and_what_the_others_wait_in_are_named(dumps: Path, kind: str) -> None:
    words = [*PERFSCOPE, "import", kind, "-o", f"run-{kind}"]
    done = subprocess.run(words, cwd=dumps, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (
        "Rank 2 has not entered collective 3 (all_gather) of group 0 (default_pg); ranks 0, 1 wait in it."
        in done.stdout
    )
    where = " at train.py:9 step <" if kind == "dumps" else ""  # the JSON dump has no frames
    assert f"  rank 2: all_reduce #2 (8 Float){where}" in done.stdout
    words = [*PERFSCOPE, "report", f"run-{kind}"]
    done = subprocess.run(words, cwd=dumps, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Rank 2 has not entered collective 3" in done.stdout
