"""`perfscope slurm script`: scripts that bash reads, tasks that meet, words that survive, sites."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfscope.cli.slurm.options import job_request
from perfscope.cli.slurm.script import command as script_command
from perfscope.errors import UsageError
from perfscope.rundir.shell import quote
from perfscope.slurm.quoting import directive, file_pattern, quote_all
from perfscope.slurm.request import FRAMEWORKS, JobRequest, job_name
from perfscope.slurm.script import batch_script
from perfscope.slurm.site import FILE, Site, find_site, read_site

HOSTILE = (
    "two words",
    "it's",
    'say "hi"',
    "$HOME `id` $(id)",
    "a\nb\r\nc\td",
    "\\n",
    "*",
    "",
    "-o",
    "é✓",
    "\x1b[31m",
    "!event",
    "#SBATCH --time=1",
    "'\n'",
)
# Stand-ins for what a batch script calls: they start tasks as Slurm would, on two nodes without names.
SRUN = """#!/bin/bash
tasks=1; per_node=1
while [ "${1#-}" != "$1" ]; do
  case $1 in --ntasks=*) tasks=${1#*=} ;; --ntasks-per-node=*) per_node=${1#*=} ;; esac
  shift
done
for ((rank = 0; rank < tasks; rank++)); do
  SLURM_PROCID=$rank SLURM_LOCALID=$((rank % per_node)) SLURM_NODEID=$((rank / per_node)) \\
    SLURM_NTASKS=$tasks SLURMD_NODENAME=node$((rank / per_node + 1)) "$@" || exit $?
done
"""
SCONTROL = """#!/bin/bash
if [ "$2" = hostnames ]; then printf 'node1.invalid\\nnode2.invalid\\n'; exit; fi
number=${3#node}
echo "NodeName=$3 Arch=x86_64"
echo "   NodeAddr=10.0.0.${number%.invalid} NodeHostName=$3 Version=22.05"
"""
PERFSCOPE = """#!/bin/bash
printf '%s\\n' "$*" >> calls
if [ "$1" != run ]; then exit; fi
while [ "$1" != -- ]; do if [ "$1" = -o ]; then mkdir -p "$2"; fi; shift; done
shift
exec "$@"
"""
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def job(**changes: object) -> JobRequest:
    first = JobRequest(
        command=(sys.executable, "-c", SHOW),
        framework="torch",
        name="train",
        run="runs/one",
        nodes=2,
        tasks_per_node=2,
        clean=False,
    )
    return replace(first, **changes)  # type: ignore[arg-type]


def programs(folder: Path) -> Path:
    place = folder / "programs"
    place.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("perfscope", PERFSCOPE)):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return place


def run_script(script: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.sh").write_text(script)
    environment = {
        "PATH": f"{programs(folder)}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_CPUS_ON_NODE": "8",
        **more,
    }
    return subprocess.run(
        ["bash", "job.sh"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def tasks_of(script: str, folder: Path, **more: str) -> list[tuple[list[str], dict[str, str]]]:
    done = run_script(script, folder, **more)
    assert done.returncode == 0, done.stderr
    return [(words, env) for words, env in map(json.loads, done.stdout.splitlines())]


# --- bash and sbatch read what was meant -----------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_script_is_bash(framework: str, tmp_path: Path) -> None:
    made = job(
        framework=framework,
        command=("python", *HOSTILE),
        clean=True,
        modules=("cuda/12.4",),
        setup=("source venv/bin/activate",),
        stage="cp -r 'my data' $TMPDIR",
        interface="ib0",
        cpus_per_task=4,
        gpu_bind="closest",
        mem_bind="local",
    )
    for variant in (made, replace(made, array="0-3"), replace(made, torchrun=True, horovodrun=True)):
        file = tmp_path / "job.sh"
        file.write_text(batch_script(variant))
        subprocess.run(["bash", "-n", str(file)], check=True)


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_shellcheck_has_nothing_to_say(framework: str, tmp_path: Path) -> None:
    made = job(
        framework=framework,
        command=("python", "my train.py"),
        clean=True,
        stage='cp -r "$HOME/data" "$TMPDIR"',
    )
    texts = [batch_script(made)]
    texts += [batch_script(replace(made, array="0-3", torchrun=True, interface="ib0"))] * (
        framework == "torch"
    )
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.sh").write_text(text)
    subprocess.run(["shellcheck", *sorted(tmp_path.glob("*.sh"))], check=True)


def test_hostile_words_reach_the_command_as_they_are(tmp_path: Path) -> None:
    made = job(command=(sys.executable, "-c", SHOW, *HOSTILE), nodes=1, tasks_per_node=1)
    words, _ = tasks_of(batch_script(made), tmp_path)[0]
    assert words == list(HOSTILE)


def test_quoted_words_are_read_back_by_bash() -> None:
    line = f"printf '%s\\0' {quote_all(HOSTILE)}"
    assert "\n" not in line and "\r" not in line  # sbatch refuses a script with CR in it
    out = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
    assert out.decode().split("\0")[:-1] == list(HOSTILE)
    assert quote("plain-word/1") == "plain-word/1"


def test_values_of_directives_are_quoted_for_sbatch() -> None:
    assert directive("exclusive") == "#SBATCH --exclusive"
    assert directive("partition", "gpu-a,gpu_b") == "#SBATCH --partition=gpu-a,gpu_b"
    assert directive("constraint", "[a|b]&c") == '#SBATCH --constraint="[a|b]&c"'
    assert directive("comment", 'a "b" #c') == '#SBATCH --comment="a \\"b\\" #c"'
    with pytest.raises(UsageError, match="line break"):
        directive("comment", "a\n#SBATCH --time=0")
    assert file_pattern("runs/50%") == "runs/50%%"


def test_a_script_names_nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = batch_script(job(command=("python", "train.py"), clean=True))
    for place in (str(tmp_path), str(Path.home()), sys.prefix, os.uname().nodename):
        assert place == "/" or place not in text
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --nodes=2\n")


# --- processes find each other ---------------------------------------------------------------------------


def test_torch_tasks_know_their_rank_and_the_master(tmp_path: Path) -> None:
    found = tasks_of(batch_script(job()), tmp_path)
    assert [env["RANK"] for _, env in found] == ["0", "1", "2", "3"]
    assert [env["LOCAL_RANK"] for _, env in found] == ["0", "1", "0", "1"]
    assert {env["WORLD_SIZE"] for _, env in found} == {"4"}
    # node1.invalid resolves nowhere, so its address is the one that Slurm has.
    assert {env["MASTER_ADDR"] for _, env in found} == {"10.0.0.1"}
    ports = {int(env["MASTER_PORT"]) for _, env in found}
    assert len(ports) == 1 and 15000 <= ports.pop() < 32000
    assert {env["OMP_NUM_THREADS"] for _, env in found} == {"4"}


def test_torchrun_is_started_once_per_node_with_one_meeting_place(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text('#!/bin/bash\nprintf "%s " "$@"; echo\n')
    (tmp_path / "torchrun").chmod(0o755)
    script = batch_script(job(torchrun=True, command=("train.py", "two words")))
    done = run_script(script, tmp_path, BASH_ENV=str(_with_path(tmp_path)))
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[0] == lines[1], done.stderr
    assert "--nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=10.0.0.1:" in lines[0]
    assert "--rdzv-id=4711 --no-python train.py two words" in lines[0]


def _with_path(folder: Path) -> Path:
    file = folder / "more-path"
    file.write_text(f"PATH={folder}:$PATH\n")
    return file


def test_every_tensorflow_worker_has_an_address_of_its_own(tmp_path: Path) -> None:
    found = tasks_of(batch_script(job(framework="tensorflow")), tmp_path)
    configs = [json.loads(env["TF_CONFIG"]) for _, env in found]
    assert [one["task"] for one in configs] == [{"type": "worker", "index": k} for k in range(4)]
    workers = configs[0]["cluster"]["worker"]
    assert all(one["cluster"]["worker"] == workers for one in configs)
    hosts, ports = zip(*(one.rsplit(":", 1) for one in workers), strict=True)
    assert hosts == ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2") and len(set(ports)) == 4


def test_jax_and_keras_processes_know_the_coordinator(tmp_path: Path) -> None:
    found = tasks_of(batch_script(job(framework="keras")), tmp_path)
    assert [env["JAX_PROCESS_ID"] for _, env in found] == ["0", "1", "2", "3"]
    assert {env["JAX_NUM_PROCESSES"] for _, env in found} == {"4"}
    coordinator = found[0][1]["JAX_COORDINATOR_ADDRESS"]
    assert coordinator.startswith("10.0.0.1:")
    workers = json.loads(found[0][1]["TF_CONFIG"])["cluster"]["worker"]
    master = f"{found[0][1]['MASTER_ADDR']}:{found[0][1]['MASTER_PORT']}"
    assert len({coordinator, master, *workers}) == 6  # nobody shares a port


def test_mxnet_has_a_scheduler_and_servers_beside_its_workers(tmp_path: Path) -> None:
    found = tasks_of(batch_script(job(framework="mxnet", servers_per_node=2)), tmp_path)
    roles = sorted(env["DMLC_ROLE"] for _, env in found)
    assert roles == ["scheduler", *["server"] * 4, *["worker"] * 4]
    assert {(env["DMLC_NUM_WORKER"], env["DMLC_NUM_SERVER"]) for _, env in found} == {("4", "4")}
    assert {env["DMLC_PS_ROOT_URI"] for _, env in found} == {"10.0.0.1"}


def test_mpi_programs_are_started_by_srun_itself() -> None:
    text = batch_script(job(framework="mpi", mpi="pmi2", cpus_per_task=3))
    assert "--mpi=pmi2" in text and "--cpus-per-task=3" in text and "--cpu-bind=cores" in text
    assert "MASTER_ADDR" not in text and "bash -c" not in text


# --- what the job does around the training ---------------------------------------------------------------


def test_who_else_uses_the_nodes_is_written_down_before_and_after(tmp_path: Path) -> None:
    made = batch_script(job(clean=True, command=("true",)))
    done = run_script(made.replace("sleep 1", "sleep 0.01"), tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs/one/neighbours.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [(one["when"], one["node"]) for one in found] == [
        *[("before", node) for node in ("node1", "node2")],
        *[("after", node) for node in ("node1", "node2")],
    ]
    assert all(one["busy_cpus"] >= 0 and one["load"] >= 0 and isinstance(one["others"], str) for one in found)


def test_the_exit_code_of_a_failing_rank_is_the_jobs(tmp_path: Path) -> None:
    made = job(command=("bash", "-c", "exit $((RANK + 3))"))
    assert run_script(batch_script(made), tmp_path).returncode == 3


def test_a_requeued_job_records_beside_what_it_left_before(tmp_path: Path) -> None:
    done = run_script(batch_script(job(command=("true",))), tmp_path, SLURM_RESTART_COUNT="2")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "slurm close runs/one-restart1 --unless-finished --reason job 4711 was requeued"
    assert calls[1].startswith("run -o runs/one-restart2 --name train -- srun")


def test_a_job_that_slurm_ends_marks_its_run(tmp_path: Path) -> None:
    made = job(command=("bash", "-c", 'kill -TERM "$JOB"; exit 143'), tasks_per_node=1, nodes=1)
    script = batch_script(made).replace("status=0", "export JOB=$$\nstatus=0")
    done = run_script(script, tmp_path)
    assert done.returncode == 143
    assert (
        (tmp_path / "calls")
        .read_text()
        .splitlines()[-1]
        .startswith("slurm close runs/one --reason Slurm ended")
    )


def test_a_job_without_perfscope_says_what_to_do(tmp_path: Path) -> None:
    script = batch_script(job()).replace("command -v perfscope", "command -v perfscope-that-is-not")
    done = run_script(script, tmp_path)
    assert done.returncode == 127 and "perfscope-site.toml" in done.stderr


def test_two_jobs_do_not_record_into_one_directory(tmp_path: Path) -> None:
    (tmp_path / "runs/one").mkdir(parents=True)
    (tmp_path / "runs/one/run.json").write_text("{}")
    done = run_script(batch_script(job(clean=True)), tmp_path)
    assert done.returncode == 125 and "runs/one already holds a run" in done.stderr
    assert not (tmp_path / "calls").exists() and not (tmp_path / "runs/one.4711.neighbours").exists()


def test_tasks_of_an_array_have_runs_of_their_own(tmp_path: Path) -> None:
    made = job(command=("true",), array="0-3", run="my runs/one")
    run_script(batch_script(made), tmp_path, SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_JOB_ID="12")
    assert (tmp_path / "my runs/one-3").is_dir()
    by_id = tmp_path / "by-id"
    by_id.mkdir()
    run_script(batch_script(replace(made, run=None)), by_id, SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_JOB_ID="12")
    assert (by_id / "perfscope-runs/slurm-12_3").is_dir()


# --- sites and options -----------------------------------------------------------------------------------


def request(*command: str, **options: object) -> JobRequest:
    first: dict[str, object] = {
        "framework": "torch",
        "output": None,
        "nodes": 1,
        "ntasks_per_node": 1,
        "torchrun": False,
        "horovodrun": False,
        "record": None,
        "mpi": None,
        "site": None,
        "more": (),
        "job_name": None,
        "exclusive": None,
        "partition": None,
        "time": None,
    }
    return job_request(command or ("python", "train.py"), **{**first, **options})  # type: ignore[arg-type]


def test_the_nearest_site_file_counts_and_options_go_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "project" / "deep"
    below.mkdir(parents=True)
    (tmp_path / FILE).write_text('partition = "far"\n')
    (tmp_path / "project" / FILE).write_text(
        'modules = ["gcc/13"]\npartition = "near"\nclean = false\nmpi = "pmi2"\n'
        '[options]\nhint = "nomultithread"\n'
    )
    monkeypatch.chdir(below)
    assert find_site(below) == tmp_path / "project" / FILE
    made = request(framework="mpi")
    assert (made.partition, made.exclusive, made.clean, made.mpi) == ("near", False, False, "pmi2")
    assert made.options == (("hint", "nomultithread"),) and made.modules == ("gcc/13",)
    assert request(partition="mine", exclusive=True).partition == "mine"
    text = batch_script(made)
    assert "module load gcc/13" in text and "#SBATCH --hint=nomultithread" in text
    assert "--exclusive" not in text and "neighbours" not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('partiton = "gpu"', 'has no key "partiton" (did you mean "partition"?)'),
        ("modules = 'gcc'", 'modules: must be a list, not "gcc"; write ["gcc"]'),
        ("clean = 1", "clean: must be true or false, not 1"),
        ("time = 30", "time: must be text, not 30"),
        ("[options]\nnodes = 3", "--nodes is set by an option of perfscope"),
        ("[options]\nhint = 1.5", "options.hint: must be true or false or a whole number or text, not 1.5"),
        ('setup = ["a\\nb"]', 'setup: must be text of one line, not "a\\nb"'),
        ('time = " "', 'time: must be text, not " "'),
        ("= 1", "is not TOML"),
    ],
)
def test_what_a_site_file_cannot_say_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(UsageError) as caught:
        read_site(tmp_path / FILE)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_site_without_words_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("")
    assert read_site(tmp_path / FILE) == Site()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"torchrun": True, "framework": "jax"}, "--torchrun starts torch, not jax"),
        ({"horovodrun": True}, "--horovodrun starts Horovod, not torch"),
        ({"record": "--windws 3"}, "No such option"),
        ({"record": "-o elsewhere"}, "-o is set by"),
        ({"record": "python"}, "no option of `perfscope run`"),
        ({"record": "'"}, "cannot be read"),
        ({"more": ("time=3",)}, "--time is set by an option of perfscope"),
        ({"more": ("a b",)}, "is not NAME or NAME=VALUE"),
    ],
)
def test_options_that_cannot_be_are_one_line(
    options: dict[str, object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        request(**options)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_options_of_perfscope_run_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = request(record="--windows 5 --label note='two words'")
    assert "--windows 5 --label 'note=two words' --" in batch_script(made).replace(" \\\n  ", " ")


def test_the_command_prints_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        script_command,
        [
            "--framework",
            "torch",
            "-N",
            "2",
            "-t",
            "1:00:00",
            "--array",
            "0-1",
            "--",
            "python",
            "a b.py",
            "-x",
        ],
    )
    assert done.exit_code == 0, done.output
    assert "#SBATCH --output=%x-%A_%a.log" in done.output and "command=(python 'a b.py' -x)" in done.output
    wrong = CliRunner().invoke(script_command, ["--framework", "torch", "-t", "soon", "--", "true"])
    assert wrong.exit_code == 2 and "'soon' is no time" in wrong.output


def test_a_job_is_called_as_its_script() -> None:
    assert job_name(("python", "-u", "src/train cnn.py", "--lr", "1")) == "train_cnn"
    assert job_name(("python", "-m", "pkg.train")) == "pkg.train"
    assert job_name(("./heat",)) == "heat"
