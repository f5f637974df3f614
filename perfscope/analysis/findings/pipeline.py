"""Pipelines as the cause: stages that take longer than others, a bubble larger than the schedule's."""

from __future__ import annotations

from perfscope.analysis.findings.evidence import Evidence, prediction_of
from perfscope.analysis.pipeline.results import Pipeline
from perfscope.analysis.results import Finding
from perfscope.analysis.whatif.parallel import EQUAL_STAGES, IDEAL_BUBBLE
from perfscope.messages.findings.pipeline import LargeBubble, UnequalStages
from perfscope.vocabulary.findings import FindingKind

UNEQUAL = 1.1  # slowest stage over the mean from which on stages differ notably
LARGER = (
    0.02  # bubble beyond the schedule's ideal, as a share of the pipeline's time, that is worth a finding
)


def unequal_stages(evidence: Evidence) -> Finding | None:
    """A stage that computes longer than the others."""
    pipeline, what_if = evidence.pipeline, evidence.what_ifs.of(EQUAL_STAGES)
    if pipeline is None or what_if is None:
        return None
    slowest = max(pipeline.stages, key=lambda stage: stage.compute_ns)
    fastest = min(pipeline.stages, key=lambda stage: stage.compute_ns)
    if slowest.relative < UNEQUAL:
        return None
    return Finding(
        id=FindingKind.STAGE_IMBALANCE,
        facts=UnequalStages(
            slowest=slowest.stage,
            slowest_ns=slowest.compute_ns,
            fastest=fastest.stage,
            fastest_ns=fastest.compute_ns,
            relative=slowest.relative,
            imbalance_ns=pipeline.bubble.imbalance_ns,
            prediction=prediction_of(what_if),
        ),
        gain_ns=what_if.gain_ns,
        gain_ratio=what_if.gain_ratio,
        rank=slowest.ranks[0],
    )


def bubble(evidence: Evidence) -> Finding | None:
    """A bubble larger than the schedule's ideal. Its gain is what equal stages alone would not bring."""
    pipeline, what_if = evidence.pipeline, evidence.what_ifs.of(IDEAL_BUBBLE)
    if pipeline is None or what_if is None or pipeline.bubble.ideal_ratio is None:
        return None
    if pipeline.bubble.measured_ratio < pipeline.bubble.ideal_ratio + LARGER:
        return None
    equal = unequal_stages(evidence)
    stages_ns, stages_ratio = 0, 0.0
    if equal is not None:
        stages_ns = min(equal.gain_ns or 0, what_if.gain_ns)
        stages_ratio = min(equal.gain_ratio or 0.0, what_if.gain_ratio)
    return Finding(
        id=FindingKind.PIPELINE_BUBBLE,
        facts=LargeBubble(
            schedule=pipeline.schedule,
            measured_ratio=pipeline.bubble.measured_ratio,
            ideal_ratio=pipeline.bubble.ideal_ratio,
            parts_ns=_parts(pipeline),
            prediction=prediction_of(what_if),
            stages_ns=stages_ns,
        ),
        gain_ns=what_if.gain_ns - stages_ns,
        gain_ratio=what_if.gain_ratio - stages_ratio,
    )


def _parts(pipeline: Pipeline) -> dict[str, int]:
    names = ("fill", "drain", "imbalance", "late_sends", "other")
    return {name: getattr(pipeline.bubble, f"{name}_ns") for name in names}
