"""`perfscope bench sweep`: a matrix of runs, one study."""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.cli.bench.options import default_threads, planned, require_torch
from perfscope.cli.lazy_group import HELP
from perfscope.cli.output import notice, print_result, this_command
from perfscope.cli.slurm.array_options import sweep_options, taken_out
from perfscope.errors import PerfscopeError, UsageError
from perfscope.messages.lists import counted
from perfscope.rundir.files import short_path
from perfscope.rundir.shell import quote

if TYPE_CHECKING:
    from perfscope.cli.bench.sweep_slurm import Wanted
    from perfscope.runners.config import BenchError
    from perfscope.runners.sweep.execution import How
    from perfscope.runners.sweep.spec import Cell, Sweep
    from perfscope.runners.sweep.state import Study

STUDIES = Path("perfscope-studies")


@click.command("sweep", context_settings=HELP)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Study to make, or to continue.  [default: perfscope-studies/FILE's name]",
)
@click.option(
    "--only", metavar="PATTERN", help="Only cells whose name or scheme matches, e.g. 'dp.*' or '*alexnet*'."
)
@click.option("--repeats", type=click.IntRange(1), metavar="N", help="Runs of each cell (default: FILE's).")
@click.option("--retry-failed", is_flag=True, help="Run cells again that failed before.")
@click.option(
    "--ceilings",
    type=click.Choice(["auto", "off"]),
    default="off",
    show_default=True,
    help="Measure this host's peaks before the first run.",
)
@click.option("--dry-run", is_flag=True, help="Print the runs in their order, and make nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the study as JSON.")
@sweep_options
def command(
    file: Path,
    output: Path | None,
    only: str | None,
    repeats: int | None,
    retry_failed: bool,
    ceilings: str,
    dry_run: bool,
    as_json: bool,
    slurm: bool,
    **batch: Any,
) -> None:
    """Run every cell of a matrix (schemes x models x ranks x batches), and compare them in a study.

    FILE is TOML; docs/bench.md lists what it may hold. Repeats are interleaved: every cell runs once
    before any runs twice, in an order that differs from repeat to repeat. A sweep that was interrupted
    or killed goes on where it was when the same command is given again.

    With --slurm the runs are the tasks of an array job, each on one node. The command follows it; detached
    with Ctrl-C, or killed, it is given again: it takes in what has finished and submits what is missing.

    \b
    Examples:
      perfscope bench sweep examples/hybrid.toml
      perfscope bench sweep examples/hybrid.toml --only 'dp.*' --repeats 3 -o study
      perfscope bench sweep examples/hybrid.toml --dry-run
      perfscope bench sweep examples/hybrid.toml --slurm --partition cpu --cpus-per-task 8 --array-limit 4

    \b
    The study: study.json, study.csv, study.md, and runs/ with a run directory for each run.
    Exit codes: 0 every cell ran (or cannot be, and is listed so); 1 a run failed, or is missing;
      3 with --slurm: still queued after --timeout-pending; 130 interrupted.
    """
    require_torch()
    from perfscope.runners.sweep.spec import read_sweep
    from perfscope.runners.sweep.state import load_study

    sweep = read_sweep(file)
    sweep = sweep if repeats is None else replace(sweep, repeats=repeats)
    names = _matching(sweep, only)
    folder = Path.cwd() / (output or STUDIES / file.stem)
    wanted = _wanted(folder, batch, slurm)
    if not dry_run:
        load_study(folder)  # what cannot be continued is refused before planning
    plans = _plans(sweep, names, file)
    sweep = _with_threads(sweep, plans, wanted)
    if dry_run:
        _print_order(sweep, names, plans, folder, as_json, wanted)
        return
    code = _run(
        sweep,
        names,
        plans,
        folder,
        retry_failed=retry_failed,
        ceilings=ceilings,
        as_json=as_json,
        wanted=wanted,
    )
    click.get_current_context().exit(code)


def _wanted(folder: Path, batch: Mapping[str, Any], slurm: bool) -> Wanted | None:
    """How the array job is to be; None without --slurm."""
    options = taken_out(batch, with_slurm=slurm)
    if not slurm:
        return None
    from perfscope.cli.bench.sweep_slurm import wanted_array

    return wanted_array(folder, options)


def _matching(sweep: Sweep, only: str | None) -> frozenset[str] | None:
    """Names of the cells that --only means; None for all."""
    if only is None:
        return None
    cells = frozenset(
        cell.name
        for cell in sweep.cells
        if any(fnmatch.fnmatchcase(name, only) for name in (cell.name, cell.scheme))
    )
    if not cells:
        raise UsageError(
            f"--only {only!r} matches no cell; there are {', '.join(cell.name for cell in sweep.cells[:8])}"
        )
    return cells


def _plans(sweep: Sweep, names: frozenset[str] | None, file: Path) -> dict[str, dict[str, Any] | BenchError]:
    """Cell -> its plan, or why it cannot be run."""
    _require_known_names(sweep, file)
    plans = {cell.name: _plan(cell) for cell in sweep.cells}
    _require_a_possible_cell(plans, names, file)
    return plans


def _require_known_names(sweep: Sweep, file: Path) -> None:
    """Raises BenchError where the file names unknown schemes or models: one line for all."""
    from perfscope.runners.config import BenchError, parse_scheme
    from perfscope.runners.models.registry import find_model
    from perfscope.runners.schemes.registry import find_scheme

    def problem(find: Callable[[str], object], name: str) -> str:
        try:
            find(name)
        except BenchError as error:
            return str(error)
        return ""

    problems = dict.fromkeys(
        text
        for cell in sweep.cells
        for text in (
            problem(find_scheme, parse_scheme(cell.scheme)[0]),
            problem(find_model, str(cell.settings.get("model", "smallcnn"))),
        )
        if text
    )
    if problems:
        raise BenchError(f"{file}: {'; '.join(problems)}")


def _plan(cell: Cell) -> dict[str, Any] | BenchError:
    """What planning says of a cell: facts, or why it cannot be."""
    from perfscope.cli.bench.notes import period_of
    from perfscope.runners.config import BenchError
    from perfscope.runners.identity import identity
    from perfscope.runners.starting.launching import launch_for

    try:
        job, cluster = planned(cell.scheme, cell.settings, (), cell.cluster)
        launch_for(job.config, os.environ, cluster)  # refuses what this machine lacks
    except BenchError as error:
        return error
    config = job.config
    return {
        "model": config.model,
        "input": "x".join(map(str, config.input_shape)),
        "ranks": job.num_ranks,
        "mesh": str(job.mesh),
        "batch": config.batch,
        "steps": config.steps,
        "threads": config.threads,
        "period": period_of(identity(job)),
        "num_params": job.shape.num_params,
    }


def _require_a_possible_cell(
    plans: dict[str, dict[str, Any] | BenchError], names: frozenset[str] | None, file: Path
) -> None:
    """Raises BenchError, with each reason once, where no cell that is asked for can be run."""
    from perfscope.runners.config import BenchError

    wanted = [plan for name, plan in plans.items() if names is None or name in names]
    reasons = dict.fromkeys(str(plan) for plan in wanted if isinstance(plan, BenchError))
    if all(isinstance(plan, BenchError) for plan in wanted):
        which = "the cell" if len(wanted) == 1 else f"none of the {len(wanted)} cells"
        can = "cannot" if len(wanted) == 1 else "can"
        raise BenchError(f"{which} of {file} {can} be run: {'; '.join(reasons)}")


def _with_threads(
    sweep: Sweep, plans: dict[str, dict[str, Any] | BenchError], wanted: Wanted | None
) -> Sweep:
    """Cells that set no threads all get what the cell with most ranks can have: they are to be compared."""
    free = [
        cell.name
        for cell in sweep.cells
        if "threads" not in cell.settings and cell.settings.get("bind", "none") == "none"
    ]
    ranks = [plan["ranks"] for name in free if isinstance(plan := plans[name], dict)]
    if not ranks:
        return sweep
    threads = _threads(max(ranks), wanted)
    for name in free:
        if isinstance(plan := plans[name], dict):
            plan["threads"] = threads
    cells = (
        replace(cell, settings={**cell.settings, "threads": threads}) if cell.name in free else cell
        for cell in sweep.cells
    )
    return replace(sweep, cells=tuple(cells))


def _threads(num_ranks: int, wanted: Wanted | None) -> int:
    """Threads of each rank: this machine is divided, or with --slurm the smallest node."""
    if wanted is not None:
        from perfscope.cli.bench.sweep_slurm import cpus_of_nodes

        cpus = cpus_of_nodes(wanted)
        if cpus is not None:
            return max(cpus // num_ranks, 1)
    return default_threads(num_ranks, os.environ)


def _run(
    sweep: Sweep,
    names: frozenset[str] | None,
    plans: dict[str, dict[str, Any] | BenchError],
    folder: Path,
    *,
    retry_failed: bool,
    ceilings: str,
    as_json: bool,
    wanted: Wanted | None = None,
) -> int:
    from perfscope.runners.sweep.execution import How, Interrupted, sole_user
    from perfscope.runners.sweep.state import FAILED, continue_study, load_study, new_study, save_study

    with sole_user(folder, _say):
        old = load_study(folder)
        if old is None:
            study = new_study(sweep, plans, _machine(wanted))
        else:
            study, changes = continue_study(old, sweep, plans, retry_failed=retry_failed)
            for line in changes:
                _say(line)
        save_study(study, folder)
        how = How(
            folder=folder,
            cell_timeout_s=sweep.cell_timeout_s,
            recording=sweep.recording,
            ceilings=ceilings,
        )
        code = 0
        try:
            if wanted is None:
                _run_with_progress(study, how, names)
            else:
                code = _run_as_array(study, how, names, wanted, retry_failed)
        except Interrupted as stop:
            code = 128 + stop.number
        finally:
            rows = _write_tables(study, folder)
    if code > 128:
        _say(f"interrupted; what is finished is kept, the same command goes on: {this_command()}")
    elif any(run.status == FAILED for cell in study.wanted for run in cell.runs):
        code = code or 1
    if as_json:
        print_result(json.dumps(study.as_json(), indent=1, ensure_ascii=False) + "\n")
    else:
        print_result("\n".join([study.title, study.trained, "", *study.sentences, "", rows]))
    _say(f"study: {quote(str(short_path(folder)))}")
    return code


def _run_as_array(
    study: Study, how: How, names: frozenset[str] | None, wanted: Wanted, retry_failed: bool
) -> int:
    """The study as an array job; the exit code as far as the array decides it. Raises Interrupted."""
    from perfscope.cli.bench.sweep_slurm import LeftAlone, run_on_slurm

    try:
        left = run_on_slurm(study, how, names, wanted, retry_failed=retry_failed)
    except LeftAlone as stop:
        return stop.code
    return 1 if left else 0


def _write_tables(study: Study, folder: Path) -> str:
    """study.json with its sentences, study.csv, study.md; returns the table for the terminal."""
    from perfscope.runners.sweep.heading import trained_line
    from perfscope.runners.sweep.state import STUDY_CSV, STUDY_MD, save_study
    from perfscope.runners.sweep.summary import sentences, study_rows
    from perfscope.runners.sweep.tables import csv_text, markdown, text_table

    rows = study_rows(study)
    study.trained = trained_line(study)
    study.sentences = sentences(rows)
    save_study(study, folder)
    for name, text in ((STUDY_CSV, csv_text(rows)), (STUDY_MD, markdown(study, rows, study.sentences))):
        aside = folder / f".{name}.part"
        aside.write_text(text, encoding="utf-8")
        aside.replace(folder / name)
    return text_table(rows)


def _run_with_progress(study: Study, how: How, names: frozenset[str] | None) -> None:
    from perfscope.cli.bench.progress import PlainProgress, RichProgress
    from perfscope.runners.sweep.execution import run_all, run_order

    total = len(run_order(study, names))
    done = sum(
        run.status != "pending"
        for cell in study.wanted
        if names is None or cell.name in names
        for run in cell.runs
    )
    impossible = [cell for cell in study.wanted if cell.impossible is not None]
    for cell in impossible:
        _say(f"{cell.name} is impossible: {cell.impossible}")
    if done:
        _say(f"{counted(done, 'run')} finished before" + ("" if total else "; nothing is left to run"))
    show = (RichProgress if sys.stderr.isatty() else PlainProgress)(done + total, done)
    with show:
        run_all(study, how, names, begins=show.begins, ended=show.ended)


def _print_order(
    sweep: Sweep,
    names: frozenset[str] | None,
    plans: dict[str, dict[str, Any] | BenchError],
    folder: Path,
    as_json: bool,
    wanted: Wanted | None,
) -> None:
    from perfscope.runners.sweep.execution import How, command_of, run_order
    from perfscope.runners.sweep.heading import trained_line
    from perfscope.runners.sweep.state import new_study

    study = new_study(sweep, plans, {})
    study.trained = trained_line(study)
    how = How(folder=folder, cell_timeout_s=sweep.cell_timeout_s, recording=sweep.recording)
    if as_json:
        print_result(json.dumps(study.as_json(), indent=1, ensure_ascii=False) + "\n")
        return
    if wanted is not None:
        from perfscope.cli.bench.sweep_slurm import print_script

        print_script(study, how, names, wanted)
        return
    order = run_order(study, names)
    lines = [f"{counted(len(order), 'run')}, in this order, into {short_path(folder)}", study.trained, ""]
    lines += [f"  {shlex.join(['perfscope', *command_of(cell, run, how)[3:]])}" for cell, run in order]
    impossible = [cell for cell in study.cells if cell.impossible is not None]
    if impossible:
        lines += ["", "Impossible", *(f"  {cell.name}: {cell.impossible}" for cell in impossible)]
    print_result("\n".join(lines) + "\n")


def _machine(wanted: Wanted | None) -> dict[str, Any]:
    """What the study ran on, for its heading."""
    if wanted is not None:
        from perfscope.cli.bench.sweep_slurm import machine_of

        return machine_of(wanted)
    import platform
    from importlib.metadata import version

    from perfscope.rundir.layout import host_name

    return {
        "host": host_name(),
        "CPU": _cpu_name(),
        "CPUs": len(os.sched_getaffinity(0)),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "torch": version("torch"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, "unknown")


def _say(line: str) -> None:
    try:
        notice(line)
    except OSError as error:  # a closed terminal is no reason to lose a study
        raise PerfscopeError(f"cannot write to stderr: {error.strerror}") from error
