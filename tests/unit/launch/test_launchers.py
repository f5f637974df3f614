"""Recognizing launch commands, and what is changed in them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from perfscope.children import ask_version
from perfscope.launch.environment import Injection, ProbeOptions, is_nested, make_injection
from perfscope.launch.launchers import plan_command
from perfscope.launch.plan import CommandContext, LaunchPlan

SITE = "/opt/perfscope/site"
VARIABLES = {"PERFSCOPE_RUN_DIR": "/r", "PERFSCOPE_AGENT": "/a.py", "PERFSCOPE_CONFIG": "{}"}
NAMES = ["PYTHONPATH", *VARIABLES]
OPEN_MPI = "mpirun (Open MPI) 4.1.6\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
HYDRA = "HYDRA build details:\n    Version:                                 4.1.2\n"


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def plan(command: str | list[str], mpi: str = OPEN_MPI, **environment: str) -> LaunchPlan:
    argv = tuple(command.split() if isinstance(command, str) else command)
    context = CommandContext(
        environment={"PATH": os.environ["PATH"], **environment},
        injection=Injection(SITE, VARIABLES),
        mpi_version=lambda _: mpi,
    )
    return plan_command(argv, context)


@pytest.mark.parametrize(
    ("command", "launcher", "name", "expected", "world"),
    [
        ("python train.py", "python", "train", None, None),
        ("/usr/bin/python3.11 -u -W ignore src/my.train.py --x", "python", "my.train", None, None),
        ("python -m pkg.train --lr 1", "python", "pkg.train", None, None),
        ("python -Xdev -um pkg.train", "python", "pkg.train", None, None),
        ("python -c pass", "python", "python", None, None),
        ("torchrun train.py", "torchrun", "train", 1, 1),
        ("torchrun --standalone --nproc-per-node 4 train.py", "torchrun", "train", 4, 4),
        ("torchrun --nproc_per_node=4 --nnodes=2 train.py --nnodes 9", "torchrun", "train", 4, 8),
        ("torchrun --nnodes 1:4 --nproc-per-node 2 train.py", "torchrun", "train", 2, None),
        ("torchrun --nnodes 2:2 --nproc-per-node 2 train.py", "torchrun", "train", 2, 4),
        (
            "torchrun --rdzv_backend c10d --nproc-per-node=cpu train.py",
            "torchrun",
            "train",
            os.cpu_count(),
            os.cpu_count(),
        ),
        ("torchrun -m --nproc-per-node 3 pkg.train", "torchrun", "pkg.train", 3, 3),
        ("torchrun --nproc-per-node 2 --no-python ./start.sh", "torchrun", "start", 2, 2),
        ("torchrun --nproc-per-node x train.py", "torchrun", "train", None, None),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "torchrun", "train", 2, 2),
        ("python3 -E -m torch.distributed.launch --use-env --nproc_per_node=2 t.py", "torchrun", "t", 2, 2),
        ("mpirun -np 4 python train.py", "mpirun", "train", 4, 4),
        ("mpirun -n 2 python a.py : -n 3 python b.py", "mpirun", "a", 5, 5),
        (
            "mpirun --mca btl tcp,self -x FOO=1 --map-by node -np 4 python train.py -np 9",
            "mpirun",
            "train",
            4,
            4,
        ),
        ("mpirun python train.py", "mpirun", "train", None, None),
        ("/opt/mpi/bin/mpiexec -n 8 ./app", "mpirun", "app", 8, 8),
        ("srun -n 8 python train.py", "srun", "train", 8, 8),
        ("srun -N2 --ntasks=8 --gres gpu:4 python train.py", "srun", "train", 8, 8),
        ("srun -N 2 --ntasks-per-node 4 python train.py", "srun", "train", None, None),
        ("srun --ntasks=2 torchrun --nnodes 2 --nproc-per-node 4 train.py", "srun", "train", 8, 8),
        ("horovodrun -np 4 -H a:2,b:2 python train.py", "horovodrun", "train", 4, 4),
        ("numactl --cpunodebind=0 -m 0 mpirun -np 2 python train.py", "mpirun", "train", 2, 2),
        ("taskset -c 0-3 torchrun --nproc-per-node 2 train.py", "torchrun", "train", 2, 2),
        ("timeout -k 5 100 nice -n 5 python train.py", "python", "train", None, None),
        ("env OMP_NUM_THREADS=4 torchrun --nproc-per-node=2 train.py", "torchrun", "train", 2, 2),
        ("bash run_it.sh --flag", "shell", "run_it", None, None),
        ("sh -c ./x", "shell", "sh", None, None),
        ("uv run --python 3.12 train.py --lr 0.1", "other", "train", None, None),
        ("no/accelerate launch --num_processes 2 t/train.py", "other", "train", None, None),
        ("no/jupyter nbconvert --to notebook --execute work.ipynb", "other", "work", None, None),
        ("uv run tool", "other", "uv", None, None),
        ("env", "other", "env", None, None),
        ("cat", "other", "cat", None, None),
    ],
)
def test_recognized_commands(
    command: str, launcher: str, name: str, expected: int | None, world: int | None
) -> None:
    found = plan(command)
    assert (found.launcher, found.name) == (launcher, name)
    assert (found.expected_ranks, found.world_size) == (expected, world)
    assert found.warnings == ()


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "torchrun --nproc-per-node 2 train.py",
        "numactl -N 0 taskset 3 bash x.sh",
        "srun -n 2 python train.py",
        "srun --export=ALL -n 2 python train.py",
        "srun --export=ALL,FOO=1 -n 2 python train.py",
        "horovodrun -np 2 python train.py",
        "env -u FOO A=b python train.py",
    ],
)
def test_commands_that_pass_the_environment_on_are_left_alone(command: str) -> None:
    assert plan(command).argv == tuple(command.split())


def test_scripts_are_known_by_their_first_line(tmp_path: Path) -> None:
    for first_line, launcher in [
        (f"#!{sys.executable}", "python"),
        ("#!/usr/bin/env python3", "python"),
        ("#!/usr/bin/env -S python3 -u", "python"),
        ("#!/bin/sh -e", "shell"),
        ("#!/usr/bin/env bash", "shell"),
        ("#!/usr/bin/perl", "other"),
        ("\x7fELF", "other"),
    ]:
        script = tmp_path / "thing.x"
        script.write_text(f"{first_line}\n")
        script.chmod(0o755)
        found = plan([str(script), "-E"])
        assert (found.launcher, found.name, found.unreachable) == (launcher, "thing", None)


def test_script_with_an_isolated_interpreter_cannot_be_reached(tmp_path: Path) -> None:
    script = tmp_path / "thing"
    script.write_text("#!/usr/bin/python3 -I\n")
    script.chmod(0o755)
    assert "`python -I`" in str(plan([str(script)]).unreachable)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("python -E train.py", "`python -E`"),
        ("python -I train.py", "`python -I`"),
        ("python -S -m x", "`python -S`"),
        ("python -uSE train.py", "`python -E -S`"),
        ("env -i python train.py", "`env`"),
        ("env - A=b python train.py", "`env`"),
        ("env -u PYTHONPATH python train.py", "`env`"),
        ("sudo python train.py", "sudo"),
        ("ssh host python train.py", "ssh"),
        ("docker run image python train.py", "docker"),
        ("mpirun -np 2 python -I train.py", "`python -I`"),
        ("numactl -N 0 python -E train.py", "`python -E`"),
        ("torchrun --no-python python -E train.py", "`python -E`"),
    ],
)
def test_commands_the_probe_cannot_get_into_are_named(command: str, reason: str) -> None:
    found = plan(command)
    assert reason in str(found.unreachable)
    assert found.warnings == (f"no rank will be recorded: {found.unreachable}",)


@pytest.mark.parametrize(
    "command", ["python -W E train.py", "python -X IS t.py", "python train.py -E", "python -s t.py"]
)
def test_harmless_python_options_are_not_taken_for_isolation(command: str) -> None:
    assert plan(command).unreachable is None


def _forwarded(*, skip: str = "") -> list[str]:
    return [word for name in NAMES if name != skip for word in ("-x", name)]


def test_open_mpi_is_told_to_pass_our_variables_on() -> None:
    assert plan("mpirun -np 2 python t.py").argv == ("mpirun", *_forwarded(), "-np", "2", "python", "t.py")


def test_open_mpi_keeps_a_pythonpath_of_the_users_own() -> None:
    given = plan("mpirun -np 2 -x PYTHONPATH=/mine -x FOO python t.py -x PYTHONPATH=/not-an-option").argv
    rest = words(f"-np 2 -x PYTHONPATH={SITE}:/mine -x FOO python t.py -x PYTHONPATH=/not-an-option")
    assert given == ("mpirun", *_forwarded(skip="PYTHONPATH"), *rest)
    named = plan("mpirun -x PYTHONPATH python t.py").argv
    assert named == ("mpirun", *_forwarded(skip="PYTHONPATH"), "-x", "PYTHONPATH", "python", "t.py")


def test_open_mpis_variable_list_is_extended_instead_of_using_both() -> None:
    # Open MPI 4.1 aborts when -x and the list are used together.
    found = plan("mpirun -np 2 python t.py", OMPI_MCA_mca_base_env_list="FOO;PYTHONPATH=/mine")
    assert found.argv == words("mpirun -np 2 python t.py")
    listed = f"FOO;PYTHONPATH={SITE}:/mine;" + ";".join(VARIABLES)
    assert found.environment == {"OMPI_MCA_mca_base_env_list": listed}
    found = plan("mpirun --mca mca_base_env_list FOO -np 2 python t.py")
    assert found.argv == (
        "mpirun",
        "--mca",
        "mca_base_env_list",
        ";".join(["FOO", *NAMES]),
        *words("-np 2 python t.py"),
    )


def test_hydra_is_left_alone_unless_it_is_told_to_hold_back() -> None:
    assert plan("mpiexec -n 2 python t.py", HYDRA).argv == words("mpiexec -n 2 python t.py")
    assert plan("mpiexec -n 2 python t.py", HYDRA).warnings == ()
    assert "-genvnone" in plan("mpiexec -genvnone -n 2 python t.py", HYDRA).warnings[0]
    assert "cannot tell which MPI" in plan("mpiexec -n 2 python t.py", "").warnings[0]


@pytest.mark.parametrize("export", ["NONE", "NIL"])
@pytest.mark.parametrize("form", ["--export={}", "--export {}"])
def test_srun_that_exports_nothing_exports_ours(export: str, form: str) -> None:
    argv = plan(f"srun {form.format(export)} -n 2 python t.py", PYTHONPATH="/shell").argv
    assert f"PYTHONPATH={SITE},{','.join(VARIABLES)}" in " ".join(argv)
    assert "/shell" not in " ".join(argv)
    assert "NONE" not in " ".join(argv)
    assert argv[-4:] == ("-n", "2", "python", "t.py")


def test_srun_lists_are_extended() -> None:
    argv = plan("srun --export=FOO,PYTHONPATH=/mine,B=1 python t.py").argv
    assert argv[1] == f"--export=FOO,B=1,PYTHONPATH={SITE}:/mine,{','.join(VARIABLES)}"
    argv = plan("srun --export=PYTHONPATH python t.py").argv
    assert argv[1] == f"--export=PYTHONPATH,{','.join(VARIABLES)}"
    argv = plan("srun python t.py", SLURM_EXPORT_ENV="NONE").argv
    assert argv[1] == f"--export=PYTHONPATH={SITE},{','.join(VARIABLES)}"
    assert plan("srun python t.py --export=NONE").argv == words("srun python t.py --export=NONE")


def test_env_that_sets_pythonpath_keeps_its_value_behind_ours() -> None:
    argv = plan("env PYTHONPATH=/mine mpirun -np 2 python t.py").argv
    assert argv[:3] == ("env", f"PYTHONPATH={SITE}:/mine", "mpirun")
    assert "PERFSCOPE_RUN_DIR" in argv


def test_started_once_per_rank_is_warned_about() -> None:
    assert "once per rank" in plan("python t.py", OMPI_COMM_WORLD_RANK="0").warnings[0]
    task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
    assert plan("python t.py", **task, PMI_RANK="2", PMI_SIZE="4").warnings == ()  # srun --mpi=pmi2
    assert "once per rank" in plan("python t.py", **task, PMI_RANK="5", PMI_SIZE="8").warnings[0]


def test_sbatch_is_a_closed_door_that_says_where_to_go() -> None:
    assert "`perfscope slurm submit`" in str(plan("sbatch job.sh").unreachable)


def test_torchrun_reads_its_own_environment_defaults() -> None:
    assert plan("torchrun t.py", PET_NPROC_PER_NODE="3", PET_NNODES="2").world_size == 6


@pytest.mark.parametrize(
    ("existing", "result"),
    [(None, SITE), ("", SITE), ("/a", f"{SITE}:/a"), (":/a", f"{SITE}::/a"), (f"{SITE}:/a", f"{SITE}:/a")],
)
def test_pythonpath_never_gains_the_current_directory(existing: str | None, result: str) -> None:
    assert Injection(SITE, VARIABLES).python_path(existing) == result


def test_injection_names_files_that_exist() -> None:
    injection = make_injection(Path("/r"), ProbeOptions(), {})
    assert [path.name for path in Path(injection.site_dir).glob("*.py")] == ["sitecustomize.py"]
    assert Path(injection.variables["PERFSCOPE_AGENT"]).is_file()
    assert not is_nested({})
    assert is_nested(injection.changes({}))
    assert not is_nested({"PERFSCOPE_RUN_DIR": "/r"})


def test_empty_and_odd_words_do_not_break_recognition() -> None:
    for argv in (
        [""],
        ["python"],
        ["python", "-m"],
        ["torchrun"],
        ["mpirun"],
        ["srun", "--export"],
        ["timeout"],
        ["env", "-"],
    ):
        assert plan(argv).argv[0] == argv[0]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_a_real_mpirun_is_recognized() -> None:
    assert any(word in ask_version("mpirun") for word in ("Open MPI", "HYDRA", "Intel"))
