"""Dask as steps of a job, with a stand-in for srun that starts one task here."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from perfscope.errors import RunDirectoryError
from perfscope.slurm import dask_steps as module
from perfscope.slurm.dask_steps import Allocation, dask_steps, find_allocation
from perfscope.slurm.programs import SlurmError

JOB = Allocation(job="7", num_nodes=2, num_cpus=1, left_s=None)
needs_dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs Dask")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a run; `srun` executes its command once, as node2."""
    stub = tmp_path / "bin" / "srun"
    stub.parent.mkdir()
    stub.write_text(
        "#!/bin/sh\nwhile case $1 in -*) true;; *) false;; esac; do shift; done\n"
        'SLURMD_NODENAME=node2 exec "$@"\n'
    )
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def of_run(run: Path) -> list[psutil.Process]:
    """Processes that name it."""
    return [
        process for process in psutil.Process().children(recursive=True) if str(run) in str(process.cmdline())
    ]


@pytest.mark.parametrize(
    ("said", "left_s"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("3:04", 184), ("UNLIMITED", None), ("INVALID", None)],
)
def test_an_allocation_is_what_slurm_says(said: str, left_s: int | None) -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_CPUS_PER_NODE": "2(x3),8"}
    found = find_allocation(variables, lambda _: f"{said}\n")
    assert found == Allocation(job="7", num_nodes=4, num_cpus=14, left_s=left_s)
    assert find_allocation({}) is None


def test_a_job_that_is_about_to_end_begins_no_report(run: Path) -> None:
    ending = Allocation(job="7", num_nodes=1, num_cpus=1, left_s=40)
    with pytest.raises(SlurmError, match="job 7 ends in 40 s"), dask_steps(ending, run):
        pass
    assert not list(run.iterdir())


def test_nodes_that_do_not_see_the_run_are_named(run: Path) -> None:
    srun = Path(os.environ["PATH"].partition(os.pathsep)[0]) / "srun"
    srun.write_text("#!/bin/sh\necho node2\n")
    with (
        pytest.raises(RunDirectoryError, match="that the nodes of job 7 share: node2 cannot see it"),
        dask_steps(JOB, run),
    ):
        pass
    assert not list((run / "derived").iterdir())


@needs_dask
def test_the_scheduler_and_its_workers_last_as_long_as_the_context(run: Path) -> None:
    from distributed import Client

    with dask_steps(JOB, run) as file:
        assert len(of_run(run)) >= 2
        with Client(scheduler_file=str(file)) as client:
            assert client.submit(os.getpid).result(timeout=60) != os.getpid()
    assert not of_run(run)
    assert not list((run / "derived").iterdir())


@needs_dask
def test_a_report_ends_with_a_reason_before_its_job_does(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST_S", 0)
    monkeypatch.setattr(module, "_MARGIN_S", 1)
    ending = Allocation(job="7", num_nodes=1, num_cpus=1, left_s=4)
    with pytest.raises(SlurmError, match="job 7 reaches its time limit"), dask_steps(ending, run):
        time.sleep(60)
    assert not of_run(run)


@needs_dask
def test_a_report_whose_workers_are_lost_ends_with_what_srun_said(run: Path) -> None:
    with (
        pytest.raises(SlurmError, match="a step of job 7 ended before the report was done"),
        dask_steps(JOB, run),
    ):
        for process in of_run(run):
            if "worker" in process.cmdline():
                process.kill()
        time.sleep(60)
    assert not of_run(run)


@needs_dask
def test_sigterm_ends_the_steps(run: Path) -> None:
    with pytest.raises(SystemExit) as left, dask_steps(JOB, run):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    assert left.value.code == 128 + signal.SIGTERM
    assert not of_run(run)
