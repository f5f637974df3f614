"""`perfscope bench sweep`: a matrix of runs, one study."""

from __future__ import annotations

import fnmatch
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.cli.bench_options import planned, require_torch
from perfscope.cli.bench_words import plural
from perfscope.cli.output import print_result
from perfscope.errors import PerfscopeError, UsageError

if TYPE_CHECKING:
    from perfscope.runners.config import BenchError
    from perfscope.runners.sweep.execution import How
    from perfscope.runners.sweep.spec import Cell, Sweep
    from perfscope.runners.sweep.state import Study

STUDIES = Path("perfscope-studies")


@click.command("sweep", context_settings={"help_option_names": ["-h", "--help"]})
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
def command(
    file: Path,
    output: Path | None,
    only: str | None,
    repeats: int | None,
    retry_failed: bool,
    ceilings: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run every cell of a matrix (schemes x models x ranks x batches), and compare them in a study.

    FILE is TOML; docs/bench.md lists what it may hold. Repeats are interleaved: every cell runs once
    before any runs twice, in an order that differs from repeat to repeat. A sweep that was interrupted
    or killed goes on where it was when the same command is given again.

    \b
    Examples:
      perfscope bench sweep examples/hybrid.toml
      perfscope bench sweep examples/hybrid.toml --only 'dp.*' --repeats 3 -o study
      perfscope bench sweep examples/hybrid.toml --dry-run

    \b
    The study: study.json, study.csv, study.md, and runs/ with a run directory for each run.
    Exit codes: 0 every cell ran (or cannot be, and is listed so); 1 a run failed; 130 interrupted.
    """
    require_torch()
    from perfscope.runners.sweep.spec import read_sweep

    sweep = read_sweep(file)
    if repeats is not None:
        sweep = replace(sweep, repeats=repeats)
    names = _matching(sweep, only)
    plans = {cell.name: _plan(cell, file) for cell in sweep.cells}
    folder = Path.cwd() / (output or STUDIES / file.stem)
    if dry_run:
        _print_order(sweep, names, plans, folder, as_json)
        return
    code = _run(
        sweep, names, plans, folder, file, retry_failed=retry_failed, ceilings=ceilings, as_json=as_json
    )
    click.get_current_context().exit(code)


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


def _plan(cell: Cell, file: Path) -> dict[str, Any] | BenchError:
    """What planning says of a cell: facts, or why it cannot be.

    Raises:
        BenchError: the file itself is wrong: a name nobody knows, a value of the wrong kind.
    """
    from perfscope.runners.config import BenchError, parse_scheme
    from perfscope.runners.models.registry import find_model
    from perfscope.runners.schemes.registry import find_scheme

    try:
        find_scheme(parse_scheme(cell.scheme)[0])
        find_model(str(cell.settings.get("model", "smallcnn")))
    except BenchError as error:
        raise BenchError(f"{file}: {error}") from None
    try:
        job, _ = planned(cell.scheme, cell.settings, (), cell.cluster)
    except BenchError as error:
        return error
    return {
        "ranks": job.num_ranks,
        "mesh": str(job.mesh),
        "batch": job.config.batch,
        "steps": job.config.steps,
        "num_params": job.shape.num_params,
    }


def _run(
    sweep: Sweep,
    names: frozenset[str] | None,
    plans: dict[str, dict[str, Any] | BenchError],
    folder: Path,
    file: Path,
    *,
    retry_failed: bool,
    ceilings: str,
    as_json: bool,
) -> int:
    from perfscope.runners.sweep.execution import How, Interrupted, sole_user
    from perfscope.runners.sweep.state import FAILED, continue_study, load_study, new_study, save_study

    with sole_user(folder, _say):
        old = load_study(folder)
        if old is None:
            study = new_study(sweep, plans, _machine())
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
            _run_with_progress(study, how, names)
        except Interrupted as stop:
            code = 128 + stop.number
        finally:
            rows = _write_tables(study, folder)
    if code:
        _say(f"interrupted; what is finished is kept, the same command goes on: {_same_command()}")
    elif any(run.status == FAILED for cell in study.wanted for run in cell.runs):
        code = 1
    if as_json:
        print_result(json.dumps(study.as_json(), indent=1, ensure_ascii=False) + "\n")
    else:
        print_result("\n".join(study.sentences) + "\n\n" + rows)
    _say(f"study: {shlex.quote(str(_short(folder)))}")
    return code


def _write_tables(study: Study, folder: Path) -> str:
    """study.json with its sentences, study.csv, study.md; returns the table for the terminal."""
    from perfscope.runners.sweep.state import STUDY_CSV, STUDY_MD, save_study
    from perfscope.runners.sweep.summary import sentences, study_rows
    from perfscope.runners.sweep.tables import csv_text, markdown, text_table

    rows = study_rows(study)
    study.sentences = sentences(rows)
    save_study(study, folder)
    for name, text in ((STUDY_CSV, csv_text(rows)), (STUDY_MD, markdown(study, rows, study.sentences))):
        aside = folder / f".{name}.part"
        aside.write_text(text, encoding="utf-8")
        aside.replace(folder / name)
    return text_table(rows)


def _run_with_progress(study: Study, how: How, names: frozenset[str] | None) -> None:
    from perfscope.cli.bench_progress import PlainProgress, RichProgress
    from perfscope.runners.sweep.execution import run_all, run_order

    total = len(run_order(study, names))
    done = sum(run.status == "done" for cell in study.wanted for run in cell.runs)
    impossible = [cell for cell in study.wanted if cell.impossible is not None]
    for cell in impossible:
        _say(f"{cell.name} is impossible: {cell.impossible}")
    if done:
        _say(f"{plural(done, 'run')} finished before" + ("" if total else "; nothing is left to run"))
    show = (RichProgress if sys.stderr.isatty() else PlainProgress)(total)
    with show:
        run_all(study, how, names, begins=show.begins, ended=show.ended)


def _print_order(
    sweep: Sweep,
    names: frozenset[str] | None,
    plans: dict[str, dict[str, Any] | BenchError],
    folder: Path,
    as_json: bool,
) -> None:
    from perfscope.runners.sweep.execution import How, command_of, run_order
    from perfscope.runners.sweep.state import new_study

    study = new_study(sweep, plans, {})
    how = How(folder=folder, cell_timeout_s=sweep.cell_timeout_s, recording=sweep.recording)
    if as_json:
        print_result(json.dumps(study.as_json(), indent=1, ensure_ascii=False) + "\n")
        return
    order = run_order(study, names)
    lines = [f"{plural(len(order), 'run')}, in this order, into {_short(folder)}", ""]
    lines += [f"  {shlex.join(['perfscope', *command_of(cell, run, how)[3:]])}" for cell, run in order]
    impossible = [cell for cell in study.cells if cell.impossible is not None]
    if impossible:
        lines += ["", "Impossible", *(f"  {cell.name}: {cell.impossible}" for cell in impossible)]
    print_result("\n".join(lines) + "\n")


def _machine() -> dict[str, Any]:
    """What the study ran on, for its heading."""
    import os
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


def _same_command() -> str:
    return shlex.join(["perfscope", *sys.argv[1:]])


def _say(line: str) -> None:
    try:
        click.echo(f"perfscope: {line}", err=True)
    except OSError as error:  # a closed terminal is no reason to lose a study
        raise PerfscopeError(f"cannot write to stderr: {error.strerror}") from error


def _short(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
