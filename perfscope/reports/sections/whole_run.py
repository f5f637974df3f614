"""Section "Whole run": what the wall time of the run went to, per rank and for the mean rank."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope import units
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.whole_run.results import LongSteps, WholeRun
from perfscope.messages.run_parts import HINTS, TITLES
from perfscope.reports.model import (
    Bar,
    Block,
    ChartPart,
    Column,
    Section,
    StackedBars,
    Table,
    Unit,
)
from perfscope.vocabulary.run_parts import RunPart

MOST_BARS = 32
LEAST = 0.001  # of the training: less is 0.0 %
_COLORS = {
    RunPart.LAUNCH: "idle_other",
    RunPart.START_UP: "idle",
    RunPart.WARM_UP: "host",
    RunPart.STEPS: "compute",
    RunPart.INPUT: "input_wait",
    RunPart.EVALUATION: "forward",
    RunPart.ROLLOUT: "forward",
    RunPart.INFERENCE: "forward",
    RunPart.CHECKPOINT: "copy",
    RunPart.GARBAGE_COLLECTION: "optimizer",
    RunPart.OTHER_RANKS: "wait",
    RunPart.CPU_WAIT: "backward",
    RunPart.PROFILING: "exposed_comm",
    RunPart.SHUTDOWN: "idle",
    RunPart.OTHER: "idle_other",
}


def whole_run_section(analysis: RunAnalysis) -> Section | None:
    """None where there is no account; `missing` has the reason."""
    whole_run = analysis.whole_run
    if whole_run is None:
        return None
    blocks: list[Block] = [_bars(whole_run), _table(whole_run)]
    notable = [entry for entry in whole_run.long_steps if entry.ratio >= LEAST]
    if notable:
        blocks.append(_long_steps(notable))
    return Section(id="whole-run", title="Whole run", lead=_lead(analysis, whole_run), blocks=tuple(blocks))


def _lead(analysis: RunAnalysis, whole_run: WholeRun) -> str:
    steps = whole_run.of(RunPart.STEPS)
    text = (
        f"The run took {units.format_ns(whole_run.wall_ns)}; "
        f"{units.format_ratio(steps / whole_run.wall_ns, 0)} of it ({units.format_ns(steps)}) is ordinary "
        "training steps."
    )
    if whole_run.samples_per_s is None or whole_run.training_samples_per_s is None:
        return text
    ordinary = analysis.throughput_samples_per_s
    beside = "" if ordinary is None else f", {_rate(ordinary)} in ordinary steps"
    return (
        f"{text} Throughput is {_rate(whole_run.samples_per_s)} samples/s over the whole run, "
        f"{_rate(whole_run.training_samples_per_s)} from the first step to the last{beside}."
    )


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _bars(whole_run: WholeRun) -> StackedBars:
    parts = [
        part
        for part in RunPart
        if any(entry.part is part for rank in whole_run.ranks for entry in rank.parts)
    ]
    bars = []
    for rank in whole_run.ranks[:MOST_BARS]:
        times = {entry.part: entry.ns for entry in rank.parts}
        bars.append(Bar(label=f"rank {rank.rank}", values=tuple(float(times.get(part, 0)) for part in parts)))
    hidden = len(whole_run.ranks) - len(bars)
    return StackedBars(
        id="whole-run-bars",
        title="Wall time of the run by rank",
        parts=tuple(ChartPart(key=_COLORS[part], title=TITLES[part], hint=HINTS[part]) for part in parts),
        bars=tuple(bars),
        caption=f"Not shown: {hidden:,} more ranks." if hidden else "",
    )


def _table(whole_run: WholeRun) -> Table:
    return Table(
        id="whole-run-parts",
        title="Wall time of the run, mean rank",
        columns=(
            Column(key="part", title="Part", primary=True),
            Column(key="time", title="Time", unit=Unit.TIME, bar="compute", primary=True),
            Column(key="share", title="Share", unit=Unit.RATIO, primary=True),
            Column(key="what", title="What it is"),
        ),
        rows=tuple(
            (TITLES[entry.part], entry.ns, entry.ns / whole_run.wall_ns, HINTS[entry.part])
            for entry in whole_run.parts
        ),
        terminal_rows=len(RunPart),
        caption="The parts add up to the run's wall time exactly.",
    )


def _long_steps(entries: Sequence[LongSteps]) -> Table:
    return Table(
        id="whole-run-long-steps",
        title="Extra time in some steps",
        columns=(
            Column(key="part", title="What", primary=True),
            Column(key="steps", title="Steps", unit=Unit.COUNT, primary=True),
            Column(key="every", title="Every", unit=Unit.COUNT),
            Column(key="time", title="Time", unit=Unit.TIME, primary=True),
            Column(key="share", title="Of training time", unit=Unit.RATIO, primary=True),
            Column(key="longest", title="Longest", unit=Unit.TIME),
            Column(key="step", title="In step", unit=Unit.COUNT),
        ),
        rows=tuple(
            (
                TITLES[entry.part],
                entry.num_steps,
                entry.every,
                entry.ns,
                entry.ratio,
                entry.longest_ns,
                entry.longest_step,
            )
            for entry in entries
        ),
        terminal_rows=8,
        terminal_title=True,
        caption="Of the rank that has most of it in each step.",
    )
