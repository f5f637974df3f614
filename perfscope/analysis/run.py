"""Conducts the analysis of one run: ranks are read one at a time, so memory does not grow with their number.

Whatever is absent becomes a `Missing` with its reason: a run without windows (`--no-trace`) still has
its always-on figures, an imported trace has no always-on figures, a rank that was killed has what it left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analysis import advice
from perfscope.analysis import breakdown as bd
from perfscope.analysis.absent import (
    NoWindow,
    dropped_parts,
    empty_windows,
    of_windows,
    remarks_of,
    remarks_of_windows,
    run_in_progress,
    told_by_probes,
    why_no_window,
    without_windows,
)
from perfscope.analysis.affected import affected_by
from perfscope.analysis.bench import BenchResult, bench_result
from perfscope.analysis.bench_traced import traced_figures
from perfscope.analysis.clocks.wall import step_notes
from perfscope.analysis.collectives import CommAnalysis, analyse_collectives
from perfscope.analysis.comm_record import COMM_COLUMNS, CommRecord
from perfscope.analysis.findings import Evidence, find
from perfscope.analysis.findings.ranks import UNEVEN
from perfscope.analysis.layer_comm import comm_of_layers
from perfscope.analysis.layers import (
    LAYER_COLUMNS,
    LayerRecord,
    ModelFacts,
    RankLayers,
    layer_results,
    uneven_layer,
)
from perfscope.analysis.machine.analyse import Training, analyse_machine
from perfscope.analysis.machine.host import Host
from perfscope.analysis.mainline import LineRecord
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.provenance import provenance
from perfscope.analysis.rank_facts import framework_of, num_devices, runs_ahead, world_size
from perfscope.analysis.results import DeviceBreakdown, Quantiles, RankResult, RunAnalysis
from perfscope.analysis.server import server_load
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import Spans, WindowFacts, owning_step, spans_of, whole_numbers, window_facts
from perfscope.analysis.steps import (
    RankSteps,
    Throughput,
    overhead_ratio,
    quantiles,
    rank_steps,
    throughput,
)
from perfscope.analysis.waits.stragglers import step_times
from perfscope.analysis.why import Traced, Why, analyse_why
from perfscope.errors import RunDirectoryError
from perfscope.messages.advice import TrainingAdvice
from perfscope.rundir import layout
from perfscope.rundir.records import RankRecord
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.frameworks import OWN_STEPS

_COLUMNS = tuple(dict.fromkeys((*bd.DEVICE_COLUMNS, *LAYER_COLUMNS, *COMM_COLUMNS)))


class _Run(Struct):
    """What has been gathered so far."""

    comm: CommRecord = field(default_factory=CommRecord)
    layers: LayerRecord = field(default_factory=LayerRecord)
    traced: Traced = field(default_factory=Traced)
    ranks: list[RankResult] = []
    steps: dict[int, RankSteps] = {}
    missing: list[Missing] = []
    whole_files: int = 0  # windows without step marks
    windows: int = 0
    runs_ahead: bool = False


def analyse_run(source: RunSource) -> RunAnalysis:
    """Everything the reports show of one run.

    Args:
        source: the run; its timelines must have been ingested, else they are reported as missing.
    """
    windows = _windows(source)
    metas = source.rank_records
    run = _Run(runs_ahead=runs_ahead(metas))
    for rank in source.ranks:
        run.ranks.append(_analyse_rank(source, rank, windows.get(rank, []), run))
    no_window = _no_window(source, run, framework_of(metas))
    comm = analyse_collectives(run.comm, _hosts(run), world_size(source.run, metas), num_devices(metas))
    wording = advice.training(metas)
    _leave_out_untold(run, wording)
    layers, layers_missing = layer_results(run.layers, wording.no_layers)
    counted = [steps.counted for steps in run.steps.values()]
    step_ns = quantiles(np.concatenate(counted)) if counted else None
    speed = _throughput(source, run, step_ns)
    overhead = overhead_ratio([(result.overhead_ns, result.elapsed_ns) for result in run.ranks])
    breakdown_of = "file" if run.whole_files and run.whole_files == run.windows else "step"
    training = Training(
        steps=run.steps,
        windows=[facts for of_rank in windows.values() for facts in of_rank],
        layers=layers,
        calls=comm.calls,
        samples_per_step=speed.mean_samples,
    )
    machine, machines = analyse_machine(source, training)
    usual_ns = step_ns.median if step_ns else None
    why = analyse_why(source, run.traced, comm, usual_ns, (machine, machines))
    bench, no_bench = _bench(source, run, comm, no_window)
    if bench is not None and bench.samples_per_s is not None:  # one run, one speed
        speed = replace(speed, samples_per_s=bench.samples_per_s, source="scheme", missing=None)
    of_run = _missing_of_run(source, run, comm, layers_missing, no_window)
    missing = [*of_run, *_as_list(speed.missing), *no_bench]
    analysis = RunAnalysis(
        run=source.run,
        ranks=tuple(run.ranks),
        layers=layers,
        collectives=comm.collectives,
        calls=comm.calls,
        step_ns=step_ns,
        throughput_samples_per_s=speed.samples_per_s,
        samples_source=speed.source,
        overhead_ratio=overhead,
        findings=(),
        missing=tuple(dict.fromkeys([*missing, *why.missing])),
        provenance=provenance(source.summaries(), source.notes),
        step_series={rank: tuple(steps.told.tolist()) for rank, steps in run.steps.items()},
        in_calls_ns=comm.in_calls_ns,
        waiting_ns=comm.waiting_ns,
        clocks=comm.clocks,
        clock_residual_ns=comm.clocks.worst_residual_ns,
        breakdown_of=breakdown_of,
        machine=machine,
        bench=bench,
        efficiency=why.efficiency,
        what_ifs=why.what_ifs.what_ifs,
        replay=why.what_ifs.check,
        waits=why.waits,
        critical_paths=why.critical_paths,
        layer_comm=comm_of_layers(run.layers.comm, run.layers.num_ranks) if run.layers.num_ranks else None,
        framework=framework_of(metas),
        samples_per_step=speed.samples_per_step,
        tokens_per_s=speed.tokens_per_s,
        tokens_per_step=speed.tokens_per_step,
        batch_range=speed.batch_range,
        remarks=(*_shared(run), *remarks_of(metas), *remarks_of_windows(source, metas)),
    )
    evidence = _evidence(source, run, analysis, machines, why, comm)
    return replace(analysis, findings=find(replace(evidence, no_window=no_window)))


def _hosts(run: _Run) -> dict[int, str]:
    """By rank."""
    return {result.rank: result.host for result in run.ranks}


def _windows(source: RunSource) -> dict[int, list[WindowFacts]]:
    """By rank."""
    windows: dict[int, list[WindowFacts]] = defaultdict(list)
    for summary in source.summaries():
        facts = window_facts(summary)
        windows[facts.rank].append(facts)
    return windows


def _evidence(
    source: RunSource,
    run: _Run,
    analysis: RunAnalysis,
    machines: Sequence[Host],
    why: Why,
    comm: CommAnalysis,
) -> Evidence:
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
        hosts=machines,
        what_ifs=why.what_ifs,
        uneven=uneven_layer(run.layers, UNEVEN),
        server=server_load(source.run.scheme, run.ranks, comm.matches),
    )


def _analyse_rank(source: RunSource, rank: int, windows: Sequence[WindowFacts], run: _Run) -> RankResult:
    record = source.rank_records[rank]
    table = source.steps(rank)
    steps = rank_steps(table, runs_ahead=run.runs_ahead)
    run.steps[rank], run.traced.times[rank] = steps, step_times(table)
    groups = _groups(record)
    source.windows(rank)  # so that what is listed there and lost becomes one of the source's notes
    layers = RankLayers(ModelFacts.of(source.layers(rank)))
    run.traced.parameters = run.traced.parameters or layers.model.shapes
    totals: list[bd.StepTotals] = []
    devices: list[DeviceBreakdown | None] = []
    for facts in windows:
        table = _timeline(source, facts, run)
        if table is None or not table.num_rows:
            continue
        run.windows += 1
        run.whole_files += facts.whole_file or not facts.steps
        run.comm.add(table, rank, facts.window, {**groups, **facts.groups})
        total, device = _analyse_window(table, facts, layers, run.traced.lines)
        totals.append(total)
        devices.append(device)
    layers.finish(run.layers, rank)
    mean = bd.mean_breakdown(totals)
    device_ns = bd.add_devices(devices)
    num = mean.num_steps if mean else 0
    comm = sum(total.comm for total in totals)
    exposed = sum(total.exposed_comm for total in totals)
    host_waits = [total.idle_host_wait for total in totals if total.idle_host_wait is not None]
    return RankResult(
        rank=rank,
        host=record.host or next((facts.host for facts in windows), ""),
        num_steps=len(steps.durations),
        num_traced_steps=sum(len(facts.steps) for facts in windows if not facts.whole_file),
        step_ns=quantiles(steps.counted),
        breakdown_ns=mean,
        comm_ns=round(comm / num) if num else None,
        overlap_ratio=(comm - exposed) / comm if comm else None,
        device_ns=device_ns,
        input_wait_ns=steps.input_wait_ns,
        samples_per_step=None if steps.samples is None else steps.samples.median,
        overhead_ns=record.overhead.total_ns,
        elapsed_ns=steps.elapsed_ns,
        idle_host_wait_ns=round(sum(host_waits) / num) if host_waits and num else None,
        finished=record.finished,
    )


def _analyse_window(
    table: pa.Table, facts: WindowFacts, layers: RankLayers, lines: LineRecord
) -> tuple[bd.StepTotals, DeviceBreakdown | None]:
    spans: Spans = spans_of(table)
    steps = bd.analysed_steps(spans, facts)
    act = bd.activity(spans, facts)
    selected = bd.every_gpu_event(table)
    host_wait = None
    if selected.any():
        host_wait = bd.device_gaps(spans, whole_numbers(table, "launch_ns"), selected).host_wait
    marked = bool(facts.steps) and not facts.whole_file
    in_steps = owning_step(table) >= 0 if marked else np.ones(table.num_rows, dtype=bool)
    layers.add(table, spans, act, steps, in_steps)
    lines.add(table, spans, act, steps, (facts.rank, facts.window, facts.host))
    return bd.step_totals(act, steps, host_wait), bd.device_breakdown(table, selected)


def _timeline(source: RunSource, facts: WindowFacts, run: _Run) -> pa.Table | None:
    try:
        return source.timeline(facts.rank, facts.window, _COLUMNS)
    except RunDirectoryError as error:
        affected = affected_by(f"{layout.RANKS}/{facts.rank}/{layout.WINDOWS}/")
        entry = missing_figure(
            Figure.WINDOW,
            Cause.UNREADABLE,
            affects=affected.paths,
            window=str(facts.window),
            rank=str(facts.rank),
            reason=str(error),
        )
        run.missing.append(entry)
        return None


def _groups(record: RankRecord) -> dict[str, tuple[int, ...]]:
    """Process groups as rank.json lists them: name -> ranks."""
    return {
        group.name: group.ranks
        for group in record.groups
        if group.name is not None and group.ranks is not None
    }


def _throughput(source: RunSource, run: _Run, step_ns: Quantiles | None) -> Throughput:
    return throughput(source.run.options.samples_per_step, source.rank_records, run.steps, step_ns)


def _bench(
    source: RunSource, run: _Run, comm: CommAnalysis, no_window: NoWindow | None
) -> tuple[BenchResult | None, tuple[Missing, ...]]:
    scheme = source.run.scheme
    if scheme is None:
        return None, ()
    reason = "no traced step can be used" if no_window is None else no_window.reason
    traced = traced_figures(run.ranks, comm.collectives, run.steps, reason)
    return bench_result(scheme, source.bench_records(), traced)


def _shared(run: _Run) -> list[str]:
    if all(steps.shared is None for steps in run.steps.values()):
        return []
    return [
        "The program hands its steps over and runs ahead of their work: single steps are times of handing "
        "over, so each stretch of untraced steps is shown as equal steps of the same sum. How they differ is "
        "not known."
    ]


def _no_window(source: RunSource, run: _Run, framework: str) -> NoWindow | None:
    """Why no window can be used; None where one can.

    Windows that hold nothing but the steps themselves are left out: "all computation" would be made up.
    """
    if not run.windows:
        return why_no_window(source, run.ranks)
    if framework not in OWN_STEPS or any(rank.comm_ns for rank in run.ranks):
        return None
    run.windows, run.traced.lines, run.layers = 0, LineRecord(), LayerRecord()
    run.ranks = [replace(rank, breakdown_ns=None, comm_ns=None) for rank in run.ranks]
    return NoWindow(cause=Cause.NO_PROFILER)


def _leave_out_untold(run: _Run, wording: TrainingAdvice) -> None:
    """Parts of the step that are 0 only because the framework's trace cannot tell them are no figures."""
    breakdowns = [rank.breakdown_ns for rank in run.ranks if rank.breakdown_ns is not None]
    untold = tuple(part for part in wording.untold if not any(getattr(parts, part) for parts in breakdowns))
    if not breakdowns or not untold:
        return
    run.ranks = [rank if rank.breakdown_ns is None else replace(rank, untold=untold) for rank in run.ranks]
    run.missing += [
        missing_figure(Figure.STEP_PART, Cause.NOT_IN_TRACE_FORMAT, part=part, reason=wording.untold[part])
        for part in untold
        if wording.untold[part]
    ]


def _missing_of_run(
    source: RunSource,
    run: _Run,
    comm: CommAnalysis,
    layers_missing: Sequence[Missing],
    no_window: NoWindow | None,
) -> list[Missing]:
    reported = told_by_probes(source.rank_records)
    missing = [*run_in_progress(source.run), *run.missing]
    if not source.ranks:
        notes = "".join(f" {note}" for note in source.run.attach_notes)
        missing.append(missing_figure(Figure.TRAINING, Cause.NO_RANK_ATTACHED, notes=notes.rstrip()))
    if source.ranks and no_window is not None:
        missing.append(of_windows(reported, no_window))
        reported = without_windows(reported)
    missing.extend(dropped_parts(source.notes))
    missing.extend(empty_windows(source.summaries(), source.ranks))
    missing.extend(_ranks_without(run))
    missing.extend(_uneven_steps(run.ranks))
    if run.whole_files:
        missing.append(missing_figure(Figure.STEP_BOUNDARIES, Cause.NO_STEP_MARKS))
    if run.windows:
        named = {entry.figure for entry in reported if not entry.ranks}
        missing.extend(entry for entry in layers_missing if entry.figure not in named)
        if any(entry.figure is Figure.LAYERS for entry in missing):  # then there are none of some operators
            reported = [entry for entry in reported if not _is_of_some_layers(entry)]
        if not comm.collectives:
            missing.append(missing_figure(Figure.COLLECTIVES, Cause.NO_COMMUNICATION))
    missing.extend(comm.missing)
    if comm.clocks.unlinked:
        hosts = tuple(comm.clocks.unlinked)
        missing.append(missing_figure(Figure.CLOCKS, Cause.CLOCKS_UNLINKED, hosts=hosts))
    missing.extend(reported)
    missing.extend(step_notes(source.rank_records))
    if source.ranks and all(rank.overhead_ns is None for rank in run.ranks):
        cause = Cause.IMPORTED if source.run.is_imported else Cause.NO_RANK_FINISHED
        missing.append(missing_figure(Figure.OVERHEAD, cause))
    return missing


def _ranks_without(run: _Run) -> list[Missing]:
    """Ranks that lack what others have."""
    bare = [rank.rank for rank in run.ranks if rank.breakdown_ns is None]
    stepless = [rank.rank for rank in run.ranks if rank.step_ns is None]
    missing = []
    if bare and run.windows:
        missing.append(missing_figure(Figure.STEP_BREAKDOWN, Cause.NO_WINDOW_TRACED, ranks=bare))
    if stepless:
        missing.append(missing_figure(Figure.STEP_TIME, Cause.NO_STEP_RECORDED, ranks=stepless))
    return missing


def _uneven_steps(ranks: Sequence[RankResult]) -> list[Missing]:
    """Ranks that recorded fewer steps than others."""
    counts = {rank.rank: rank.num_steps for rank in ranks if rank.num_steps}
    most = max(counts.values(), default=0)
    fewer = [rank for rank, count in sorted(counts.items()) if count < most - 1]
    if not fewer:
        return []
    least = min(counts[rank] for rank in fewer)
    return [missing_figure(Figure.LATER_STEPS, Cause.UNEVEN_STEPS, ranks=fewer, least=least, most=most)]


def _is_of_some_layers(entry: Missing) -> bool:
    return entry.figure is Figure.LAYERS_OF_OPERATORS or (entry.figure is Figure.LAYERS and bool(entry.ranks))


def _as_list(missing: Missing | None) -> list[Missing]:
    return [] if missing is None else [missing]
