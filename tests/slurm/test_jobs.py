"""`perfscope slurm` and `bench sweep --slurm` on a real Slurm: two nodes of two CPUs on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.run_support import PERFSCOPE, num_steps, read_manifest
from tests.slurm.mini_slurm import MiniSlurm

pytestmark = pytest.mark.slurm

HERE = Path(__file__).parent
TRAIN = (sys.executable, str(HERE / "train_env.py"))
ALONE = (sys.executable, str(HERE / "train_alone.py"))  # starts at once: for what happens to jobs
SLURM = (*PERFSCOPE, "slurm")
TORCH = ("--framework", "torch", "-t", "10", "--record", "--ceilings off")
SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"
HOSTILE = ["two words", "it's", '"$HOME" `id`', "a\nb\r\n", "\\", "*", "", "%j", "#SBATCH --time=1"]
SWEEP = """
[sweep]
schemes = ["serial"]
batches = [8, 16]
sample_interval = "off"
windows = 0

[settings]
ranks = 1
input = "3x16x16"
steps = 6
"""


@pytest.fixture(autouse=True)
def torch_is_there() -> None:
    pytest.importorskip("torch")


def submit(
    cluster: MiniSlurm, cwd: Path, *options: str, command: tuple[str, ...] = TRAIN, **variables: str
) -> subprocess.CompletedProcess[str]:
    words = [*SLURM, "submit", *TORCH, *options, "--", *command]
    return cluster.run(words, cwd=cwd, timeout=280, **variables)


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """A command that a failed test leaves behind is not the next test's trouble."""
    yield
    for process in _started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    _started.clear()


def start(cluster: MiniSlurm, cwd: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env={**cluster.env, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _started.append(process)
    return process


def await_true(
    condition: Callable[[], bool],
    limit_s: float = 120,
    pause_s: float = 0.1,
    otherwise: Callable[[], str] = lambda: "the condition did not become true",
) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, otherwise()
        time.sleep(pause_s)


def trains(run: Path) -> bool:
    return (run / "ranks/0/steps.jsonl").exists() and num_steps(run, 0) > 4


def job_of(run: Path) -> str:
    return str(json.loads(run.with_name(f"{run.name}.job.json").read_bytes())["job"])


def report(cluster: MiniSlurm, run: Path) -> dict[str, Any]:
    ended = cluster.run([*PERFSCOPE, "report", str(run), "--json"], cwd=run.parent)
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def test_a_submitted_training_comes_back_with_its_report(cluster: MiniSlurm, tmp_path: Path) -> None:
    ended = submit(cluster, tmp_path, "-N", "2", "--ntasks-per-node", "2", "-o", "runs/a b")
    assert ended.returncode == 0, ended.stderr
    run = tmp_path / "runs/a b"
    manifest = read_manifest(run)
    assert (manifest["status"], manifest["attached_ranks"], manifest["expected_ranks"]) == ("finished", 4, 4)
    assert manifest["exit"] == {"code": 0, "signal": None} and manifest["name"] == "train_env"
    job = manifest["slurm"]["job"]
    assert (job["job"], job["state"], job["exit_code"]) == (job_of(run), "COMPLETED", 0)
    assert (job["nodes"], job["num_nodes"], job["restarts"]) == ("node[1-2]", 2, 0)
    assert job["elapsed_s"] > 0 and job["queued_s"] is not None
    if cluster.accounting:
        assert job["source"] == "sacct" and job["max_rss_bytes"] > 10_000_000
    else:
        assert job["source"] == "scontrol" and "no accounting" in job["missing"][0]["reason"]
    assert any("energy" in one["what"] and one["reason"] for one in job["missing"])
    neighbours = manifest["slurm"]["neighbours"]
    assert sorted((one["when"], one["node"]) for one in neighbours) == [
        *(("after", "node1"), ("after", "node2"), ("before", "node1"), ("before", "node2")),
    ]
    said = ended.stderr
    assert f"job {job['job']} is submitted: runs/a b.sbatch" in said and "completed after" in said
    assert "Rank" in ended.stdout or "rank" in ended.stdout  # the report
    assert sorted(path.name for path in run.parent.iterdir()) == [
        *("a b", "a b.job.json", "a b.log", "a b.sbatch"),
    ]
    again = cluster.run([*SLURM, "follow", "runs/a b", "--json"], cwd=tmp_path)
    assert again.returncode == 0 and json.loads(again.stdout)["jobs"][0]["state"] == "COMPLETED"
    taken = submit(cluster, tmp_path, "-o", "runs/a b")
    assert taken.returncode == 1 and "already holds a run; choose another -o" in taken.stderr


def test_a_printed_script_takes_hostile_words_through_sbatch(cluster: MiniSlurm, tmp_path: Path) -> None:
    comment = 'a "b" \\ #c'
    options = [*TORCH, "--shared", "-J", "my job", "--sbatch", f"comment={comment}"]
    made = cluster.run([*SLURM, "script", *options, "--", sys.executable, "-c", SHOW, *HOSTILE], cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (tmp_path / "job.sh").write_text(made.stdout, newline="")
    job = cluster.run(["sbatch", "--parsable", "job.sh"], cwd=tmp_path).stdout.strip()
    followed = cluster.run([*SLURM, "follow", job, "--no-report"], cwd=tmp_path)
    assert followed.returncode == 0, followed.stderr
    log = (tmp_path / f"my job-{job}.log").read_text()
    assert json.dumps(HOSTILE) in log
    shown = cluster.ask("scontrol", "show", "job", job)
    assert f"Comment={comment}" in shown and "JobName=my job" in shown
    run = read_manifest(tmp_path / f"perfscope-runs/slurm-{job}")
    assert run["slurm"]["job"]["state"] == "COMPLETED" and run["name"] == "my job"


def test_a_failing_rank_fails_the_job_and_keeps_its_exit_code(cluster: MiniSlurm, tmp_path: Path) -> None:
    options = ("-N", "2", "--ntasks-per-node", "2", "--shared", "-o", "run", "--no-report")
    ended = submit(cluster, tmp_path, *options, command=ALONE, FAIL="3", AT="40", STEPS="100000")
    assert ended.returncode == 1
    assert "failed after" in ended.stderr and "Exited with exit code 3" in ended.stderr
    manifest = read_manifest(tmp_path / "run")
    # srun ends with the largest code of its tasks: those it had to end have 143.
    assert (manifest["status"], manifest["exit"]["code"]) == ("incomplete", 143)
    assert manifest["incomplete"] == "task 3 on node2: Exited with exit code 3; srun ended the others"
    job = manifest["slurm"]["job"]
    assert (job["state"], job["exit_code"]) == ("FAILED", 143)


def test_a_cancelled_job_leaves_a_readable_run_marked_incomplete(cluster: MiniSlurm, tmp_path: Path) -> None:
    words = [*SLURM, "submit", *TORCH, "--ntasks-per-node", "2", "-o", "run", "--no-report", "--", *ALONE]
    follower = start(cluster, tmp_path, *words, STEPS="100000")
    run = tmp_path / "run"
    await_true(lambda: trains(run))
    cluster.ask("scancel", job_of(run))
    _, said = follower.communicate(timeout=150)
    assert follower.returncode == 1, said
    assert "canceled after" in said and "its run is marked incomplete" in said
    manifest = read_manifest(run)
    assert manifest["status"] == "incomplete"
    assert manifest["slurm"]["job"]["state"] == "CANCELLED" and manifest["end_unix_ns"]
    assert len(report(cluster, run)["ranks"]) == 2


def test_a_node_that_fails_is_the_reason(cluster: MiniSlurm, tmp_path: Path) -> None:
    words = [*SLURM, "submit", *TORCH, "-N", "2", "--no-requeue", "-o", "run", "--no-report", "--", *ALONE]
    follower = start(cluster, tmp_path, *words, STEPS="100000")
    run = tmp_path / "run"
    try:
        await_true(lambda: trains(run))
        cluster.ask("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=test")
        _, said = follower.communicate(timeout=150)
    finally:
        cluster.ask("scontrol", "update", "NodeName=node2", "State=RESUME")
    assert follower.returncode == 1 and "node fail after" in said, said
    manifest = read_manifest(run)
    assert (manifest["status"], manifest["slurm"]["job"]["state"]) == ("incomplete", "NODE_FAIL")
    assert manifest["incomplete"].startswith("a node of the job failed after")
    assert manifest["attach_notes"][0] == manifest["incomplete"]


def test_a_requeued_job_leaves_both_attempts(cluster: MiniSlurm, tmp_path: Path) -> None:
    words = [*SLURM, "submit", *TORCH, "--requeue", "--shared", "-o", "run", "--no-report", "--", *ALONE]
    follower = start(cluster, tmp_path, *words, STEPS="100")
    run = tmp_path / "run"
    await_true(lambda: trains(run))
    job = job_of(run)
    cluster.ask("scontrol", "requeue", job)
    cluster.await_state(job, "PENDING")
    # Slurm delays a requeued job by two minutes, because a node refuses a job whose credential it has just
    # revoked (times of whole seconds) and the job is then held. Some seconds are enough here.
    time.sleep(4)
    await_true(
        lambda: _start_now(cluster, job),
        limit_s=200,
        pause_s=4,
        otherwise=lambda: cluster.ask("scontrol", "show", "job", job),
    )
    _, said = follower.communicate(timeout=150)
    assert follower.returncode == 0, said
    assert f"job {job} was requeued" in said and "requeued 1 time" in said
    assert read_manifest(run)["status"] == "incomplete"
    again = read_manifest(tmp_path / "run-restart1")
    assert again["status"] == "finished" and again["slurm"]["job"]["restarts"] == 1
    assert num_steps(tmp_path / "run-restart1", 0) == 100


def _start_now(cluster: MiniSlurm, job: str) -> bool:
    if cluster.state(job) == "PENDING":
        cluster.ask("scontrol", "release", job)
        cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    return cluster.state(job) not in ("PENDING", "")


def test_a_job_that_does_not_start_and_what_slurm_refuses(cluster: MiniSlurm, tmp_path: Path) -> None:
    held = submit(cluster, tmp_path, "--sbatch", "hold", "--timeout-pending", "1s", "-o", "run")
    job = job_of(tmp_path / "run")
    assert held.returncode == 3
    assert f"JobHeldUser: you hold it: scontrol release {job}. It stays in the queue" in held.stderr
    second = submit(cluster, tmp_path, "-o", "run")
    assert second.returncode == 1 and f"job {job} is queued or running for" in second.stderr
    follower = start(cluster, tmp_path, *SLURM, "follow", "run")
    assert follower.stderr is not None and "is queued" in follower.stderr.readline()
    follower.send_signal(signal.SIGINT)
    follower.send_signal(signal.SIGINT)
    _, said = follower.communicate(timeout=150)
    assert follower.returncode == 130 and said.count("detached") == 1 and f"scancel {job}" in said
    assert cluster.state(job) == "PENDING"
    refused = submit(cluster, tmp_path, "-p", "debgu", "-o", "other")
    assert refused.returncode == 1
    assert refused.stderr == "perfscope: there is no partition 'debgu'; did you mean 'debug'?\n"
    strange = submit(cluster, tmp_path, "-C", "no-such-thing", "-o", "other")
    assert strange.returncode == 1 and "the features for --constraint" in strange.stderr, strange.stderr
    many = submit(cluster, tmp_path, "-N", "9", "--timeout-pending", "1s", "-o", "other")
    assert many.returncode == 3 and "the partition has nothing that fits" in many.stderr, many.stderr
    unknown = cluster.run([*SLURM, "follow", "999999"], cwd=tmp_path)
    assert unknown.returncode == 1 and "does not know job 999999" in unknown.stderr


def test_without_a_controller_one_line_says_so(cluster: MiniSlurm, tmp_path: Path) -> None:
    conf = (cluster.folder / "slurm.conf").read_text()
    lines = [
        "SlurmctldPort=1" if line.startswith("SlurmctldPort=") else line
        for line in conf.splitlines()
        if not line.startswith("Accounting")
    ]
    (tmp_path / "slurm.conf").write_text("\n".join([*lines, "MessageTimeout=2", ""]))
    conf_file = str(tmp_path / "slurm.conf")
    ended = submit(cluster, tmp_path, "-o", "run", SLURM_CONF=conf_file)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended.stderr
    assert "slurmctld) does not answer" in ended.stderr


def test_an_array_sweep_that_was_killed_is_resumed(cluster: MiniSlurm, tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    words = [
        *PERFSCOPE,
        "bench",
        "sweep",
        "sweep.toml",
        "--slurm",
        "--shared",
        "--array-limit",
        "1",
        "-o",
        "s",
    ]
    first = start(cluster, tmp_path, *words)
    study = tmp_path / "s"
    await_true(lambda: len(list(study.glob("runs/*.ended"))) == 1)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=150)
    assert first.returncode == 130 and "detached, array job" in said, said
    (array,) = json.loads((study / "arrays.json").read_bytes())["arrays"]
    cluster.ask("scancel", array["job"])
    cluster.clear()
    ended = cluster.run(words, cwd=tmp_path, timeout=280)
    assert ended.returncode == 0, ended.stderr
    arrays = json.loads((study / "arrays.json").read_bytes())["arrays"]
    assert [len(one["keys"]) for one in arrays] == [2, 1]
    cells = json.loads((study / "study.json").read_bytes())["cells"]
    assert [[run["status"] for run in cell["runs"]] for cell in cells] == [["done"], ["done"]]
    assert all(cell["runs"][0]["figures"]["samples_per_s"] > 0 for cell in cells)
    assert (study / "study.md").exists() and "samples/s" in ended.stdout
