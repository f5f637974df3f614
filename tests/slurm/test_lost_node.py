"""A node dies under the tasks of a step: hosts with names of their own, Slurm's part played by its variables.

The small Slurm of the other tests has all its nodes on one host, where a dead task is seen at once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from perfscope.rundir.reader import RunReader
from tests.integration.run_support import PERFSCOPE, attached, read_manifest, said, user_environment
from tests.support.slurm_variables import variables

pytestmark = pytest.mark.slurm

TRAIN = Path(__file__).parent / "train_alone.py"


def start_task(task: int, cwd: Path) -> subprocess.Popen[bytes]:
    """Task `task` of four, on its host of two."""
    run = f"{PERFSCOPE[0]} -m perfscope run --ceilings off -o run -- {PERFSCOPE[0]} {TRAIN}"
    script = f"hostname host{'AB'[task // 2]}; exec setsid {run}"
    return subprocess.Popen(
        ["unshare", "--uts", "sh", "-c", script],
        cwd=cwd,
        env=user_environment(**variables(task), STEPS="60", PAUSE="0.05"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def test_the_tasks_of_the_other_node_close_the_run(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("hosts of their own need root and unshare")
    tasks = [start_task(task, tmp_path) for task in range(4)]
    run_dir = tmp_path / "run"
    end = time.monotonic() + 60
    while len(attached(run_dir)) < 4 and time.monotonic() < end:
        time.sleep(0.1)
    for task in (2, 3):  # all at once, as when the power goes
        seat = (run_dir / ".owner" / f"{task}.jsonl").read_text()
        os.killpg(int(json.loads(seat.splitlines()[0])["pid"]), signal.SIGKILL)
    stderr = b"".join(task.communicate(timeout=120)[1] for task in tasks)
    assert [task.returncode for task in tasks] == [0, 0, -9, -9]
    manifest = read_manifest(run_dir)
    assert (manifest["status"], manifest["exit"]) == ("incomplete", None)
    assert manifest["attached_ranks"] == 4
    lost = "tasks 2, 3 had not ended when this was written, or their node died"
    assert manifest["attach_notes"] == [lost]
    assert said(stderr)[:2] == ["attached 4 of expected 4 ranks", lost]
    assert sorted(path.name for path in (run_dir / "hosts").iterdir()) == ["hostA", "hostB"]
    assert RunReader(run_dir).ranks == (0, 1, 2, 3)
