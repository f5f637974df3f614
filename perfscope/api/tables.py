"""The tables of one run, each a list of its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perfscope.analysis.loading.results import LoaderWorker, RankLoading
from perfscope.analysis.results import Breakdown, RankResult, RunAnalysis
from perfscope.api.columns import Column, TableSpec
from perfscope.messages.missing import missing_document


def _part(name: str) -> Column:
    def value(rank: RankResult) -> int | None:
        breakdown = rank.breakdown_ns
        return None if breakdown is None or name in rank.unknown else getattr(breakdown, name)

    return Column(f"{name}_ns", "int", f"{name.replace('_', ' ')} of the mean traced step", value)


def _quantile(name: str, meaning: str) -> Column:
    def value(rank: RankResult) -> int | None:
        return None if rank.step_ns is None else getattr(rank.step_ns, name)

    return Column(f"step_{name}_ns", "int", f"{meaning} step time, warm-up and traced steps excluded", value)


RANKS = TableSpec(
    "ranks",
    "rank",
    (
        Column("rank", "int", "global rank"),
        Column("host", "text", "name of its host"),
        Column("num_steps", "int", "steps that were recorded"),
        Column("num_traced_steps", "int", "of these, steps that were traced and analyzed"),
        Column("finished", "bool", "whether the rank closed its files; null for an imported trace"),
        _quantile("median", "median"),
        _quantile("p10", "10th percentile of the"),
        _quantile("p90", "90th percentile of the"),
        Column("traced_step_ns", "int", "mean traced step", lambda r: r.breakdown_ns and r.breakdown_ns.step),
        *(_part(name) for name in Breakdown.PARTS),
        Column("comm_ns", "int", "all communication of the mean traced step, overlapped or not"),
        Column("overlap_ratio", "float", "share of communication overlapped with computation"),
        Column(
            "untraced_input_wait_ns", "int", "median wait for input of all steps", lambda r: r.input_wait_ns
        ),
        Column("samples_per_step", "float", "median number of samples of a step"),
        Column("overhead_ns", "int", "time that recording took from this rank"),
        Column("elapsed_ns", "int", "from the first step's start to the last step's end"),
    ),
    lambda analysis: analysis.ranks,
)
LAYERS = TableSpec(
    "layers",
    "layer",
    (
        Column("layer", "text", "qualified name of the module"),
        Column("module_type", "text", "its class"),
        Column("order", "int", "position of its first execution"),
        Column("calls", "float", "forward calls per step"),
        Column("forward_ns", "int", "computation in the forward pass, per step, mean over ranks"),
        Column("backward_ns", "int", "computation in the backward pass, likewise"),
        Column("exposed_comm_ns", "int", "communication not overlapped with computation, likewise"),
        Column("flops", "int", "floating-point operations per step and rank, modeled from shapes"),
        Column("bytes", "int", "bytes read and written per step and rank, modeled from shapes"),
        Column("forward_flops", "int", "of the forward pass"),
        Column("backward_flops", "int", "of the backward pass"),
        Column("forward_bytes", "int", "of the forward pass"),
        Column("backward_bytes", "int", "of the backward pass"),
        Column("num_params", "int", "parameters of the layer itself"),
    ),
    lambda analysis: analysis.layers,
)
COLLECTIVES = TableSpec(
    "collectives",
    "collective and process group",
    (
        Column("collective", "text", "all_reduce, all_gather, ..."),
        Column("group", "text", "process group"),
        Column("group_size", "int", "ranks of the group"),
        Column("dtype", "text", "of the elements; null where there are several"),
        Column("count", "int", "calls per rank in all traced windows"),
        Column("bytes", "int", "message sizes of these calls, summed"),
        Column("duration_ns", "int", "of these calls, summed, mean over ranks"),
        Column("transfer_ns", "int", "of this, from the last rank's entry on"),
        Column("wait_ns", "int", "of this, waiting for the last rank, mean over ranks"),
        Column("max_wait_ns", "int", "longest wait of one rank in one call"),
        Column("algbw_bytes_per_s", "float", "algorithm bandwidth while data moves"),
        Column("busbw_bytes_per_s", "float", "bus bandwidth while data moves"),
        Column("busbw_with_wait_bytes_per_s", "float", "bus bandwidth of the whole calls"),
        Column("num_matched", "int", "calls found on all ranks of the group"),
    ),
    lambda analysis: analysis.collectives,
)
CALLS = TableSpec(
    "calls",
    "collective call that was matched across ranks",
    (
        Column("window", "int", "traced window"),
        Column("seq", "int", "number of the call among those of its kind and group in the window"),
        Column("collective", "text", "all_reduce, all_gather, ..."),
        Column("group", "text", "process group"),
        Column("start_ns", "int", "entry of the last rank, on the clock of the reference host"),
        Column("transfer_ns", "int", "from the last rank's entry on"),
        Column("late_rank", "int", "rank that entered last"),
        Column("start_skew_ns", "int", "between the first and the last entry"),
        Column("end_skew_ns", "int", "between the first and the last end"),
        Column("bytes", "int", "message size"),
        Column("late_uncertain", "bool", "another host's rank came within the clock uncertainty"),
    ),
    lambda analysis: analysis.calls,
)


def _arrivals(analysis: RunAnalysis) -> Iterator[tuple[Any, ...]]:
    for calls in analysis.arrivals:
        times = [matrix.tolist() for matrix in (calls.enter_ns, calls.exit_ns, calls.wait_ns)]
        for row, rank in enumerate(calls.ranks):
            for column, seq in enumerate(calls.seq.tolist()):
                yield (calls, seq, rank, *(matrix[row][column] for matrix in times))


ARRIVALS = TableSpec(
    "arrivals",
    "rank in a collective call that was matched across ranks",
    (
        Column("window", "int", "traced window", lambda row: row[0].window),
        Column("seq", "int", "as in the table `calls`", lambda row: row[1]),
        Column("collective", "text", "all_reduce, all_gather, ...", lambda row: row[0].collective),
        Column("group", "text", "process group", lambda row: row[0].group),
        Column("rank", "int", "global rank", lambda row: row[2]),
        Column("enter_ns", "int", "when it entered, on the clock of the reference host", lambda row: row[3]),
        Column("exit_ns", "int", "when its call ended, likewise", lambda row: row[4]),
        Column("wait_ns", "int", "that it waited for the last rank to enter", lambda row: row[5]),
    ),
    _arrivals,
)
RANK_LAYERS = TableSpec(
    "rank_layers",
    "layer on a rank",
    (
        Column("layer", "text", "qualified name of the module", lambda row: row[0]),
        Column("rank", "int", "global rank", lambda row: row[1]),
        Column(
            "forward_ns", "float", "computation in the forward pass, mean traced step", lambda row: row[2]
        ),
        Column("backward_ns", "float", "computation in the backward pass, likewise", lambda row: row[3]),
    ),
    lambda analysis: (
        (layer, rank, *means[:2])
        for layer, times in analysis.layer_times.items()
        for rank, means in zip(times.ranks, times.means.tolist(), strict=True)
    ),
)
AXES = TableSpec(
    "axes",
    "axis of the device mesh",
    (
        Column("axis", "text", "dp, fsdp, tp, pp, ...; the group's name where its axis is not known"),
        Column("inferred", "bool", "whether the axis follows from the calls, because nothing names it"),
        Column("group_size", "int", "ranks of a group"),
        Column("link_class", "text", "links that the bytes go over"),
        Column("calls", "float", "per step and rank"),
        Column("bytes", "int", "message sizes per step and rank"),
        Column("busbw_bytes_per_s", "float", "bus bandwidth while data moves"),
        Column("wait_ns", "int", "waiting for the last rank, per step and rank"),
        Column("transfer_ns", "int", "the rest of the calls"),
        Column("hidden_ns", "int", "overlapped with computation"),
        Column("exposed_ns", "int", "not overlapped with computation"),
    ),
    lambda analysis: analysis.communication.by_axis if analysis.communication is not None else (),
)


def _layer_axes(analysis: RunAnalysis) -> Iterator[tuple[str | None, str | None, str, int]]:
    communication = analysis.communication
    if communication is None:
        return
    for entry in communication.by_layer:
        for axis, exposed_ns in entry.axes.items():
            yield entry.layer, None, axis, exposed_ns
    for unattributed in communication.unattributed:
        for axis, exposed_ns in unattributed.axes.items():
            yield None, unattributed.reason.value, axis, exposed_ns


LAYER_AXES = TableSpec(
    "layer_axes",
    "layer and axis with communication",
    (
        Column("layer", "text", "layer or boundary of stages; null: of no layer", lambda row: row[0]),
        Column("reason", "text", "why it is of no layer", lambda row: row[1]),
        Column("axis", "text", "axis of the device mesh", lambda row: row[2]),
        Column("exposed_ns", "int", "not overlapped with computation, per step and rank", lambda row: row[3]),
    ),
    _layer_axes,
)
_TIMES = (
    Column("calls", "int", "in all traced windows, over all ranks"),
    Column("total_ns", "int", "summed over these calls"),
    Column("mean_ns", "float", "of a call"),
    Column("share_ratio", "float", "of the time of all rows", lambda row: row.share),
)
KERNELS = TableSpec(
    "kernels",
    "device kernel; without a device, host operator; the last row may stand for all others",
    (
        Column("kernel", "text", "its name; null: others together", lambda row: row.name),
        Column("type", "text", "gemm, attention, convolution, ..."),
        *_TIMES,
        Column("operator", "text", "that launched most of its time"),
        Column(
            "occupancy_percent", "float", "achieved, estimated by the profiler", lambda row: row.occupancy
        ),
        Column("registers", "int", "per thread"),
        Column("grid", "text", "blocks of the calls with most time"),
        Column("block", "text", "threads of a block, likewise"),
        Column("matrix_units", "bool", "whether it uses tensor cores or the like"),
    ),
    lambda analysis: analysis.kernels.by_name if analysis.kernels is not None else (),
)
OPERATORS = TableSpec(
    "operators",
    "operator, by the time of what it launched; without a device, its own time",
    (
        Column("operator", "text", "null: of no operator, or others together"),
        Column("type", "text", "gemm, attention, convolution, ..."),
        *_TIMES,
    ),
    lambda analysis: analysis.kernels.by_operator if analysis.kernels is not None else (),
)
FINDINGS = TableSpec(
    "findings",
    "finding, the verdict first",
    (
        Column("id", "text", "kind of the finding"),
        Column("title", "text", "what was found", lambda finding: finding.text.title),
        Column("detail", "text", "on what figures it rests", lambda finding: finding.text.detail),
        Column("action", "text", "what to do", lambda finding: finding.text.action),
        Column(
            "gain_ns", "int", "what removing it would save of the median step, or of the training's mean one"
        ),
        Column("gain_ratio", "float", "the same as a share of that step"),
        Column("of_training", "bool", "the saving is of the training's mean step"),
        Column("layer", "text", "that it is about"),
        Column("rank", "int", "that it is about"),
        Column("collective", "text", "that it is about"),
        Column("axis", "text", "that it is about"),
    ),
    lambda analysis: analysis.findings,
)
WHAT_IFS = TableSpec(
    "what_ifs",
    "change that the replay predicts",
    (
        Column("id", "text", "kind of the change"),
        Column("title", "text", "what is changed"),
        Column("step_ns", "int", "predicted step time"),
        Column("gain_ns", "int", "what it saves"),
        Column("gain_ratio", "float", "the same as a share of the step"),
        Column("evidence", "text", "figures it rests on"),
        Column("caution", "text", "why it is doubtful"),
        Column("layer", "text", "that is changed"),
        Column("rank", "int", "that is changed"),
        Column("axis", "text", "that is changed"),
    ),
    lambda analysis: analysis.what_ifs,
)
MISSING = TableSpec(
    "missing",
    "figure that could not be measured",
    (
        Column("figure", "text", "which", lambda gap: gap["what"]),
        Column("reason", "text", "why", lambda gap: gap["reason"]),
    ),
    lambda analysis: [
        missing_document(gap)
        for gap in (*analysis.missing, *(analysis.machine.missing if analysis.machine is not None else ()))
    ],
)


def _samples(analysis: RunAnalysis) -> Iterator[tuple[Any, ...]]:
    for track in analysis.machine.tracks if analysis.machine is not None else ():
        for point in zip(track.t_ns, track.mean, track.low, track.high, strict=True):
            yield (track, *point)


COUNTERS = TableSpec(
    "samples",
    "point of a hardware counter's chart",
    (
        Column("host", "text", "name of the host", lambda row: row[0].host),
        Column("group", "text", "cpu, memory, network, gpu, power, ...", lambda row: row[0].group),
        Column("metric", "text", "name, without its host", lambda row: row[0].id.partition("/")[2]),
        Column("title", "text", "name to show", lambda row: row[0].title),
        Column("unit", "text", "of the values", lambda row: row[0].unit),
        Column("t_ns", "int", "middle of the interval, Unix time", lambda row: row[1]),
        Column("mean", "float", "over the interval; null: no reading", lambda row: row[2]),
        Column("low", "float", "minimum over the interval", lambda row: row[3]),
        Column("high", "float", "maximum over the interval", lambda row: row[4]),
        Column("quality", "text", "exact, or how it was estimated", lambda row: row[0].quality),
    ),
    _samples,
)
ROOFLINE = TableSpec(
    "roofline",
    "layer and phase on the roofline of a host's device",
    (
        Column("host", "text", "name of the host", lambda row: row[0].host),
        Column("device", "text", "cpu or the GPU's name", lambda row: row[0].device),
        Column("layer", "text", "qualified name of the module", lambda row: row[1].layer),
        Column("phase", "text", "forward or backward", lambda row: row[1].phase),
        Column("time_ns", "int", "per step", lambda row: row[1].time_ns),
        Column("flops", "int", "per step, modeled", lambda row: row[1].flops),
        Column("bytes", "int", "per step", lambda row: row[1].bytes),
        Column("bytes_source", "text", "modeled from shapes, or measured", lambda row: row[1].bytes_source),
        Column("intensity_flop_per_byte", "float", "arithmetic intensity", lambda row: row[1].intensity),
        Column("flops_per_s", "float", "modeled work by measured time", lambda row: row[1].flops_per_s),
        Column("attainable_flops_per_s", "float", "ceiling", lambda row: row[1].attainable_flops_per_s),
        Column("bound", "text", "compute, memory or neither", lambda row: row[1].bound),
    ),
    lambda analysis: (
        (roofline, point)
        for roofline in (analysis.machine.rooflines if analysis.machine is not None else ())
        for point in roofline.points
    ),
)
PHASES = TableSpec(
    "phases",
    "phase on a rank",
    (
        Column(
            "path", "text", "names of nested phases with ` / ` between", lambda row: " / ".join(row[0].path)
        ),
        Column("name", "text", "of the innermost", lambda row: row[0].name),
        Column("source", "text", "who marked it", lambda row: row[0].source),
        Column("training_thread", "bool", "in the thread that trains", lambda row: row[0].is_training_thread),
        Column("rank", "int", "global rank", lambda row: row[1].rank),
        Column("count", "int", "how often it began", lambda row: row[1].count),
        Column("ns", "int", "time in it, nested phases included", lambda row: row[1].ns),
        Column("own_ns", "int", "without nested phases", lambda row: row[1].own_ns),
        Column("before_ns", "int", "before the first step", lambda row: row[1].before_ns),
        Column("in_steps_ns", "int", "in steps", lambda row: row[1].in_steps_ns),
        Column("num_steps", "int", "steps that hold some of it", lambda row: row[1].num_steps),
        Column("is_open", "bool", "not ended when the record ends", lambda row: row[1].is_open),
    ),
    lambda analysis: ((phase, of_rank) for phase in analysis.phases for of_rank in phase.ranks),
)


def _of_worker(name: str) -> Callable[[tuple[RankLoading, LoaderWorker | None]], object]:
    def value(row: tuple[RankLoading, LoaderWorker | None]) -> object:
        return None if row[1] is None else getattr(row[1], name)

    return value


LOADING = TableSpec(
    "loading",
    "worker of the data loader that gave a rank most batches",
    (
        Column("rank", "int", "global rank", lambda row: row[0].rank),
        Column("worker", "int", "its number; null where no worker left a record", _of_worker("worker")),
        Column("num_workers", "int", "of the loader", lambda row: row[0].num_workers),
        Column("prefetch", "int", "batches assigned to each worker ahead", lambda row: row[0].prefetch),
        Column("num_batches", "int", "that it made", _of_worker("num_batches")),
        Column("batch_mean_ns", "int", "from a task to its batch, mean", _of_worker("mean_ns")),
        Column("batch_median_ns", "int", "the same, median", _of_worker("median_ns")),
        Column("cpu_ratio", "float", "of that time, on a CPU", _of_worker("cpu_ratio")),
        Column("runqueue_ratio", "float", "ready to run, without a CPU", _of_worker("runqueue_ratio")),
        Column("asleep_ratio", "float", "neither: reads, network, locks, sleep", _of_worker("asleep_ratio")),
        Column("idle_ratio", "float", "of its life, without a task", _of_worker("idle_ratio")),
        Column("read_bytes", "int", "that it read, page cache included", _of_worker("read_chars")),
        Column("storage_read_bytes", "int", "of these, from storage", _of_worker("read_bytes")),
        Column("major_faults", "int", "page faults that waited for storage", _of_worker("major_faults")),
        Column("num_asked", "int", "its batches that the training asked for", _of_worker("num_asked")),
        Column("wait_ns", "int", "that the training waited for these, summed", _of_worker("wait_ns")),
        Column("late_wait_ns", "int", "of that, until they were finished", _of_worker("late_wait_ns")),
        Column(
            "queue_depth_batches",
            "float",
            "batches of all workers that were ready when the training asked for one of these, mean",
            _of_worker("mean_ready"),
        ),
    ),
    lambda analysis: (
        (loading, worker) for loading in analysis.loading for worker in (loading.workers or (None,))
    ),
)
SPECS = (
    *(RANKS, LAYERS, RANK_LAYERS, OPERATORS, KERNELS, COLLECTIVES, CALLS, ARRIVALS, AXES, LAYER_AXES),
    *(PHASES, LOADING, FINDINGS, WHAT_IFS, MISSING, COUNTERS, ROOFLINE),
)
