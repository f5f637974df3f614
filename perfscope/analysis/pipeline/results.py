"""What is known of a run's pipelines. Times are integer nanoseconds, the mean per step and rank."""

from __future__ import annotations

from msgspec import Struct

from perfscope.vocabulary.pipelines import Schedule, StageWork


class PipelineStage(Struct, frozen=True, kw_only=True):
    """One stage, per mean step; of data-parallel pipelines the mean.

    Attributes:
        ranks: that have it.
        compute_ns: its work on all microbatches.
        wait_ns: part of `bubble_ns` in which the rank communicated and did not compute.
        bubble_ns: until its works began, and after the last one. All stages of a rank together: its bubble.
        relative: compute_ns over the mean of all stages.
    """

    stage: int
    ranks: tuple[int, ...]
    compute_ns: int
    wait_ns: int
    bubble_ns: int
    relative: float


BUBBLE_PARTS = ("fill_ns", "drain_ns", "imbalance_ns", "late_sends_ns", "other_ns")  # of PipelineBubble


class PipelineBubble(Struct, frozen=True, kw_only=True):
    """Time in which ranks did no work while their pipeline was active. The parts add up to measured_ns.

    Attributes:
        measured_ratio: of the active time.
        ideal_ratio: that the schedule has at best; None: no formula for it.
        fill_ns: the schedule's own, with equal stages and nothing lost between them, until each rank's first
            backward pass.
        drain_ns: likewise, after it.
        imbalance_ns: because stages and microbatches do not take the same.
        late_sends_ns: in communication, although the other stage was done.
        other_ns: neither, such as Python between two works.
    """

    measured_ns: int
    measured_ratio: float
    ideal_ratio: float | None
    fill_ns: int
    drain_ns: int
    imbalance_ns: int
    late_sends_ns: int
    other_ns: int


class PipelineSpan(Struct, frozen=True, kw_only=True):
    """One work of the step that is shown."""

    rank: int
    stage: int
    microbatch: int
    work: StageWork
    start_ns: int  # since the pipeline's first start in the step
    end_ns: int  # likewise


class Pipeline(Struct, frozen=True, kw_only=True):
    """The pipelines of a run: all have the same shape.

    Attributes:
        stages: in order.
        num_ranks: of one pipeline.
        pipelines: ranks of each pipeline; several are data parallel.
        microbatches: per step.
        virtual_stages: stages per rank.
        num_steps: that the means are taken over, of each pipeline.
        active_ns: first start to last end.
        balanced_ns: the same with equal stages and nothing lost between them.
        equal_stages_ns: the same with equal stages, what is lost between them as measured.
        shown_step: number of the step in `spans`, the one whose active time is the median.
        spans: of the first pipeline in that step.
    """

    schedule: Schedule
    stages: tuple[PipelineStage, ...]
    num_ranks: int
    pipelines: tuple[tuple[int, ...], ...]
    microbatches: int
    virtual_stages: int
    num_steps: int
    active_ns: int
    balanced_ns: int
    equal_stages_ns: int
    bubble: PipelineBubble
    shown_step: int
    spans: tuple[PipelineSpan, ...]
