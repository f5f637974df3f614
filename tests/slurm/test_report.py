"""`perfscope slurm report` on a real Slurm: two nodes of two CPUs, and Dask as steps of the job."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.integration.run_support import PERFSCOPE
from tests.slurm.mini_slurm import MiniSlurm

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs Dask"),
]

SCALE = Path(__file__).parents[2] / "benchmarks" / "scale.py"
REPORT = (*PERFSCOPE, "slurm", "report")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 ranks on four axes."""
    path = tmp_path_factory.mktemp("scale") / "run"
    options = ["--ranks", "64", "--axes", "4", "--layers", "30", "--keep", str(path)]
    subprocess.run([sys.executable, str(SCALE), *options], check=True, capture_output=True, timeout=120)
    return path


@pytest.fixture(scope="module")
def serial(run: Path) -> str:
    command = [*PERFSCOPE, "report", str(run), "--json"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def dask_of(run: Path, program: str = "") -> list[int]:
    """Dask's processes for the run, srun's among them; or those of one program of Dask's."""
    commands = {process.pid: process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])}
    of_run = {
        pid: words for pid, words in commands.items() if "dask" in words and str(run) in " ".join(words)
    }
    return [pid for pid, words in of_run.items() if not program or ("srun" not in words and program in words)]


def within(limit_s: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def is_over(cluster: MiniSlurm, run: Path) -> bool:
    return not dask_of(run) and not cluster.jobs("R", "CG") and not list((run / "derived").glob("slurm-*"))


def test_workers_of_two_nodes_give_the_report_of_one_process(
    cluster: MiniSlurm, run: Path, serial: str
) -> None:
    done = cluster.run([*REPORT, str(run), "-N", "2", "--json"], cwd=run.parent, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == serial
    assert within(10, lambda: is_over(cluster, run))


def test_a_batch_job_uses_its_own_nodes(cluster: MiniSlurm, run: Path, serial: str, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\nexec {' '.join([*REPORT, str(run), '--json'])} > {tmp_path}/report.json\n")
    done = cluster.run(
        ["sbatch", "--wait", "-N2", "--exclusive", "-t", "5", str(script)], cwd=tmp_path, timeout=120
    )
    logs = [path.read_text() for path in tmp_path.glob("slurm-*.out")]
    assert done.returncode == 0, (done.stderr, logs)
    assert (tmp_path / "report.json").read_text() == serial
    assert within(10, lambda: is_over(cluster, run))


@pytest.mark.parametrize("how", ["Ctrl-C", "scancel"])
def test_everything_ends_with_the_command_or_its_job(cluster: MiniSlurm, run: Path, how: str) -> None:
    command = [*REPORT, str(run), "-N", "2", "--json"]
    started = subprocess.Popen(
        command,
        cwd=run.parent,
        env=cluster.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert within(30, lambda: len(dask_of(run, "worker")) == 4)
        if how == "scancel":
            cluster.ask("scancel", *cluster.jobs())
        else:
            os.killpg(started.pid, signal.SIGINT)
        _, error = started.communicate(timeout=60)
    finally:
        started.kill()
    assert started.returncode != 0
    assert b"Traceback" not in error
    assert within(15, lambda: is_over(cluster, run))


def test_a_job_of_a_minute_is_refused(cluster: MiniSlurm, run: Path) -> None:
    done = cluster.run([*REPORT, str(run), "-t", "1"], cwd=run.parent)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("perfscope: ")]
    assert "allocate more time (-t)" in line


def test_a_partition_that_is_not_there_is_slurms_own_line(cluster: MiniSlurm, run: Path) -> None:
    done = cluster.run([*REPORT, str(run), "-p", "nowhere"], cwd=run.parent)
    assert done.returncode == 1
    assert "invalid partition" in done.stderr.lower()
    assert "Traceback" not in done.stderr
