"""Why a run does not scale: all that is drawn from its main lines and matched calls together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis import advice
from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.collectives import CommAnalysis
from perfscope.analysis.critical.path import analyze_critical
from perfscope.analysis.critical.results import CriticalPath
from perfscope.analysis.efficiency.pop import efficiency
from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.experts.results import Experts
from perfscope.analysis.group_axes import AxisOfCalls
from perfscope.analysis.loading.what_ifs import mean_input, with_loading
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.placement import remote_ranks
from perfscope.analysis.machine.results import MachineAnalysis, Roofline
from perfscope.analysis.mainline import LineRecord
from perfscope.analysis.missing import Missing
from perfscope.analysis.phases import time_per_step
from perfscope.analysis.pipeline.results import Pipeline
from perfscope.analysis.rank_facts import are_on_cpus, workload_of, world_size
from perfscope.analysis.ranks import RankFiles
from perfscope.analysis.replay.replays import make_replays
from perfscope.analysis.source import RunSource
from perfscope.analysis.waits.analyze import analyze_waits
from perfscope.analysis.waits.host_conditions import surroundings
from perfscope.analysis.waits.outside import NOT_COMPARED, UntracedWork, untraced_work
from perfscope.analysis.waits.results import WaitAnalysis
from perfscope.analysis.whatif.analyze import NOTHING, WhatIfs, analyze_what_ifs
from perfscope.analysis.whatif.parallel import with_parallel
from perfscope.analysis.whole_run.results import WholeRun
from perfscope.messages.advice import TrainingAdvice
from perfscope.tasks import mapped
from perfscope.vocabulary.host_calls import SOURCE, SYNCS

if TYPE_CHECKING:
    from concurrent.futures import Executor


class Why(Struct, frozen=True, kw_only=True):
    """What the replay of a run says."""

    efficiency: Efficiency | None = None
    what_ifs: WhatIfs = NOTHING
    waits: WaitAnalysis | None = None
    critical_paths: tuple[CriticalPath, ...] = ()
    untraced: UntracedWork = NOT_COMPARED  # of ranks that compute on CPUs
    missing: tuple[Missing, ...] = ()


def analyze_why(
    source: RunSource,
    ranks: RankFiles,
    comm: CommAnalysis,
    usual_ns: float | None,
    machine: tuple[MachineAnalysis | None, Sequence[Host]],
    axis_of: AxisOfCalls,
    parallel: tuple[Pipeline | None, Experts | None] = (None, None),
    executor: Executor | None = None,
) -> Why:
    """Replays a run, explains its waits, finds its critical path; nothing where no window was traced.

    Args:
        source: the run.
        ranks: their main lines, step times and parameters.
        comm: matched calls and clocks.
        usual_ns: the usual (untraced) step; None: only traced ones are known.
        machine: what is known of the hosts.
        parallel: pipelines and experts of the run.
        axis_of: axis of the mesh of each kind of call.
        executor: replays, and explains waits; None = this process.
    """
    lines = ranks.traces.lines
    if not lines.lines:
        return Why()
    on_cpus = are_on_cpus(source.rank_records)
    untraced = untraced_work(ranks.times, ranks.parts) if on_cpus else NOT_COMPARED
    tasks = _tasks(source, ranks, comm, usual_ns, machine, axis_of, untraced)
    (what_ifs, pop, no_replay), waits = mapped(executor, _result_of, tasks)
    what_ifs = with_parallel(what_ifs, parallel, [rank.breakdown_ns for rank in ranks.results], usual_ns)
    paths, no_path = analyze_critical(lines, comm.matches, comm.clocks, source)
    return Why(
        efficiency=pop,
        what_ifs=what_ifs,
        waits=waits,
        critical_paths=paths,
        untraced=untraced,
        missing=(*no_replay, *what_ifs.missing, *waits.missing, *no_path),
    )


def with_input(why: Why, ranks: RankFiles, account: WholeRun | None, *, is_sampled: bool) -> Why:
    """With what-ifs of the mean step: of waiting for input and of data loaders.

    Args:
        why: without these.
        ranks: their steps, loaders, phases, and the states of their training threads.
        account: of the run's time.
        is_sampled: whether samplers read the states.
    """
    mean = mean_input(ranks.steps, ranks.results, account, ranks.loading)
    syncs = {
        rank.rank: time_per_step(ranks.phases[rank.rank], SOURCE, SYNCS.values(), rank.num_steps)
        for rank in ranks.results
        if rank.rank in ranks.phases
    }
    what_ifs, missing = with_loading(
        why.what_ifs, ranks.loading, mean, ranks.states, syncs, is_sampled=is_sampled
    )
    return replace(why, what_ifs=what_ifs, missing=(*why.missing, *missing))


def _tasks(
    source: RunSource,
    ranks: RankFiles,
    comm: CommAnalysis,
    usual_ns: float | None,
    machine: tuple[MachineAnalysis | None, Sequence[Host]],
    axis_of: AxisOfCalls,
    untraced: UntracedWork,
) -> list[Callable[[], Any]]:
    """The replay, and the waits: what takes most time, and needs not each other."""
    training_advice = advice.training(source.rank_records, workload_of(source))
    lines = ranks.traces.lines
    hosts = {line.rank: line.host for of_window in lines.lines.values() for line in of_window.values()}
    analyzed, machines = machine
    replayed = partial(
        _replayed,
        lines,
        comm.matches,
        comm.clocks,
        hosts,
        usual_ns=usual_ns,
        rooflines=analyzed.rooflines if analyzed is not None else (),
        remote=remote_ranks(analyzed, machines),
        wording=training_advice,
        axis_of=axis_of,
        communicates=bool(comm.collectives),
        untraced=untraced,
    )
    waits_of = partial(
        analyze_waits,
        lines,
        comm.matches,
        comm.clocks,
        hosts,
        around=surroundings(analyzed, machines),
        times=ranks.times,
        world_size=world_size(source.run, source.rank_records),
        parameters=ranks.parameters,
        loader=training_advice.loader,
    )
    return [replayed, waits_of]


def _result_of(function: Callable[[], Any]) -> Any:
    result = function()
    _give_back()
    return result


def _give_back() -> None:
    """What was freed, malloc's too: of many ranks it is a sixth of all memory."""
    pa.default_memory_pool().release_unused()


def _replayed(
    lines: LineRecord,
    matches: Sequence[JudgedCalls],
    clocks: ClockFit,
    hosts: Mapping[int, str],
    *,
    usual_ns: float | None,
    rooflines: Sequence[Roofline],
    remote: Sequence[int],
    wording: TrainingAdvice,
    axis_of: AxisOfCalls,
    communicates: bool,
    untraced: UntracedWork,
) -> tuple[WhatIfs, Efficiency | None, tuple[Missing, ...]]:
    """The what-ifs, the factors of the efficiency, and what is missing of both but of the what-ifs."""
    replays, no_replay = make_replays(lines.lines, matches, clocks)
    _give_back()
    nearest = replays.nearest(usual_ns) if replays is not None else None
    layers = lines.layers
    what_ifs = analyze_what_ifs(nearest, usual_ns, layers, rooflines, remote, wording, axis_of, untraced)
    pop, no_pop = efficiency(replays, hosts, communicates=communicates)
    return what_ifs, pop, (*no_replay, *no_pop)
