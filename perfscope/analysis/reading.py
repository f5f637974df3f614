"""Reads what the analysis of a run starts from: ranks, windows, collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis import advice
from perfscope.analysis.clocks.fit import RankClocks
from perfscope.analysis.clocks.unnamed import on_one_clock
from perfscope.analysis.collectives import CommAnalysis, analyze_collectives
from perfscope.analysis.communication_of_run import without_unseen
from perfscope.analysis.missing import missing_figure
from perfscope.analysis.missing_reasons import NoWindow, why_no_window
from perfscope.analysis.rank_facts import framework_of, num_devices, world_size
from perfscope.analysis.rank_part import Progress, TraceRecord
from perfscope.analysis.ranks import RankFiles, read_ranks
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import WindowFacts, window_facts
from perfscope.analysis.unlike_windows import without_unlike
from perfscope.analysis.window_results import UnlikeWindow
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.frameworks import OWN_STEPS

if TYPE_CHECKING:
    from concurrent.futures import Executor


class ReadRun(Struct, frozen=True, kw_only=True):
    """A run as it was read.

    Attributes:
        source: the run, with all times on one clock.
        windows: by rank, those that stand for the usual step.
        unlike: those that are left out.
        ranks: what they recorded.
        no_window: why there is no window that can be used; None: there is one.
        comm: their collectives.
    """

    source: RunSource
    windows: Mapping[int, Sequence[WindowFacts]]
    unlike: tuple[UnlikeWindow, ...]
    ranks: RankFiles
    no_window: NoWindow | None
    comm: CommAnalysis


def read_run(
    source: RunSource,
    executor: Executor | None,
    progress: Progress | None,
    clocks: RankClocks | None = None,
) -> ReadRun:
    """The ranks and their collectives, all times on one clock.

    Args:
        source: the run.
        executor, progress: as for `run.analyze_run`.
        clocks: by which the source has been moved, of ranks on hosts without a name; then it is read again.
    """
    every, records = _windows(source), source.rank_records
    windows, unlike = without_unlike(source, every)
    read = read_ranks(source, windows, unlike=_left_out(every, unlike), executor=executor, progress=progress)
    ranks, no_window = _usable_traces(source, read)
    ranks = without_unseen(source, _without_unobservable(source, ranks))
    comm = analyze_collectives(
        ranks.traces.comm, ranks.hosts, world_size(source.run, records), num_devices(records), clocks
    )
    if clocks is None and (several := comm.clocks.of_ranks) is not None:
        return read_run(on_one_clock(source, several), executor, progress, several)
    return ReadRun(source=source, windows=windows, unlike=unlike, ranks=ranks, no_window=no_window, comm=comm)


def _windows(source: RunSource) -> dict[int, list[WindowFacts]]:
    """By rank."""
    windows: dict[int, list[WindowFacts]] = defaultdict(list)
    for summary in source.summaries():
        if not summary.has_no_steps:
            windows[summary.rank].append(window_facts(summary))
    return windows


def _left_out(
    windows: Mapping[int, Sequence[WindowFacts]], unlike: Sequence[UnlikeWindow]
) -> dict[int, list[WindowFacts]]:
    numbers = {entry.window for entry in unlike}
    return {
        rank: [facts for facts in of_rank if facts.window in numbers] for rank, of_rank in windows.items()
    }


def _usable_traces(source: RunSource, ranks: RankFiles) -> tuple[RankFiles, NoWindow | None]:
    """The ranks with the windows that can be used, and why there is none; None where there is one.

    Windows that hold nothing but the steps themselves are left out: "all computation" would be made up.
    """
    if not ranks.num_windows:
        return ranks, why_no_window(source, ranks.results)
    steps_only = framework_of(source.rank_records) in OWN_STEPS
    if not steps_only or any(rank.comm_ns for rank in ranks.results):
        return ranks, None
    untraced = replace(
        ranks,
        results=tuple(replace(rank, breakdown_ns=None, comm_ns=None) for rank in ranks.results),
        traces=TraceRecord(comm=ranks.traces.comm),
        num_windows=0,
    )
    return untraced, NoWindow(cause=Cause.NO_PROFILER)


def _without_unobservable(source: RunSource, ranks: RankFiles) -> RankFiles:
    """Parts of the step that are 0 only because the framework's trace cannot show them are no figures."""
    reasons = advice.training(source.rank_records).unknown
    breakdowns = [rank.breakdown_ns for rank in ranks.results if rank.breakdown_ns is not None]
    parts = tuple(part for part in reasons if not any(getattr(breakdown, part) for breakdown in breakdowns))
    if not breakdowns or not parts:
        return ranks
    missing = [
        missing_figure(Figure.STEP_PART, Cause.NOT_IN_TRACE_FORMAT, part=part, reason=reasons[part])
        for part in parts
        if reasons[part]
    ]
    results = (rank if rank.breakdown_ns is None else replace(rank, unknown=parts) for rank in ranks.results)
    return replace(ranks, results=tuple(results), missing=(*ranks.missing, *missing))
