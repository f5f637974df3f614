"""The tasks of one Slurm step in one run directory: who came, who has ended, who says the last word.

`srun perfscope run -- python train.py` starts a wrapper per task. They share nothing but the directory:

    .owner/step.json          whose run it is; comes with the folder, by the task that claims the directory
    .owner/<task>.jsonl       one line each when the task came, had its node measured, ended, closed its files
    .owner/host-<task>        the task that does what is to be done once on a node (<task>: its local leader)
    .owner/said-<what>        the task that closes the run and tells the user did

Everything is made by exclusive creation or appended by one process, so no locks are needed: they are not to
be had on every file system that nodes share. Nothing is listed: over NFS a list may be half a minute old.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from perfscope.errors import RunDirectoryError
from perfscope.launch.process import Ending
from perfscope.launch.slurm_job import StepTask
from perfscope.rundir import layout, recording, writer
from perfscope.rundir.layout import host_name
from perfscope.rundir.sampler_call import is_alive, pid_namespace
from perfscope.rundir.writer import RUNS, create_run_dir

_STEP = "step.json"
_POLL_S = 0.05
_LONGEST_POLL_S = 0.5
_CLAIM_LIMIT_S = 60.0  # for the first task to empty a directory with --force, over a slow file system
_NO_SEAT_LIMIT_S = 5.0  # for the node's local leader to come, before the others go on without it
_MAX_NAME = 64
_MOST_RUNS = 1000  # of one script in one step
_MOST_LOOKED_AT = 8  # tasks whose files are asked for signs of life


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """What one task has said so far.

    Attributes:
        task: its number.
        host, pid, namespace: its wrapper's process.
        measured: what must be measured before training starts has been.
        ending: how its command ended, and when (unix ns); None = not yet, or it was killed.
        closed: nothing of it will be written any more.
        problems: lines about what could not be recorded.
    """

    task: int
    host: str = ""
    pid: int = 0
    namespace: str = ""
    measured: bool = False
    ending: Ending | None = None
    end_unix_ns: int = 0
    closed: bool = False
    problems: tuple[str, ...] = ()

    @property
    def is_gone(self) -> bool:
        """Whether its wrapper is known to be dead; of other hosts nothing is known."""
        same = self.host == host_name() and self.namespace == pid_namespace()
        return same and not is_alive(self.pid)

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.closed or self.is_gone


@dataclass(kw_only=True)
class StepRoom:
    """A run directory as one task of the step sees it.

    Attributes:
        run_dir: the directory; the task has its place in it.
        task: who we are.
        is_owner: this task made the run: run.json is its.
    """

    run_dir: Path
    task: StepTask
    is_owner: bool
    _pending: int = field(default=0, init=False)  # the task that was last seen to be missing

    def say(self, at: str, **facts: object) -> None:
        """Append one line about this task.

        Raises:
            OSError: the run directory cannot be written any more.
        """
        line = json.dumps({"at": at, **facts}) + "\n"
        descriptor = os.open(self._file(self.task.task), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def ended(self, ending: Ending) -> None:
        """The command has ended. Raises OSError as `say`."""
        self.say("ended", code=ending.code, signal=ending.signal, unix_ns=time.time_ns())

    def state(self, task: int) -> TaskState | None:
        """What a task has said; None = it never came."""
        try:
            data = self._file(task).read_bytes()
        except OSError:
            return None
        return _state(task, data)

    def states(self, tasks: Sequence[int]) -> dict[int, TaskState | None]:
        return {task: self.state(task) for task in tasks}

    def first_open(self, tasks: Sequence[int]) -> int | None:
        """A task that has not closed and is not known to be dead, or that never came; None = all are done.

        Looks first at the one that was missing the last time: with thousands of tasks few files are read.
        """
        if not tasks:
            return None
        start = tasks.index(self._pending) if self._pending in tasks else 0
        for task in (*tasks[start:], *tasks[:start]):
            state = self.state(task)
            if state is None or not state.is_done:
                self._pending = task
                return task
        return None

    def await_measured(self, limit_s: float, stop: Callable[[], bool]) -> None:
        """Wait until the local leader has measured the idle machine; shortly where it does not come."""
        start = time.monotonic()
        while (waited := time.monotonic() - start) < limit_s and not stop():
            local_leader = self.state(self.task.local_leader)
            if local_leader is None and waited > _NO_SEAT_LIMIT_S:
                return
            if local_leader is not None and (local_leader.measured or local_leader.is_done):
                return
            time.sleep(_POLL_S)

    def is_last_here(self) -> bool:
        """Whether this task is to close what the node's tasks share: all have ended, and it asks first."""
        states = [self.state(mate) for mate in self.task.mates]
        if any(state is None or not (state.ending or state.is_done) for state in states):
            return False
        return self.claims(f"host-{self.task.local_leader}")

    def claims(self, what: str) -> bool:
        """Whether this task is the first to do `what` in this run."""
        try:
            (self.run_dir / layout.OWNER / what).open("xb").close()
        except OSError:
            return False
        return True

    def has_claim(self, what: str) -> bool:
        """Whether another task was the first to do `what`."""
        return (self.run_dir / layout.OWNER / what).exists()

    def sees_other_nodes(self) -> bool:
        """Whether tasks of other nodes are in this directory; if not, every node has one of its own."""
        return any(self._file(task).exists() for task in self._others())

    def tasks_here(self) -> tuple[int, ...]:
        """The tasks that can be expected in this directory."""
        if self.task.num_nodes > 1 and not self.sees_other_nodes():
            return self.task.mates
        return tuple(range(self.task.num_tasks))

    def await_others(
        self, tasks: Sequence[int], limit_s: float, *, stop: Callable[[], bool], half_way: Callable[[], None]
    ) -> bool:
        """Wait until all of `tasks` are done, or some time has passed.

        Args:
            stop: asked now and then; True ends the wait.
            half_way: called once when a part of the time has passed.

        Returns:
            Whether all are done.
        """
        start, pause, called = time.monotonic(), _POLL_S, False
        while self.first_open(tasks) is not None:
            waited = time.monotonic() - start
            if waited > limit_s or stop():
                return False
            if not called and waited > limit_s / 3:
                half_way()
                called = True
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_S)
        return True

    def signs_of_life(self, tasks: Sequence[int]) -> dict[str, int]:
        """Sizes of files that grow while tasks train (steps, hosts' samples), of the first that are open."""
        sizes: dict[str, int] = {}
        for task in self._some_open(tasks):
            state = self.state(task)
            paths = [self.run_dir / layout.RANKS / str(task) / layout.STEPS_JSONL]
            if state is not None:
                paths.append(self.run_dir / layout.HOSTS / state.host / layout.SAMPLES_JSONL)
            sizes |= {str(path): _size(path) for path in paths}
        return sizes

    def _some_open(self, tasks: Sequence[int]) -> list[int]:
        first = self.first_open(tasks)
        if first is None:
            return []
        start = tasks.index(first)
        near = (*tasks[start:], *tasks[:start])[:_MOST_LOOKED_AT]
        return [task for task in near if (state := self.state(task)) is None or not state.is_done]

    def _others(self) -> Iterable[int]:
        mates = set(self.task.mates)
        return (task for task in range(self.task.num_tasks) if task not in mates)

    def _file(self, task: int) -> Path:
        return self.run_dir / layout.OWNER / f"{task}.jsonl"


def enter(task: StepTask, directory: Path, *, name: str, force: bool) -> StepRoom:
    """This task's place in `directory`, which all tasks of the step were given (`-o`).

    The first to come makes the run. `force`: another run in it is deleted, by the step's first task.

    Raises:
        RunDirectoryError: it holds another run, a run this task had a part in, or something that is no run.
    """
    room = _claim(task, directory, name=name, force=force)
    if room is None:
        raise RunDirectoryError(f"{directory} {_what_is_in(directory)}; choose another -o")
    if not _sit(room):
        raise RunDirectoryError(
            f"{directory} already holds a run of this task (job step {task.step_name}, task {task.task}); "
            "give each `perfscope run` of a step its own -o"
        )
    return room


def enter_default(task: StepTask, root: Path, name: str) -> StepRoom:
    """This task's place in the default directory below `root`, see `default_name`.

    The second `perfscope run` of a script in the same step takes `-2`, and so on: every task counts alike.

    Raises:
        RunDirectoryError: no run directory can be made.
    """
    first = root / RUNS / default_name(task, name)
    _make_runs(first.parent)
    for number in range(1, _MOST_RUNS):
        directory = first if number == 1 else first.with_name(f"{first.name}-{number}")
        room = _claim(task, directory, name=name, force=False)
        if room is not None and _sit(room):
            if room.is_owner:
                writer.point_latest(first.parent, directory.name)
            return room
    raise RunDirectoryError(f"{first} and all that may follow it are taken; name a place with -o")


def _make_runs(runs: Path) -> None:
    try:
        runs.mkdir(parents=True)
    except FileExistsError:
        return  # a file is reported by the one that writes into it
    except OSError as error:
        raise RunDirectoryError(
            f"cannot make {runs}: {error.strerror}; name another place with -o"
        ) from error
    writer.hide_from_git(runs)


def default_name(task: StepTask, name: str) -> str:
    """`slurm-<job>.<step>-<name>`, the same for every task of the step."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:_MAX_NAME] or "run"
    return f"slurm-{task.step_name}-{clean}"


def step_directory(directory: Path, task: StepTask) -> Path:
    """What `-o DIR` means for this try of the job: a requeued job does not write into what it left before."""
    if not task.restarts:
        return directory
    return directory.with_name(f"{directory.name}-restart{task.restarts}")


def _claim(task: StepTask, directory: Path, *, name: str, force: bool) -> StepRoom | None:
    """The directory as this step's; None when it holds something else."""
    end = time.monotonic() + _CLAIM_LIMIT_S
    while time.monotonic() < end:
        with _one_line(directory):
            directory.mkdir(parents=True, exist_ok=True)
            room, is_taken = _look(task, directory)
            if room is not None or (is_taken and not force):
                return room
            if is_taken and task.is_first:
                create_run_dir(directory, name=name, force=True)
                if _make_claim(directory, task):  # at once: files of the user's may be left in it
                    return StepRoom(run_dir=directory, task=task, is_owner=True)
        time.sleep(_POLL_S)
    raise RunDirectoryError(f"{directory}: the step's first task has not prepared it")


def _look(task: StepTask, directory: Path) -> tuple[StepRoom | None, bool]:
    """The room, if it is the step's or could be made so; else whether something else is in the directory."""
    if _claimed_by(directory) == _identity(task):
        return StepRoom(run_dir=directory, task=task, is_owner=False), False
    names = [path.name for path in directory.iterdir() if not path.name.startswith(f"{layout.OWNER}.")]
    if not names and _make_claim(directory, task):
        return StepRoom(run_dir=directory, task=task, is_owner=True), False
    # Another task may have come between the two looks.
    return None, bool(names) and _claimed_by(directory) != _identity(task)


@contextmanager
def _one_line(directory: Path) -> Iterator[None]:
    """What the file system refuses, as one line.

    Raises:
        RunDirectoryError: in the place of OSError.
    """
    try:
        yield
    except FileExistsError:
        raise RunDirectoryError(f"{directory} is a file; choose another -o") from None
    except OSError as error:
        raise RunDirectoryError(
            f"cannot make the run directory {directory}: {error.strerror}; name another place with -o"
        ) from error


def _make_claim(directory: Path, task: StepTask) -> bool:
    """Whether we are the first: a folder renamed into place is there with its contents, or not at all."""
    aside = directory / f"{layout.OWNER}.{task.task}-{secrets.token_hex(4)}"
    aside.mkdir()
    try:
        (aside / _STEP).write_text(json.dumps(_identity(task)))
        aside.rename(directory / layout.OWNER)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if (directory / layout.OWNER).exists():
            return False
        raise
    try:
        recording.claim(directory)
    except RunDirectoryError:  # another command makes a run here at this moment
        shutil.rmtree(directory / layout.OWNER, ignore_errors=True)
        raise
    return True


def _sit(room: StepRoom) -> bool:
    """Whether this task had no place in the run yet."""
    came = {"at": "came", "host": host_name(), "pid": os.getpid(), "namespace": pid_namespace()}
    path = room.run_dir / layout.OWNER / f"{room.task.task}.jsonl"
    try:
        with path.open("x") as file:
            file.write(json.dumps(came) + "\n")
    except FileExistsError:
        return False
    except OSError as error:
        raise RunDirectoryError(f"cannot write {path}: {error.strerror}") from error
    return True


def _identity(task: StepTask) -> dict[str, object]:
    return {"cluster": task.cluster, "job": task.job, "step": task.step, "restarts": task.restarts}


def _claimed_by(directory: Path) -> dict[str, object] | None:
    try:
        claim = json.loads((directory / layout.OWNER / _STEP).read_bytes())
    except (OSError, ValueError):
        return None
    return claim if isinstance(claim, dict) else None


def _what_is_in(directory: Path) -> str:
    other = _claimed_by(directory)
    if other is not None:
        return f"already holds the run of Slurm job {other.get('job')}, step {other.get('step')}"
    return "already holds a run" if (directory / layout.RUN_JSON).exists() else "is not empty"


def _state(task: int, data: bytes) -> TaskState:
    entries: dict[str, dict[str, object]] = {}
    for line in data.splitlines():
        with suppress(ValueError):  # torn: its writer was killed, or the file system lags behind
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries[str(entry.get("at"))] = entry
    came, ended, closed = (entries.get(at, {}) for at in ("came", "ended", "closed"))
    code, number, problems = ended.get("code"), ended.get("signal"), closed.get("problems")
    return TaskState(
        task=task,
        host=str(came.get("host", "")),
        pid=_whole(came.get("pid")),
        namespace=str(came.get("namespace", "")),
        measured="measured" in entries,
        ending=Ending(code, number if isinstance(number, int) else None) if isinstance(code, int) else None,
        end_unix_ns=_whole(ended.get("unix_ns")),
        closed=bool(closed),
        problems=tuple(map(str, problems)) if isinstance(problems, list) else (),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
