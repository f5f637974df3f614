"""Reads the ranks of a run: one after the other, or in tasks of an Executor.

One long window is in memory at a time, or some short ones. What tasks read is merged in the order of the
ranks, whichever is done first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.affected import OF_TRAINING
from perfscope.analysis.buckets import LayerParams
from perfscope.analysis.loading.record import drawn_once
from perfscope.analysis.loading.results import RankLoading
from perfscope.analysis.machine.thread_states import ThreadStates
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.phases import PhaseKey, RankPhase
from perfscope.analysis.rank_facts import runs_ahead
from perfscope.analysis.rank_part import (
    Progress,
    RankPart,
    RankTask,
    TraceRecord,
    read_packed,
    read_part,
    unread_rank,
)
from perfscope.analysis.results import RankResult
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import WindowFacts
from perfscope.analysis.steps import RankSteps
from perfscope.analysis.timeline_ranks import spaced
from perfscope.analysis.waits.stragglers import RankStepTimes
from perfscope.analysis.whole_run.steps import StepParts
from perfscope.tasks import ExecutorClosed, Failure, chunks, completed
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

if TYPE_CHECKING:
    from concurrent.futures import Executor

MOST_RANKS_OF_TASK = 32
NUM_TASKS = 8  # at least, where there are as many ranks


class RankFiles(Struct, frozen=True, kw_only=True):
    """What the ranks' files hold.

    Attributes:
        results: one per rank, in order of rank.
        steps: by rank, of the always-on probe.
        times: by rank, the same steps' times on the wall clock.
        parts: by rank, what the same steps hold.
        phases: by rank, times by the names that the program marks.
        loading: of ranks with data loaders that have workers.
        parameters: layers of the model with their parameters' sizes, in order of registration.
        traces: every traced window.
        states: by rank, what its main thread was seen to sleep in; from the hosts' samples.
        missing: windows that cannot be read, and ranks whose task failed.
        unread: ranks whose task failed.
        num_windows: traced windows with events.
        num_unmarked: of these, without step marks.
    """

    results: tuple[RankResult, ...]
    steps: Mapping[int, RankSteps]
    times: Mapping[int, RankStepTimes]
    parts: Mapping[int, StepParts]
    parameters: tuple[LayerParams, ...]
    traces: TraceRecord
    missing: tuple[Missing, ...]
    unread: frozenset[int]
    num_windows: int
    num_unmarked: int
    states: Mapping[int, ThreadStates] = {}
    phases: Mapping[int, Mapping[PhaseKey, RankPhase]] = {}
    loading: tuple[RankLoading, ...] = ()

    @property
    def hosts(self) -> dict[int, str]:
        """By rank."""
        return {result.rank: result.host for result in self.results}


def read_ranks(
    source: RunSource,
    windows: Mapping[int, Sequence[WindowFacts]],
    *,
    unlike: Mapping[int, Sequence[WindowFacts]] = {},
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> RankFiles:
    """Reads every rank's steps, layers and traced windows.

    Args:
        source: the run.
        windows: by rank.
        unlike: by rank, those whose times do not count.
        executor: reads them; None, or one that is closed = this process.
        progress: called whenever some are read.
    """
    task = RankTask(
        source=source,
        windows=windows,
        unlike=unlike,
        drawn=spaced(sorted(set(windows).intersection(source.ranks))),
        ahead=runs_ahead(source.rank_records),
    )
    part, unread = _read(task, executor, progress)
    part.traces.descriptions.update(_descriptions(source, windows))
    read = {rank.result.rank: rank for rank in part.ranks}
    of_kernels = part.traces.kernels.side.by_rank
    return RankFiles(
        results=tuple(
            replace(
                rank.result, kernel_ns={kind: ns for kind, ns in of_kernels.get(number, {}).items() if ns}
            )
            for number, rank in read.items()
        ),
        steps={number: rank.steps for number, rank in read.items()},
        times={number: rank.times for number, rank in read.items()},
        parts={number: rank.parts for number, rank in read.items()},
        phases={number: rank.phases for number, rank in read.items()},
        loading=drawn_once([rank.loading for rank in read.values() if rank.loading is not None]),
        parameters=part.parameters,
        traces=part.traces,
        missing=tuple(part.missing),
        unread=frozenset(unread),
        num_windows=part.num_windows,
        num_unmarked=part.num_unmarked,
    )


def _read(task: RankTask, executor: Executor | None, progress: Progress | None) -> tuple[RankPart, list[int]]:
    """All ranks, and those of tasks that failed. An Executor that is closed does not read any more."""
    if executor is not None:
        with suppress(ExecutorClosed):
            return _read_in_tasks(task, executor, progress)
    return read_part(task, progress), []


def _read_in_tasks(
    task: RankTask, executor: Executor, progress: Progress | None
) -> tuple[RankPart, list[int]]:
    ranks = task.source.ranks
    of_tasks = chunks(ranks, max(1, min(MOST_RANKS_OF_TASK, len(ranks) // NUM_TASKS)))
    part = RankPart(traces=TraceRecord(drawn=task.drawn))
    unread: list[int] = []
    for number, read in _in_order(completed(executor, read_packed, [_task_of(task, of) for of in of_tasks])):
        of_task = of_tasks[number]
        if isinstance(read, Failure):
            unread += of_task
            part.ranks += [unread_rank(rank, task.source.rank_records[rank]) for rank in of_task]
            part.missing.append(_failed(of_task, read))
        else:
            part.merge(read)
            task.source.add_notes(read.notes)
        if progress is not None:
            progress(len(part.ranks), len(ranks))
    return part, unread


def _task_of(task: RankTask, ranks: Sequence[int]) -> RankTask:
    """Only what the ranks need: it is sent to another process."""
    return RankTask(
        source=task.source.part(ranks),
        windows={
            rank: [replace(facts, counters=None) for facts in task.windows[rank]]
            for rank in ranks
            if rank in task.windows
        },
        unlike={rank: task.unlike[rank] for rank in ranks if rank in task.unlike},
        drawn=task.drawn.intersection(ranks),
        ahead=task.ahead,
    )


def _in_order(
    results: Iterator[tuple[int, RankPart | Failure]],
) -> Iterator[tuple[int, RankPart | Failure]]:
    """The same by number, as soon as all before are there."""
    waiting: dict[int, RankPart | Failure] = {}
    next_number = 0
    for number, result in results:
        waiting[number] = result
        while next_number in waiting:
            yield next_number, waiting.pop(next_number)
            next_number += 1


def _failed(ranks: Sequence[int], failure: Failure) -> Missing:
    return missing_figure(
        Figure.RANKS, Cause.TASK_FAILED, ranks=ranks, affects=OF_TRAINING, failure=failure.reason
    )


def _descriptions(source: RunSource, windows: Mapping[int, Sequence[WindowFacts]]) -> dict[str, str]:
    """Process group -> the framework's description. rank.json also knows what meshes call it."""
    descriptions: dict[str, str] = {}
    for of_rank in windows.values():
        for facts in of_rank:
            for name, description in facts.descriptions.items():
                descriptions.setdefault(name, description)
    for record in source.rank_records.values():
        descriptions.update({group.name: group.desc for group in record.groups if group.name and group.desc})
    return descriptions
