"""Following a job: asking Slurm now and then, ever less often while nothing happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perfscope.slurm.jobs import SlurmTask, all_ended, look_up
from perfscope.slurm.programs import NotKnown, SlurmError, Unreachable

_FIRST_S, _LONGEST_S = 0.5, 20.0
_GROWTH = 1.4
_PATIENCE_S = 600.0  # with a controller that does not answer: they are restarted now and then


class PendingTooLong(SlurmError):
    """The job is still in the queue and the time limit for waiting is over."""

    exit_code = 3

    def __init__(self, task: SlurmTask) -> None:
        super().__init__(f"job {task.name} is still queued")
        self.task = task


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One look.

    Attributes:
        tasks: of the job; as they were, where Slurm did not answer.
        trouble: why there is no news; "" = this is news.
    """

    tasks: tuple[SlurmTask, ...]
    trouble: str = ""

    @property
    def is_over(self) -> bool:
        return not self.trouble and all_ended(self.tasks)


def watch(
    job: str,
    *,
    pending_limit_s: float | None = None,
    look: Callable[[str], tuple[SlurmTask, ...]] = look_up,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Snapshot]:
    """One snapshot after the other until all tasks have ended; the last one says so.

    Args:
        pending_limit_s: give up when so long nothing of the job has started.

    Raises:
        PendingTooLong: see pending_limit_s; the job stays in the queue.
        NotKnown: there is no such job.
        Unreachable: Slurm has not answered for ten minutes.
    """
    pause, answered, started = _FIRST_S, clock(), clock()
    tasks: tuple[SlurmTask, ...] = ()
    while True:
        try:
            tasks_now = _look(job, tasks, look)
        except Unreachable as error:
            if not tasks or clock() - answered > _PATIENCE_S:
                raise
            yield Snapshot(tasks=tasks, trouble=str(error))
        else:
            answered = clock()
            pause = pause if _states(tasks_now) == _states(tasks) else _FIRST_S
            tasks = tasks_now
            yield Snapshot(tasks=tasks)
            if all_ended(tasks):
                return
            if pending_limit_s is not None and all(task.is_queued for task in tasks):
                left = pending_limit_s - (clock() - started)
                if left <= 0:
                    raise PendingTooLong(tasks[0])
                pause = min(pause, left)
        sleep(pause)
        pause = min(pause * _GROWTH, _LONGEST_S)


def _look(
    job: str, before: tuple[SlurmTask, ...], look: Callable[[str], tuple[SlurmTask, ...]]
) -> tuple[SlurmTask, ...]:
    """The tasks now; of a job that Slurm has just forgotten as they were, if they had ended."""
    try:
        return look(job)
    except NotKnown:
        if before and all_ended(before):
            return before
        raise


def _states(tasks: tuple[SlurmTask, ...]) -> list[tuple[str, str, int]]:
    return [(task.name, task.state, task.restarts) for task in tasks]
