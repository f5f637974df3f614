"""Dask as steps of a Slurm job: a scheduler and a worker per CPU, which end with the context."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from perfscope.errors import PerfscopeError, RunDirectoryError
from perfscope.rundir import layout
from perfscope.slurm.programs import Caller, SlurmError, call, plain

SHORTEST_S = 90  # of time left; less is not begun
_MARGIN_S = 15  # before the job's end in which this process still says why
_START_S = 60
_END_S = 15
_IDLE = "30 minutes"  # after which a scheduler ends whose command was killed
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The job that this process runs in.

    Attributes:
        job: its id.
        num_nodes, num_cpus: that it has.
        left_s: until its time limit; None = it has none.
    """

    job: str
    num_nodes: int
    num_cpus: int
    left_s: int | None


def find_allocation(environment: Mapping[str, str], ask: Caller = call) -> Allocation | None:
    """The job that this process runs in; None outside of jobs.

    Raises:
        SlurmError: Slurm does not know it, or cannot be asked.
    """
    job = environment.get("SLURM_JOB_ID")
    if not job:
        return None
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    return Allocation(
        job=job,
        num_nodes=int(nodes) if nodes.isdigit() else 1,
        num_cpus=_count(environment.get("SLURM_JOB_CPUS_PER_NODE", "1")),
        left_s=_seconds(ask(["squeue", "--noheader", f"--jobs={job}", "-o", "%L"]).strip()),
    )


def _count(text: str) -> int:
    """``2(x3),4`` = 10."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return max(sum(int(count) * int(times or 1) for count, times in parts), 1)


def _seconds(text: str) -> int | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@contextmanager
def dask_steps(allocation: Allocation, run: Path, num_workers: int | None = None) -> Iterator[Path]:
    """Starts the steps.

    Args:
        allocation: where.
        run: what the workers are to read.
        num_workers: None = one per CPU of the job.

    Yields:
        The file that names the scheduler. While the context lasts, a SlurmError is raised in the main thread
        if a step ends, or the job is about to.

    Raises:
        SlurmError: the job ends too soon, or a step does not start.
        RunDirectoryError: the nodes do not share the run, or it cannot be written to.
    """
    left_s = allocation.left_s
    if left_s is not None and left_s < SHORTEST_S:
        raise SlurmError(f"job {allocation.job} ends in {left_s} s: allocate more time (-t) for a report")
    deadline = None if left_s is None else time.monotonic() + left_s - _MARGIN_S
    folder = _shared_folder(allocation, run)
    try:
        steps = _Steps(allocation.job, deadline)
        with steps.watched():
            file = folder / "scheduler.json"
            options = ("--scheduler-file", str(file), "--no-dashboard")
            single_task = ("--nodes=1", "--ntasks=1")
            steps.start(
                folder / "scheduler.log",
                single_task,
                "scheduler",
                *options,
                "--port=0",
                f"--idle-timeout={_IDLE}",
            )
            _await(file)
            # A worker that is killed is started again by its nanny, and ends no other.
            many = (f"--ntasks={num_workers or allocation.num_cpus}", "--kill-on-bad-exit=0", "--wait=0")
            more = ("--nthreads=1", "--memory-limit=0", f"--death-timeout={_START_S}")
            steps.start(folder / "workers.log", many, "worker", *options, *more)
            yield file
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _shared_folder(allocation: Allocation, run: Path) -> Path:
    """A folder in the run that all nodes see."""
    derived = run.absolute() / layout.DERIVED
    try:
        derived.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="slurm-", dir=derived))
    except OSError as error:
        raise RunDirectoryError(
            f"{run} cannot be written to ({error.strerror}): workers on other nodes leave their tables there"
        ) from error
    look = 'test -d "$0" || echo "$SLURMD_NODENAME"'
    each = ("--overlap", f"--nodes={allocation.num_nodes}", "--ntasks-per-node=1")
    try:
        blind = call(["srun", *each, "sh", "-c", look, str(folder)]).split()
        if blind:
            raise RunDirectoryError(
                f"{run} is not on a file system that the nodes of job {allocation.job} share: "
                f"{', '.join(sorted(blind))} cannot see it"
            )
    except PerfscopeError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _await(file: Path) -> None:
    end = time.monotonic() + _START_S
    while not file.is_file():
        if time.monotonic() > end:
            raise SlurmError(f"Dask's scheduler did not come up within {_START_S} s")
        time.sleep(0.1)


@dataclass(slots=True)
class _Steps:
    """Steps that this process started."""

    job: str
    deadline: float | None
    running: list[tuple[subprocess.Popen[bytes], Path]] = field(default_factory=list)

    def start(self, log: Path, options: Sequence[str], program: str, *arguments: str) -> None:
        """Starts Dask's `program`. Terminal signals do not reach it: this process ends it."""
        command = ["srun", "--overlap", "--cpus-per-task=1", *options]
        command += [sys.executable, "-m", "dask", program, *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.running.append((process, log))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks after the steps each second, in the main thread; ends them with the context."""
        before = [signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)]
        alarm = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, 1, 1)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._end()
            for number, handler in zip((signal.SIGTERM, signal.SIGHUP), before, strict=True):
                signal.signal(number, handler)
            signal.signal(signal.SIGALRM, alarm)

    def _look(self, _number: int, _frame: FrameType | None) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise SlurmError(
                f"job {self.job} reaches its time limit before the report is done: allocate more time (-t); "
                "traces that were converted stay so"
            )
        for process, log in self.running:
            if process.poll() is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
                error = plain(log.read_text(errors="replace")).rpartition("; ")[2]
                raise SlurmError(f"a step of job {self.job} ended before the report was done: {error}")

    def _end(self) -> None:
        for process, _ in reversed(self.running):
            process.terminate()
        end = time.monotonic() + _END_S
        for process, _ in self.running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(end - time.monotonic(), 0))
            process.kill()
            process.wait()


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
