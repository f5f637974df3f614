"""How far findings can be trusted: the steps they rest on, and what speaks against these.

Findings of a trace rest on the traced steps: how many they are, how alike the untraced ones, and whether
something disturbed them. What always-on timing and counters show rests on all counted steps. Traced steps
are alike as far as they lie between the 10th and 90th percentile of the others. Where a verdict's steps are
unlike all others, there is no verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.rank_facts import has_unseen_calls
from perfscope.analysis.results import Finding, RankResult
from perfscope.messages.findings.confidence import Confidence, NotEnoughEvidence, Reason
from perfscope.messages.findings.memory import LowHeadroom, MemoryGrows
from perfscope.messages.findings.ranks import SlowBesidePasses
from perfscope.vocabulary.confidence import ConfidenceLevel as Level
from perfscope.vocabulary.confidence import Doubt
from perfscope.vocabulary.findings import ABOUT_THE_RECORDING, GAPS, INPUT
from perfscope.vocabulary.findings import FindingKind as Kind

_ORDER = (Level.HIGH, Level.MEDIUM, Level.LOW, Level.NONE)
# Figure from which on a level is no longer reached, for each lower level in turn.
FEW_TRACED = ((Level.MEDIUM, 5.5), (Level.LOW, 2.5))  # steps, at most
FEW_TIMED = ((Level.MEDIUM, 19.5), (Level.LOW, 5.5))
UNLIKE = ((Level.MEDIUM, 1.15), (Level.LOW, 1.5), (Level.NONE, 3.0))  # times beyond the range of the others
SPREAD = ((Level.MEDIUM, 0.1), (Level.LOW, 0.3))
_MANY_READINGS = 16  # two in each of the blocks that memory must grow over
AGREES = 0.5  # of what the trace gives: always-on timing that gives as much confirms it
_RECORDED = ABOUT_THE_RECORDING - {Kind.DISTURBED} | {
    Kind.NO_STEPS,
    Kind.NOT_TRACED,
    Kind.NO_DEVICE_EVENTS,
}
_ALWAYS_ON = frozenset({Kind.DISTURBED, Kind.OVERSUBSCRIBED, Kind.POWER_CAPPED})
_PLACED = frozenset({Kind.NUMA_REMOTE, Kind.GPU_REMOTE})  # seen, whatever the steps


def with_confidence(evidence: Evidence, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Each finding with its level; those below low are left out, and replaced if the verdict is one."""
    levels = [confidence(evidence, finding) for finding in findings]
    judged = [replace(finding, confidence=level) for finding, level in zip(findings, levels, strict=True)]
    kept = [finding for finding, level in zip(judged, levels, strict=True) if level.level is not Level.NONE]
    first = levels[0]
    if first.level is not Level.NONE:
        return _without_absent(kept)
    reasons = tuple(reason for reason in first.reasons if reason.level is Level.NONE)
    instead = Finding(id=Kind.NOT_ENOUGH_EVIDENCE, facts=NotEnoughEvidence(reasons=reasons), confidence=first)
    return (instead, *_without_absent(kept))


def _without_absent(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Causes name only symptoms that are there."""
    below = {(finding.symptom_of, finding.id) for finding in findings}
    return tuple(
        replace(cause, symptoms=tuple(kind for kind in cause.symptoms if (cause.id, kind) in below))
        for cause in findings
    )


def confidence(evidence: Evidence, finding: Finding) -> Confidence:
    """Of one finding."""
    if finding.id in _RECORDED:
        return Confidence(level=Level.HIGH)
    if isinstance(finding.facts, MemoryGrows):
        return Confidence(level=Level.HIGH if finding.facts.num_samples >= _MANY_READINGS else Level.MEDIUM)
    if isinstance(finding.facts, LowHeadroom):  # a peak needs no steps
        return Confidence(level=Level.MEDIUM if finding.facts.tensor_bytes is None else Level.HIGH)
    if finding.id is Kind.PAGE_FAULT_CHURN:
        return _of_all_steps(evidence, finding, min(faults.num_steps for faults in evidence.page_faults))
    if isinstance(finding.facts, SlowBesidePasses):
        return _of_all_steps(evidence, finding, finding.facts.num_steps)
    is_timed = finding.id in _ALWAYS_ON | _PLACED or finding.of_mean  # in every step
    if is_timed or finding.of_training or not evidence.traced:
        return _of_all_steps(evidence, finding)
    if finding.id in INPUT:
        timed = _input_as_timed(evidence)
        if timed is not None and timed >= AGREES:
            return _of_all_steps(evidence, finding)
        return _of_traced(evidence, finding, always_on=timed)
    return _of_traced(evidence, finding)


def _of_all_steps(evidence: Evidence, finding: Finding, num_steps: int | None = None) -> Confidence:
    """`num_steps`: that the finding rests on, where these are not all that were counted."""
    steps = evidence.step_ns.count / max(len(evidence.ranks), 1) if evidence.step_ns is not None else 0
    steps = steps if num_steps is None else num_steps
    spread = evidence.spread_ratio
    if finding.of_mean and finding.id in INPUT and evidence.mean_input is not None:
        spread = evidence.mean_input.spread_ratio
    reasons = [] if finding.id in _PLACED else _at_most(Doubt.FEW_STEPS, steps, FEW_TIMED)
    if finding.gain_ratio is None:
        reasons.append(Reason(doubt=Doubt.NOT_MEASURED, level=Level.MEDIUM, value=None))
    if finding.id is not Kind.DISTURBED:
        reasons += _disturbed(evidence)
    if finding.id is not Kind.DISTURBED and not finding.of_training:  # these make steps differ
        reasons += _at_least(Doubt.SPREAD, spread, SPREAD)
    return _judged(reasons, num_steps=steps, spread_ratio=spread)


def _of_traced(evidence: Evidence, finding: Finding, always_on: float | None = None) -> Confidence:
    steps = evidence.steps_per_rank
    reasons = _at_most(Doubt.FEW_STEPS, steps, FEW_TRACED) if evidence.has_step_marks else []
    if not evidence.has_step_marks:
        reasons.append(
            Reason(doubt=Doubt.NO_STEP_MARKS, level=Level.MEDIUM, value=float(len(evidence.traced)))
        )
    ratio = evidence.traced_ratio
    if ratio is not None:
        reasons += [
            Reason(doubt=Doubt.UNLIKE_UNTRACED, level=reason.level, value=ratio)
            for reason in _at_least(Doubt.UNLIKE_UNTRACED, _beyond(evidence), UNLIKE)
        ]
    elif evidence.has_step_marks and not evidence.run.is_imported:
        reasons.append(Reason(doubt=Doubt.NO_UNTRACED_STEP, level=Level.MEDIUM, value=0.0))
    if always_on is not None:
        reasons.append(Reason(doubt=Doubt.ALWAYS_ON_DIFFERS, level=Level.LOW, value=always_on))
    reasons += [*_unseen_calls(evidence, finding), *_disturbed(evidence)]
    reasons += _at_least(Doubt.SPREAD, evidence.spread_ratio, SPREAD)
    spread = evidence.spread_ratio
    if spread and finding.gain_ratio is not None and finding.gain_ratio < spread:
        reasons.append(Reason(doubt=Doubt.WITHIN_SPREAD, level=Level.LOW, value=finding.gain_ratio / spread))
    return _judged(reasons, num_steps=steps, traced_ratio=ratio, spread_ratio=spread)


def _judged(
    reasons: Sequence[Reason],
    *,
    num_steps: float,
    traced_ratio: float | None = None,
    spread_ratio: float | None = None,
) -> Confidence:
    ordered = tuple(sorted(reasons, key=lambda reason: -_ORDER.index(reason.level)))
    return Confidence(
        level=ordered[0].level if ordered else Level.HIGH,
        reasons=ordered,
        num_steps=num_steps,
        traced_ratio=traced_ratio,
        spread_ratio=spread_ratio,
    )


def _at_most(doubt: Doubt, value: float, limits: Sequence[tuple[Level, float]]) -> list[Reason]:
    """A reason where the value is no more than a limit, with the lowest level of those."""
    levels = [level for level, limit in limits if value <= limit]
    return [Reason(doubt=doubt, level=levels[-1], value=value)] if levels else []


def _at_least(doubt: Doubt, value: float | None, limits: Sequence[tuple[Level, float]]) -> list[Reason]:
    levels = [level for level, limit in limits if value is not None and value >= limit]
    return [Reason(doubt=doubt, level=levels[-1], value=value)] if levels else []


def _beyond(evidence: Evidence) -> float:
    """How many times the mean traced step is above or below the range of the untraced ones; 1: within."""
    range_, step = evidence.step_ns, evidence.step
    assert range_ is not None
    return max(step / range_.p90 if range_.p90 else 1.0, range_.p10 / step if step else 1.0, 1.0)


def _disturbed(evidence: Evidence) -> list[Reason]:
    """Where disturbances hit traced windows."""
    machine = evidence.machine
    if machine is None or not machine.windows:
        return []
    windows = {window for window, _, _ in machine.windows}
    hit = {
        window
        for disturbance in machine.disturbances
        if disturbance.within_steps
        for window in disturbance.windows
    }
    share = len(windows & hit) / len(windows)
    return [Reason(doubt=Doubt.DISTURBED, level=Level.MEDIUM, value=share)] if share else []


def _unseen_calls(evidence: Evidence, finding: Finding) -> list[Reason]:
    """Where ranks communicate in threads that are not traced, part of their idle time is waiting for that."""
    unseen = [rank for rank, _ in evidence.traced if _has_unseen_calls(evidence, rank)]
    if not unseen:
        return []
    idles = {slow.rank for slow in evidence.what_ifs.slow if slow.part == "idle"}
    level = Level.MEDIUM
    if finding.id in GAPS or (finding.id is Kind.STRAGGLER and finding.rank in idles):
        level = Level.NONE if any("exposed_comm" in rank.unknown for rank in unseen) else Level.LOW
    return [Reason(doubt=Doubt.UNSEEN_CALLS, level=level, value=len(unseen) / len(evidence.traced))]


def _has_unseen_calls(evidence: Evidence, rank: RankResult) -> bool:
    record = evidence.metas.get(rank.rank)
    return record is not None and has_unseen_calls(record)


def _input_as_timed(evidence: Evidence) -> float | None:
    """The share of steps that is waiting for input, by always-on timing / by the trace; None: not timed."""
    waits = [rank.input_wait_ns for rank in evidence.ranks if rank.input_wait_ns is not None]
    traced = evidence.mean("input_wait") / evidence.step if evidence.step else 0.0
    if not waits or evidence.step_ns is None or not evidence.step_ns.median or not traced:
        return None
    return sum(waits) / len(waits) / evidence.step_ns.median / traced
