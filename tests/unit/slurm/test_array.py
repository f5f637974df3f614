"""A sweep as an array job: what tasks leave, what is taken in, what is submitted again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from perfscope.cli.bench.sweep_slurm import Keeper
from perfscope.cli.slurm.array_options import sweep_options, taken_out
from perfscope.errors import UsageError
from perfscope.runners.sweep.execution import How
from perfscope.runners.sweep.spec import parse_sweep
from perfscope.runners.sweep.state import CellState, Study, load_study, new_study
from perfscope.slurm.array import (
    Array,
    ArrayCommand,
    array_script,
    forget,
    load_arrays,
    read_ended,
    save_arrays,
)
from perfscope.slurm.request import JobRequest

JOB = JobRequest(command=(), framework="torch", name="sweep", time="10", partition="cpu")


def piece(path: str, *command: str, timeout_s: float = 60.0) -> ArrayCommand:
    return ArrayCommand(path=path, key="k1", command=command, timeout_s=timeout_s)


def run_task(pieces: list[ArrayCommand], index: int, folder: Path) -> int:
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "perfscope").write_text("#!/bin/sh\n")
    (programs / "perfscope").chmod(0o755)
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SLURM_ARRAY_JOB_ID": "12",
        "SLURM_ARRAY_TASK_ID": str(index),
    }
    script = array_script(JOB, pieces, None)
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, timeout=60, check=False
    ).returncode


def test_a_task_runs_its_own_command_and_says_last_how_it_ended(tmp_path: Path) -> None:
    pieces = [
        piece("study/runs/a b-r1", "echo", "it's", "$HOME"),
        piece("study/runs/c-r1", "bash", "-c", "echo out; echo err >&2; exit 3"),
        piece("study/runs/d-r1", "sleep", "60", timeout_s=0.1),
    ]
    assert [run_task(pieces, index, tmp_path) for index in range(3)] == [0, 3, 124]
    assert (tmp_path / "study/runs/a b-r1.out").read_text() == "it's $HOME\n"
    assert not (tmp_path / "study/runs/b-r1.out").exists()
    failed = read_ended(tmp_path / "study/runs/c-r1", "k1")
    assert failed is not None and (failed.exit_code, failed.task) == (3, "12_1")
    assert (tmp_path / "study/runs/c-r1.log").read_text() == "err\n"
    assert read_ended(tmp_path / "study/runs/c-r1", "other settings") is None
    forget(tmp_path, ["study/runs/c-r1"])
    assert read_ended(tmp_path / "study/runs/c-r1", "k1") is None


def test_a_task_that_slurm_ends_says_nothing(tmp_path: Path) -> None:
    """The batch shell and its child get SIGTERM together."""
    pieces = [piece("r", "bash", "-c", 'kill -TERM $(cut -d" " -f4 /proc/$PPID/stat); exit 1')]
    assert run_task(pieces, 0, tmp_path) != 0
    assert read_ended(tmp_path / "r", "k1") is None


def test_the_array_has_a_task_per_piece() -> None:
    text = array_script(JOB, [piece("a", "true"), piece("b", "true"), piece("c", "true")], 2)
    assert "#SBATCH --array=0-2%2\n" in text and "#SBATCH --partition=cpu\n" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-"], input=text, text=True, check=True)


def test_arrays_are_remembered_in_the_order_of_their_tasks(tmp_path: Path) -> None:
    assert load_arrays(tmp_path) == []
    arrays = [Array(job="12", keys={"runs/b-r1": "k1", "runs/a-r1": "k2"}), Array(job="13", keys={})]
    save_arrays(tmp_path, arrays)
    assert load_arrays(tmp_path) == arrays
    assert list(load_arrays(tmp_path)[0].keys) == ["runs/b-r1", "runs/a-r1"]
    (tmp_path / "arrays.json").write_text("{")
    assert load_arrays(tmp_path) == []


def test_options_of_an_array_need_slurm() -> None:
    @click.command()
    @sweep_options
    def command(slurm: bool, **options: object) -> None:
        click.echo(json.dumps(taken_out(options, with_slurm=slurm), default=str))

    done = CliRunner().invoke(
        command, ["--slurm", "-p", "cpu", "--array-limit", "3", "--timeout-pending", "10m"]
    )
    found = json.loads(done.output)
    assert (found["partition"], found["array_limit"], found["timeout_pending"]) == ("cpu", 3, 600.0)
    for words, said in (
        (["-p", "cpu"], "--partition needs --slurm"),
        (["--no-wait"], "--no-wait needs --slurm"),
        (["--shared"], "--shared needs --slurm"),
        (["--slurm", "--no-wait", "--timeout-pending", "1m"], "leave one out"),
    ):
        with pytest.raises(UsageError, match=said):
            CliRunner().invoke(command, words, catch_exceptions=False)


# --- a study that is run as an array ---------------------------------------------------------------------


def study_of(folder: Path, repeats: int = 1) -> tuple[Study, How]:
    sweep = parse_sweep({"sweep": {"schemes": ["serial", "dp.ddp"], "repeats": repeats}}, "t", "t.toml")
    folder.mkdir(exist_ok=True)
    study = new_study(sweep, {cell.name: {} for cell in sweep.cells}, {})
    return study, How(folder=folder, cell_timeout_s=60.0, recording={})


def leave(folder: Path, cell: CellState, exit_code: int, output: str = "", log: str = "") -> None:
    """What a task leaves."""
    base = folder / cell.runs[0].path
    base.parent.mkdir(exist_ok=True)
    ended = {"key": cell.digest, "exit_code": exit_code, "seconds": 7, "task": "12_0"}
    for ending, text in (("out", output), ("log", log), ("ended", json.dumps(ended))):
        base.with_name(f"{base.name}.{ending}").write_text(text)


def test_results_of_tasks_are_taken_in_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, how = study_of(tmp_path / "study")
    first, second = study.cells
    keeper = Keeper(study, how, None)
    assert keeper.collect() == 0 and len(keeper.pending()) == 2
    figures = {"figures": {"samples_per_s": 40.0}, "scheme": {"full_name": "serial"}}
    leave(how.folder, first, 0, output=json.dumps(figures))
    leave(how.folder, second, 3, log="perfscope bench: rank 1 was lost\n")
    assert keeper.collect() == 2 and keeper.collect() == 0
    assert first.runs[0].status == "done" and (first.runs[0].figures or {})["samples_per_s"] == 40.0
    assert (second.runs[0].status, second.runs[0].error) == ("failed", "exit code 3: rank 1 was lost")
    assert capsys.readouterr().err.splitlines() == [
        f"[1/2] {first.name} r1: 40 samples/s (7 s)",
        f"[2/2] {second.name} r1: failed after 7 s: exit code 3: rank 1 was lost",
    ]
    saved = load_study(how.folder)
    assert saved is not None and [cell.runs[0].status for cell in saved.cells] == ["done", "failed"]


def test_a_failed_run_that_is_wanted_again_is_not_taken_in_again(tmp_path: Path) -> None:
    study, how = study_of(tmp_path / "study")
    leave(how.folder, study.cells[0], 3)
    keeper = Keeper(study, how, None)
    keeper.forget_failed()
    assert keeper.collect() == 0 and len(keeper.pending()) == 2
    leave(how.folder, study.cells[0], 124)
    assert keeper.collect() == 1 and "took longer than 60 s" in str(study.cells[0].runs[0].error)


def test_results_under_other_settings_do_not_count(tmp_path: Path) -> None:
    study, how = study_of(tmp_path / "study")
    leave(how.folder, study.cells[0], 0, output="{}")
    study.cells[0].digest = "changed since"
    assert Keeper(study, how, None).collect() == 0
