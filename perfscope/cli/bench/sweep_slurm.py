"""`perfscope bench sweep --slurm`: the runs of a study as the tasks of an array job.

The command on the login node is the only one that writes study.json: it plans, submits what is missing, and
takes in what the tasks leave beside their runs. Killed or detached, it is simply given again.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.cli.bench.progress import outcome
from perfscope.cli.output import print_result, this_command
from perfscope.cli.slurm.options import asked_of, resources_request
from perfscope.cli.slurm.watch import Teller
from perfscope.errors import UsageError
from perfscope.messages.lists import counted
from perfscope.notices import say
from perfscope.rundir.files import short_path
from perfscope.slurm.array import (
    TOO_LATE,
    Array,
    ArrayCommand,
    Ended,
    array_script,
    forget,
    load_arrays,
    read_ended,
    save_arrays,
)
from perfscope.slurm.jobs import SlurmTask, look_up
from perfscope.slurm.programs import NotKnown
from perfscope.slurm.quoting import file_pattern
from perfscope.slurm.submission import job_environment, sbatch, undisturbed
from perfscope.slurm.watching import PendingTooLong, watch

if TYPE_CHECKING:
    from perfscope.runners.sweep.execution import How
    from perfscope.runners.sweep.state import CellState, Run, Study
    from perfscope.slurm.request import JobRequest

SCRIPT = "array.sbatch"
_LATE_S = 3.0  # for files of other nodes to be seen here
_EXIT_STILL_QUEUED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How the array is to be, from the command line.

    Attributes:
        job: header and environment of its tasks.
        at_once: tasks that run at the same time at most; None = as many as there is room for.
        wait: follow it to its end.
        pending_limit_s: give up waiting when so long nothing has started.
    """

    job: JobRequest
    at_once: int | None
    wait: bool
    pending_limit_s: float | None


class LeftAlone(Exception):
    """The array goes on without us; `code` is what to exit with."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def wanted_array(folder: Path, options: dict[str, Any]) -> Wanted:
    """What `--slurm` and its options ask for. Raises UsageError."""
    resources = {
        name: value
        for name, value in options.items()
        if name not in ("array_limit", "no_wait", "timeout_pending")
    }
    log = f"{file_pattern(str(short_path(folder) / 'slurm'))}-%A_%a.log"
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", folder.name)[:64] or "sweep"
    return Wanted(
        job=resources_request(name, log=log, **resources),
        at_once=options["array_limit"],
        wait=not options["no_wait"],
        pending_limit_s=options["timeout_pending"],
    )


def cpus_of_nodes(wanted: Wanted) -> int | None:
    """CPUs every task has for sure: as asked for, else of the smallest node; None = Slurm does not say."""
    from perfscope.slurm.programs import call

    if wanted.job.cpus_per_task is not None:
        return wanted.job.cpus_per_task
    if not wanted.job.exclusive:
        return 1  # what Slurm gives a task that asks for nothing
    argv = ["sinfo", "--noheader", "--format=%c"]
    argv += [f"--partition={wanted.job.partition}"] if wanted.job.partition else []
    counts = [int(match[0]) for line in call(argv).split() if (match := re.match(r"\d+", line))]
    return min(counts, default=None)


def machine_of(wanted: Wanted) -> dict[str, Any]:
    """What the study runs on, for its heading: the nodes' own facts are in their runs."""
    import platform
    from importlib.metadata import version

    from perfscope.slurm.programs import call

    text = call(["scontrol", "show", "config"])
    cluster = re.search(r"(?m)^ClusterName\s*=\s*(\S+)", text)
    return {
        "Slurm cluster": cluster[1] if cluster else "unknown",
        **({"partition": wanted.job.partition} if wanted.job.partition else {}),
        "nodes": "whole" if wanted.job.exclusive else "shared",
        "Python": platform.python_version(),
        "torch": version("torch"),
    }


def print_script(study: Study, how: How, names: Collection[str] | None, wanted: Wanted) -> None:
    """`--dry-run`: the script that would be submitted."""
    from perfscope.runners.sweep.execution import run_order

    pieces = [_piece(cell, run, how) for cell, run in run_order(study, names)]
    print_result(array_script(wanted.job, pieces, wanted.at_once))


def run_on_slurm(
    study: Study, how: How, names: Collection[str] | None, wanted: Wanted, *, retry_failed: bool
) -> int:
    """Takes in what is finished, submits what is missing, follows it. Changes `study` and keeps it on disk.

    Returns:
        How many runs did not come to an end.

    Raises:
        Interrupted: by Ctrl-C; the array goes on.
        LeftAlone: --no-wait, or nothing has started for too long.
        SlurmError: the array cannot be submitted or followed.
    """
    from perfscope.runners.sweep.execution import Interrupted, run_order

    keeper = Keeper(study, how, names)
    if retry_failed:
        keeper.forget_failed()
    keeper.collect()
    alive = _alive(load_arrays(how.folder))
    going = {path for array, tasks in alive for path in _unfinished(array, tasks)}
    missing = [(cell, run) for cell, run in run_order(study, names) if run.path not in going]
    jobs = [array.job for array, _ in alive]
    if jobs:
        say(f"{counted(len(going), 'run')} of array job {' and '.join(jobs)} still to come: following")
    if missing:
        jobs.append(_submit(missing, how, wanted))
    if not jobs:
        say("nothing is left to run")
        return 0
    names_of_jobs = " ".join(jobs)
    if not wanted.wait:
        say(f"array job {names_of_jobs} is submitted; the same command follows it: {this_command()}")
        raise LeftAlone(0)
    try:
        return _follow(",".join(jobs), keeper, wanted)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say(f"detached, array job {names_of_jobs} goes on; cancel it: scancel {names_of_jobs}")
        raise Interrupted(signal.SIGINT) from None
    except PendingTooLong as error:
        from perfscope.slurm.reasons import reason_text

        say(
            f"array job {names_of_jobs} is still queued: {reason_text(error.task.reason, jobs[0])}. It stays "
            f"in the queue; the same command follows it, scancel {names_of_jobs} cancels it"
        )
        raise LeftAlone(_EXIT_STILL_QUEUED) from None


class Keeper:
    """Takes the results of tasks into the study as they come."""

    def __init__(self, study: Study, how: How, names: Collection[str] | None) -> None:
        self._study = study
        self._how = how
        chosen = [cell for cell in study.wanted if names is None or cell.name in names]
        self._runs = [(cell, run) for cell in chosen for run in cell.runs]

    def forget_failed(self) -> None:
        """Runs that failed before and are wanted again: their old results are no results."""
        for cell, run in self._runs:
            ended = read_ended(self._how.folder / run.path, cell.digest) if run.status == "pending" else None
            if ended is not None and ended.exit_code != 0:
                forget(self._how.folder, [run.path])

    def pending(self) -> list[Run]:
        """Runs of the chosen cells without a result."""
        return [run for _, run in self._runs if run.status == "pending"]

    def collect(self) -> int:
        """Results that have come since the last time; how many."""
        from perfscope.runners.sweep.state import save_study

        num_new = 0
        for cell, run in self._runs:
            if run.status != "pending":
                continue
            ended = read_ended(self._how.folder / run.path, cell.digest)
            if ended is None:
                continue
            _take(run, ended, self._how)
            num_new += 1
            done = sum(planned.status != "pending" for _, planned in self._runs)
            say_line(f"[{done}/{len(self._runs)}] {outcome(cell, run)}")
        if num_new:
            save_study(self._study, self._how.folder)
        return num_new

    def await_late(self) -> None:
        """Files that other nodes wrote a moment ago may not be seen here yet."""
        end = time.monotonic() + _LATE_S
        while self.pending() and time.monotonic() < end:
            if not self.collect():
                time.sleep(0.2)


def say_line(text: str) -> None:
    """A line of progress on stderr."""
    click.echo(text, err=True)


def _take(run: Run, ended: Ended, how: How) -> None:
    """The figures of a task that has ended, or why it has none."""
    from perfscope.runners.sweep.execution import last_error, take_figures
    from perfscope.runners.sweep.state import FAILED

    base = how.folder / run.path
    log = base.with_name(f"{base.name}.log")
    run.seconds = ended.seconds
    run.status, run.error, run.figures = FAILED, None, None
    if ended.exit_code == TOO_LATE:
        run.error = f"took longer than {how.cell_timeout_s:g} s and was ended (cell_timeout)"
    elif ended.exit_code != 0:
        run.error = f"exit code {ended.exit_code}: {last_error(log)}"
    else:
        try:
            output = base.with_name(f"{base.name}.out").read_bytes()
        except OSError as error:
            run.error = f"its figures cannot be read: {error.strerror}"
            return
        take_figures(run, output, log)


def _submit(missing: list[tuple[CellState, Run]], how: How, wanted: Wanted) -> str:
    from perfscope.runners.sweep.state import RUNS

    pieces = [_piece(cell, run, how) for cell, run in missing]
    script = array_script(wanted.job, pieces, wanted.at_once)
    (how.folder / RUNS).mkdir(exist_ok=True)
    forget(how.folder, [run.path for _, run in missing])
    file = how.folder / SCRIPT
    file.write_text(script, encoding="utf-8", errors="surrogateescape")
    environment = job_environment(Path(sys.executable).parent, script)
    keys = {run.path: cell.digest for cell, run in missing}
    with undisturbed():
        job = sbatch([str(file)], asked=asked_of(wanted.job), environment=environment)
        save_arrays(how.folder, [*load_arrays(how.folder), Array(job=job, keys=keys)])
    say(f"array job {job} is submitted: {counted(len(pieces), 'run')}, {short_path(file)}")
    return job


def _piece(cell: CellState, run: Run, how: How) -> ArrayCommand:
    from perfscope.runners.sweep.execution import command_of

    here = replace(how, folder=short_path(how.folder))
    argv = command_of(cell, run, here)
    if argv[1:3] != ["-m", "perfscope"]:
        raise UsageError(f"{argv!r} is no command of perfscope")
    return ArrayCommand(
        path=str(short_path(how.folder) / run.path),
        key=cell.digest,
        command=("perfscope", *argv[3:]),
        timeout_s=how.cell_timeout_s,
    )


def _alive(arrays: list[Array]) -> list[tuple[Array, tuple[SlurmTask, ...]]]:
    """Arrays of which something is still queued or running, with all their tasks."""
    alive = []
    for array in arrays:
        try:
            tasks = look_up(array.job)
        except NotKnown:
            continue
        if not all(task.has_ended for task in tasks):
            alive.append((array, tasks))
    return alive


def _unfinished(array: Array, tasks: tuple[SlurmTask, ...]) -> list[str]:
    paths = list(array.keys)
    indices = (task.array_index for task in tasks if not task.has_ended)
    return [paths[index] for index in indices if index is not None and index < len(paths)]


def _follow(jobs: str, keeper: Keeper, wanted: Wanted) -> int:
    """To the end of all jobs; how many runs have no result then."""
    teller = Teller(jobs.replace(",", " and "), None)
    tasks: tuple[SlurmTask, ...] = ()
    try:
        for snapshot in watch(jobs, pending_limit_s=wanted.pending_limit_s):
            keeper.collect()
            teller.show(snapshot)
            tasks = snapshot.tasks
    finally:
        teller.close()
    keeper.await_late()
    left = keeper.pending()
    if left:
        states = sorted({task.state for task in tasks if task.state != "COMPLETED"})
        why = f" ({', '.join(states)})" if states else ""
        say(
            f"{counted(len(left), 'run')} did not come to an end{why}: the same command submits what "
            f"is missing: {this_command()}"
        )
    return len(left)
