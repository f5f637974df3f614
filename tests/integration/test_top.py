"""`perfscope top` on real runs: one that hangs in a collective, one on two hosts, one that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perfscope.collectors.stacks.bursts import find_py_spy
from perfscope.errors import PerfscopeError
from perfscope.runners.cluster.network import require_rights, require_tools
from tests.integration.run_support import PERFSCOPE, user_environment
from tests.support.synthetic_run import SyntheticRun

pytestmark = pytest.mark.torch
HANGING = """
import sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def average():
    for value in model.parameters():
        dist.all_reduce(value.grad)
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(32, 64)).square().mean().backward()
    time.sleep(0.03)
    if step == 30 and dist.get_rank() == 1:
        time.sleep(600)
    average()
    optimizer.step()
"""


def look(run: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*PERFSCOPE, "top", str(run), "--once", *options]
    return subprocess.run(command, env=user_environment(), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_hang_is_named_with_the_collective_and_the_line(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script, run = tmp_path / "training.py", tmp_path / "run"
    script.write_text(HANGING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--ceilings", "off", "--sample-interval", "off"]
    training = subprocess.Popen(
        [*PERFSCOPE, "run", "-o", str(run), *options, "--", *torchrun, str(script)],
        env=user_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        state: dict[str, Any] = {}
        end = time.monotonic() + 90
        while not state.get("hangs") and time.monotonic() < end:
            time.sleep(0.5)
            answer = look(run, "--json", "--hang-after", "1s")
            if answer.returncode == 0 and answer.stdout:
                state = json.loads(answer.stdout)
                state["hangs"] = [rank["rank"] for rank in state["ranks"] if rank["hangs"]]
                if state["hangs"] != [0, 1]:
                    state = {}
        assert state["hangs"] == [0, 1] and state["is_open"]
        assert all(20 <= rank["steps"] <= 30 for rank in state["ranks"])  # the latest 0.2 s may be in memory
        if find_py_spy() is not None:
            line = HANGING.splitlines().index("        dist.all_reduce(value.grad)") + 1
            assert state["standing"]["0"] == f"in all_reduce, called from training.py:{line} (average)"
            assert "training.py" in state["standing"]["1"] and "all_reduce" not in state["standing"]["1"]
        text = look(run, "--hang-after", "1s").stdout
        assert "! rank 0 has made no step for" in text
        assert not look(run).stdout.count("!")  # a minute has not passed
    finally:
        training.send_signal(signal.SIGTERM)
        training.wait(60)
    assert "has ended" in look(run).stdout


TWO_HOSTS = """
import time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(2000):
    optimizer.zero_grad()
    model(torch.ones(32, 64)).square().mean().backward()
    time.sleep(0.02 + 0.06 * dist.get_rank())
    optimizer.step()
"""


@pytest.mark.slow
def test_ranks_of_two_hosts_are_listed_slowest_first(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    try:
        require_tools()
        require_rights()
    except PerfscopeError as error:
        pytest.skip(str(error))
    script, run = tmp_path / "training.py", tmp_path / "run"
    script.write_text(TWO_HOSTS)
    cluster = [sys.executable, "-m", "perfscope.runners.cluster", "--quiet", "2x1", "--"]
    training = subprocess.Popen(
        [*PERFSCOPE, "run", "-o", str(run), "--ceilings", "off", "--", *cluster, sys.executable, str(script)],
        env=user_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        state: dict[str, Any] = {"ranks": []}
        end = time.monotonic() + 90
        while time.monotonic() < end:
            time.sleep(0.5)
            answer = look(run, "--json")
            state = json.loads(answer.stdout) if answer.returncode == 0 and answer.stdout else state
            if len(state["ranks"]) == 2 and all(rank["steps"] >= 20 for rank in state["ranks"]):
                break
        assert [rank["host"] for rank in state["ranks"]] == ["host0", "host1"]
        fast, slow = (rank["step_ns"] for rank in state["ranks"])
        assert slow > 1.5 * fast
        lines = look(run).stdout.splitlines()
        table = lines[next(at for at, line in enumerate(lines) if line.startswith("Rank")) + 1 :]
        assert [line.split()[:2] for line in table[:2]] == [["1", "host1"], ["0", "host0"]]
    finally:
        training.send_signal(signal.SIGTERM)
        training.wait(60)


def test_without_a_run_there_is_one_clear_line(tmp_path: Path) -> None:
    answer = look(tmp_path / "none")
    assert answer.returncode == 2 or answer.returncode == 1
    assert answer.stderr.startswith("perfscope: ") and answer.stderr.count("\n") == 1


def test_off_looks_for_no_hangs(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run", status="running", exit=None, end_unix_ns=None)
    run.rank(0, finished=False)
    steps = tmp_path / "run" / "ranks" / "0" / "steps.jsonl"
    steps.write_text(
        '{"columns": ["step", "start_ns", "dur_ns", "window", "samples"]}\n[0, 0, 1000, -1, 1]\n'
    )
    os.utime(steps, (1_000_000_000, 1_000_000_000))
    hangs = [json.loads(look(tmp_path / "run", "--json", *options).stdout)["ranks"][0]["hangs"]
             for options in ((), ("--hang-after", "off"))]  # fmt: skip
    assert hangs == [True, False]
