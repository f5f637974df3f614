"""From a configuration to a command: torchrun, MPI, the emulated cluster, joining others' ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from perfscope.launch.environment import ProbeOptions, make_injection
from perfscope.launch.launchers import plan_command
from perfscope.launch.plan import CommandContext, LaunchPlan
from perfscope.runners.cluster.network import require_rights, require_tools
from perfscope.runners.cluster.spec import parse_cluster
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.starting.endings import RankEnding, cause, silent
from perfscope.runners.starting.launching import launch_for, shared_run_dir
from perfscope.runners.starting.outer_launcher import expand_nodes, expand_tasks, find_outer
from tests.integration.run_support import user_environment

CONFIG = BenchConfig(scheme="dp.ddp", num_ranks=4, device="cpu")
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_NODELIST": "node[01-03,7],login",
    "SLURM_NTASKS": "4",
}


def slurm_task(rank: int) -> dict[str, str]:
    local = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2), "SLURM_NODEID": str(rank // 2)}
    return {**SLURM, **local}


def planned(*argv: str, **environment: str) -> LaunchPlan:
    """What `perfscope run` makes of a command."""
    injection = make_injection(Path("/runs/x"), ProbeOptions(), environment)
    context = CommandContext(environment=environment, injection=injection, mpi_version=lambda _: "HYDRA")
    return plan_command(argv, context)


# Starting


def test_one_process_is_the_rank_itself() -> None:
    launch = launch_for(BenchConfig(scheme="serial"), {}, None)
    assert launch.command[:3] == (sys.executable, "-m", "perfscope.runners.rank")
    assert BenchConfig.from_json(launch.command[3]) == BenchConfig(scheme="serial")
    assert not launch.joins
    assert planned(*launch.command).expected_ranks == 1


def test_several_go_through_torchrun() -> None:
    launch = launch_for(CONFIG, {}, None)
    assert launch.command[:2] == (sys.executable, "-m")
    assert BenchConfig.from_json(launch.command[-1]) == CONFIG
    assert int(launch.environment["OMP_NUM_THREADS"]) >= 1
    plan = planned(*launch.command)
    assert (plan.launcher, plan.expected_ranks, plan.world_size) == ("torchrun", 4, 4)
    assert plan.warnings == ()


def test_threads_are_the_users_where_he_says() -> None:
    assert "OMP_NUM_THREADS" not in launch_for(CONFIG, {"OMP_NUM_THREADS": "3"}, None).environment
    config = BenchConfig(scheme="dp.ddp", num_ranks=2, threads=7)
    assert launch_for(config, {"OMP_NUM_THREADS": "3"}, None).environment["OMP_NUM_THREADS"] == "7"


def test_mpi_takes_the_launcher_beside_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    config = BenchConfig(scheme="easgd.async", num_ranks=3, backend="mpi")
    for name in ("venv/bin", "system"):
        (tmp_path / name).mkdir(parents=True)
        for tool in ("mpiexec", "mpirun"):
            (tmp_path / name / tool).write_text("#!/bin/sh\necho HYDRA build details\n")
            (tmp_path / name / tool).chmod(0o755)
    environment = {"PATH": str(tmp_path / "system")}
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    launch = launch_for(config, environment, None)
    assert launch.command[:4] == (str(tmp_path / "venv/bin/mpiexec"), "-n", "3", sys.executable)
    assert planned(*launch.command).expected_ranks == 3
    shutil.rmtree(tmp_path / "venv/bin")
    assert launch_for(config, environment, None).command[0] == str(tmp_path / "system/mpiexec")
    (tmp_path / "system/mpiexec").write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 4.1.4'\n")
    assert "--oversubscribe" in launch_for(config, environment, None).command
    with pytest.raises(BenchError, match=r"perfscope-hpc\[mpi\]"):
        launch_for(config, {"PATH": str(tmp_path)}, None)


def test_mpi_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BenchError, match=r"perfscope-hpc\[mpi\]"):
        launch_for(BenchConfig(scheme="easgd.async", num_ranks=2, backend="mpi"), {}, None)


def test_the_emulated_cluster() -> None:
    try:
        require_tools()
        require_rights()
    except BenchError as error:
        pytest.skip(str(error))
    spec = parse_cluster("2x2@1gbit")
    launch = launch_for(CONFIG, {}, spec)
    assert launch.command[2:6] == ("perfscope.runners.cluster", "--quiet", "2x2@1gbit", "--")
    assert BenchConfig.from_json(launch.command[-1]).num_hosts == 2
    assert any("only communication between hosts is emulated" in note for note in launch.notes)
    plan = planned(*launch.command)
    assert (plan.launcher, plan.expected_ranks, plan.world_size) == ("cluster", 4, 4)


def test_a_cluster_that_cannot_be() -> None:
    with pytest.raises(BenchError, match="8 ranks, but the run is for 4"):
        launch_for(CONFIG, {}, parse_cluster("2x4@1gbit"))
    with pytest.raises(BenchError, match="leave one of the two out"):
        launch_for(CONFIG, slurm_task(0), parse_cluster("2x2@1gbit"))
    with pytest.raises(BenchError, match="gloo"):
        launch_for(BenchConfig(scheme="x", num_ranks=4, backend="mpi"), {}, parse_cluster("2x2@1gbit"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["3x2@1gbit", "--", "python", "train.py"], 6),
        (["--quiet", "3x2", "python", "train.py"], 6),
        (["nonsense", "--", "python", "train.py"], None),
        ([], None),
    ],
)
def test_perfscope_run_knows_how_many_ranks_a_cluster_has(words: list[str], expected: int | None) -> None:
    plan = planned("python", "-m", "perfscope.runners.cluster", *words)
    assert plan.expected_ranks == expected
    assert plan.name == ("train" if words else "cluster")


# Joining


def test_slurm_tasks_meet_on_the_first_node() -> None:
    launches = [launch_for(CONFIG, slurm_task(rank), None) for rank in range(4)]
    assert all(launch.joins for launch in launches)
    assert [launch.environment["RANK"] for launch in launches] == ["0", "1", "2", "3"]
    assert [launch.environment["LOCAL_RANK"] for launch in launches] == ["0", "1", "0", "1"]
    assert {launch.environment["LOCAL_WORLD_SIZE"] for launch in launches} == {"2"}
    assert {launch.environment["MASTER_ADDR"] for launch in launches} == {"node01"}
    (port,) = {launch.environment["MASTER_PORT"] for launch in launches}
    assert 1024 < int(port) < 32768
    assert launches[0].command[:3] == (sys.executable, "-m", "perfscope.runners.rank")


def test_two_steps_of_a_job_do_not_meet() -> None:
    ports = {
        launch_for(CONFIG, {**slurm_task(0), "SLURM_STEP_ID": str(step)}, None).environment["MASTER_PORT"]
        for step in range(20)
    }
    assert len(ports) > 15


def test_a_batch_script_is_no_task() -> None:
    script = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n1"}
    assert find_outer(script) is None
    assert not launch_for(CONFIG, script, None).joins
    assert find_outer({**slurm_task(0), "SLURM_STEP_NUM_TASKS": "1"}) is None  # srun --pty bash


def test_hydra_below_slurm_is_hydra() -> None:
    """Its daemon on the second node is Slurm's task 1; all ranks there inherit that."""
    environment = {**slurm_task(1), "PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}
    environment |= {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "MASTER_PORT": "5000"}
    outer = find_outer(environment)
    assert outer is not None
    assert (outer.launcher, outer.rank, outer.size, outer.local_rank) == ("mpirun", 3, 4, 1)
    assert launch_for(CONFIG, environment, None).environment["MASTER_ADDR"] == "node01"
    itself = {**slurm_task(3), "PMI_RANK": "3", "PMI_SIZE": "4"}  # srun --mpi=pmi2
    outer = find_outer(itself)
    assert outer is not None and outer.launcher == "srun"


def test_open_mpi_ranks_of_one_host_meet_there() -> None:
    environment = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        "PMIX_NAMESPACE": "prterun-node-4711@1",
    }
    launch = launch_for(CONFIG, environment, None)
    assert launch.environment["MASTER_ADDR"] == "127.0.0.1"
    found = shared_run_dir(environment)
    assert found is not None and found.name == "mpi-prterun-node-4711_1"
    spread = {**environment, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    with pytest.raises(BenchError, match="set MASTER_ADDR for every rank"):
        launch_for(CONFIG, spread, None)
    given = launch_for(CONFIG, {**spread, "MASTER_ADDR": "node1"}, None)
    assert "MASTER_ADDR" not in given.environment and "MASTER_PORT" in given.environment


def test_what_torchrun_has_said_stays() -> None:
    environment = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    environment |= {"MASTER_ADDR": "n1", "MASTER_PORT": "1234", "TORCHELASTIC_RUN_ID": "abc"}
    launch = launch_for(CONFIG, environment, None)
    assert launch.joins and not set(launch.environment) & set(environment)
    assert str(shared_run_dir(environment)).endswith("torchrun-abc-0")


def test_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(BenchError, match="SLURM_PROCID says that srun has started 4"):
        launch_for(BenchConfig(scheme="dp.ddp", num_ranks=2), slurm_task(0), None)
    with pytest.raises(BenchError, match="unset RANK"):
        launch_for(CONFIG, {"RANK": "0", "WORLD_SIZE": "1"}, None)
    with pytest.raises(BenchError, match="RANK=5, but there are 4 ranks"):
        launch_for(CONFIG, {"RANK": "5", "WORLD_SIZE": "4"}, None)


def test_all_ranks_record_into_one_directory() -> None:
    found = {shared_run_dir(slurm_task(rank), CONFIG) for rank in range(4)}
    assert len(found) == 1
    (place,) = found
    assert place is not None and place.is_absolute() and place.name.startswith("slurm-77.3-")
    other = BenchConfig(scheme="dp.packed", num_ranks=4)
    assert shared_run_dir(slurm_task(0), other) != place  # the next run of the same step
    assert shared_run_dir({**slurm_task(0), "PERFSCOPE_RUN_DIR": "/runs/mine"}) == Path("/runs/mine")
    assert shared_run_dir({}) is None


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
        ("login,node[9-11]", ["login", "node9", "node10", "node11"]),
        ("r[1-2]n[01-02]-ib", ["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"]),
        ("gpu1", ["gpu1"]),
        ("a1,b[2],c", ["a1", "b2", "c"]),
    ],
)
def test_slurm_node_lists(text: str, nodes: list[str]) -> None:
    assert expand_nodes(text) == nodes


@pytest.mark.parametrize("text", ["node[1-", "node[a-b]", "node]", ",", "n[1,,2]", "n[1-9999999999]"])
def test_damaged_node_lists_are_one_line(text: str) -> None:
    with pytest.raises(BenchError, match="no list of Slurm nodes"):
        expand_nodes(text)


def test_slurm_task_counts() -> None:
    assert expand_tasks("2(x3),1") == [2, 2, 2, 1]
    assert expand_tasks("4") == [4]
    assert expand_tasks("two") == [] == expand_tasks("")


JOIN = """
import json, os
from perfscope.runners.config import BenchConfig
from perfscope.runners.starting.launching import launch_for, shared_run_dir
launch = launch_for(BenchConfig(scheme="dp.ddp", num_ranks=3), os.environ, None)
print(json.dumps([dict(launch.environment), launch.joins, str(shared_run_dir(os.environ))]), flush=True)
"""


@pytest.mark.parametrize("wrapped", [False, True], ids=["directly", "through a shell"])
def test_ranks_of_a_real_mpiexec_agree(tmp_path: Path, wrapped: bool) -> None:
    environment = user_environment()
    mpiexec = shutil.which("mpiexec", path=environment["PATH"])
    if mpiexec is None:
        pytest.skip("no mpiexec on this machine (pip install mpich)")
    rank = [sys.executable, "-c", JOIN]
    if wrapped:
        rank = ["sh", "-c", '"$@"; true', "sh", *rank]
    done = subprocess.run(
        [mpiexec, "-n", "3", *rank],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(told["RANK"] for told, _, _ in found) == ["0", "1", "2"]
    assert {told["WORLD_SIZE"] for told, _, _ in found} == {"3"}
    assert {told["MASTER_ADDR"] for told, _, _ in found} == {"127.0.0.1"}
    assert len({told["MASTER_PORT"] for told, _, _ in found}) == 1
    assert all(joins for _, joins, _ in found)
    (place,) = {place for _, _, place in found}
    assert Path(place).parent == tmp_path / "perfscope-runs"


# Endings


def test_which_of_several_endings_was_the_cause() -> None:
    lost, error, killed, told = RankEnding(0, 3), RankEnding(1, 1), RankEnding(2, -9), RankEnding(3, -15)
    assert cause([told, lost, error, killed]) == killed
    assert cause([told, lost, error]) == error
    assert cause([told, lost]) == lost
    assert cause([RankEnding(0, 0)]) is None
    by_launcher = RankEnding(2, -9, was_stopped=True)  # it did not heed SIGTERM
    assert cause([by_launcher, error]) == error and silent([by_launcher, error]) == []
    assert cause([by_launcher, lost]) == lost and silent([by_launcher, lost]) == [2]
    assert silent([killed, lost]) == [] == silent([RankEnding(3, -15, was_stopped=True), lost])
    assert (killed.exit_code, error.exit_code) == (137, 1)
    assert str(killed) == "rank 2 was killed by signal 9 (SIGKILL)"


RANK = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)  # no stack trace
rank, mode, folder = os.environ["RANK"], sys.argv[1], sys.argv[2]
open(f"{folder}/{rank}", "w").write(str(os.getpid()))
while len([name for name in os.listdir(folder) if name.isdigit()]) < 2: time.sleep(0.02)
if mode == "exit" and rank == "1": sys.exit(7)
if mode == "kill" and rank == "1": os.kill(os.getpid(), signal.SIGKILL)
if mode != "ok": time.sleep(300)
"""


@pytest.fixture
def rank_script(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    (tmp_path / "pids").mkdir()
    return script


def elastic(script: Path, mode: str) -> subprocess.Popen[str]:
    options = ["--standalone", "--nproc-per-node", "2", str(script), mode, str(script.parent / "pids")]
    return subprocess.Popen(
        [sys.executable, "-m", "perfscope.runners.starting.elastic", *options],
        env=user_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def alive(folder: Path) -> list[int]:
    found = []
    for path in folder.iterdir():
        with suppress(OSError, ValueError):
            pid = int(path.read_text())
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            found += [pid] if state not in "ZX" else []
    return found


@pytest.mark.torch
@pytest.mark.parametrize(
    ("mode", "code", "said"),
    [
        ("ok", 0, ""),
        ("exit", 7, "perfscope bench: rank 1 ended with exit code 7; all ranks have ended\n"),
        ("kill", 137, "perfscope bench: rank 1 was killed by signal 9 (SIGKILL); all ranks have ended\n"),
    ],
)
def test_torchrun_says_one_line_at_most(rank_script: Path, mode: str, code: int, said: str) -> None:
    process = elastic(rank_script, mode)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (code, "", said)
    assert alive(rank_script.parent / "pids") == []


@pytest.mark.torch
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_no_rank_behind(rank_script: Path, number: signal.Signals) -> None:
    process = elastic(rank_script, "sleep")
    folder = rank_script.parent / "pids"
    deadline = time.monotonic() + 60
    while len(alive(folder)) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert err == ""
    deadline = time.monotonic() + 30
    while alive(folder):
        assert time.monotonic() < deadline, "ranks stay behind"
        time.sleep(0.05)
