"""Jobs that run out of time: a minute, which has passed while other tests ran. So this file comes last."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.run_support import PERFSCOPE, num_steps, read_manifest
from tests.slurm.conftest import OutOfTime
from tests.slurm.mini_slurm import MiniSlurm

pytestmark = pytest.mark.slurm


def await_closed(run: Path, limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while read_manifest(run)["status"] == "running":
        assert time.monotonic() < end, "nobody closed the run"
        time.sleep(0.1)


def test_a_submitted_job_marks_its_run_also_where_nobody_follows(
    slurm: MiniSlurm, out_of_time: OutOfTime
) -> None:
    job, run = out_of_time.submitted, out_of_time.folder / "submitted"
    assert slurm.await_state(job, "TIMEOUT", limit_s=130) == "TIMEOUT"
    await_closed(run)
    manifest = read_manifest(run)
    assert (manifest["status"], manifest["incomplete"]) == ("incomplete", f"Slurm ended job {job}")
    looked = slurm.run([*PERFSCOPE, "slurm", "follow", job, "--no-wait"], cwd=out_of_time.folder)
    assert looked.stdout == f"job {job} timeout\n", looked.stderr
    manifest = read_manifest(run)
    assert manifest["incomplete"].startswith("the job reached its time limit after 1:")
    assert manifest["slurm"]["job"]["state"] == "TIMEOUT"
    report = slurm.run([*PERFSCOPE, "report", "submitted", "--text"], cwd=out_of_time.folder)
    assert report.returncode == 0, report.stderr
    head = report.stdout.partition("Recommendations")[0]
    assert "incomplete" in head and "the job reached its time limit" in head


def test_the_tasks_of_a_step_mark_their_run(slurm: MiniSlurm, out_of_time: OutOfTime) -> None:
    run = out_of_time.folder / "by-hand"
    assert slurm.await_state(out_of_time.by_hand, "TIMEOUT", limit_s=130) == "TIMEOUT"
    await_closed(run)
    manifest = read_manifest(run)
    assert (manifest["status"], manifest["exit"]["signal"]) == ("incomplete", 15)
    assert manifest["attached_ranks"] == 4
    assert any("out of time" in note for note in manifest["attach_notes"])
    assert all(num_steps(run, rank) > 2 for rank in range(4))
