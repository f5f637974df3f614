"""Sections "Where the step goes" (per rank, exact parts) and "Step times" (the series)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfscope import units
from perfscope.analysis.results import Breakdown, RankResult, RunAnalysis
from perfscope.analysis.window_results import UnlikeWindow
from perfscope.messages.advice import training_advice
from perfscope.messages.host_activity import TITLES
from perfscope.messages.lists import plural
from perfscope.messages.sentences import capital
from perfscope.reports.display import visible
from perfscope.reports.model import (
    Bar,
    Block,
    ChartLine,
    ChartPart,
    Column,
    LineChart,
    Note,
    Section,
    StackedBars,
    Table,
    Unit,
    Value,
)
from perfscope.reports.sections.step_histogram import step_histogram
from perfscope.vocabulary.host_activity import HostActivity
from perfscope.vocabulary.workload import Workload

BREAKDOWN_PARTS = (
    ChartPart.of_step("compute", hint="time covered by compute operators or kernels"),
    ChartPart.of_step("exposed_comm", hint="communication not overlapped with compute"),
    ChartPart.of_step("copy", hint="copies not overlapped with compute or communication"),
    ChartPart.of_step("input_wait", hint="main thread blocked in the data loader"),
    ChartPart.of_step("optimizer", hint="inside the optimizer step"),
    ChartPart.of_step("idle", hint="the rest of the step"),
)


class Scope(Struct, frozen=True, kw_only=True):
    """What a breakdown is a breakdown of, in words: a step, or a whole trace that has no step marks."""

    full: str  # "mean traced step"
    short: str  # "step"
    section: str
    bars: str
    table: str


STEP_SCOPE = Scope(
    full="mean traced step",
    short="step",
    section="Where the step goes",
    bars="Mean traced step of each rank",
    table="Parts of the mean traced step, per rank",
)
USUAL_SCOPE = Scope(
    full="median step",
    short="step",
    section="Where the step goes",
    bars="Step of each rank: shares of its traced steps, on the median untraced step",
    table="Parts of the step, per rank, on the median untraced step",
)
FILE_SCOPE = Scope(
    full="traced time",
    short="traced time",
    section="Where the time goes",
    bars="Traced time of each rank (the traces have no step marks)",
    table="Parts of the traced time, per rank",
)


def scope_of(analysis: RunAnalysis) -> Scope:
    if analysis.breakdown_of == "file":
        return FILE_SCOPE
    return STEP_SCOPE if analysis.traced_ratio is None else USUAL_SCOPE


MOST_BARS = 64
MOST_LINES = 8
MOST_POINTS = 400
LONGEST_REMARK = 600


def _parts(analysis: RunAnalysis) -> tuple[ChartPart, ...]:
    """BREAKDOWN_PARTS with what is waited for when input is; inference has no optimizer."""
    hint = f"main thread blocked in the {training_advice(analysis.advice_key).loader}"
    parts: tuple[ChartPart, ...] = BREAKDOWN_PARTS
    if analysis.workload is Workload.INFERENCE:
        parts = tuple(part for part in parts if part.key != "optimizer")
    return tuple(replace(part, hint=hint) if part.key == "input_wait" else part for part in parts)


def _idle_table(analysis: RunAnalysis) -> tuple[Table, ...]:
    """Idle time of the mean rank that computes on the CPU, by what its thread did; () where there is none."""
    recorded = [rank.host_idle for rank in analysis.ranks if rank.host_idle]
    sums: dict[HostActivity, int] = {}
    for entry in (entry for entries in recorded for entry in entries):
        sums[entry.kind] = sums.get(entry.kind, 0) + entry.ns
    idle = sum(sums.values())
    if not set(sums) - {HostActivity.UNTRACED}:
        return ()
    order = sorted(sums, key=lambda kind: -sums[kind])
    return (
        Table(
            id="host-idle",
            title="Idle time of the step by what the training thread did",
            columns=(
                Column(key="activity", title="Idle while", primary=True),
                Column(key="time", title="Idle time", unit=Unit.TIME, bar="idle", primary=True),
                Column(key="share", title="Of idle time", unit=Unit.RATIO, primary=True),
            ),
            rows=tuple((TITLES[kind], sums[kind] / len(recorded), sums[kind] / idle) for kind in order),
            terminal_rows=6,
            caption="Mean over ranks that compute on the CPU. Waiting for a CPU is known per step: it is "
            "shared between idle time and the rest in proportion.",
        ),
    )


def breakdown_section(analysis: RunAnalysis) -> Section:
    scope = scope_of(analysis)
    analyzed = [(rank, rank.breakdown_ns) for rank in analysis.ranks if rank.breakdown_ns is not None]
    remarks = [Note(text=_as_sentence(visible(remark, LONGEST_REMARK))) for remark in analysis.remarks]
    if not analyzed:
        reason = "No step was traced on any rank, so steps cannot be split into parts."
        first = Note(text=reason, tone="caution")
        return Section(id="breakdown", title=scope.section, blocks=(first, *remarks))
    drawn = slowest_first(analyzed) if len(analyzed) > MOST_BARS else analyzed
    blocks: list[Block] = [
        StackedBars(
            id="breakdown-chart",
            title=scope.bars,
            parts=_parts(analysis),
            bars=tuple(_breakdown_bar(rank, parts, _parts(analysis)) for rank, parts in drawn[:MOST_BARS]),
            caption=f"The parts of a bar add up to the rank's {scope.short} exactly.",
        )
    ]
    if len(analyzed) > MOST_BARS:
        blocks.append(
            Note(
                text=f"{len(analyzed):,} ranks: the chart takes the {MOST_BARS} slowest, the table lists all."
            )
        )
    blocks += [_breakdown_table(analysis, analyzed, scope), *_idle_table(analysis), *remarks]
    return Section(
        id="breakdown",
        title=scope.section,
        lead=_breakdown_lead(analyzed, scope) + _recompute_text(analyzed, scope) + _scale_text(analysis),
        blocks=tuple(blocks),
    )


def _recompute_text(analyzed: list[tuple[RankResult, Breakdown]], scope: Scope) -> str:
    """What activation checkpointing costs, with a space before it; "" where nothing is computed again."""
    again = [(rank.recompute_ns, parts.step) for rank, parts in analyzed if rank.recompute_ns is not None]
    total, steps = sum(ns for ns, _ in again), sum(step for _, step in again)
    if not total or not steps:
        return ""
    time, share = units.format_ns(total // len(again)), units.format_ratio(total / steps)
    return (
        f" Of computation, {time} ({share} of the {scope.short}) is recomputation: forward calls of layers "
        "that run again in the backward pass (activation checkpointing)."
    )


def _scale_text(analysis: RunAnalysis) -> str:
    """The rule by which times of traced steps are shown, with a space before it; "" where as traced."""
    ratio, usual = analysis.traced_ratio, analysis.step_ns
    if not ratio or usual is None:
        return ""
    return (
        f" Traced steps took {units.format_ns(usual.median * ratio)} on average: their times are multiplied "
        f"by {1 / ratio:.3g}, so that they add up to the median step. Times of single steps and calls are "
        "not scaled."
        f"{''.join(_left_out_text(window) for window in analysis.unlike_windows)}"
    )


def _left_out_text(window: UnlikeWindow) -> str:
    """That a window is left out, with a space before it."""
    return (
        f" Window {window.window} (steps {window.first_step} to {window.last_step}) is left out: its steps "
        f"took {window.ratio:.2f} times the untraced steps beside them, those of the other windows "
        f"{window.others_ratio:.2f} times; blocks of untraced steps differ by "
        f"{units.format_ratio(window.spread_ratio, 0)}."
    )


def _as_sentence(text: str) -> str:
    return f"{capital(text)}{'' if text.endswith(('.', '!', '?')) else '.'}"


def mean_shares(analysis: RunAnalysis) -> tuple[int, dict[str, float]] | None:
    """The mean traced step over ranks in ns, and each part's share of it; None where nothing was traced."""
    breakdowns = [rank.breakdown_ns for rank in analysis.ranks if rank.breakdown_ns is not None]
    total = sum(breakdown.step for breakdown in breakdowns)
    if not breakdowns or total <= 0:
        return None
    shares = {part: sum(getattr(b, part) for b in breakdowns) / total for part in Breakdown.PARTS}
    return total // len(breakdowns), shares


def overview_bar(analysis: RunAnalysis) -> StackedBars | None:
    """The mean traced step over all ranks as one bar; None where nothing was traced. Parts add up exactly."""
    breakdowns = [rank.breakdown_ns for rank in analysis.ranks if rank.breakdown_ns is not None]
    if not breakdowns:
        return None
    # Cumulative sums are divided, not the parts, so that rounding cannot lose a nanosecond.
    ends, total = [0], 0
    for part in _parts(analysis):
        total += sum(getattr(breakdown, part.key) for breakdown in breakdowns)
        ends.append(total // len(breakdowns))
    values = tuple(end - start for start, end in itertools.pairwise(ends))
    over = f"over {len(breakdowns):,} ranks" if len(breakdowns) > 1 else f"of rank {analysis.ranks[0].rank}"
    return StackedBars(
        id="overview-chart",
        title=f"{scope_of(analysis).full.capitalize()} {over}: {units.format_ns(sum(values))}",
        parts=_parts(analysis),
        bars=(Bar(label="mean step", values=values),),
        labelled=False,
    )


def slowest_first(
    ranks: Sequence[tuple[RankResult, Breakdown]],
) -> list[tuple[RankResult, Breakdown]]:
    return sorted(ranks, key=lambda pair: (-pair[1].step, pair[0].rank))


def _breakdown_bar(rank: RankResult, parts: Breakdown, kinds: tuple[ChartPart, ...]) -> Bar:
    return Bar(
        label=f"rank {rank.rank}",
        values=tuple(getattr(parts, part.key) for part in kinds),
        note=f"mean of {units.format_count(parts.num_steps)} traced steps",
    )


def _breakdown_lead(analyzed: list[tuple[RankResult, Breakdown]], scope: Scope) -> str:
    slow = max(analyzed, key=lambda pair: pair[1].step)
    fast = min(analyzed, key=lambda pair: pair[1].step)
    if len(analyzed) == 1:
        steps = slow[1].num_steps
        if scope is FILE_SCOPE:
            return "The trace has no step marks, so all of it is counted."
        return f"Mean of {units.format_count(steps)} traced {plural('step', steps)}."
    spread = (slow[1].step - fast[1].step) / fast[1].step if fast[1].step else 0.0
    if spread < 0.005:
        return f"The {scope.full} is the same on all {len(analyzed)} ranks within 0.5 %."
    return (
        f"The {scope.full} takes from {units.format_ns(fast[1].step)} on rank {fast[0].rank} "
        f"to {units.format_ns(slow[1].step)} on rank {slow[0].rank} ({units.format_ratio(spread)} apart)."
    )


_RECOMPUTE = Column(
    key="recompute",
    title="Of compute, recompute",
    unit=Unit.TIME,
    hint="forward calls of layers that run again in the backward pass",
)


def _breakdown_table(
    analysis: RunAnalysis, analyzed: list[tuple[RankResult, Breakdown]], scope: Scope
) -> Table:
    recomputes = any(rank.recompute_ns for rank, _ in analyzed)
    columns = (
        Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
        Column(key="host", title="Host", unit=Unit.CODE),
        Column(key="steps", title="Traced steps", unit=Unit.COUNT),
        Column(key="step", title=scope.short.capitalize(), unit=Unit.TIME, primary=True),
        *(
            Column(key=part.key, title=part.title, unit=Unit.TIME, hint=part.hint)
            for part in _parts(analysis)
        ),
        *(_RECOMPUTE,) * recomputes,
        Column(key="comm", title="Total communication", unit=Unit.TIME, hint="hidden and exposed"),
        Column(key="overlap", title="Overlap", unit=Unit.RATIO, hint="share of communication under compute"),
    )
    rows: list[tuple[Value, ...]] = [
        (
            rank.rank,
            visible(rank.host),
            parts.num_steps,
            parts.step,
            *(None if part.key in rank.unknown else getattr(parts, part.key) for part in _parts(analysis)),
            *(rank.recompute_ns,) * recomputes,
            rank.comm_ns,
            rank.overlap_ratio,
        )
        for rank, parts in analyzed
    ]
    return Table(
        id="breakdown-table",
        title=scope.table,
        columns=columns,
        rows=tuple(rows),
        sorted_by=("rank", False),
    )


def series_section(analysis: RunAnalysis) -> Section:
    """Every step's duration in order, per rank; beyond MOST_LINES ranks the extremes and the median."""
    series = {rank: durations for rank, durations in sorted(analysis.step_series.items()) if durations}
    if not series:
        reason = "No step times: neither the always-on probe nor the trace recorded any step."
        return _steps_section((Note(text=reason, tone="caution"),))
    if len(series) <= MOST_LINES:
        lines = tuple(_line(f"rank {rank}", durations) for rank, durations in series.items())
        caption = ""
    else:
        lines = _lines_over_ranks(list(series.values()))
        caption = f"{len(series):,} ranks: slowest, median and fastest rank of each step."
    longest = max(len(durations) for durations in series.values())
    if longest < 2:
        note = Note(text="One step per rank is too few for a chart.")
        return _steps_section((note, _steps_table(analysis)))
    if longest > MOST_POINTS:
        thinned = f"Each point covers up to {-(-longest // MOST_POINTS)} steps; bands show their extremes."
        caption = f"{caption} {thinned}".strip()
    chart = LineChart(
        id="steps-chart",
        title="Duration of each step",
        x_title=step_title(analysis),
        lines=lines,
        caption=caption,
        shaded=traced_stretches(analysis),
        steps=point_steps(analysis, -(-longest // MOST_POINTS)),
    )
    blocks: tuple[Block, ...] = (chart, *step_histogram(analysis), _steps_table(analysis))
    return _steps_section(blocks, _series_lead(analysis))


def _steps_section(blocks: tuple[Block, ...], lead: str = "") -> Section:
    return Section(id="steps", title="Step times", lead=lead, blocks=blocks, in_terminal="nothing")


def traced_stretches(analysis: RunAnalysis) -> tuple[tuple[int, int], ...]:
    """First and last index of each stretch of steps that some rank traced."""
    marks = [np.frombuffer(entry.traced, np.bool_) for entry in analysis.step_marks.values()]
    traced = np.zeros(max((len(entry) for entry in marks), default=0) + 2, bool)  # False at both ends
    for entry in marks:
        traced[1 : len(entry) + 1] |= entry
    edges = np.flatnonzero(traced[1:] != traced[:-1]).tolist()
    return tuple((first, after - 1) for first, after in zip(edges[::2], edges[1::2], strict=True))


def step_numbers(analysis: RunAnalysis) -> NDArray[np.int64]:
    """Number of each step, in order: windows say it of theirs, and the others count on from there."""
    offset: dict[int, int] = {}
    for entry in analysis.step_marks.values():
        indices = np.flatnonzero(np.frombuffer(entry.traced, np.bool_)).tolist()
        if len(indices) == len(entry.numbers):
            offset.update((at, number - at) for at, number in zip(indices, entry.numbers, strict=True))
    count = np.arange(max(map(len, analysis.step_series.values()), default=0))
    if not offset:
        return count
    traced = np.array(sorted(offset))
    last = np.maximum(np.searchsorted(traced, count, side="right") - 1, 0)
    result: NDArray[np.int64] = count + np.array([offset[at] for at in traced.tolist()])[last]
    return result


def point_steps(analysis: RunAnalysis, width: int) -> tuple[int, ...]:
    """`LineChart.steps` of points that cover `width` steps each."""
    numbers = step_numbers(analysis)
    return (*numbers[::width].tolist(), int(numbers[-1]) + 1)


def step_title(analysis: RunAnalysis) -> str:
    """Title of an axis that counts the recorded steps from 0, whatever the number of the first."""
    numbers = step_numbers(analysis)
    return f"step, after step {numbers[0]:,}" if len(numbers) and numbers[0] else "step"


def _series_lead(analysis: RunAnalysis) -> str:
    if analysis.step_ns is None:
        return ""
    quantiles = analysis.step_ns
    return (
        f"Median {units.format_ns(quantiles.median)}; "
        f"p10 {units.format_ns(quantiles.p10)}, p90 {units.format_ns(quantiles.p90)} "
        f"({units.format_count(quantiles.count)} steps over all ranks, without warm-up)."
    )


def _line(label: str, durations: Sequence[int] | NDArray[np.float64]) -> ChartLine:
    width = -(-len(durations) // MOST_POINTS)
    starts = range(0, len(durations), width)
    chunks = [np.asarray(durations[start : start + width]) for start in starts]
    return ChartLine(
        label=label,
        x=tuple(starts),
        y=tuple(int(np.median(chunk)) for chunk in chunks),
        low=tuple(int(chunk.min()) for chunk in chunks),
        high=tuple(int(chunk.max()) for chunk in chunks),
    )


def step_table(series: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Durations by rank (row) and step, ns; nan where a rank has fewer steps."""
    table = np.full((len(series), max(map(len, series))), np.nan)
    for row, durations in zip(table, series, strict=True):
        row[: len(durations)] = durations
    return table


def _lines_over_ranks(series: list[Sequence[int]]) -> tuple[ChartLine, ...]:
    table = step_table(series)
    return (
        _line("slowest rank", np.nanmax(table, axis=0)),
        _line("median rank", np.nanmedian(table, axis=0)),
        _line("fastest rank", np.nanmin(table, axis=0)),
    )


def _steps_table(analysis: RunAnalysis) -> Table:
    columns = (
        Column(key="rank", title="Rank", unit=Unit.COUNT, primary=True),
        Column(key="host", title="Host", unit=Unit.CODE),
        Column(key="steps", title="Steps", unit=Unit.COUNT),
        Column(key="median", title="Median", unit=Unit.TIME, primary=True),
        Column(key="p10", title="p10", unit=Unit.TIME),
        Column(key="p90", title="p90", unit=Unit.TIME),
        Column(key="input", title="Input wait", unit=Unit.TIME, hint="median over all steps, always on"),
        Column(key="samples", title="Samples per step", unit=Unit.NUMBER),
        Column(key="overhead", title="Profiling overhead", unit=Unit.TIME, hint="over the whole run"),
    )
    rows: list[tuple[Value, ...]] = []
    for rank in analysis.ranks:
        q = rank.step_ns
        quantiles: tuple[Value, ...] = (None, None, None) if q is None else (q.median, q.p10, q.p90)
        rows.append(
            (
                rank.rank,
                visible(rank.host),
                rank.num_steps,
                *quantiles,
                rank.input_wait_ns,
                rank.samples_per_step,
                rank.overhead_ns,
            )
        )
    return Table(
        id="steps-table",
        title="Step times, per rank",
        columns=columns,
        rows=tuple(rows),
        sorted_by=("rank", False),
    )
