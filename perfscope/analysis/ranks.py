"""Reads the ranks of a run one at a time, so memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analysis import breakdown as bd
from perfscope.analysis.affected import affected_by
from perfscope.analysis.buckets import LayerParams
from perfscope.analysis.comm_record import COMM_COLUMNS, CommRecord
from perfscope.analysis.communication import LabeledCall
from perfscope.analysis.device_idle import DeviceIdleRecord
from perfscope.analysis.experts.record import EXPERT_COLUMNS, ExpertRecord
from perfscope.analysis.host_idle import host_idle
from perfscope.analysis.kernels.record import KERNEL_COLUMNS, KernelRecord
from perfscope.analysis.kernels.streams import STREAM_COLUMNS, StreamRecord, queued
from perfscope.analysis.layers import LAYER_COLUMNS, LayerRecord, ModelFacts, RankLayers
from perfscope.analysis.machine.thread_states import ThreadStates
from perfscope.analysis.mainline import LineRecord
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.pipeline.record import PipelineRecord
from perfscope.analysis.rank_facts import runs_ahead
from perfscope.analysis.results import DeviceBreakdown, RankResult
from perfscope.analysis.source import RunSource
from perfscope.analysis.spans import WindowFacts, spans_of, whole_numbers
from perfscope.analysis.steps import RankSteps, quantiles, rank_steps
from perfscope.analysis.timeline_thin import spaced
from perfscope.analysis.waits.stragglers import RankStepTimes, step_times
from perfscope.analysis.whole_run.steps import StepParts, step_parts
from perfscope.errors import RunDirectoryError
from perfscope.rundir import layout
from perfscope.rundir.records import RankRecord
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

_COLUMNS = tuple(
    dict.fromkeys(
        (
            *(*bd.DEVICE_COLUMNS, *LAYER_COLUMNS, *COMM_COLUMNS, *KERNEL_COLUMNS),
            *(*STREAM_COLUMNS, *EXPERT_COLUMNS),
        )
    )
)


class TraceRecord(Struct, frozen=True, kw_only=True):
    """What the analyses of several ranks need of every rank's traced windows."""

    comm: CommRecord = field(default_factory=CommRecord)
    layers: LayerRecord = field(default_factory=LayerRecord)
    lines: LineRecord = field(default_factory=LineRecord)
    kernels: KernelRecord = field(default_factory=KernelRecord)
    pipeline: PipelineRecord = field(default_factory=PipelineRecord)
    experts: ExpertRecord = field(default_factory=ExpertRecord)
    descriptions: dict[str, str] = {}  # process group -> the framework's description
    calls: dict[tuple[int, int], list[LabeledCall]] = {}  # by rank and window, of ranks that are `drawn`
    drawn: frozenset[int] = frozenset()  # in timelines


class RankFiles(Struct, frozen=True, kw_only=True):
    """What the ranks' files hold.

    Attributes:
        results: one per rank, in order of rank.
        steps: by rank, of the always-on probe.
        times: by rank, the same steps' times on the wall clock.
        parts: by rank, what the same steps hold.
        parameters: layers of the model with their parameters' sizes, in order of registration.
        traces: every traced window.
        states: by rank, what its main thread was seen to sleep in; from the hosts' samples.
        missing: windows that cannot be read.
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
    num_windows: int
    num_unmarked: int
    states: Mapping[int, ThreadStates] = {}

    @property
    def hosts(self) -> dict[int, str]:
        """By rank."""
        return {result.rank: result.host for result in self.results}


class _Rank(Struct, frozen=True, kw_only=True):
    result: RankResult
    steps: RankSteps
    times: RankStepTimes
    parts: StepParts
    parameters: tuple[LayerParams, ...]
    windows: _Windows


class _Windows(Struct, frozen=True, kw_only=True):
    """The traced windows of one rank; the lists have an entry per window with events."""

    totals: list[bd.StepTotals]
    devices: list[DeviceBreakdown | None]
    idle: DeviceIdleRecord
    streams: StreamRecord
    num_unmarked: int
    missing: list[Missing]


def read_ranks(source: RunSource, windows: Mapping[int, Sequence[WindowFacts]]) -> RankFiles:
    """Reads every rank's steps, layers and traced windows.

    Args:
        source: the run.
        windows: by rank.
    """
    traces = TraceRecord(drawn=spaced(sorted(set(windows).intersection(source.ranks))))
    ahead = runs_ahead(source.rank_records)
    ranks = {
        rank: _read_rank(source, rank, windows.get(rank, ()), traces, ahead=ahead) for rank in source.ranks
    }
    read = ranks.values()
    return RankFiles(
        results=tuple(rank.result for rank in read),
        steps={number: rank.steps for number, rank in ranks.items()},
        times={number: rank.times for number, rank in ranks.items()},
        parts={number: rank.parts for number, rank in ranks.items()},
        parameters=next((rank.parameters for rank in read if rank.parameters), ()),
        traces=traces,
        missing=tuple(entry for rank in read for entry in rank.windows.missing),
        num_windows=sum(len(rank.windows.totals) for rank in read),
        num_unmarked=sum(rank.windows.num_unmarked for rank in read),
    )


def _read_rank(
    source: RunSource, rank: int, windows: Sequence[WindowFacts], traces: TraceRecord, *, ahead: bool
) -> _Rank:
    record = source.rank_records[rank]
    table = source.steps(rank)
    steps = rank_steps(table, runs_ahead=ahead)
    source.windows(rank)  # so that what is listed there and lost becomes one of the source's notes
    layers = RankLayers(ModelFacts.of(source.layers(rank)))
    traces.descriptions.update(
        {group.name: group.desc for group in record.groups if group.name and group.desc}
    )
    traced = _read_windows(source, windows, layers, traces, _groups(record))
    layers.finish(traces.layers, rank)
    parts = step_parts(table, steps.reported)
    result = _rank_result(rank, record, windows, steps, traced, traces.kernels)
    if result.device_ns is None:
        result = replace(result, host_idle=host_idle(result.breakdown_ns, parts))
    return _Rank(
        result=result,
        steps=steps,
        times=step_times(table),
        parts=parts,
        parameters=layers.model.shapes,
        windows=traced,
    )


def _read_windows(
    source: RunSource,
    windows: Sequence[WindowFacts],
    layers: RankLayers,
    traces: TraceRecord,
    groups: Mapping[str, tuple[int, ...]],
) -> _Windows:
    totals: list[bd.StepTotals] = []
    devices: list[DeviceBreakdown | None] = []
    missing: list[Missing] = []
    idle, streams = DeviceIdleRecord(), StreamRecord()
    num_unmarked = 0
    for facts in windows:
        try:
            table = source.timeline(facts.rank, facts.window, _COLUMNS)
        except RunDirectoryError as error:
            missing.append(_unreadable(facts, error))
            continue
        if table is None or not table.num_rows:
            continue
        if facts.lacks_device:
            missing.append(_without_device(facts))
            nothing = np.zeros(table.num_rows, dtype=bool)
            lanes = facts.lanes_with("main", "autograd", "executor")
            traces.kernels.add(table, spans_of(table), nothing, facts.rank, lanes, lacks_device=True)
            continue
        if facts.ends_early and not facts.steps:
            continue  # `missing_reasons.steps_left_out` has it
        num_unmarked += facts.whole_file or not facts.steps
        members = {**groups, **facts.groups}  # as in call_labels
        traces.comm.add(table, facts.rank, facts.window, members)
        for name, description in facts.descriptions.items():  # rank.json also knows what meshes call it
            traces.descriptions.setdefault(name, description)
        total, device = _analyze_window(table, facts, layers, traces, members, (idle, streams))
        totals.append(total)
        devices.append(device)
    return _Windows(
        totals=totals, devices=devices, idle=idle, streams=streams, num_unmarked=num_unmarked, missing=missing
    )


def _analyze_window(
    table: pa.Table,
    facts: WindowFacts,
    layers: RankLayers,
    traces: TraceRecord,
    members: Mapping[str, tuple[int, ...]],
    of_device: tuple[DeviceIdleRecord, StreamRecord],
) -> tuple[bd.StepTotals, DeviceBreakdown | None]:
    spans = spans_of(table)
    steps = bd.analyzed_steps(spans, facts)
    act = bd.activity(spans, facts)
    selected = bd.every_gpu_event(table)
    host_wait = None
    if selected.any():
        waiting = queued(table, spans, selected)
        of_device[0].add_window(table, spans, selected, facts.lanes_with("main"), waiting)
        of_device[1].add_window(table, spans, selected)
        host_wait = bd.device_gaps(spans, whole_numbers(table, "launch_ns"), selected).host_wait
    if facts.rank in traces.drawn:
        layers.comm.labels = traces.calls.setdefault((facts.rank, facts.window), [])
    layers.add(table, spans, act, steps, bd.in_steps(table, facts), members)
    traces.kernels.add(table, spans, selected, facts.rank, facts.lanes_with("main", "autograd", "executor"))
    traces.lines.add(table, spans, act, steps, (facts.rank, facts.window, facts.host))
    traces.pipeline.add(table, spans, act, steps, facts.rank, facts.window)
    traces.experts.add(table, spans, facts.rank, facts.window, members)
    return bd.step_totals(act, steps, host_wait), bd.device_breakdown(table, selected)


def _rank_result(
    rank: int,
    record: RankRecord,
    windows: Sequence[WindowFacts],
    steps: RankSteps,
    traced: _Windows,
    kernels: KernelRecord,
) -> RankResult:
    mean = bd.mean_breakdown(traced.totals)
    num = mean.num_steps if mean else 0
    comm = sum(total.comm for total in traced.totals)
    exposed = sum(total.exposed_comm for total in traced.totals)
    device_ns = bd.add_devices(traced.devices)
    host_waits = [total.idle_host_wait for total in traced.totals if total.idle_host_wait is not None]
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
        device_idle=None if device_ns is None else traced.idle.results(),
        streams=traced.streams.results(),
        kernel_ns={kind: ns for kind, ns in kernels.side.by_rank.get(rank, {}).items() if ns},
        input_wait_ns=steps.input_wait_ns,
        samples_per_step=None if steps.samples is None else steps.samples.median,
        overhead_ns=record.overhead.total_ns,
        elapsed_ns=steps.elapsed_ns,
        idle_host_wait_ns=round(sum(host_waits) / num) if host_waits and num else None,
        finished=record.finished,
    )


def _without_device(facts: WindowFacts) -> Missing:
    window, rank = str(facts.window), str(facts.rank)
    return missing_figure(Figure.DEVICE_TIME, Cause.NO_DEVICE_EVENTS, window=window, rank=rank)


def _unreadable(facts: WindowFacts, error: RunDirectoryError) -> Missing:
    return missing_figure(
        Figure.WINDOW,
        Cause.UNREADABLE,
        affects=affected_by(f"{layout.RANKS}/{facts.rank}/{layout.WINDOWS}/").paths,
        window=str(facts.window),
        rank=str(facts.rank),
        reason=str(error),
    )


def _groups(record: RankRecord) -> dict[str, tuple[int, ...]]:
    """Process groups as rank.json lists them: name -> ranks."""
    return {
        group.name: group.ranks
        for group in record.groups
        if group.name is not None and group.ranks is not None
    }
