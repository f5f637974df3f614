"""Submitting a script, and finding the runs of a job again.

Beside a run that was submitted lie, as the run directory itself is made by the job:

    <run>.sbatch      the script
    <run>.job.json    {"job": "12", "array": bool, "submitted_unix_ns": ...}
    <run>.log         what the job prints
"""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from perfscope.errors import RunDirectoryError
from perfscope.rundir import layout
from perfscope.rundir.recording import LOCK
from perfscope.rundir.writer import write_json
from perfscope.slurm.accounting import show_job
from perfscope.slurm.jobs import SlurmTask, is_job, look_up
from perfscope.slurm.programs import Caller, NotKnown, SlurmError, call
from perfscope.slurm.record import read_manifest, read_run
from perfscope.slurm.refusals import explain
from perfscope.slurm.script import RUNS

SCRIPT, TICKET, LOG = ".sbatch", ".job.json", ".log"
_OF_THE_CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
# sbatch(1), "input environment variables": without SBATCH_, in the words of its options.
_NEVER_FROM_OUTSIDE = ("wait", "array-inx", "test-only", "job-name")
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_OTHER_NAMES = {
    "timelimit": ("time",),
    "mem-per-node": _MEMORY,
    "mem-per-cpu": _MEMORY,
    "mem-per-gpu": _MEMORY,
    "requeue": ("no-requeue",),
    "no-requeue": ("requeue",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPaths:
    """Where the run of a job goes, and what lies beside it.

    Attributes:
        run: the run directory, or what the runs of an array begin with.
        mark: what stands between that and the index of an array's task.
        is_exact: `run` is the one directory that is meant, whatever the task or the attempt.
    """

    run: Path
    mark: str = "-"
    is_exact: bool = False

    @property
    def script(self) -> Path:
        return self._beside(SCRIPT)

    @property
    def ticket(self) -> Path:
        return self._beside(TICKET)

    @property
    def log(self) -> Path:
        return self._beside(LOG)

    def of(self, task: SlurmTask) -> Path:
        """The run that a task makes at its present attempt."""
        return self.of_attempt(task, task.restarts)

    def of_attempt(self, task: SlurmTask, restarts: int) -> Path:
        """The run of an attempt; 0 = before the job was ever requeued."""
        if self.is_exact:
            return self.run
        index = task.array_index
        name = self.run.name if index is None else f"{self.run.name}{self.mark}{index}"
        return self.run.with_name(name + (f"-restart{restarts}" if restarts else ""))

    def log_of(self, task: SlurmTask) -> Path:
        """What a task prints."""
        index = task.array_index
        return self.log if index is None else self._beside(f"-{index}{LOG}")

    def _beside(self, ending: str) -> Path:
        return self.run.with_name(f"{self.run.name}{ending}")


def submit(
    script: str,
    target: JobPaths,
    *,
    array: bool = False,
    asked: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    ask: Caller = call,
) -> str:
    """Writes the script beside the run and submits it; the job's id.

    Args:
        array: the script is one of an array.
        asked: options that Slurm may refuse, by name.
        environment: for sbatch; None = ours.

    Raises:
        RunDirectoryError: the run is there already, or a job that is to make it.
        SlurmError: Slurm refused it, and why.
    """
    require_free(target, ask, array=array)
    _reserve(target)
    try:
        target.script.write_text(script, encoding="utf-8", errors="surrogateescape")
        target.script.chmod(0o700)  # it holds the command whole, whatever is secret in it
        with undisturbed():  # by Ctrl-C: a queued job of unknown number is of no use
            job = sbatch([str(target.script)], asked=asked, environment=environment, ask=ask)
            write_json(target.ticket, {"job": job, "array": array, "submitted_unix_ns": time.time_ns()})
    except OSError as error:
        target.ticket.unlink(missing_ok=True)
        raise RunDirectoryError(f"cannot write {target.script}: {error.strerror}") from error
    except SlurmError:
        for file in (target.ticket, target.script):
            file.unlink(missing_ok=True)
        raise
    return job


def _reserve(target: JobPaths) -> None:
    """The ticket of this run for one `submit` alone: exclusive creation decides between two."""
    try:
        target.run.parent.mkdir(parents=True, exist_ok=True)
        if ticket_job(target) is not None:  # of a job that has ended and left no run
            target.ticket.unlink(missing_ok=True)
        target.ticket.open("xb").close()
    except FileExistsError:
        raise RunDirectoryError(
            f"another command is submitting a job for {target.run} (else remove {target.ticket})"
        ) from None
    except OSError as error:
        raise RunDirectoryError(f"cannot write {target.ticket}: {error.strerror}") from error


def sbatch(
    argv: list[str],
    *,
    asked: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    ask: Caller = call,
) -> str:
    """`sbatch --parsable` with more words; the job's id. Raises SlurmError with the reason in plain words."""
    command = ["sbatch", "--parsable", *argv]
    try:
        answer = call(command, environment) if ask is call else ask(command)
    except SlurmError as error:
        raise explain(error, dict(asked or {}), ask) from error
    job = answer.strip().splitlines()[-1].partition(";")[0] if answer.strip() else ""
    if not is_job(job):
        raise SlurmError(
            f"sbatch gave no job id but {answer.strip()[:100]!r}; look for the job with `squeue --me`"
        )
    return job


def require_free(target: JobPaths, ask: Caller = call, *, array: bool = False) -> None:
    """Two jobs never write into one run directory. Raises RunDirectoryError where something is in the way."""
    if target.run.is_dir() and any(entry.name != LOCK for entry in target.run.iterdir()):
        what = "already holds a run" if read_manifest(target.run) is not None else "is not empty"
        raise RunDirectoryError(f"{target.run} {what}; choose another -o")
    if target.run.exists() and not target.run.is_dir():
        raise RunDirectoryError(f"{target.run} is a file; choose another -o")
    taken = target.run.parent.glob(f"{glob.escape(target.run.name)}-[0-9]*/run.json") if array else ()
    for manifest in taken:
        raise RunDirectoryError(f"{manifest.parent} already holds a run; choose another -o")
    job = ticket_job(target)
    if job is None:
        return
    with suppress(NotKnown):
        if not all(task.has_ended for task in look_up(job, ask)):
            raise RunDirectoryError(
                f"job {job} is queued or running for {target.run}: follow it with "
                f"`perfscope slurm follow {job}`, or choose another -o"
            )


def ticket_job(target: JobPaths) -> str | None:
    """The job that was submitted for a run; None = none that is known."""
    try:
        ticket = json.loads(target.ticket.read_bytes())
        job = str(ticket["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return job if is_job(job) else None


def job_of(run: Path) -> str:
    """The job that makes, or made, a run.

    Raises:
        SlurmError: nothing says that one did.
    """
    job = ticket_job(find_place(run))
    if job is not None:
        return job
    recorded = read_run(run).slurm
    if recorded is not None:
        # The last task of an array has the number of the whole array.
        task = f"{recorded.array_job_id}_{recorded.array_task_id}"
        name = task if is_job(task) else str(recorded.job_id)
        if is_job(name):
            return name
    raise SlurmError(f"nothing says that {run} is the run of a Slurm job; give the job's id")


def find_place(run: Path) -> JobPaths:
    """What a run was submitted as: it may be a task of an array, or a later attempt."""
    for ending in ("", r"-restart[0-9]+$", r"-[0-9]+$", r"-[0-9]+-restart[0-9]+$"):
        name = re.sub(ending, "", run.name) if ending else run.name
        if name and JobPaths(run=run.with_name(name)).ticket.exists():
            return JobPaths(run=run.with_name(name))
    named = re.fullmatch(r"slurm-(\d+)(?:_\d+)?(?:-restart\d+)?", run.name)
    by_id = _place_by_id(run.parent, named[1], "0") if named else None
    return by_id or JobPaths(run=run, is_exact=True)


def place_of(job: str, ask: Caller = call) -> JobPaths | None:
    """Where the runs of a job go, from the script that Slurm knows; None = perfscope did not submit it."""
    try:
        fields = show_job(job, ask)
    except SlurmError:
        return None
    script = Path(fields.get("Command", ""))
    run_path = script.with_name(script.name.removesuffix(SCRIPT)) if script.name.endswith(SCRIPT) else None
    if run_path is not None and ticket_job(JobPaths(run=run_path)) == job.partition("_")[0]:
        return JobPaths(run=run_path)
    runs = Path(fields.get("WorkDir", "")) / RUNS
    located = _place_by_id(runs, job.partition("_")[0], fields.get("Restarts", "0"))
    # The number of an array is that of one of its tasks, too: a run named by a step is not all of it.
    return None if located is not None and located.is_exact and "ArrayJobId" in fields else located


def _place_by_id(runs: Path, job: str, restarts: str) -> JobPaths | None:
    """Where a job records whose script was submitted by hand: its runs have its id in their names."""
    names = [path.name for path in runs.glob(f"slurm-{job}*") if path.is_dir()]
    for mark in ("-", "_"):
        index = r"_\d+" if mark == "_" else ""
        if any(re.fullmatch(rf"slurm-{job}{index}(-restart\d+)?", name) for name in names):
            return JobPaths(run=runs / f"slurm-{job}", mark=mark)
    attempt = "" if restarts == "0" else f"-restart{restarts}"
    of_steps = [name for name in names if re.match(rf"slurm-{job}\.\d+{attempt}-(?!restart)", name)]
    return JobPaths(run=runs / of_steps[0], is_exact=True) if len(of_steps) == 1 else None


def job_environment(python_bin: Path, script: str) -> dict[str, str]:
    """Ours, with perfscope on PATH where it was started by its full path: the job inherits it.

    Without what would change the job behind the script's back: SBATCH_ variables go before its #SBATCH lines,
    and what a job or a `perfscope run` around this command has set is not for the new job.
    """
    asked = set(re.findall(r"(?m)^#SBATCH --([a-z-]+)", script))
    kept = {name: value for name, value in os.environ.items() if not _misleads(name, asked)}
    path = kept.get("PATH", os.defpath)
    if (python_bin / "perfscope").exists() and not any(
        (Path(folder) / "perfscope").exists() for folder in path.split(os.pathsep)
    ):
        path = os.pathsep.join((str(python_bin), path))
    return {**kept, "PATH": path}


def _misleads(name: str, asked: set[str]) -> bool:
    """Whether a variable must not reach sbatch; `asked`: options that the script has."""
    if name in (layout.ENV_RUN_DIR, layout.ENV_CONFIG, layout.ENV_PYTHON, layout.ENV_PYTHON_PATH):
        return True
    if name.startswith("SLURM_"):
        return "SLURM_JOB_ID" in os.environ and name not in _OF_THE_CLUSTER
    if not name.startswith("SBATCH_"):
        return False
    option = name.removeprefix("SBATCH_").lower().replace("_", "-")
    return option in _NEVER_FROM_OUTSIDE or bool(asked & {option, *_OTHER_NAMES.get(option, ())})


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the block has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
