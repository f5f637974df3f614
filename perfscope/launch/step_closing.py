"""How a run of several Slurm tasks is closed: by the last of them to end, once, for all.

No task waits for another while its own end matters to Slurm: one that failed lingers for two seconds only, so
that `srun --kill-on-bad-exit` sees it soon. So the last word may be said twice: first by a task that knows no
better (others hang, or were killed without a word), later by the one that really was the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.launch import attachment, finish, joining
from perfscope.launch.attachment import AttachedRank
from perfscope.launch.plan import LaunchPlan
from perfscope.launch.process import Ending
from perfscope.launch.step_tasks import StepRoom, TaskState
from perfscope.messages.lists import first_of, plural
from perfscope.rundir import layout
from perfscope.rundir.inventory import INVENTORY, take_inventory
from perfscope.rundir.writer import write_json

PATIENCE_S = 10.0  # for the others, after the own command ended well
_PATIENCE_FAILED_S = 2.0
_MOST_NAMED = 8
_MOST_KEPT = 16
_FIRST_WORD, _LAST_WORD = "said-some", "said-all"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """What is known of the step when this task says the last word.

    Attributes:
        states: what each task that can be expected in this directory said; None = it never came.
        num_tasks: of the step; more than there are states where each node has a directory of its own.
        is_last_word: all tasks that can be expected are done.
    """

    states: Mapping[int, TaskState | None]
    num_tasks: int
    is_last_word: bool

    @property
    def failed(self) -> tuple[TaskState, ...]:
        """Tasks that did not end with 0, in the order of their ends."""
        ended = [state for state in self.states.values() if state and state.ending and state.ending.code]
        return tuple(sorted(ended, key=lambda state: (state.end_unix_ns, state.task)))

    @property
    def is_complete(self) -> bool:
        """Whether every task ended by itself."""
        return all(state and state.ending and state.ending.signal is None for state in self.states.values())

    @property
    def ending(self) -> Ending | None:
        """The step's: the highest code, as `srun` itself exits; None = none failed, but not all ended."""
        if self.failed:
            worst = max(self.failed, key=lambda state: state.ending.code if state.ending else 0)
            return worst.ending
        return Ending(0, None) if self.is_complete else None

    @property
    def status(self) -> str:
        return "finished" if self.is_complete else "incomplete"

    @property
    def problems(self) -> tuple[str, ...]:
        """Lines of all tasks about what could not be recorded."""
        return tuple(
            dict.fromkeys(line for state in self.states.values() if state for line in state.problems)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEnd:
    """What one task knows at its end: how its command ended, the state of git, what could not be recorded."""

    ending: Ending
    git: dict[str, object] | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """What the user sees: ranks attached and expected, notes about them, what could not be recorded."""

    attached: int
    expected: int | None
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def await_end(room: StepRoom, ending: Ending, stop: Callable[[], bool]) -> StepEnd | None:
    """Wait for the others, shortly; the step's end if it is this task that says of it.

    Args:
        ending: how this task's command ended.
        stop: asked now and then; True ends the wait.
    """
    tasks = room.tasks_here()
    signs: dict[str, int] = {}
    patience = PATIENCE_S if ending.code == 0 else _PATIENCE_FAILED_S
    all_done = room.await_others(
        tasks, patience, stop=stop, half_way=lambda: signs.update(room.signs_of_life(tasks))
    )
    if not all_done and ending.code == 0 and signs and _lives(signs, room.signs_of_life(tasks)):
        return None  # others train on: the last of them will say it
    states = room.states(tasks)
    if not all_done and all(state and (state.ending or state.is_done) for state in states.values()):
        return None  # others are at their last duties, and will say it
    if not room.claims(f"{_LAST_WORD if all_done else _FIRST_WORD}-{len(tasks)}"):
        return None
    return StepEnd(states=states, num_tasks=room.task.num_tasks, is_last_word=all_done)


def leave(
    room: StepRoom,
    manifest: dict[str, object],
    plan: LaunchPlan,
    own_end: OwnEnd,
    *,
    stop: Callable[[], bool],
) -> Closed | None:
    """This task's last duties. What to tell the user when it is this task that closes the run, else None.

    Args:
        manifest: run.json as this task would have written it, should the owner have left none.
        stop: asked now and then; True cuts short what can be.

    Raises:
        OSError, RunDirectoryError: the run directory cannot be written.
    """
    run_dir = room.run_dir
    room.ended(own_end.ending)
    problems = [*own_end.problems, *(_close_host(run_dir, stop) if room.is_last_here() else ())]
    if room.is_owner:
        with joining.exclusive(run_dir):
            write_json(run_dir / layout.RUN_JSON, {**joining.newest(run_dir, manifest), "git": own_end.git})
    room.say("closed", problems=problems)
    end = await_end(room, own_end.ending, stop)
    if end is None:
        return None
    ranks = attachment.read_ranks(run_dir)
    with joining.exclusive(run_dir):
        if not end.is_last_word and room.has_claim(f"{_LAST_WORD}-{len(end.states)}"):
            return None  # in the meantime the last task has ended, and knew more
        closed = closed_manifest(room, joining.newest(run_dir, manifest), plan, end, ranks)
        write_json(run_dir / layout.RUN_JSON, {**closed, INVENTORY: take_inventory(run_dir)})
    notes, expected = closed["attach_notes"], closed["expected_ranks"]
    return Closed(
        attached=attachment.num_attached(ranks),
        expected=expected if isinstance(expected, int) else None,
        notes=tuple(map(str, notes)) if isinstance(notes, list) else (),
        problems=end.problems,
    )


def closed_manifest(
    room: StepRoom, manifest: dict[str, object], plan: LaunchPlan, end: StepEnd, ranks: Sequence[AttachedRank]
) -> dict[str, object]:
    """run.json for the last time: counts, notes, the step's ending.

    Args:
        manifest: run.json as it is.
        ranks: those that left a record.
    """
    started = manifest.get("expected_ranks")
    expected = attachment.without_helpers(ranks, started if isinstance(started, int) else None)
    here = None if expected is None else expected * len(end.states) // end.num_tasks
    ending = end.ending
    why = attachment.explain(room.run_dir, ranks, here, plan, ending or Ending(0, None))
    slurm = manifest.get("slurm")
    return {
        **manifest,
        "status": end.status,
        "exit": None if ending is None else {"code": ending.code, "signal": ending.signal},
        "end_unix_ns": max((state.end_unix_ns for state in end.states.values() if state), default=0) or None,
        "expected_ranks": expected,
        "attached_ranks": attachment.num_attached(ranks),
        "attach_notes": list(dict.fromkeys([*task_notes(end), *why])),
        "world_size": attachment.world_size(ranks) or manifest.get("world_size"),
        "packages": attachment.packages(ranks),
        "scheme": finish.recorded_scheme(room.run_dir) or manifest.get("scheme"),
        "labels": attachment.labels(ranks, manifest.get("labels")),
        "slurm": {**(slurm if isinstance(slurm, dict) else {}), "failed_tasks": _failed_tasks(end)},
    }


def _close_host(run_dir: Path, stop: Callable[[], bool]) -> list[str]:
    """What is done once on a host when its last task has ended. Lines about what went wrong."""

    def compress() -> list[str]:
        here = layout.host_name()
        ranks = [rank for rank in attachment.read_ranks(run_dir) if rank.record.host == here]
        return finish.compress_windows(ranks, stop=stop)

    # Emulated nodes share a host: what another has packed in the meantime is no trouble the second time.
    problems = compress() and compress()
    finish.await_sampler(run_dir / layout.HOSTS / layout.host_name())
    return problems


def task_notes(end: StepEnd) -> list[str]:
    """One line for each kind of thing that became of the tasks."""
    notes = list(_failures(end))
    silent = [state for state in end.states.values() if state is not None and state.ending is None]
    killed = [state.task for state in silent if state.is_gone]
    if killed:
        notes.append(f"{_tasks(killed)} left no ending: {_its(killed)} perfscope was killed")
    open_ = [state.task for state in silent if not state.is_gone]
    if open_:
        notes.append(f"{_tasks(open_)} had not ended when this was written, or {_its(open_)} node died")
    absent = [task for task, state in end.states.items() if state is None]
    if absent:
        notes.append(
            f"{_tasks(absent)} never came, so nothing of {'it' if len(absent) == 1 else 'them'} is here"
        )
    if len(end.states) < end.num_tasks:
        notes.append(
            f"only {_tasks(list(end.states))} of {end.num_tasks} can see this directory: gather those of all "
            "nodes with `perfscope collect DIR... -o RUN`"
        )
    return notes


def _failures(end: StepEnd) -> list[str]:
    failed = end.failed
    if not failed or failed[0].ending is None:
        return []
    first = failed[0].ending
    if first.signal is not None and all(ending.ending == first for ending in failed) and len(failed) > 1:
        many = "every task" if len(failed) == len(end.states) else f"{len(failed)} tasks"
        return [f"{many} ended by signal {first.signal}: canceled, requeued or out of time"]
    how = (
        f"was ended by signal {first.signal}"
        if first.signal is not None
        else f"ended with exit code {first.code}"
    )
    more = f"; {len(failed) - 1} more failed after it" if len(failed) > 1 else ""
    return [f"task {failed[0].task} on {failed[0].host} {how}{more}"]


def _failed_tasks(end: StepEnd) -> list[dict[str, object]]:
    return [
        {"task": state.task, "host": state.host, "code": state.ending.code, "signal": state.ending.signal}
        for state in end.failed[:_MOST_KEPT]
        if state.ending
    ]


def _its(tasks: Sequence[int]) -> str:
    return "its" if len(tasks) == 1 else "their"


def _lives(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    return any(after[path] > size for path, size in before.items() if path in after)


def _tasks(numbers: Sequence[int]) -> str:
    return f"{plural('task', len(numbers))} {first_of(numbers, _MOST_NAMED)}"
