"""Telling the user how a job gets on, and what it has left when it has ended. On stderr."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from perfscope.errors import RunDirectoryError
from perfscope.messages.lists import counted
from perfscope.notices import say
from perfscope.rundir.files import short_path
from perfscope.rundir.shell import quote
from perfscope.slurm.accounting import LIMIT_S, job_facts
from perfscope.slurm.job_log import first_failure, last_text
from perfscope.slurm.jobs import SlurmTask
from perfscope.slurm.progress import StepCounter
from perfscope.slurm.reasons import is_hopeless, reason_text
from perfscope.slurm.record import clock, close_run, read_manifest, read_run, record_job, whole_exit_code
from perfscope.slurm.submission import JobPaths
from perfscope.slurm.watching import PendingTooLong, Snapshot, watch

EXIT_ENDED_BADLY, EXIT_STILL_QUEUED, EXIT_DETACHED = 1, 3, 130
_NEWS_S = 60.0  # between two lines about a job that goes on as before, where there is no terminal
_LATE_S = 3.0  # for a run directory to be seen here, on a file system that nodes share
_LAST_LINES = 12


class Teller:
    """Says what has changed: a line per event, and on a terminal one more that is written over.

    Args:
        job: its id.
        submitted: where its runs go; None = not known.
    """

    def __init__(self, job: str, submitted: JobPaths | None) -> None:
        self._job = job
        self._place = submitted
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._said = ""
        self._said_at = 0.0
        self._steps: dict[Path, StepCounter] = {}
        self._restarts: dict[str, int] = {}

    def show(self, snapshot: Snapshot) -> None:
        """One look at the job."""
        self._tell_requeued(snapshot.tasks)
        if snapshot.trouble:
            self._news("trouble", f"{snapshot.trouble}; waiting")
            return
        if snapshot.is_over:
            return
        key, text = (
            self._queued(snapshot.tasks) if _all_queued(snapshot.tasks) else self._busy(snapshot.tasks)
        )
        self._news(key, text)

    def close(self) -> None:
        """Takes the live line away."""
        if self._live:
            _write("\r\x1b[K")

    def _queued(self, tasks: Sequence[SlurmTask]) -> tuple[str, str]:
        task = tasks[0]
        text = f"job {self._job} is queued: {reason_text(task.reason, self._job)}"
        if task.start:
            text += f"; expected to start {_when(task.start)}"
        elif is_hopeless(task.reason):
            text += " (as it is it will not start)"
        return f"queued {task.reason} {task.start[:15]}", text

    def _busy(self, tasks: Sequence[SlurmTask]) -> tuple[str, str]:
        if len(tasks) == 1:
            task = tasks[0]
            text = f"job {self._job} is {_state(task)}: {task.elapsed} of {task.limit or 'no limit'}"
            text += f" on {task.nodes}" if task.nodes else ""
            steps = self._count(task)
            if steps:
                text += f", step {steps:,}"
            return f"{task.state} {task.restarts} {bool(steps)}", text
        ended = sum(task.has_ended for task in tasks)
        queued = sum(task.is_queued for task in tasks)
        running = len(tasks) - ended - queued
        text = f"job {self._job}: {running} running, {queued} queued, {ended} of {len(tasks)} ended"
        return text, text

    def _count(self, task: SlurmTask) -> int | None:
        if self._place is None:
            return None
        run = self._place.of(task)
        return self._steps.setdefault(run, StepCounter(run)).count()

    def _tell_requeued(self, tasks: Sequence[SlurmTask]) -> None:
        for task in tasks:
            before = self._restarts.get(task.name, task.restarts)
            self._restarts[task.name] = task.restarts
            if task.restarts <= before:
                continue
            text = f"job {task.name} was requeued (a node failed, it was preempted, or a user requested it)"
            if self._place is not None:
                left = self._place.of_attempt(task, task.restarts - 1)
                reason = f"job {task.name} was requeued"
                with suppress(RunDirectoryError):  # read-only here: the job itself marks it, too
                    if close_run(left, reason, unless_finished=True):
                        text += f"; what was recorded is in {short_path(left)}"
                text += f"; its next run goes to {short_path(self._place.of(task))}"
            self._event(text)

    def _news(self, key: str, text: str) -> None:
        if self._live:
            self._show_live(key, f"perfscope: {text}", text)
            return
        now = time.monotonic()
        if key != self._said or now - self._said_at >= _NEWS_S:
            self._said, self._said_at = key, now
            say(text)

    def _show_live(self, key: str, line: str, text: str) -> None:
        """Over the previous line. One that wraps cannot be replaced: it is printed once in full, then cut."""
        width = shutil.get_terminal_size().columns - 1
        if len(line) > width:
            if key != self._said:
                self._event(text)
            line = f"{line[: max(width - 1, 1)]}…"
        self._said = key
        _write(f"\r\x1b[K{line}")

    def _event(self, text: str) -> None:
        if self._live:
            _write("\r\x1b[K")
        say(text)


def follow_to_end(
    job: str, submitted: JobPaths | None, pending_limit_s: float | None
) -> tuple[SlurmTask, ...]:
    """Follows a job to its end, or leaves with exit code 3 (still queued) or 130 (Ctrl-C).

    Raises:
        click.exceptions.Exit: the job goes on without us.
        SlurmError: it cannot be followed.
    """
    teller = Teller(job, submitted)
    tasks: tuple[SlurmTask, ...] = ()
    try:
        for snapshot in watch(job, pending_limit_s=pending_limit_s):
            tasks = snapshot.tasks
            teller.show(snapshot)
    except KeyboardInterrupt:
        teller.close()
        detach(job, submitted)
    except PendingTooLong as error:
        teller.close()
        say(
            f"job {job} is still queued after {clock(round(pending_limit_s or 0))}: "
            f"{reason_text(error.task.reason, job)}. It stays in the queue; {how_to_look(job, submitted)}"
        )
        raise click.exceptions.Exit(EXIT_STILL_QUEUED) from None
    finally:
        teller.close()
    return tasks


def detach(job: str, submitted: JobPaths | None) -> None:
    """Ctrl-C: says how to come back, and leaves. A second one changes nothing."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say(f"detached, job {job} goes on; {how_to_look(job, submitted)}")
    raise click.exceptions.Exit(EXIT_DETACHED)


def how_to_look(job: str, submitted: JobPaths | None) -> str:
    """`follow it: perfscope slurm follow 12, cancel it: scancel 12`."""
    run = f", its run: {quote(str(short_path(submitted.run)))}" if submitted is not None else ""
    return f"follow it: perfscope slurm follow {job}, cancel it: scancel {job}{run}"


def conclude(
    tasks: Sequence[SlurmTask], submitted: JobPaths | None, *, limit_s: float = LIMIT_S
) -> list[dict[str, Any]]:
    """Puts what is known of each ended task into its run, and says how it ended.

    Returns:
        Per task its facts (accounting.job_facts), "failed_task" (in srun's words), "run" and "run_status",
        which are None where it left no run.
    """
    jobs: list[dict[str, Any]] = []
    for task in tasks:
        facts: dict[str, Any] = job_facts(task, limit_s=limit_s)
        facts["failed_task"] = (
            (first_failure(submitted.log_of(task)) or None) if submitted is not None else None
        )
        run = submitted.of(task) if submitted is not None else None
        recorded = False
        if run is not None:
            _await_run(run)
            facts["exit_code"] = whole_exit_code(run, facts)
            try:
                recorded = record_job(run, facts, task.job_id)
            except RunDirectoryError as error:
                say(f"the job's facts are not in the run: {error}")
        status = read_run(run).status or None if run is not None and recorded else None
        facts |= {"run": str(short_path(run)) if run is not None and status else None, "run_status": status}
        jobs.append(facts)
        say(ending_text(facts))
        if submitted is not None and (facts["state"] != "COMPLETED" or not recorded):
            _show_log(submitted.log_of(task))
        if run is not None and not recorded:
            say(f"the job left no run of its own in {short_path(run)}")
    if submitted is None:
        say("which run it made is not known here; `perfscope slurm follow RUN` puts this into its run.json")
    return jobs


def ending_text(facts: dict[str, Any]) -> str:
    """`job 12 completed after 1:20 (exit code 0), peak memory ...`."""
    state = str(facts["state"]).lower().replace("_", " ").replace("cancelled", "canceled")
    parts = [
        f"job {facts['job']} {'ended: ' if state not in ('completed', 'failed', 'canceled') else ''}{state}"
    ]
    if facts["elapsed_s"] is not None:
        parts.append(f"after {clock(facts['elapsed_s'])}")
    if facts["exit_signal"]:
        parts.append(f"(signal {facts['exit_signal']})")
    elif facts["exit_code"]:
        parts.append(f"(exit code {facts['exit_code']})")
    text = " ".join(parts)
    if facts["nodes"]:
        text += f" on {facts['nodes']}"
    if facts["queued_s"] is not None:
        text += f", queued for {clock(facts['queued_s'])}"
    if facts["restarts"]:
        text += f", requeued {counted(facts['restarts'], 'time')}"
    if facts["run_status"] == "incomplete":
        text += "; its run is marked incomplete"
    return text


def _await_run(run: Path) -> None:
    """Other nodes' files may be seen here some seconds late."""
    end = time.monotonic() + _LATE_S
    while read_manifest(run) is None and run.parent.is_dir() and time.monotonic() < end:
        time.sleep(0.2)


def _show_log(log: Path) -> None:
    lines = last_text(log).splitlines()
    ours = '{"when": '  # who else used the nodes
    last = [line for line in lines if line.strip() and not line.startswith(ours)][-_LAST_LINES:]
    if last:
        say(f"the end of {short_path(log)}:")
        with suppress(OSError):
            click.echo("\n".join(f"  {line}" for line in last), err=True)


def _all_queued(tasks: Sequence[SlurmTask]) -> bool:
    return all(task.is_queued for task in tasks)


def _state(task: SlurmTask) -> str:
    return task.state.lower().replace("_", " ")


def _when(text: str) -> str:
    """Slurm's `2026-11-22T14:05:00` without the date where that is today's."""
    day, _, moment = text.partition("T")
    return moment[:5] if day == time.strftime("%Y-%m-%d") else text.replace("T", " ")[:16]


def _write(text: str) -> None:
    with suppress(OSError):
        click.echo(text, nl=False, err=True)
