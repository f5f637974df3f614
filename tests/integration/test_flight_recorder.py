"""Dumps that PyTorch itself wrote, of jobs in which a rank is late: imported, and of a recorded run."""

from __future__ import annotations

import json
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


RECORDED = """
import os, threading, time
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as c10d
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    for value in model.parameters():
        dist.all_reduce(value.grad)
    optimizer.step()
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    gather = lambda: dist.all_gather([torch.zeros(5) for _ in range(2)], torch.ones(5))
    threading.Thread(target=gather, daemon=True).start()
    while c10d._dump_fr_trace_json().count(b"all_gather") == 0:
        time.sleep(0.05)
with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb") as file:
    file.write(c10d._dump_fr_trace())
store.set(f"done{rank}", "1")
store.wait(["done0", "done1"])
os._exit(1)
"""


def test_dumps_of_a_run_that_failed_are_kept_with_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(RECORDED)
    (tmp_path / "fr_1").write_bytes(b"of a job before")
    recorder = {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr_")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*PERFSCOPE, "run", "-o", "run", "--ceilings", "off", "--", *torchrun, "train.py"]
    environment = user_environment() | recorder
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    assert len(list((tmp_path / "run").glob("ranks/*/windows/*.flight.pickle"))) == 2
    words = [*PERFSCOPE, "report", "run"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "Rank 1 has not entered collective" in said
    document = json.loads(subprocess.check_output([*words, "--json"], cwd=tmp_path, timeout=120))
    assert document["progress"] and document["step_ns"]["count"] > 0
    assert all(rank["breakdown_ns"] is not None for rank in document["ranks"])
