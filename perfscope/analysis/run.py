"""Conducts the analysis of one run: each stage is a function of the results of the stages before it.

Whatever is absent becomes a `Missing` with its reason: a run without windows (`--no-trace`) still has
its always-on figures, an imported trace has no always-on figures, a rank that was killed has what it left.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis import advice
from perfscope.analysis.allocations import allocations_of
from perfscope.analysis.bench import BenchResult, bench_result
from perfscope.analysis.bench_traced import traced_figures
from perfscope.analysis.clocks.wall import step_notes
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.collectives import CommAnalysis
from perfscope.analysis.communication_of_run import (
    axis_of_calls,
    with_communication,
    with_ports,
)
from perfscope.analysis.counter_results import StepCounters
from perfscope.analysis.diagnosis import Why, analyze_why, with_input
from perfscope.analysis.execution import execution_of
from perfscope.analysis.experts.analyze import analyze_experts
from perfscope.analysis.experts.results import Experts
from perfscope.analysis.fault_results import RankFaults
from perfscope.analysis.file_io import file_io_of
from perfscope.analysis.findings import Evidence, find
from perfscope.analysis.findings.ranks import UNEVEN
from perfscope.analysis.hangs import hangs_of
from perfscope.analysis.host_idle import other_threads_ns, usual_sleep_ratio, with_names
from perfscope.analysis.inspector import communicators_of
from perfscope.analysis.kernels.tables import kernels_of
from perfscope.analysis.layer_counters import counted_run
from perfscope.analysis.layers import arithmetic_ratio, layer_results, uneven_layer
from perfscope.analysis.learning import with_energy
from perfscope.analysis.loading.store import with_node_cache
from perfscope.analysis.loading.what_ifs import mean_input
from perfscope.analysis.machine.analyze import Training, analyze_machine
from perfscope.analysis.machine.cpu_waits import cpu_waits
from perfscope.analysis.machine.host import Host
from perfscope.analysis.machine.results import FlopsUtilization, MachineAnalysis
from perfscope.analysis.machine.roofline import flops_utilization
from perfscope.analysis.machine.thread_states import thread_states
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.missing_reasons import (
    NoWindow,
    damaged_windows,
    dropped_parts,
    of_windows,
    run_in_progress,
    steps_left_out,
    told_by_probes,
    uneven_steps,
    without_windows,
)
from perfscope.analysis.page_faults import page_faults
from perfscope.analysis.phases import phases_of
from perfscope.analysis.pipeline.analyze import analyze_pipeline
from perfscope.analysis.pipeline.results import Pipeline
from perfscope.analysis.progress import progress_of
from perfscope.analysis.provenance import provenance
from perfscope.analysis.rank_facts import framework_of, is_torch, workload_of
from perfscope.analysis.rank_part import Progress
from perfscope.analysis.ranks import RankFiles
from perfscope.analysis.reading import read_run
from perfscope.analysis.results import (
    Arrivals,
    CommGroupResult,
    Communication,
    LayerResult,
    Quantiles,
    RunAnalysis,
)
from perfscope.analysis.self_checks import with_self_checks
from perfscope.analysis.server import server_load
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import WindowFacts
from perfscope.analysis.step_remarks import remarks_of_run
from perfscope.analysis.steps import (
    Throughput,
    overhead_ratio,
    speed_of_run,
    spread_ratio,
    step_time,
    throughput,
)
from perfscope.analysis.waits.by_step import waits_by_step
from perfscope.analysis.waits.outside import slow_outside
from perfscope.analysis.whole_run.analyze import whole_run
from perfscope.analysis.whole_run.growth import step_growth
from perfscope.analysis.whole_run.results import WholeRun
from perfscope.analysis.whole_run.steps import traced_shares
from perfscope.cycle_collector import collector_off
from perfscope.messages.files import NO_TRACED_STEP
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

if TYPE_CHECKING:
    from concurrent.futures import Executor


class _Figures(Struct, frozen=True, kw_only=True):
    """The results of all stages; `findings` and the report's `RunAnalysis` are made of them."""

    ranks: RankFiles
    no_window: NoWindow | None
    step_ns: Quantiles | None
    speed: Throughput
    comm: CommAnalysis
    layers: tuple[LayerResult, ...]
    communication: Communication | None
    process_groups: tuple[CommGroupResult, ...]
    pipeline: Pipeline | None
    experts: Experts | None
    counters: StepCounters | None
    machine: MachineAnalysis | None
    hosts: Sequence[Host]
    why: Why
    bench: BenchResult | None
    whole_run: WholeRun | None
    faults: tuple[RankFaults, ...]
    missing: tuple[Missing, ...]


@collector_off()
def analyze_run(
    source: RunSource, *, executor: Executor | None = None, progress: Progress | None = None
) -> RunAnalysis:
    """Everything the reports show of one run.

    Args:
        source: the run; its timelines must have been ingested, else they are reported as missing.
        executor: reads the ranks; None = this process. The result is the same.
        progress: called with (ranks read, ranks) whenever some are read.
    """
    read = read_run(source, executor, progress)
    source, windows, ranks, comm = read.source, read.windows, read.ranks, read.comm
    records, no_window = source.rank_records, read.no_window
    ranks, communication, groups = with_communication(source, ranks, comm.collectives, executor)
    pipeline, experts, no_parallel = _parallel(ranks, comm, communication)
    counted, no_text = counted_run(windows), advice.training(records).no_layers
    layers, no_layers = layer_results(ranks.traces.layers, communication, counted.layers, no_text)
    step_ns = step_time(ranks.steps)
    speed = throughput(source.run.options.samples_per_step, records, ranks.steps, step_ns)
    machine, hosts = analyze_machine(source, _training(ranks, windows, layers, comm, speed))
    ranks = _with_hosts(ranks, hosts)
    communication = with_ports(communication, machine.wire if machine is not None else ())
    usual_ns, parallel = step_ns.median if step_ns else None, (pipeline, experts)
    of_hosts, axis_of = (machine, hosts), axis_of_calls(groups)
    why = analyze_why(source, ranks, comm, usual_ns, of_hosts, axis_of, parallel, executor)
    bench, no_bench = _bench(source, ranks, comm, no_window)
    account, no_whole = whole_run(source.run, records, ranks.parts, speed)
    is_sampled = source.run.options.sampling is not None or source.run.is_imported
    why = with_input(why, ranks, account, is_sampled=is_sampled)
    speed = speed_of_run(speed, bench, source.run.scheme, ranks.steps)
    of_run = _missing_of_run(source, ranks, comm, no_layers, no_window)
    no_speed = () if speed.missing is None else (speed.missing,)
    missing = [*of_run, *no_parallel, *counted.missing, *no_speed, *no_bench, *no_whole]
    figures = _Figures(
        ranks=ranks,
        no_window=no_window,
        step_ns=step_ns,
        speed=speed,
        comm=comm,
        layers=layers,
        communication=communication,
        process_groups=groups,
        pipeline=pipeline,
        experts=experts,
        counters=counted.step({layer.layer for layer in layers}),
        machine=machine,
        hosts=hosts,
        why=why,
        bench=bench,
        whole_run=account,
        faults=page_faults(ranks.parts),
        missing=tuple(dict.fromkeys((*missing, *why.missing))),
    )
    analysis = _with_allocations(source, _analysis(source, figures))
    analysis = replace(analysis, traced_ratio=_traced_ratio(figures, analysis), unlike_windows=read.unlike)
    return with_self_checks(replace(analysis, findings=find(_evidence(source, figures, analysis))))


def _with_allocations(source: RunSource, analysis: RunAnalysis) -> RunAnalysis:
    """With memory by the allocator's events, or why there is none."""
    allocations, missing = allocations_of(source)
    return replace(analysis, allocations=allocations, missing=(*analysis.missing, *missing))


def _typical_step(figures: _Figures) -> float | None:
    """The step that rates are drawn from, ns."""
    median = figures.step_ns.median if figures.step_ns is not None else None
    return figures.speed.uneven_mean_ns or median


def _training(
    ranks: RankFiles,
    windows: Mapping[int, Sequence[WindowFacts]],
    layers: Sequence[LayerResult],
    comm: CommAnalysis,
    speed: Throughput,
) -> Training:
    """What the analysis of the machine needs of the others."""
    return Training(
        steps=ranks.steps,
        windows=[facts for of_rank in windows.values() for facts in of_rank],
        layers=layers,
        calls=comm.calls,
        samples_per_step=speed.mean_samples,
    )


def _with_hosts(ranks: RankFiles, hosts: Sequence[Host]) -> RankFiles:
    """What main threads slept in names the time that they were blocked; free memory may be a cache."""
    states = thread_states(hosts)
    loading, no_cache = with_node_cache(ranks.loading, hosts, ranks.hosts)
    results, missing = with_names(ranks.results, states), (*ranks.missing, *no_cache)
    return replace(ranks, results=results, states=states, loading=loading, missing=missing)


def _parallel(
    ranks: RankFiles, comm: CommAnalysis, communication: Communication | None
) -> tuple[Pipeline | None, Experts | None, tuple[Missing, ...]]:
    """Pipelines and experts of the run, and why there are none where ranks communicate along their axes."""
    pipeline, no_pipeline = analyze_pipeline(
        ranks.traces.pipeline, ranks.hosts, comm, is_expected=_has_axis(communication, Axis.PP)
    )
    is_named = _has_axis(communication, Axis.EP, named=True)
    experts, no_experts = analyze_experts(
        ranks.traces.experts, ranks.hosts, comm.clocks, is_expected=is_named
    )
    return pipeline, experts, (*no_pipeline, *no_experts)


def _has_axis(communication: Communication | None, axis: Axis, *, named: bool = False) -> bool:
    """Whether ranks communicate along the axis; `named`: and something names it."""
    entries = communication.by_axis if communication is not None else ()
    return any(entry.axis == axis and not (named and entry.inferred) for entry in entries)


def _bench(
    source: RunSource, ranks: RankFiles, comm: CommAnalysis, no_window: NoWindow | None
) -> tuple[BenchResult | None, tuple[Missing, ...]]:
    scheme = source.run.scheme
    if scheme is None:
        return None, ()
    reason = NO_TRACED_STEP if no_window is None else no_window.reason
    traced = traced_figures(ranks.results, comm.collectives, ranks.steps, reason)
    return bench_result(scheme, source.bench_records(), traced)


def _with_energy(bench: BenchResult | None, machine: MachineAnalysis | None) -> BenchResult | None:
    if bench is None:
        return None
    return replace(bench, learning=with_energy(bench.learning, machine))


def _analysis(source: RunSource, figures: _Figures) -> RunAnalysis:
    """All but the findings."""
    ranks, comm, why, speed = figures.ranks, figures.comm, figures.why, figures.speed
    records, whole_files = source.rank_records, 0 < ranks.num_unmarked == ranks.num_windows
    return RunAnalysis(
        run=source.run,
        ranks=ranks.results,
        layers=figures.layers,
        collectives=comm.collectives,
        calls=comm.calls,
        step_ns=figures.step_ns,
        throughput_samples_per_s=speed.samples_per_s,
        samples_source=speed.source,
        overhead_ratio=overhead_ratio([(rank.overhead_ns, rank.elapsed_ns) for rank in ranks.results]),
        findings=(),
        missing=figures.missing,
        provenance=provenance(source.summaries(), source.notes),
        step_series={rank: array("q", steps.reported.tobytes()) for rank, steps in ranks.steps.items()},
        step_marks={rank: steps.marks for rank, steps in ranks.steps.items()},
        in_calls_ns=comm.in_calls_ns,
        waiting_ns=comm.waiting_ns,
        clocks=comm.clocks,
        labeled_calls=ranks.traces.calls,
        clock_residual_ns=comm.clocks.worst_residual_ns,
        breakdown_of="file" if whole_files else "step",
        workload=workload_of(source),
        machine=figures.machine,
        flops_utilization=None if whole_files else _utilization(figures),
        hangs=hangs_of(source),
        bench=_with_energy(figures.bench, figures.machine),
        whole_run=figures.whole_run,
        page_faults=figures.faults,
        loading=figures.ranks.loading,
        file_io=file_io_of(source, figures.ranks.loading),
        phases=phases_of(ranks.phases, {rank.rank: rank.num_steps for rank in ranks.results}),
        efficiency=why.efficiency,
        what_ifs=why.what_ifs.what_ifs,
        replay=why.what_ifs.check,
        waits=why.waits,
        critical_paths=why.critical_paths,
        kernels=kernels_of(ranks.traces.kernels, ranks.traces.layers.types),
        communication=figures.communication,
        process_groups=figures.process_groups,
        pipeline=figures.pipeline,
        experts=figures.experts,
        counters=figures.counters,
        progress=progress_of(source),
        communicators=communicators_of(source),
        execution=execution_of(source),
        arrivals=tuple(_arrivals(calls) for calls in comm.matches),
        step_waits=waits_by_step(comm.matches),
        layer_times=ranks.traces.layers.times(figures.layers),
        framework=framework_of(records),
        samples_per_step=speed.samples_per_step,
        tokens_per_s=speed.tokens_per_s,
        tokens_per_step=speed.tokens_per_step,
        batch_range=speed.batch_range,
        uneven_mean_ns=speed.uneven_mean_ns,
        remarks=remarks_of_run(source, ranks, comm.clocks),
    )


def _utilization(figures: _Figures) -> FlopsUtilization | None:
    return flops_utilization(figures.machine, figures.layers, _typical_step(figures), figures.ranks.results)


def _arrivals(calls: JudgedCalls) -> Arrivals:
    return Arrivals(
        window=calls.window,
        collective=calls.key.collective,
        group=calls.key.group,
        ranks=calls.ranks,
        seq=calls.seq,
        enter_ns=calls.enter,
        exit_ns=calls.exit,
        wait_ns=calls.wait,
    )


def _evidence(source: RunSource, figures: _Figures, analysis: RunAnalysis) -> Evidence:
    slow = figures.why.what_ifs.slow
    return Evidence(
        run=analysis.run,
        metas=source.rank_records,
        ranks=analysis.ranks,
        layers=analysis.layers,
        collectives=analysis.collectives,
        calls=analysis.calls,
        in_calls_ns=analysis.in_calls_ns,
        waiting_ns=analysis.waiting_ns,
        step_ns=analysis.step_ns,
        overhead_ratio=analysis.overhead_ratio,
        breakdown_of=analysis.breakdown_of,
        machine=analysis.machine,
        hosts=figures.hosts,
        traced_ratio=analysis.traced_ratio,
        spread_ratio=spread_ratio(list(figures.ranks.steps.values())),
        states=figures.ranks.states,
        other_threads_ns={
            rank: ns
            for rank, parts in figures.ranks.parts.items()
            if (ns := other_threads_ns(parts)) is not None
        },
        slept_ratio=_slept_ratios(source, figures.ranks),
        cpu_waits=cpu_waits(
            figures.hosts, figures.machine.disturbances if figures.machine else (), figures.ranks.parts
        ),
        what_ifs=figures.why.what_ifs,
        untraced=figures.why.untraced,
        outside=slow_outside(figures.ranks.times, figures.ranks.parts),
        arithmetic_ratio=arithmetic_ratio(figures.ranks.traces.layers, slow[0].rank) if slow else None,
        uneven=uneven_layer(figures.ranks.traces.layers, UNEVEN),
        pipeline=analysis.pipeline,
        experts=analysis.experts,
        whole_run=analysis.whole_run,
        loading=analysis.loading,
        mean_input=mean_input(figures.ranks.steps, analysis.ranks, analysis.whole_run, analysis.loading),
        beside=traced_shares(figures.ranks.parts),
        page_faults=analysis.page_faults,
        phases=analysis.phases,
        step_growth=step_growth(figures.ranks.parts, figures.ranks.steps),
        kernels=analysis.kernels,
        communication=analysis.communication,
        server=server_load(source.run.scheme, analysis.ranks, figures.comm.matches),
        no_window=figures.no_window,
        workload=analysis.workload,
    )


def _slept_ratios(source: RunSource, ranks: RankFiles) -> dict[int, float | None]:
    """By rank; of torch alone, because others compute in threads that the training thread waits for."""
    if not is_torch(source.rank_records):
        return {}
    return {
        result.rank: usual_sleep_ratio(result.breakdown_ns, ranks.parts[result.rank])
        for result in ranks.results
        if result.breakdown_ns is not None and result.rank in ranks.parts
    }


def _traced_ratio(figures: _Figures, analysis: RunAnalysis) -> float | None:
    """Mean traced step / median untraced one; None where the median is of traced steps, too."""
    steps = [rank.breakdown_ns.step for rank in analysis.ranks if rank.breakdown_ns is not None]
    usual, every = analysis.step_ns, figures.ranks.steps.values()
    is_untraced = all(not (of_rank.is_counted & of_rank.is_traced).any() for of_rank in every)
    if not steps or usual is None or not usual.median or not is_untraced or analysis.breakdown_of != "step":
        return None
    return sum(steps) / len(steps) / usual.median


def _missing_of_run(
    source: RunSource,
    ranks: RankFiles,
    comm: CommAnalysis,
    layers_missing: Sequence[Missing],
    no_window: NoWindow | None,
) -> list[Missing]:
    missings = told_by_probes(source.rank_records)
    missing = [*run_in_progress(source.run), *ranks.missing]
    if not source.ranks:
        notes = "".join(f" {note}" for note in source.run.attach_notes)
        missing.append(missing_figure(Figure.TRAINING, Cause.NO_RANK_ATTACHED, notes=notes.rstrip()))
    if source.ranks and no_window is not None:
        missing.append(of_windows(missings, no_window))
        missings = without_windows(missings)
    missing.extend(dropped_parts(source.notes))
    missing.extend(damaged_windows(source.summaries(), source.ranks))
    missing.extend(steps_left_out(source.summaries()))
    missing.extend(_ranks_without(ranks))
    missing.extend(uneven_steps(ranks.results))
    if ranks.num_unmarked:
        missing.append(missing_figure(Figure.STEP_BOUNDARIES, Cause.NO_STEP_MARKS))
    if ranks.num_windows:
        named = {entry.figure for entry in missings if not entry.ranks}
        missing.extend(entry for entry in layers_missing if entry.figure not in named)
        if any(entry.figure is Figure.LAYERS for entry in missing):  # then there are none of some operators
            missings = [entry for entry in missings if not _is_of_some_layers(entry)]
        missing_figures = {entry.figure for entry in (*comm.missing, *missings)}
        if not comm.collectives and not missing_figures & {Figure.COMM_SPANS, Figure.EXPOSED_COMM}:
            missing.append(missing_figure(Figure.COLLECTIVES, Cause.NO_COMMUNICATION))
    missing.extend(comm.missing)
    if comm.clocks.unlinked:
        hosts = tuple(comm.clocks.unlinked)
        missing.append(missing_figure(Figure.CLOCKS, Cause.CLOCKS_UNLINKED, hosts=hosts))
    if comm.clocks.of_ranks is not None and (apart := comm.clocks.of_ranks.unlinked):
        missing.append(missing_figure(Figure.RANK_CLOCKS, Cause.CLOCKS_UNLINKED, ranks=apart))
    missing.extend(missings)
    missing.extend(step_notes(source.rank_records))
    if source.ranks and all(rank.overhead_ns is None for rank in ranks.results):
        cause = Cause.IMPORTED if source.run.is_imported else Cause.NO_RANK_FINISHED
        missing.append(missing_figure(Figure.OVERHEAD, cause))
    return missing


def _ranks_without(ranks: RankFiles) -> list[Missing]:
    """Ranks that lack what others have."""
    read = [rank for rank in ranks.results if rank.rank not in ranks.unread]
    bare = [rank.rank for rank in read if rank.breakdown_ns is None]
    stepless = [rank.rank for rank in read if rank.step_ns is None]
    missing = []
    if bare and ranks.num_windows:
        missing.append(missing_figure(Figure.STEP_BREAKDOWN, Cause.NO_WINDOW_TRACED, ranks=bare))
    if stepless:
        missing.append(missing_figure(Figure.STEP_TIME, Cause.NO_STEP_RECORDED, ranks=stepless))
    return missing


def _is_of_some_layers(entry: Missing) -> bool:
    return entry.figure is Figure.LAYERS_OF_OPERATORS or (entry.figure is Figure.LAYERS and bool(entry.ranks))
