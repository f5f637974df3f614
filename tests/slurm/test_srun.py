"""`srun perfscope run` and `perfscope run -- srun` on a real Slurm: two nodes of two tasks, here."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.rundir.reader import RunReader
from tests.integration.run_support import PERFSCOPE, attached, num_steps, read_manifest
from tests.slurm.mini_slurm import MiniSlurm

pytestmark = pytest.mark.slurm

HERE = Path(__file__).parent
DDP = (PERFSCOPE[0], str(HERE / "train_ddp.py"))
ALONE = (PERFSCOPE[0], str(HERE / "train_alone.py"))
FOUR = ("srun", "-N2", "-n4", "--ntasks-per-node=2")
RUN = (*PERFSCOPE, "run", "--ceilings", "off")


def said(text: str) -> list[str]:
    """What perfscope said, without its prefix."""
    return [line.removeprefix("perfscope: ") for line in text.splitlines() if line.startswith("perfscope: ")]


def only_run(cwd: Path) -> Path:
    (found,) = [
        path for path in (cwd / "perfscope-runs").iterdir() if not path.is_symlink() and path.is_dir()
    ]
    return found


def await_true(condition: Callable[[], bool], limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)


def all_train(run_dir: Path, ranks: int = 4) -> bool:
    """Whether every rank has written some steps."""
    return len(list(run_dir.glob("ranks/*/rank.json"))) == ranks and all(
        num_steps(run_dir, rank) > 2 for rank in range(ranks)
    )


def report(cluster: MiniSlurm, run_dir: Path) -> dict[str, Any]:
    ended = cluster.run([*PERFSCOPE, "report", str(run_dir), "--json"], cwd=run_dir.parent)
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def start(cluster: MiniSlurm, *command: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**cluster.env, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def job_of(cluster: MiniSlurm) -> str:
    """The one job that runs."""
    await_true(lambda: len(cluster.jobs("R")) == 1)
    return cluster.jobs("R")[0]


# Every task is a wrapper of its own


@pytest.mark.torch
def test_tasks_of_a_step_record_one_run(cluster: MiniSlurm, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ended = cluster.run([*FOUR, "-J", "tiny", *RUN, "--", *DDP], cwd=tmp_path, timeout=150)
    assert ended.returncode == 0, ended.stderr
    run_dir = only_run(tmp_path)
    manifest = read_manifest(run_dir)
    job = manifest["slurm"]["job_id"]
    assert run_dir.name == f"slurm-{job}.0-train_ddp"
    assert (tmp_path / "perfscope-runs" / "latest").readlink() == Path(run_dir.name)
    assert attached(run_dir) == [0, 1, 2, 3]
    assert (manifest["expected_ranks"], manifest["attached_ranks"], manifest["world_size"]) == (4, 4, 4)
    assert (manifest["status"], manifest["exit"]) == ("finished", {"code": 0, "signal": None})
    assert (manifest["launcher"], manifest["attach_notes"]) == ("srun", [])
    facts = manifest["slurm"]
    assert (facts["step_id"], facts["job_name"], facts["partition"]) == (0, "tiny", "debug")
    assert (facts["num_nodes"], facts["num_tasks"]) == (2, 4)
    assert (facts["node_list"], facts["tasks_per_node"]) == ("node[1-2]", "2(x2)")
    # The tasks speak with one voice, the host has one sampler, and every window was packed once.
    place = f"perfscope-runs/{run_dir.name}"
    assert said(ended.stderr) == [
        "attached 4 of expected 4 ranks",
        f"run directory: {place}",
        f"next: perfscope report {place}",
    ]
    (host,) = (run_dir / "hosts").iterdir()
    samples = (host / "samples.jsonl").read_text()
    assert len(re.findall(r'^\{"schema_version"', samples, re.MULTILINE)) == 1
    assert {path.suffix for path in run_dir.glob("ranks/*/windows/*")} <= {".gz"}
    assert len(report(cluster, run_dir)["ranks"]) == 4


def test_a_second_run_in_the_same_step_has_a_directory_of_its_own(cluster: MiniSlurm, tmp_path: Path) -> None:
    once = shlex.join([*RUN, "--", *ALONE])
    ended = cluster.run(["srun", "-n2", "sh", "-c", f"{once}; {once}"], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    runs = sorted(path for path in (tmp_path / "perfscope-runs").iterdir() if not path.is_symlink())
    runs = [path for path in runs if path.is_dir()]
    assert [re.sub(r"\d+", "N", path.name, count=1) for path in runs] == [
        "slurm-N.0-train_alone",
        "slurm-N.0-train_alone-2",
    ]
    assert [attached(path) for path in runs] == [[0, 1], [0, 1]]
    assert said(ended.stderr).count("attached 2 of expected 2 ranks") == 2


def test_a_directory_that_holds_another_jobs_run_is_refused(cluster: MiniSlurm, tmp_path: Path) -> None:
    command = ["srun", "-n2", *RUN, "-o", "run", "--", *ALONE]
    assert cluster.run(command, cwd=tmp_path).returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    again = cluster.run(command, cwd=tmp_path)
    assert again.returncode == 125
    assert "trained" not in again.stdout
    (line,) = said(again.stderr)
    assert re.search(r"run already holds the run of Slurm job \d+, step 0; choose another -o", line)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    forced = cluster.run([*command[:-3], "--force", "--", *ALONE], cwd=tmp_path)
    assert forced.returncode == 0, forced.stderr
    assert read_manifest(tmp_path / "run")["attached_ranks"] == 2
    requeued = cluster.run(["srun", "-n2", "env", "SLURM_RESTART_COUNT=1", *command[2:]], cwd=tmp_path)
    assert requeued.returncode == 0, requeued.stderr
    assert read_manifest(tmp_path / "run-restart1")["slurm"]["restart_count"] == 1


def test_a_failing_task_gives_the_run_its_exit_code(cluster: MiniSlurm, tmp_path: Path) -> None:
    ended = cluster.run([*FOUR, *RUN, "-o", "run", "--", *ALONE], cwd=tmp_path, FAIL="1", AT="9")
    assert ended.returncode == 3
    manifest = read_manifest(tmp_path / "run")
    assert manifest["exit"] == {"code": 3, "signal": None}
    host = socket.gethostname()
    assert manifest["attach_notes"] == [f"task 1 on {host} ended with exit code 3"]
    assert manifest["slurm"]["failed_tasks"] == [{"task": 1, "host": host, "code": 3, "signal": None}]
    assert said(ended.stderr).count("attached 4 of expected 4 ranks") == 1


def test_tasks_killed_because_one_failed_leave_a_run_marked_incomplete(
    cluster: MiniSlurm, tmp_path: Path
) -> None:
    command = [*FOUR, "--kill-on-bad-exit=1", *RUN, "-o", "run", "--", *ALONE]
    ended = cluster.run(command, cwd=tmp_path, FAIL="2", AT="20", STEPS="100000")
    assert ended.returncode != 0
    manifest = read_manifest(tmp_path / "run")
    assert manifest["status"] == "incomplete"
    assert manifest["exit"]["code"] >= 3
    assert any("task 2 on" in note for note in manifest["attach_notes"])
    assert RunReader(tmp_path / "run").ranks == (0, 1, 2, 3)


def test_the_owner_of_the_run_may_be_killed(cluster: MiniSlurm, tmp_path: Path) -> None:
    first = f"test $SLURM_PROCID = 0 || sleep 1; exec {shlex.join([*RUN, '-o', 'run', '--', *ALONE])}"
    ended = cluster.run(["srun", "-n2", "sh", "-c", first], cwd=tmp_path, ORPHAN="0", PAUSE="0.2")
    assert ended.returncode != 0
    manifest = read_manifest(tmp_path / "run")
    assert manifest["status"] == "incomplete"
    assert manifest["attached_ranks"] == 2
    assert "task 0 left no ending: its perfscope was killed" in manifest["attach_notes"]
    assert said(ended.stderr)[0] == "attached 2 of expected 2 ranks"
    assert RunReader(tmp_path / "run").ranks == (0, 1)


def test_scancel_leaves_a_run_that_can_be_read(cluster: MiniSlurm, tmp_path: Path) -> None:
    running = start(cluster, *FOUR, *RUN, "-o", "run", "--", *ALONE, cwd=tmp_path, STEPS="100000")
    await_true(lambda: all_train(tmp_path / "run"))
    cluster.ask("scancel", job_of(cluster))
    _, stderr = running.communicate(timeout=60)
    assert running.returncode != 0
    manifest = read_manifest(tmp_path / "run")
    assert (manifest["status"], manifest["exit"]) == ("incomplete", {"code": 143, "signal": 15})
    assert "every task ended by signal 15: canceled, requeued or out of time" in manifest["attach_notes"]
    # Once by a task that waited two seconds for the others, where those needed longer, and once by the last.
    assert said(stderr).count("attached 4 of expected 4 ranks") <= 2
    document = report(cluster, tmp_path / "run")
    assert len(document["ranks"]) == 4


# One wrapper in front of srun


@pytest.mark.torch
def test_one_wrapper_in_a_batch_script(cluster: MiniSlurm, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = shlex.join([*RUN, "-o"])
    ddp, alone = shlex.join(DDP), shlex.join(ALONE)
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=2 -o job.out -e job.err\n"
        f"{run} plain -- srun {ddp}\n"
        f"{run} none -- srun --export=NONE -n3 {alone}\n"
        f"SLURM_EXPORT_ENV=NONE {run} variable -- srun -n2 {alone}\n"
    )
    job = cluster.run(["sbatch", "--parsable", str(script)], cwd=tmp_path).stdout.strip()
    ended = cluster.await_state(job, "COMPLETED", "FAILED", limit_s=90)
    assert ended == "COMPLETED", (tmp_path / "job.err").read_text()
    lines = said((tmp_path / "job.err").read_text())
    for name, ranks in (("plain", 4), ("none", 3), ("variable", 2)):
        run_dir = tmp_path / name
        manifest = read_manifest(run_dir)
        assert attached(run_dir) == list(range(ranks))
        assert (manifest["expected_ranks"], manifest["status"]) == (ranks, "finished")
        assert (manifest["launcher"], manifest["attach_notes"]) == ("srun", [])
        assert manifest["slurm"]["num_nodes"] == 2
        assert manifest["slurm"]["step_id"] is None
        assert f"attached {ranks} of expected {ranks} ranks" in lines


def test_scancel_around_a_step_marks_the_run(cluster: MiniSlurm, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=2 -o job.out -e job.err\n"
        f"STEPS=100000 {shlex.join([*RUN, '-o', 'run', '--', 'srun', *ALONE])}\n"
    )
    job = cluster.run(["sbatch", "--parsable", str(script)], cwd=tmp_path).stdout.strip()
    await_true(lambda: all_train(tmp_path / "run"))
    cluster.ask("scancel", job)
    await_true(lambda: read_manifest(tmp_path / "run")["status"] != "running")
    manifest = read_manifest(tmp_path / "run")
    assert (manifest["status"], manifest["attached_ranks"]) == ("incomplete", 4)
    assert manifest["exit"]["code"] == 143


@pytest.mark.parametrize("trouble", ["partition", "controller", "busy"])
def test_srun_that_does_not_start_says_why_itself(cluster: MiniSlurm, tmp_path: Path, trouble: str) -> None:
    options: tuple[str, ...] = ()
    environment = dict(cluster.env)
    if trouble == "partition":
        options = ("--partition=nosuch",)
    elif trouble == "busy":
        options = ("--immediate=1", "--exclusive", "-N2")
        holder = start(cluster, "srun", "-N2", "--exclusive", "sleep", "60", cwd=tmp_path)
        job_of(cluster)
    else:
        conf = Path(cluster.env["SLURM_CONF"])
        text = re.sub(r"(?m)^SlurmctldPort=.*$", "SlurmctldPort=1", conf.read_text())
        (tmp_path / "slurm.conf").write_text(f"{text}\nMessageTimeout=2\n")
        environment["SLURM_CONF"] = str(tmp_path / "slurm.conf")
    ended = cluster.run(
        [*RUN, "-o", "run", "--", "srun", *options, *ALONE],
        cwd=tmp_path,
        SLURM_CONF=environment["SLURM_CONF"],
    )
    if trouble == "busy":
        holder.kill()
        holder.communicate()
    assert ended.returncode == 1
    assert any(line.startswith("srun: ") for line in ended.stderr.splitlines())
    assert said(ended.stderr)[1].startswith(
        "no task trained: srun ended with exit code 1; its own lines above"
    )
    assert read_manifest(tmp_path / "run")["attached_ranks"] == 0


def test_ctrl_c_while_srun_waits_for_its_allocation(cluster: MiniSlurm, tmp_path: Path) -> None:
    holder = start(cluster, "srun", "-N2", "--exclusive", "sleep", "60", cwd=tmp_path)
    job_of(cluster)
    waiting = start(cluster, *RUN, "-o", "run", "--", "srun", "-N2", "--exclusive", *ALONE, cwd=tmp_path)
    await_true(lambda: bool(cluster.jobs("PD")))
    waiting.send_signal(signal.SIGINT)
    _, stderr = waiting.communicate(timeout=60)
    holder.kill()
    holder.communicate()
    assert waiting.returncode != 0
    assert said(stderr)[1].startswith("no task trained: srun ")
    assert read_manifest(tmp_path / "run")["status"] == "finished"


# Nodes without a file system in common


def test_directories_of_single_nodes_are_collected_into_one_run(cluster: MiniSlurm, tmp_path: Path) -> None:
    own = f"exec {shlex.join([*RUN])} -o parts/$SLURMD_NODENAME -- {shlex.join(ALONE)}"
    ended = cluster.run([*FOUR, "sh", "-c", own], cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert said(ended.stderr).count("attached 2 of expected 4 ranks") == 2  # once per node
    assert any("gather those of all nodes with `perfscope collect" in line for line in said(ended.stderr))
    parts = [str(tmp_path / "parts" / node) for node in cluster.nodes]
    collect = [*PERFSCOPE, "collect", "-o", "whole", "--json"]
    half = cluster.run([*collect, parts[1]], cwd=tmp_path)
    assert (half.returncode, json.loads(half.stdout)["missing"]) == (3, [0, 1])
    whole = cluster.run([*collect, *parts], cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    manifest = read_manifest(tmp_path / "whole")
    assert (manifest["expected_ranks"], manifest["attached_ranks"]) == (4, 4)
    assert (manifest["status"], manifest["attach_notes"]) == ("finished", [])
    assert [path.name for path in (tmp_path / "whole" / "hosts").iterdir()] == [socket.gethostname()]
    assert len(report(cluster, tmp_path / "whole")["ranks"]) == 4
    again = cluster.run([*collect, *parts], cwd=tmp_path)
    assert json.loads(again.stdout)["changed"] is False
