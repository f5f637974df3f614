"""The pipelines of a run: their stages, their schedule, and their bubble."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis import intervals as iv
from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.collectives import CommAnalysis
from perfscope.analysis.intervals import Intervals
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.pairs import SEND
from perfscope.analysis.pipeline.bubble import Bubble, decompose
from perfscope.analysis.pipeline.ideal import ideal_ratio, schedule_of
from perfscope.analysis.pipeline.record import UNKNOWN_STAGE, PipelineRecord, RankPipeline, StageSpan
from perfscope.analysis.pipeline.results import (
    BUBBLE_PARTS,
    Pipeline,
    PipelineBubble,
    PipelineSpan,
    PipelineStage,
)
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.pipelines import Schedule, StageWork

_BACKWARDS = (StageWork.BACKWARD, StageWork.INPUT_BACKWARD)


class _Shape(Struct, frozen=True):
    """What steps must have in common to be averaged."""

    schedule: Schedule
    num_ranks: int
    microbatches: int
    virtual_stages: int


class _Step(Struct, frozen=True, kw_only=True, eq=False):
    """One step of one pipeline, on the reference clock."""

    ranks: tuple[int, ...]
    step: int
    spans: tuple[tuple[StageSpan, ...], ...]  # of each rank, in order
    exposed: tuple[Intervals, ...]
    shape: _Shape
    bubble: Bubble

    @property
    def begin_ns(self) -> int:
        return min(span.start_ns for rank in self.spans for span in rank)

    @property
    def end_ns(self) -> int:
        return max(span.end_ns for rank in self.spans for span in rank)


def analyze_pipeline(
    record: PipelineRecord, hosts: Mapping[int, str], comm: CommAnalysis, *, is_expected: bool
) -> tuple[Pipeline | None, tuple[Missing, ...]]:
    """The pipelines of a run, from the works of all ranks.

    Args:
        record: of every rank.
        hosts: rank -> host.
        comm: sends, which tell the ranks of a pipeline, and clocks.
        is_expected: ranks communicate between stages: without a result there must be a reason.
    """
    if not record.windows:
        if not is_expected:
            return None, ()
        return None, (missing_figure(Figure.PIPELINE, Cause.NO_STAGE_MARKS),)
    pairs = [match.ranks for match in comm.matches if match.key.collective == SEND and len(match.seq)]
    steps = []
    for ranks in record.windows.values():
        for members in _connected(ranks, pairs):
            of_pipeline = [_on_reference(ranks[rank], hosts.get(rank, ""), comm.clocks) for rank in members]
            steps += _steps(members, of_pipeline)
    if not steps:
        return None, (missing_figure(Figure.PIPELINE, Cause.STAGES_INCOMPLETE),)
    (shape, _), *_ = Counter(step.shape for step in steps).most_common(1)
    return _result(shape, [step for step in steps if step.shape == shape]), ()


def _connected(ranks: Iterable[int], pairs: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Ranks that send to each other, directly or through others; sorted, one entry per pipeline."""
    of_rank = {rank: {rank} for rank in ranks}
    for pair in pairs:
        if not all(rank in of_rank for rank in pair):
            continue
        joined = set().union(*(of_rank[rank] for rank in pair))
        for rank in joined:
            of_rank[rank] = joined
    return sorted({tuple(sorted(joined)) for joined in of_rank.values()})


def _on_reference(rank: RankPipeline, host: str, clocks: ClockFit) -> RankPipeline:
    times = np.array([(span.start_ns, span.end_ns) for span in rank.spans], dtype=np.int64).reshape(-1, 2)
    moved = clocks.to_reference(host, times.ravel()).reshape(-1, 2).tolist()
    return replace(
        rank,
        spans=tuple(
            span._replace(start_ns=start, end_ns=end)
            for span, (start, end) in zip(rank.spans, moved, strict=True)
        ),
        exposed=clocks.to_reference(host, rank.exposed.ravel()).reshape(-1, 2),
    )


def _steps(members: tuple[int, ...], ranks: Sequence[RankPipeline]) -> list[_Step]:
    """The complete steps of one pipeline in one window."""
    by_step: dict[int, list[tuple[StageSpan, ...]]] = defaultdict(list)
    for number in sorted({span.step for rank in ranks for span in rank.spans}):
        for index, rank in enumerate(ranks):
            mine = [span for span in rank.spans if span.step == number]
            by_step[number].append(_in_turn(mine, index))
    steps = []
    for number, spans in by_step.items():
        shape = _shape(spans)
        exposed = tuple(rank.exposed for rank in ranks)
        is_first = any(rank.first_step == number for rank in ranks)
        bubble = decompose(spans, exposed, begins_with_window=is_first) if shape is not None else None
        if shape is not None and bubble is not None:
            steps.append(
                _Step(
                    ranks=members,
                    step=number,
                    spans=tuple(spans),
                    exposed=exposed,
                    shape=shape,
                    bubble=bubble,
                )
            )
    return steps


def _in_turn(spans: Sequence[StageSpan], index: int) -> tuple[StageSpan, ...]:
    """Without overlap (kernels of two works may be in flight at once); unnumbered stages get `index`."""
    result, reach = [], -1
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns)):
        start = max(span.start_ns, reach)
        reach = max(span.end_ns, start)
        stage = index if span.stage == UNKNOWN_STAGE else span.stage
        result.append(span._replace(stage=stage, start_ns=start, end_ns=reach))
    return tuple(result)


def _shape(ranks: Sequence[Sequence[StageSpan]]) -> _Shape | None:
    """None unless every stage worked once on every microbatch, forward and (if any was) backward."""
    spans = [span for rank in ranks for span in rank]
    if not spans or not all(ranks):
        return None
    num_stages = 1 + max(span.stage for span in spans)
    microbatches = 1 + max(span.microbatch for span in spans)
    every_microbatch = {
        (stage, microbatch) for stage in range(num_stages) for microbatch in range(microbatches)
    }
    for works in ((StageWork.FORWARD,), _BACKWARDS):
        done = [(span.stage, span.microbatch) for span in spans if span.work in works]
        if (done or works != _BACKWARDS) and (
            len(done) != len(every_microbatch) or set(done) != every_microbatch
        ):
            return None
    return _Shape(schedule_of(ranks), len(ranks), microbatches, num_stages // len(ranks))


def _result(shape: _Shape, steps: Sequence[_Step]) -> Pipeline:
    pipelines = sorted({step.ranks for step in steps})
    parts = len(steps) * shape.num_ranks  # the mean is per step and rank
    measured = round(sum(step.bubble.measured_ns for step in steps) / parts)
    sums = [sum(getattr(step.bubble, part) for step in steps) / parts for part in BUBBLE_PARTS]
    active = sum(step.bubble.active_ns for step in steps)
    stages = _stages(steps)
    ideal = ideal_ratio(
        shape.schedule,
        num_ranks=shape.num_ranks,
        num_microbatches=shape.microbatches,
        stages_per_rank=shape.virtual_stages,
        mean_ns=_mean_of_kinds(steps),
    )
    of_first = sorted(
        (step for step in steps if step.ranks == pipelines[0]), key=lambda step: step.bubble.active_ns
    )
    median_step = of_first[len(of_first) // 2]
    return Pipeline(
        schedule=shape.schedule,
        stages=stages,
        num_ranks=shape.num_ranks,
        pipelines=tuple(pipelines),
        microbatches=shape.microbatches,
        virtual_stages=shape.virtual_stages,
        num_steps=len({step.step for step in steps}),
        active_ns=round(active / parts),
        balanced_ns=round(sum(step.bubble.balanced_ns for step in steps) / parts),
        equal_stages_ns=round(sum(step.bubble.equal_stages_ns for step in steps) / parts),
        bubble=PipelineBubble(
            measured_ns=measured,
            measured_ratio=sum(step.bubble.measured_ns for step in steps) / active if active else 0.0,
            ideal_ratio=ideal,
            **dict(zip(BUBBLE_PARTS, iv.rounded_to(sums, measured), strict=True)),
        ),
        shown_step=median_step.step,
        spans=_shown(median_step),
    )


def _mean_of_kinds(steps: Sequence[_Step]) -> dict[StageWork, float]:
    times: dict[StageWork, list[int]] = defaultdict(list)
    for step in steps:
        for rank in step.spans:
            for span in rank:
                times[span.work].append(span.end_ns - span.start_ns)
    return {work: sum(of_kind) / len(of_kind) for work, of_kind in times.items()}


def _stages(steps: Sequence[_Step]) -> tuple[PipelineStage, ...]:
    """What stages of one number do, on average over steps and pipelines."""
    compute: dict[int, int] = defaultdict(int)
    bubble: dict[int, int] = defaultdict(int)
    wait: dict[int, int] = defaultdict(int)
    ranks: dict[int, set[int]] = defaultdict(set)
    for step in steps:
        for rank, spans, exposed in zip(step.ranks, step.spans, step.exposed, strict=True):
            gaps = _gaps(spans, step.begin_ns, step.end_ns)
            waits = iv.overlap_each(exposed, gaps[:, 0], gaps[:, 1]).tolist()
            for span in spans:
                compute[span.stage] += span.end_ns - span.start_ns
                ranks[span.stage].add(rank)
            owners = [*spans, spans[-1]]
            for span, (begin, end), waited in zip(owners, gaps.tolist(), waits, strict=True):
                bubble[span.stage] += end - begin
                wait[span.stage] += waited
    num, mean = len(steps), sum(compute.values()) / len(compute)
    return tuple(
        PipelineStage(
            stage=stage,
            ranks=tuple(sorted(ranks[stage])),
            compute_ns=round(compute[stage] / num),
            wait_ns=round(wait[stage] / num),
            bubble_ns=round(bubble[stage] / num),
            relative=compute[stage] / mean if mean else 1.0,
        )
        for stage in sorted(compute)
    )


def _gaps(spans: Sequence[StageSpan], begin: int, end: int) -> Intervals:
    """Time before each work, and after the last one. Shape (works + 1, 2)."""
    ends = np.array([begin, *(span.end_ns for span in spans)], dtype=np.int64)
    starts = np.array([*(span.start_ns for span in spans), end], dtype=np.int64)
    return np.stack((ends, np.maximum(starts, ends)), axis=1)


def _shown(step: _Step) -> tuple[PipelineSpan, ...]:
    return tuple(
        PipelineSpan(
            rank=rank,
            stage=span.stage,
            microbatch=span.microbatch,
            work=span.work,
            start_ns=span.start_ns - step.begin_ns,
            end_ns=span.end_ns - step.begin_ns,
        )
        for rank, spans in zip(step.ranks, step.spans, strict=True)
        for span in spans
    )
