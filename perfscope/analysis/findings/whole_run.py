"""What takes time beside the ordinary step: evaluations, checkpoints, garbage collection, long steps."""

from __future__ import annotations

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.results import Finding
from perfscope.analysis.whole_run.results import LongSteps, WholeRun
from perfscope.messages.findings.growth import StepsGrow
from perfscope.messages.findings.whole_run import BesideSteps
from perfscope.vocabulary.findings import INPUT, FindingKind
from perfscope.vocabulary.run_parts import RunPart

NOTABLE = 0.05  # of the training's time
LEADS = 0.1  # from here on it leads the report, if it costs more than what leads otherwise would bring
UNKNOWN = 0.1  # of the training's time that long steps must take for which no cause is seen ...
FEWEST = 3  # ... and so many of them
_KINDS = {
    RunPart.EVALUATION: FindingKind.EVALUATION,
    RunPart.ROLLOUT: FindingKind.ROLLOUT,
    RunPart.INFERENCE: FindingKind.EVALUATION,
    RunPart.CHECKPOINT: FindingKind.CHECKPOINT,
    RunPart.GARBAGE_COLLECTION: FindingKind.GARBAGE_COLLECTION,
    RunPart.INPUT: FindingKind.INPUT_STALLS,
    RunPart.OTHER: FindingKind.LONG_STEPS,
}


def beside_steps(evidence: Evidence) -> list[Finding]:
    """Of each part that takes a notable share of the training's time, most first."""
    whole_run = evidence.whole_run
    if whole_run is None:
        return []
    return [
        _finding(whole_run, entry, evidence.framework)
        for entry in whole_run.long_steps
        if _is_notable(whole_run, entry) and not (entry.part is RunPart.INPUT and _is_pace(evidence))
    ]


def growing(evidence: Evidence) -> list[Finding]:
    """Steps that take longer as the run goes on."""
    steps = evidence.step_growth
    if steps is None:
        return []
    facts = StepsGrow(
        first_ns=steps.first_ns,
        last_ns=steps.last_ns,
        num_steps=steps.num_steps,
        part=steps.part,
        part_ns=steps.part_ns,
    )
    return [
        Finding(
            id=FindingKind.STEPS_GROW,
            facts=facts,
            gain_ns=round(steps.cost_ns),
            gain_ratio=min(steps.cost_ns / steps.mean_ns, 1.0),
            rank=steps.rank,
            of_training=True,
        )
    ]


def _is_pace(evidence: Evidence) -> bool:
    """Whether waits for input are as long as the loader's workers take: a finding of the mean step."""
    return evidence.mean_input is not None and not evidence.mean_input.in_few


def _is_notable(whole_run: WholeRun, entry: LongSteps) -> bool:
    if entry.part is RunPart.OTHER:
        return entry.ratio >= UNKNOWN and entry.num_steps >= FEWEST
    return entry.part in _KINDS and entry.ratio >= NOTABLE


def _finding(whole_run: WholeRun, entry: LongSteps, framework: str) -> Finding:
    facts = BesideSteps(
        part=entry.part,
        framework=framework,
        num_long=entry.num_steps,
        num_steps=whole_run.num_steps,
        every=entry.every,
        ns=entry.ns,
        training_ns=whole_run.training_ns,
        longest_ns=entry.longest_ns,
        longest_step=entry.longest_step,
        usual_step_ns=whole_run.usual_step_ns,
        written_bytes=entry.written_bytes,
    )
    return Finding(
        id=_KINDS[entry.part],
        facts=facts,
        gain_ns=round(entry.ratio * whole_run.training_ns / max(1, whole_run.num_steps)),
        gain_ratio=entry.ratio,
        of_training=True,
    )


def leads(finding: Finding, otherwise: Finding) -> bool:
    """Whether it costs more than what would lead the report could bring: both as shares of the training."""
    if finding.id is FindingKind.INPUT_STALLS and otherwise.id in INPUT:
        return False  # steps wait for input with and without them
    cost = finding.gain_ratio or 0.0
    if isinstance(finding.facts, StepsGrow) and cost > NOTABLE:  # a longer run ends as this one, or worse
        cost = 1 - finding.facts.first_ns / finding.facts.last_ns
    ordinary = (1 - cost) * (otherwise.gain_ratio or 0.0)
    return cost > LEADS and cost > ordinary
