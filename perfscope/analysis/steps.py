"""The always-on figures: step time, throughput, waiting for input, and what perfscope itself cost.

Where a program hands its work over and goes on (`runs_ahead`), single steps are times of handing over, the
wait for all of it falls into some step, and a median would be of the former. Where the mean is more than
RAN_AHEAD times the median, the untraced steps of a stretch share its time evenly. Where traced windows show
how long the device takes for a step that the host leaves earlier (`WindowFacts.runs_ahead`), a step lasts
from the device's end of the one before to its own (`_on_device`).

Warm-up rule: of a rank's n steps the first max(1, min(3, n // 4)) are left out of quantiles (lazy
initialization, autotuning, the rebuild of gradient buckets), unless the rank has only one. Traced steps are
left out as well when at least MIN_UNTRACED others remain: a profiler slows the step it watches. Imported
traces have traced steps only; all of them count.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope.analysis import advice
from perfscope.analysis.bench import BenchResult
from perfscope.analysis.intervals import Int64, distinct, median_of, percentiles_of
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.rank_facts import data_parallel_width
from perfscope.analysis.results import Quantiles, StepMarks
from perfscope.analysis.spans import Table, WindowFacts, whole_numbers
from perfscope.analysis.uneven import uneven_mean
from perfscope.rundir.records import RankRecord
from perfscope.rundir.scheme_records import SchemeRecord
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.run_parts import STEP_COLUMNS, RunPart

MIN_UNTRACED = 3
FEWEST_OF_HALF = 5
MAX_WARMUP = 3
RAN_AHEAD = 1.5
BESIDE_TRAINING = (RunPart.EVALUATION, RunPart.CHECKPOINT, RunPart.ROLLOUT, RunPart.INFERENCE)
MAX_SMALLER = 0.1  # share of the steps that may have a smaller (last) batch while sizes count as constant


class BatchSizes(Struct, frozen=True, kw_only=True):
    """Samples or tokens per step of one rank, over the counted steps that know them."""

    median: float
    mean: float  # a smaller last batch counts as it is
    range: tuple[int, int]
    vary: bool  # a median step does not stand for the others
    per_s: float  # sum of all / sum of the durations of the same steps


class RankSteps(Struct, frozen=True, kw_only=True, eq=False):
    """One rank's steps, of its always-on probe or of an imported trace's marks."""

    durations: Int64  # every step, in order, ns
    starts: Int64  # of every step, ns on its host's monotonic clock (imports: the trace's)
    is_counted: NDArray[np.bool_]  # which of them the quantiles are taken over
    is_traced: NDArray[np.bool_]  # which of them a window traced
    traced_numbers: Int64  # of those, as their windows number them
    input_wait_ns: int | None  # median over the counted steps
    mean_input_wait_ns: float | None  # mean over them
    samples: BatchSizes | None
    tokens: BatchSizes | None  # None: not known, or no model of tokens
    elapsed_ns: int | None
    are_on_device: bool = False  # the host runs ahead of the device: when that does the steps' work
    uneven_mean_ns: float | None = None  # as `uneven_mean`, without what is timed beside training
    shared: Int64 | None = None  # the program ran ahead of its work: durations of that work, ns

    @property
    def reported(self) -> Int64:
        """Every step as it is to be reported, in order, ns."""
        return self.durations if self.shared is None else self.shared

    @property
    def marks(self) -> StepMarks:
        """What each step is."""
        return StepMarks(
            counted=self.is_counted.tobytes(),
            traced=self.is_traced.tobytes(),
            numbers=array("q", self.traced_numbers.tobytes()),
        )

    @property
    def counted(self) -> Int64:
        """Durations that the quantiles are taken over, ns."""
        result: Int64 = self.reported[self.is_counted]
        return result


def step_time(steps: Mapping[int, RankSteps]) -> Quantiles | None:
    """Over all ranks; None: no rank timed any."""
    return quantiles(np.concatenate([of_rank.counted for of_rank in steps.values()])) if steps else None


def quantiles(values: Int64) -> Quantiles | None:
    """Median, p10 and p90 by linear interpolation; None of nothing."""
    if not len(values):
        return None
    p10, median, p90 = (round(value) for value in percentiles_of(values, (10, 50, 90)))
    return Quantiles(median=median, p10=p10, p90=p90, count=len(values))


def spread_ratio(steps: Sequence[RankSteps]) -> float | None:
    """By how much the halves of a run differ: |difference| of their median steps / median step, mean rank.

    None where no rank has FEWEST_OF_HALF counted steps in each.
    """
    spreads = []
    for counted in (of_rank.counted for of_rank in steps):
        half = len(counted) // 2
        median = median_of(counted) if half >= FEWEST_OF_HALF else 0.0
        if median > 0:
            spreads.append(abs(median_of(counted[:half]) - median_of(counted[half:])) / median)
    return _mean_of(spreads) if spreads else None


def counted_steps(window: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which steps the quantiles are taken over, by the warm-up rule.

    Args:
        window: shape (steps,), the window that traced each step; -1 = untraced.
    """
    num = len(window)
    mask = np.ones(num, dtype=bool)
    if num < 2 or (window >= 0).all():
        return mask
    mask[: max(1, min(MAX_WARMUP, num // 4))] = False
    untraced = mask & (window < 0)
    return untraced if untraced.sum() >= MIN_UNTRACED else mask


def rank_steps(
    table: Table, *, runs_ahead: bool = False, on_device: Mapping[int, int] | None = None
) -> RankSteps:
    """Reads one rank's schema.STEPS.

    Args:
        table: of the rank.
        runs_ahead: its program may hand steps over before the work of the ones before is done.
        on_device: traced step -> how long the device took for it, ns, where the host ran ahead of it.
    """
    durations = whole_numbers(table, "dur_ns")
    start = whole_numbers(table, "start_ns")
    window = whole_numbers(table, "window")
    mask = counted_steps(window)
    counted = durations[mask]
    elapsed_ns = int((start + durations).max() - start.min()) if len(start) else None
    shared = None
    if on_device:
        start, durations = _on_device(start, durations, whole_numbers(table, "step"), window, on_device)
    elif runs_ahead and len(counted) and counted.mean() > RAN_AHEAD * median_of(counted):
        shared = _shared_out(durations, mask)
    waits = _known(table, "input_ns", mask)
    return RankSteps(
        durations=durations,
        starts=start,
        is_counted=mask,
        is_traced=window >= 0,
        traced_numbers=whole_numbers(table, "step")[window >= 0],
        input_wait_ns=None if waits is None else round(median_of(waits)),
        mean_input_wait_ns=None if waits is None else float(waits.mean()),
        samples=_batch_sizes(table, "samples", mask),
        tokens=_batch_sizes(table, "tokens", mask),
        elapsed_ns=elapsed_ns,
        uneven_mean_ns=uneven_mean((durations - _beside_training(table))[mask]),
        shared=shared,
        are_on_device=bool(on_device),
    )


def steps_on_device(windows: Iterable[WindowFacts]) -> dict[int, int]:
    """Traced step -> its length, ns, of the windows of one rank in which the host ran ahead of the device."""
    return {
        step.step: step.end_ns - step.start_ns
        for facts in windows
        if facts.runs_ahead
        for step in facts.steps
    }


def _on_device(
    start: Int64, durations: Int64, number: Int64, window: Int64, traced: Mapping[int, int]
) -> tuple[Int64, Int64]:
    """Start of each step on the device and how long it took for it, ns.

    Untraced steps: in a stretch of them, the device ends a step when it has had the time that it takes for
    one since the end of the one before, and not before the host has left the step: C[i] = max(C[i-1] + D,
    H[i]). H is the host's end of the step; D is the median of the traced steps, and no more than the host
    needed for as many. The stretch keeps its length: steps after the last one for which the host waited share
    what is left.
    """
    starts, result = start.copy(), durations.copy()
    step_ns = float(np.median(list(traced.values())))
    stretch = np.cumsum(np.diff(window, prepend=window[:1] - 1) != 0)
    for number_of_stretch in distinct(stretch[window < 0]).tolist():
        rows = np.flatnonzero(stretch == number_of_stretch)
        left = np.cumsum(durations[rows])
        count = np.arange(1, len(rows) + 1)
        least = np.rint(count * min(step_ns, float((left / count).max()))).astype(np.int64)
        done = np.maximum.accumulate(np.maximum(left - least, 0)) + least
        if done[-1] > left[-1]:
            waited = np.flatnonzero(done <= left)
            last = int(waited[-1]) if len(waited) else -1
            reached = int(left[last]) if len(waited) else 0
            part = np.arange(1, len(rows) - last) / (len(rows) - 1 - last)
            done[last + 1 :] = reached + np.rint(part * (int(left[-1]) - reached)).astype(np.int64)
        result[rows] = np.diff(done, prepend=0)
        starts[rows] += done - result[rows] - (left - durations[rows])
    for row in np.flatnonzero(window >= 0).tolist():
        result[row] = traced.get(int(number[row]), int(durations[row]))
    return starts, result


def _shared_out(durations: Int64, counted: NDArray[np.bool_]) -> Int64:
    """Each stretch of counted steps as equal steps of the same sum, ns."""
    stretch = np.cumsum(np.diff(counted.astype(np.int8), prepend=0) != 0)
    mean = np.bincount(stretch, durations) / np.maximum(np.bincount(stretch), 1)
    result: Int64 = np.where(counted, np.rint(mean[stretch]).astype(np.int64), durations)
    return result


def _known(table: Table, column: str, mask: NDArray[np.bool_]) -> Int64 | None:
    """Those of the counted steps that were recorded; None where none was."""
    values: Int64 = whole_numbers(table, column)[mask]
    recorded = values[values >= 0]
    return recorded if len(recorded) else None


def _batch_sizes(table: Table, column: str, mask: NDArray[np.bool_]) -> BatchSizes | None:
    values = whole_numbers(table, column)
    has_size = mask & (values >= 0)
    sizes, elapsed_ns = values[has_size], int(whole_numbers(table, "dur_ns")[has_size].sum())
    if not len(sizes) or elapsed_ns <= 0:
        return None
    median, low, high = median_of(sizes), int(sizes.min()), int(sizes.max())
    return BatchSizes(
        median=round(median),
        mean=float(sizes.mean()),
        range=(low, high),
        vary=high > median or float((sizes < median).mean()) > MAX_SMALLER,
        per_s=float(sizes.sum()) * 1e9 / elapsed_ns,
    )


def _beside_training(table: Table) -> Int64:
    """Per step, what is no training, ns: evaluations and checkpoints are stated beside the steps."""
    total = np.zeros(table.num_rows, np.int64)
    for part in BESIDE_TRAINING:
        if STEP_COLUMNS[part] in table.column_names:
            total += np.maximum(whole_numbers(table, STEP_COLUMNS[part]), 0)
    return total


class Throughput(Struct, frozen=True, kw_only=True):
    """What the whole job works through. Samples and tokens of ranks that share a batch count once."""

    samples_per_s: float | None
    source: str | None  # "loader", "derived" or "option"; "scheme" for a bench run
    missing: Missing | None
    samples_per_step: float | None = None  # of the median step; where sizes vary, of the mean step
    mean_samples: float | None = None  # of the mean step
    tokens_per_s: float | None = None  # None: not known, or no model of tokens
    tokens_per_step: float | None = None  # of the mean step
    batch_range: tuple[int, int] | None = None  # samples per rank and step where they vary; None: they do not
    uneven_mean_ns: float | None = None  # mean step, which the rates follow; None: the median step


def throughput(
    option: float | None,
    records: Mapping[int, RankRecord],
    steps: Mapping[int, RankSteps],
    step: Quantiles | None,
) -> Throughput:
    """Samples and tokens per second of the whole job, of all data-parallel ranks.

    Batches of one size: samples of the mean step / median step time, which a single stall does not change.
    Where sizes vary (of samples or tokens), a median step does not stand for the others: all samples of the
    counted steps / their time. Where only times are uneven (`uneven_mean`), the mean step takes the place of
    the median.

    Args:
        option: `--samples-per-step`, samples of the whole job in one step; None = not given.
        records: rank -> rank.json.
        steps: rank -> its steps.
        step: step time over all ranks.
    """
    if step is None or step.median <= 0:
        return _no_throughput(Cause.NO_STEP_TIMED)
    width = data_parallel_width(records)
    samples = [rank_steps.samples for rank_steps in steps.values() if rank_steps.samples is not None]
    tokens = [rank_steps.tokens for rank_steps in steps.values() if rank_steps.tokens is not None]
    means = [rank_steps.uneven_mean_ns for rank_steps in steps.values()]
    uneven = [mean for mean in means if mean is not None]
    uneven_mean_ns = _mean_of(uneven) if 2 * len(uneven) > len(means) else None
    vary = any(sizes.vary for sizes in (*samples, *tokens))
    pace_ns = uneven_mean_ns or step.median
    token_rate = tokens_per_step = batch_range = None
    if tokens and width is not None:
        token_rate, tokens_per_step = _rate(tokens, width, pace_ns, vary=vary)
    if option is not None and option > 0:
        rate, source = option * 1e9 / pace_ns, "option"
        mean = per_step = float(option)
    elif not samples:
        return _no_throughput(Cause.BATCH_NOT_KNOWN, reason=advice.training(records).no_samples)
    elif width is None:
        # Ranks may share one batch (pipeline, tensor parallel), and it is not known which: not multiplied.
        return _no_throughput(Cause.DATA_PARALLEL_WIDTH_NOT_KNOWN, reason=_why_no_width(records))
    else:
        rate, mean = _rate(samples, width, pace_ns, vary=vary)
        per_step = mean if vary else _mean_of([sizes.median for sizes in samples]) * width
        source = _source_of(records)
        if any(sizes.vary for sizes in samples):
            ranges = [sizes.range for sizes in samples]
            batch_range = (min(low for low, _ in ranges), max(high for _, high in ranges))
    return Throughput(
        samples_per_s=rate,
        source=source,
        missing=None,
        samples_per_step=per_step,
        mean_samples=mean,
        tokens_per_s=token_rate,
        tokens_per_step=tokens_per_step,
        batch_range=batch_range,
        uneven_mean_ns=uneven_mean_ns,
    )


def speed_of_run(
    speed: Throughput,
    bench: BenchResult | None,
    scheme: SchemeRecord | None,
    steps: Mapping[int, RankSteps],
) -> Throughput:
    """One run has one speed: that of a bench run is what its scheme measured."""
    if scheme is None or bench is None or bench.samples_per_s is None:
        return speed
    speed = replace(speed, samples_per_s=bench.samples_per_s, source="scheme", missing=None)
    if not scheme.input_shape or not any(of_rank.tokens for of_rank in steps.values()):
        return speed
    sequence = scheme.input_shape[0]  # of which a rank may have a part, and a later stage no tokens at all
    return replace(
        speed, tokens_per_s=bench.samples_per_s * sequence, tokens_per_step=float(scheme.batch * sequence)
    )


def _rate(sizes: Sequence[BatchSizes], width: int, pace_ns: float, *, vary: bool) -> tuple[float, float]:
    """Of `width` ranks that have batches of their own: per second, and per mean step."""
    per_step = _mean_of([batch_sizes.mean for batch_sizes in sizes]) * width
    return _mean_of(
        [batch_sizes.per_s for batch_sizes in sizes]
    ) * width if vary else per_step * 1e9 / pace_ns, per_step


def _mean_of(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _source_of(records: Mapping[int, RankRecord]) -> str:
    if any(record.samples.source == "program" for record in records.values()):
        return "program"
    return "loader" if any(record.samples.source == "loader" for record in records.values()) else "derived"


def _why_no_width(records: Mapping[int, RankRecord]) -> str:
    reasons = (record.root.dp_unknown for record in records.values() if record.root is not None)
    return next(filter(None, reasons), advice.training(records).no_width)


def _no_throughput(cause: Cause, **detail: Any) -> Throughput:
    missing = missing_figure(Figure.THROUGHPUT, cause, **detail)
    return Throughput(samples_per_s=None, source=None, missing=missing)


def overhead_ratio(costs: Sequence[tuple[int | None, int | None]]) -> float | None:
    """Cost over elapsed time, both summed over the ranks that know them.

    Args:
        costs: (overhead_ns, elapsed_ns) per rank.
    """
    recorded = [(cost, elapsed) for cost, elapsed in costs if cost is not None and elapsed]
    total = sum(elapsed for _, elapsed in recorded)
    return sum(cost for cost, _ in recorded) / total if total else None
