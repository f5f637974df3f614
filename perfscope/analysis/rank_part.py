"""Reads some ranks of a run, window by window: in this process, or as a task of another.

What is read of consecutive ranks is merged (`RankPart.merge`) into what one pass over all of them gives,
however the ranks were divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

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
from perfscope.analysis.experts.record import EXPERT_COLUMNS, ExpertRecord, exchanges
from perfscope.analysis.host_idle import host_idle
from perfscope.analysis.kernels.merging import merge_kernels
from perfscope.analysis.kernels.record import KERNEL_COLUMNS, KernelRecord
from perfscope.analysis.kernels.streams import STREAM_COLUMNS, StreamRecord, queued
from perfscope.analysis.layer_windows import add_windows, add_work
from perfscope.analysis.layers import LAYER_COLUMNS, LayerRecord, ModelFacts, RankLayers
from perfscope.analysis.loading.record import rank_loading
from perfscope.analysis.loading.results import RankLoading
from perfscope.analysis.mainline import LineRecord
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.phases import PhaseKey, RankPhase, rank_phases
from perfscope.analysis.pipeline.record import PipelineRecord, marks_of_stages
from perfscope.analysis.recompute import recomputed_ns
from perfscope.analysis.results import DeviceBreakdown, RankResult
from perfscope.analysis.source import DroppedInput, RunSource
from perfscope.analysis.spans import (
    Columns,
    Spans,
    SpanTable,
    Table,
    WindowFacts,
    spans_of,
    whole_numbers,
)
from perfscope.analysis.steps import RankSteps, quantiles, rank_steps, steps_on_device
from perfscope.analysis.waits.stragglers import RankStepTimes, step_times
from perfscope.analysis.whole_run.steps import StepParts, step_parts
from perfscope.analysis.windows import MOST_ROWS, Window, Windows, members_of, one_window, together
from perfscope.cycle_collector import collector_off
from perfscope.errors import RunDirectoryError
from perfscope.rundir import layout
from perfscope.rundir.records import RankRecord
from perfscope.rundir.schema import STEPS
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

_SHARED = (*bd.DEVICE_COLUMNS, *LAYER_COLUMNS, *COMM_COLUMNS, *STREAM_COLUMNS, *EXPERT_COLUMNS)
_COLUMNS = tuple(dict.fromkeys((*_SHARED, *KERNEL_COLUMNS)))
_OF_DEVICES = {"launch_call", "grid", "block", "registers", "occupancy", *STREAM_COLUMNS} - {
    *bd.DEVICE_COLUMNS,
    *LAYER_COLUMNS,
    *COMM_COLUMNS,
}
_ON_HOST = tuple(column for column in _COLUMNS if column not in _OF_DEVICES)
_RANKS_TOGETHER = 32
_OF_KERNELS = frozenset(KERNEL_COLUMNS) - frozenset(_SHARED)
# Apart from what is read after the layers, by the main lines, pipelines, experts and recomputed work.
_OF_COMMUNICATION = frozenset(_SHARED) - frozenset(
    ("start_ns", "device", "lane", "kind", "phase", "step", "launch_step", "launch_ns", "layer", "name")
)


Progress: TypeAlias = Callable[[int, int], None]  # (ranks read, ranks to read)


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

    def labels_of(self, facts: WindowFacts) -> list[LabeledCall] | None:
        """What the calls of a window are to be added to; None: they are not drawn."""
        return self.calls.setdefault((facts.rank, facts.window), []) if facts.rank in self.drawn else None

    def merge(self, later: TraceRecord) -> None:
        """Takes in the windows of later ranks."""
        self.comm.merge(later.comm)
        self.layers.merge(later.layers)
        self.lines.merge(later.lines)
        merge_kernels(self.kernels, later.kernels)
        self.pipeline.merge(later.pipeline)
        self.experts.merge(later.experts)
        self.calls.update(later.calls)


class RankTask(Struct, frozen=True, kw_only=True):
    """Ranks to read.

    Attributes:
        source: the run; `source.ranks` are read.
        windows: by rank, those that are analyzed.
        unlike: by rank, those that are not because their times are unlike the others'; what their operators
            compute counts where no other window of the rank has shapes.
        drawn: ranks that are in timelines: every call of theirs is labeled.
        ahead: whether the program runs ahead of its work (`rank_facts.runs_ahead`).
    """

    source: RunSource
    windows: Mapping[int, Sequence[WindowFacts]]
    unlike: Mapping[int, Sequence[WindowFacts]]
    drawn: frozenset[int]
    ahead: bool


class RankRead(Struct, frozen=True, kw_only=True):
    """One rank: its figures and its steps."""

    result: RankResult
    steps: RankSteps
    times: RankStepTimes
    parts: StepParts
    phases: Mapping[PhaseKey, RankPhase] = {}
    loading: RankLoading | None = None


class RankPart(Struct, kw_only=True):
    """What was read of consecutive ranks.

    Attributes:
        ranks: in their order.
        traces: their windows.
        parameters: layers of the model with their parameters' sizes, of the first rank that has them.
        missing: windows that cannot be read.
        num_windows: traced windows with events.
        num_unmarked: of these, without step marks.
        notes: what the reader dropped.
    """

    traces: TraceRecord
    ranks: list[RankRead] = []
    parameters: tuple[LayerParams, ...] = ()
    missing: list[Missing] = []
    num_windows: int = 0
    num_unmarked: int = 0
    notes: tuple[DroppedInput, ...] = ()

    def merge(self, later: RankPart) -> None:
        """Takes in what was read of later ranks, apart from notes."""
        self.traces.merge(later.traces)
        self.ranks += later.ranks
        self.parameters = self.parameters or later.parameters
        self.missing += later.missing
        self.num_windows += later.num_windows
        self.num_unmarked += later.num_unmarked


class _Windows(Struct, frozen=True, kw_only=True):
    """The traced windows of one rank; the lists have an entry per window with events."""

    totals: list[bd.StepTotals] = []
    devices: list[DeviceBreakdown | None] = []
    recomputed: list[int | None] = []
    idle: DeviceIdleRecord = field(default_factory=DeviceIdleRecord)
    streams: StreamRecord = field(default_factory=StreamRecord)


class _Reading(Struct, frozen=True, kw_only=True):
    """One rank while its windows are read; `table`: its steps."""

    rank: int
    table: SpanTable
    layers: RankLayers
    traced: _Windows = field(default_factory=_Windows)

    @classmethod
    def of(cls, source: RunSource, rank: int, model: ModelFacts | None) -> _Reading:
        """`model`: of the rank before."""
        table = SpanTable(source.steps(rank))
        source.windows(rank)  # so that what is listed there and lost becomes one of the source's notes
        record = source.layers(rank)
        if model is None or model.record is not record:
            model = ModelFacts.of(record)
        return cls(rank=rank, table=table, layers=RankLayers(model))


def read_part(task: RankTask, progress: Progress | None = None) -> RankPart:
    """Reads the ranks of a task."""
    part, ranks = RankPart(traces=TraceRecord(drawn=task.drawn)), task.source.ranks
    model = None
    for begin in range(0, len(ranks), _RANKS_TOGETHER):
        readings = []
        for rank in ranks[begin : begin + _RANKS_TOGETHER]:
            readings.append(_Reading.of(task.source, rank, model))
            model = readings[-1].layers.model
        _read_windows(task, readings, part)
        for reading in readings:
            part.ranks.append(_finished(task, reading, part))
            if progress is not None:
                progress(len(part.ranks), len(ranks))
    part.notes = tuple(task.source.notes)
    return part


@collector_off()
def read_packed(task: RankTask) -> RankPart:
    """The same in a task: what is next needed in another task is packed."""
    part = read_part(task)
    part.traces.layers.comm.pack()
    return part


def unread_rank(rank: int, record: RankRecord) -> RankRead:
    """A rank whose steps and windows were not read."""
    return _rank_read(rank, record, (), STEPS.empty_table(), _Windows(), ahead=False)


def _finished(task: RankTask, reading: _Reading, part: RankPart) -> RankRead:
    """A rank of which all windows are read."""
    source, rank, layers, table = task.source, reading.rank, reading.layers, reading.table
    record = source.rank_records[rank]
    _add_work(source, task.unlike.get(rank, ()), layers)
    layers.finish(part.traces.layers, rank)
    part.parameters = part.parameters or layers.model.shapes
    read = _rank_read(rank, record, task.windows.get(rank, ()), table, reading.traced, ahead=task.ahead)
    num_cpus = len(record.affinity) if record.affinity else None
    return replace(
        read,
        phases=rank_phases(rank, source.phases(rank), table),
        loading=rank_loading(rank, source.loading(rank), table.num_rows, num_cpus),
    )


def _rank_read(
    rank: int,
    record: RankRecord,
    windows: Sequence[WindowFacts],
    table: Table,
    traced: _Windows,
    *,
    ahead: bool,
) -> RankRead:
    steps = rank_steps(table, runs_ahead=ahead, on_device=steps_on_device(windows))
    parts = step_parts(table, steps.reported)
    result = _rank_result(rank, record, windows, steps, traced)
    if result.device_ns is None:
        result = replace(result, host_idle=host_idle(result.breakdown_ns, parts))
    return RankRead(result=result, steps=steps, times=step_times(table), parts=parts)


def _read_windows(task: RankTask, readings: Sequence[_Reading], part: RankPart) -> None:
    by_rank = {reading.rank: reading for reading in readings}
    for windows in together(_windows_of(task, list(by_rank), part)):
        if windows.facts[0].lacks_device:
            part.missing.append(_without_device(windows.facts[0]))
            nothing = np.zeros(windows.table.num_rows, dtype=bool)
            part.traces.kernels.add(windows, spans_of(windows.table), nothing, lacks_device=True)
            continue
        part.num_windows += len(windows.parts)
        part.num_unmarked += sum(facts.whole_file or not facts.steps for facts in windows.facts)
        part.traces.comm.add(windows)
        _analyze(windows, part.traces, [by_rank[facts.rank] for facts in windows.facts])
        if windows.table.num_rows > MOST_ROWS:
            del windows
            pa.default_memory_pool().release_unused()


def _windows_of(task: RankTask, ranks: Sequence[int], part: RankPart) -> Iterator[Window]:
    """Windows with events, read one after the other. What cannot be read is missing."""
    for rank in ranks:
        groups = _groups(task.source.rank_records[rank])
        for facts in task.windows.get(rank, ()):
            try:
                rows = _rows(task.source, facts)
            except RunDirectoryError as error:
                part.missing.append(_unreadable(facts, error))
                continue
            if not rows.num_rows or (facts.ends_early and not facts.steps and not facts.lacks_device):
                continue  # `missing_reasons.steps_left_out` has those that end early
            members = {name: members_of(of) for name, of in {**groups, **facts.groups}.items()}
            yield Window(facts, rows, members)  # as in call_labels


def _rows(source: RunSource, facts: WindowFacts) -> Columns:
    """Without the columns that only devices' work has, where there is none."""
    if not facts.has_device:
        rows = source.timeline_columns(facts.rank, facts.window, _ON_HOST)
        if (whole_numbers(rows, "device") < 0).all():
            return rows
    return source.timeline_columns(facts.rank, facts.window, _COLUMNS)


def _add_work(source: RunSource, unlike: Sequence[WindowFacts], layers: RankLayers) -> None:
    """FLOPs and bytes of the layers where only windows whose times do not count have shapes."""
    for facts in unlike:
        if layers.num_shaped_steps or facts.lacks_device or not facts.steps:
            continue
        with suppress(RunDirectoryError):  # nothing is lost of what counts
            table = source.timeline(facts.rank, facts.window, _COLUMNS)
            if table.num_rows:
                spans, windows = spans_of(table), one_window(Window(facts, table))
                num_steps = len(bd.analyzed_steps(spans, facts))
                add_work(layers, windows, spans, num_steps, bd.in_steps(table, facts))


def _analyze(windows: Windows, traces: TraceRecord, readings: Sequence[_Reading]) -> None:
    table, facts = windows.table, windows.facts
    spans = spans_of(table)
    table.forget({"dur_ns"})
    own_steps = (bd.analyzed_steps(spans, of_window) for of_window in facts)
    steps = [windows.moved(of_window, index) for index, of_window in enumerate(own_steps)]
    act = bd.activity(spans, windows)
    selected = bd.every_gpu_event(table)
    host_wait = None
    traces.kernels.add(windows, spans, selected)
    table.forget(_OF_KERNELS)
    if selected.any():
        (traced,) = (reading.traced for reading in readings)
        waiting = queued(table, spans, selected)
        traced.idle.add_window(table, spans, selected, windows.lanes_with("main"), waiting)
        traced.streams.add_window(table, spans, selected)
        host_wait = bd.device_gaps(spans, whole_numbers(table, "launch_ns"), selected).host_wait
    labels = [traces.labels_of(of_window) for of_window in facts]
    ranks = [reading.layers for reading in readings]
    add_windows(ranks, windows, spans, act, steps, bd.in_steps(table, facts[0]), labels)
    table.forget(_OF_COMMUNICATION)
    traces.lines.add(windows, spans, act, steps)
    _add_works(windows, spans, act, traces)
    recomputed = recomputed_ns(windows, spans, act, steps)
    totals, device = bd.step_totals(act, steps, host_wait, windows.line), bd.device_breakdown(table, selected)
    for reading, total, again in zip(readings, totals, recomputed, strict=True):
        reading.traced.totals.append(total)
        reading.traced.devices.append(device)
        reading.traced.recomputed.append(again)


def _add_works(windows: Windows, spans: Spans, act: bd.Activity, traces: TraceRecord) -> None:
    """What stages of a pipeline and experts do, of the windows in which there are any."""
    has_stages = windows.with_any(marks_of_stages(windows.table, spans))
    has_experts = windows.with_any(exchanges(windows.table, spans))
    for index in np.flatnonzero(has_stages | has_experts).tolist():
        alone, facts = windows.alone(index), windows.facts[index]
        spans = spans_of(alone.table)
        of_window = act if alone is windows else bd.activity(spans, alone)
        steps = bd.analyzed_steps(spans, facts)
        traces.pipeline.add(alone.table, spans, of_window, steps, facts.rank, facts.window)
        traces.experts.add(alone.table, spans, facts.rank, facts.window, alone.parts[0].members)


def _rank_result(
    rank: int,
    record: RankRecord,
    windows: Sequence[WindowFacts],
    steps: RankSteps,
    traced: _Windows,
) -> RankResult:
    """Without the times of its kernels, which take all ranks to choose (`KernelRecord.side`)."""
    mean = bd.mean_breakdown(traced.totals)
    num = mean.num_steps if mean else 0
    comm = sum(total.comm for total in traced.totals)
    exposed = sum(total.exposed_comm for total in traced.totals)
    device_ns = bd.add_devices(traced.devices)
    recomputed = [again for again in traced.recomputed if again is not None]
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
        input_wait_ns=steps.input_wait_ns,
        samples_per_step=None if steps.samples is None else steps.samples.median,
        overhead_ns=record.overhead.total_ns,
        elapsed_ns=steps.elapsed_ns,
        idle_host_wait_ns=round(sum(host_waits) / num) if host_waits and num else None,
        recompute_ns=round(sum(recomputed) / num) if recomputed and num else None,
        finished=record.finished,
        device=record.device,
        peak_rss_bytes=record.memory.peak_rss_bytes,
        peak_device_bytes=record.memory.peak_device_bytes,
        peak_reserved_bytes=record.memory.peak_reserved_bytes,
        parameter_bytes=record.memory.parameter_bytes,
        gradient_bytes=record.memory.gradient_bytes,
        optimizer_bytes=record.memory.optimizer_bytes,
        buffer_bytes=record.memory.buffer_bytes,
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
