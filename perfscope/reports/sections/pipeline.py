"""Section "Pipeline": which stage worked on which microbatch when, and why ranks waited."""

from __future__ import annotations

from perfscope import units
from perfscope.analysis.pipeline.results import Pipeline, PipelineSpan
from perfscope.analysis.results import RunAnalysis
from perfscope.messages.lists import counted, first_of
from perfscope.messages.pipelines import BUBBLE_PARTS, SCHEDULES, WORKS
from perfscope.messages.sentences import capital
from perfscope.reports.model import (
    Bar,
    Block,
    ChartPart,
    Column,
    Lane,
    LaneChart,
    LaneSpan,
    Section,
    StackedBars,
    Table,
    Unit,
)
from perfscope.vocabulary.pipelines import StageWork

MOST_LANES = 64
_KEYS = {
    StageWork.FORWARD: "forward",
    StageWork.BACKWARD: "backward",
    StageWork.INPUT_BACKWARD: "backward",
    StageWork.WEIGHT_BACKWARD: "optimizer",
}
_BUBBLE = (
    ("fill", "idle_other", "the schedule's own, until the first backward pass of each rank"),
    ("drain", "idle", "the schedule's own, after it"),
    ("imbalance", "input_wait", "stages and microbatches do not take the same time"),
    ("late_sends", "exposed_comm", "in communication, although the other stage was done"),
    ("other", "host", "between two microbatches: Python, the loss"),
)


def pipeline_section(analysis: RunAnalysis) -> Section | None:
    """None where no pipeline was traced."""
    pipeline = analysis.pipeline
    if pipeline is None:
        return None
    blocks: list[Block] = [_chart(pipeline), _bubble(pipeline), _table(pipeline)]
    return Section(id="pipeline", title="Pipeline", lead=_lead(pipeline), blocks=tuple(blocks))


def _lead(pipeline: Pipeline) -> str:
    bubble = pipeline.bubble
    ideal = ""
    if bubble.ideal_ratio is not None:
        ideal = (
            f"; the ideal of {SCHEDULES[pipeline.schedule]} is {units.format_ratio(bubble.ideal_ratio, 0)}"
        )
    slowest = max(pipeline.stages, key=lambda stage: stage.compute_ns)
    fastest = min(pipeline.stages, key=lambda stage: stage.compute_ns)
    times = slowest.compute_ns / max(fastest.compute_ns, 1)
    per_rank = f", {pipeline.virtual_stages} on each rank" if pipeline.virtual_stages > 1 else ""
    side_by_side = (
        f", {len(pipeline.pipelines)} pipelines side by side" if len(pipeline.pipelines) > 1 else ""
    )
    return (
        f"The pipeline bubble is {units.format_ratio(bubble.measured_ratio, 0)} of the ranks' time{ideal}. "
        f"Stage {slowest.stage} computes {times:.2f} times as long as stage {fastest.stage}. "
        f"{capital(SCHEDULES[pipeline.schedule])}: {counted(len(pipeline.stages), 'stage')}{per_rank}, "
        f"{counted(pipeline.microbatches, 'microbatch', 'microbatches')}{side_by_side}."
    )


def _chart(pipeline: Pipeline) -> LaneChart:
    """One step, a lane per rank."""
    ranks = sorted({span.rank for span in pipeline.spans})[:MOST_LANES]
    length = max(span.end_ns for span in pipeline.spans)
    lanes = []
    for rank in ranks:
        spans = [span for span in pipeline.spans if span.rank == rank]
        busy = sum(span.end_ns - span.start_ns for span in spans)
        lanes.append(
            Lane(
                label=_rank_label(pipeline, rank, spans),
                spans=tuple(_lane_span(pipeline, span) for span in spans),
                end=f"{units.format_ratio(1 - busy / length, 0)} idle",
            )
        )
    hidden = len({span.rank for span in pipeline.spans}) - len(ranks)
    more = f" Not shown: {counted(hidden, 'more rank')}." if hidden else ""
    return LaneChart(
        id="pipeline-chart",
        title=f"Work on microbatches in step {pipeline.shown_step}, as traced",
        parts=_parts(pipeline),
        lanes=tuple(lanes),
        length=length,
        caption=f"Numbers are microbatches{_naming(pipeline)}. Empty: the rank works for no stage. Of the "
        f"traced steps, it is the one in which the pipeline takes the median time.{more}",
    )


def _naming(pipeline: Pipeline) -> str:
    return ", letters the stages of a rank in order" if pipeline.virtual_stages > 1 else ""


def _parts(pipeline: Pipeline) -> tuple[ChartPart, ...]:
    works = {span.work for span in pipeline.spans}
    backward = StageWork.BACKWARD if StageWork.BACKWARD in works else StageWork.INPUT_BACKWARD
    return (
        ChartPart(key="forward", title=WORKS[StageWork.FORWARD]),
        ChartPart(key="backward", title=WORKS[backward]),
        ChartPart(key="optimizer", title=WORKS[StageWork.WEIGHT_BACKWARD]),
    )


def _rank_label(pipeline: Pipeline, rank: int, spans: list[PipelineSpan]) -> str:
    stages = sorted({span.stage for span in spans})
    if pipeline.virtual_stages == 1:
        return f"Stage {stages[0]}"
    return f"Rank {rank}"


def _lane_span(pipeline: Pipeline, span: PipelineSpan) -> LaneSpan:
    turn = ""
    if pipeline.virtual_stages > 1:
        mine = sorted({other.stage for other in pipeline.spans if other.rank == span.rank})
        turn = chr(ord("a") + mine.index(span.stage) % 26)
    return LaneSpan(
        part=_KEYS[span.work],
        start=span.start_ns,
        end=span.end_ns,
        text=f"{span.microbatch}{turn}",
        title=f"{WORKS[span.work]}, stage {span.stage}, microbatch {span.microbatch}",
    )


def _bubble(pipeline: Pipeline) -> StackedBars:
    values = tuple(float(getattr(pipeline.bubble, f"{name}_ns")) for name, _, _ in _BUBBLE)
    return StackedBars(
        id="pipeline-bubble",
        title="Why ranks waited",
        parts=tuple(ChartPart(key=key, title=BUBBLE_PARTS[name], hint=hint) for name, key, hint in _BUBBLE),
        bars=(Bar(label="Bubble", values=values),),
        caption="Mean per step and rank; the pipeline is active for "
        f"{units.format_ns(pipeline.active_ns)} per step. The parts come from replays of the same works and "
        "add up to the bubble exactly.",
        labelled=False,
    )


def _table(pipeline: Pipeline) -> Table:
    return Table(
        id="pipeline-stages",
        title="Stages, mean per step",
        columns=(
            Column(key="stage", title="Stage", unit=Unit.COUNT, primary=True),
            Column(key="ranks", title="Ranks"),
            Column(key="compute", title="Compute", unit=Unit.TIME, bar="compute", primary=True),
            Column(key="relative", title="Of the mean", unit=Unit.RATIO, primary=True, hint="compute"),
            Column(
                key="wait", title="Wait", unit=Unit.TIME, bar="wait", hint="communicating, part of the bubble"
            ),
            Column(key="bubble", title="Bubble", unit=Unit.TIME, primary=True),
        ),
        rows=tuple(
            (
                stage.stage,
                first_of(stage.ranks, 8),
                stage.compute_ns,
                stage.relative,
                stage.wait_ns,
                stage.bubble_ns,
            )
            for stage in pipeline.stages
        ),
        terminal_rows=8,
        caption="Time without work belongs to the stage that works next on the rank, at the end to the one "
        "that worked last.",
    )
