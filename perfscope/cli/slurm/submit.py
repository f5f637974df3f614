"""`perfscope slurm submit`: parse, submit, follow, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from perfscope.cli.output import print_result
from perfscope.cli.slurm.options import asked_of, job_options, job_request, waiting_options
from perfscope.cli.slurm.script import CONTEXT
from perfscope.errors import PerfscopeError, UsageError
from perfscope.rundir.files import short_path
from perfscope.slurm.request import JobRequest

SCHEMA_VERSION = 1


@click.command("submit", context_settings=CONTEXT, options_metavar="[OPTIONS]")
@click.argument("command_line", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@job_options
@waiting_options
@click.option("--no-report", is_flag=True, help="Print no report when the job has ended.")
@click.option("--json", "as_json", is_flag=True, help="Print what is known of the job as JSON, no report.")
def command(
    command_line: tuple[str, ...],
    no_wait: bool,
    timeout_pending: float | None,
    no_report: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Submit the script of `perfscope slurm script`, follow the job, and bring back the report.

    The script, what the job prints, and a note of the job's id lie beside the run: RUN.sbatch, RUN.log,
    RUN.job.json. What Slurm knows of the job at its end (state, memory, energy, nodes, waiting time) goes
    into the run's run.json. Ctrl-C detaches and leaves the job alone.

    \b
    Examples:
      perfscope slurm submit --framework torch -N 2 --ntasks-per-node 4 -t 30 -- python train.py
      perfscope slurm submit --framework tensorflow -N 4 --gpus-per-node 1 -o runs/tf -- python train.py
      perfscope slurm submit --framework jax -N 2 --no-wait -- python train.py
      perfscope slurm submit --framework torch --timeout-pending 10m -- python train.py

    \b
    Exit codes:
      0 the job completed (--no-wait: was submitted); 1 it did not, or was refused; 2 wrong options;
      3 still queued after --timeout-pending; 130 detached.
    """
    if no_wait and timeout_pending is not None:
        raise UsageError("--timeout-pending waits, --no-wait does not; leave one out")
    job = job_request(command_line, **options)
    from perfscope.cli.slurm.watch import detach, how_to_look
    from perfscope.notices import say
    from perfscope.slurm.submission import JobPaths, job_environment, submit

    job, run = _placed(job)
    from perfscope.slurm.script import batch_script

    _require_mpi(job)
    submitted = JobPaths(run=run)
    script = batch_script(job)
    environment = job_environment(Path(sys.executable).parent, script)
    number = submit(
        script, submitted, array=job.array is not None, asked=asked_of(job), environment=environment
    )
    if no_wait:
        document = {"schema_version": SCHEMA_VERSION, "job": number, "run": str(short_path(submitted.run))}
        print_result(f"{json.dumps(document)}\n" if as_json else f"{number}\n")
        say(f"job {number} is submitted; {how_to_look(number, submitted)}")
        return
    try:
        say(f"job {number} is submitted: {short_path(submitted.script)}")
    except KeyboardInterrupt:
        detach(number, submitted)
    follow_and_report(number, submitted, timeout_pending, with_report=not no_report, as_json=as_json)


def follow_and_report(
    job: str, submitted: Any, pending_limit_s: float | None, *, with_report: bool, as_json: bool
) -> None:
    """Follows a job to its end, records it, prints what it has left. Leaves by click's Exit."""
    from perfscope.cli.slurm.watch import EXIT_DETACHED, EXIT_ENDED_BADLY, conclude, follow_to_end
    from perfscope.notices import say
    from perfscope.slurm.submission import place_of

    tasks = follow_to_end(job, submitted, pending_limit_s)
    try:
        submitted = submitted or place_of(job)  # a script submitted by hand has made its run only now
        jobs = conclude(tasks, submitted)
        if as_json:
            document = {"schema_version": SCHEMA_VERSION, "jobs": jobs}
            print_result(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        elif with_report:
            print_reports(jobs)
    except KeyboardInterrupt:
        say(f"job {job} has ended; see it again with `perfscope slurm follow {job}`")
        raise click.exceptions.Exit(EXIT_DETACHED) from None
    good = bool(jobs) and all(job_fact["state"] == "COMPLETED" for job_fact in jobs)
    click.get_current_context().exit(0 if good else EXIT_ENDED_BADLY)


def print_reports(jobs: Sequence[dict[str, Any]]) -> None:
    """The text report of the run of a job; of an array the names of its runs."""
    from perfscope.notices import say

    runs = [str(job_fact["run"]) for job_fact in jobs if job_fact["run"]]
    if len(jobs) != 1:
        print_result("".join(f"{run}\n" for run in runs))
        return
    if not runs:
        return
    from perfscope.cli.report import ingest, make_report, open_run, print_text, summary_text

    try:
        print_text(partial(summary_text, make_report(ingest(open_run(Path(runs[0])).path))))
    except PerfscopeError as error:  # the job has run; that its run cannot be shown is no failure of it
        say(f"no report: {error}")


def _placed(job: JobRequest) -> tuple[JobRequest, Path]:
    """The job with a run directory and a log of its own, and where that is."""
    from perfscope.rundir.writer import default_run_dir_name
    from perfscope.slurm.quoting import file_pattern
    from perfscope.slurm.script import RUNS

    run = job.run or f"{RUNS}/{default_run_dir_name(job.name)}"
    stem = run.rstrip("/")
    if not Path(stem).name:
        raise UsageError(f"-o {run!r} names no directory of its own")
    log = f"{file_pattern(stem)}{'-%a' if job.array else ''}.log"
    return replace(job, run=stem, log=log), Path.cwd() / stem


def _require_mpi(job: JobRequest) -> None:
    """Raises SlurmError where srun cannot start MPI programs the way that is asked for."""
    if job.mpi is None or job.horovodrun:
        return
    from perfscope.settings import nearest
    from perfscope.slurm.programs import SlurmError, mpi_types

    names = mpi_types()
    if names and job.mpi.partition(",")[0] not in names:
        raise SlurmError(
            f"this Slurm cannot start programs with --mpi={job.mpi}{nearest(job.mpi, sorted(names))}"
        )
