"""What bounds the step, in words with figures, and what removing each cause would bring (METRICS §6).

Every removable cause has the step that the replay predicts without it; the one that would bring most comes
first if it is worth `REMOVABLE` of the step, else what must remain: computation. A sentence claims only what
the run carries: who came last is stated where every rank of the group was traced, layers where the trace
names them, waiting where it could be separated from transfer. Where nothing can be replayed, the parts of the
mean step stand for the gains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from perfscope.analysis.findings import (
    axes,
    causes,
    communication,
    disturbed,
    experts,
    host_calls,
    kernels,
    loading,
    machine,
    numa,
    page_faults,
    pipeline,
    ranks,
    record,
    server,
    whole_run,
)
from perfscope.analysis.findings.confidence import with_confidence
from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.findings.symptoms import with_symptoms
from perfscope.analysis.results import Finding
from perfscope.messages.findings.machine import Disturbed
from perfscope.messages.findings.page_faults import PageFaultChurn
from perfscope.messages.findings.step import ThreadBlocked
from perfscope.vocabulary.findings import COMMUNICATION, GAPS, FindingKind

REMOVABLE = 0.1  # a cause that would bring more of the step than this comes before the computation

IDLE = 0.2  # the same for gaps without work ...
AS_MUCH = 0.5  # of what the untraced steps say a slow rank costs: what the traced ones say agrees
AGAINST_COMPUTE = 0.5  # ... which must also be this much of the computation

_Cause: TypeAlias = Callable[[Evidence], Finding | None]  # None where the run does not have it
_REMOVABLE: tuple[_Cause, ...] = (
    numa.remote_memory,
    server.bound,
    ranks.slow_rank,
    pipeline.unequal_stages,
    pipeline.bubble,
    experts.unequal,
    ranks.model_split,
    ranks.late_start,
    ranks.imbalance,
    causes.copies,
    page_faults.churn,
    host_calls.file_sync,
    host_calls.object_collectives,
    loading.input_wait,
    kernels.unaligned_products,
    kernels.layout_conversions,
)


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings, the verdict first; what makes every figure doubtful comes right after it.

    A disturbance that cost more than the verdict's cause, and much of the step, is the verdict itself.
    """
    candidates = [
        *ranks.busiest(evidence),
        *machine.findings(evidence),
        *record.overhead(evidence),
        *record.attached(evidence),
        *record.killed(evidence),
    ]
    if not evidence.traced or not evidence.step:
        of_calls = [host_calls.file_sync(evidence), host_calls.object_collectives(evidence)]
        notable = [finding for finding in of_calls if finding and _gain(finding) >= causes.NOTABLE]
        faults = page_faults.churn(evidence)
        candidates = [*candidates, *notable, *([] if faults is None else [faults])]
        return _in_order(evidence, ranks.slow_outside(evidence) or causes.untraced(evidence), candidates)
    removable = [finding for cause in _REMOVABLE if (finding := cause(evidence)) is not None]
    removable += [*causes.idle(evidence), *_communication(evidence)]
    removable = _server_first(_by_saving(_with_untraced(evidence, removable)))
    verdict = next((finding for finding in removable if _leads(evidence, finding)), None)
    if verdict is not None:
        removable.remove(verdict)
    else:
        verdict = numa.all_remote(evidence) or _largest(evidence)
        removable = [
            finding
            for finding in removable
            if verdict is None or (finding.id, finding.axis) != (verdict.id, verdict.axis)
        ]
    assert verdict is not None
    if not verdict.of_mean:  # of untraced steps
        verdict = replace(verdict, basis=evidence.basis)
    beside = [finding for finding in removable if _gain(finding) >= _notable(finding)]
    candidates = [candidate for candidate in candidates if candidate.id != verdict.id]
    return _in_order(evidence, verdict, [*beside, *candidates])


def _with_untraced(evidence: Evidence, removable: Sequence[Finding]) -> list[Finding]:
    """With the slow rank that the untraced steps name, in place of one that the traced ones show as less."""
    finding = ranks.slow_outside(evidence)
    if finding is None:
        return [*removable]
    same = [other for other in removable if (other.id, other.rank) == (finding.id, finding.rank)]
    if any(_gain(other) >= AS_MUCH * _gain(finding) for other in same):
        return [*removable]
    return [finding, *(other for other in removable if other not in same)]


def _communication(evidence: Evidence) -> list[Finding]:
    """By axis where the mesh has several; of the whole otherwise."""
    findings = axes.by_axis(evidence)
    exposed = None if findings else communication.exposed(evidence)
    return [finding for finding in (*findings, exposed, axes.uneven(evidence)) if finding is not None]


def _by_saving(findings: Sequence[Finding]) -> list[Finding]:
    """The largest first; a layer that sends too much before the communication of which it is a part."""
    order = sorted(findings, key=lambda finding: -_gain(finding))
    uneven = next((finding for finding in order if finding.id is FindingKind.UNEVEN_COMM), None)
    if uneven is None or _gain(uneven) <= REMOVABLE:
        return order
    order.remove(uneven)
    index = next(
        (
            number
            for number, finding in enumerate(order)
            if _gain(finding) < _gain(uneven)
            or (finding.id in COMMUNICATION and finding.axis in (None, uneven.axis))
        ),
        len(order),
    )
    return [*order[:index], uneven, *order[index:]]


def _server_first(findings: list[Finding]) -> list[Finding]:
    """Where workers wait for a server, that is the cause: their waits are no other finding of their own.

    What the server does between two messages may be time without operators; that is its work, not idling.
    """
    if not any(finding.id is FindingKind.SERVER_BOUND for finding in findings):
        return findings
    kept = [finding for finding in findings if finding.id not in server.CONSEQUENCES]
    return sorted(kept, key=lambda finding: finding.id in GAPS)


def _leads(evidence: Evidence, finding: Finding) -> bool:
    """Whether a removable cause is worth standing first.

    Gaps without work never go away whole: they lead only where they weigh against the computation. What a
    thread sleeps in can be removed.
    """
    gain = _gain(finding)
    if isinstance(finding.facts, PageFaultChurn) and finding.facts.is_of_before:
        return False  # drawn from the few steps before the first window
    if finding.id in GAPS and not isinstance(finding.facts, ThreadBlocked):
        return gain >= max(IDLE, AGAINST_COMPUTE * evidence.mean("compute") / evidence.step)
    return gain > REMOVABLE


def _gain(finding: Finding) -> float:
    return finding.gain_ratio or 0.0


def _notable(finding: Finding) -> float:
    """Page faults cost little to remove."""
    return page_faults.NOTABLE if finding.id is FindingKind.PAGE_FAULT_CHURN else causes.NOTABLE


def _largest(evidence: Evidence) -> Finding | None:
    """The largest part of the step, whether it can be removed or not."""
    parts: dict[str, _Cause] = {
        "compute": causes.compute,
        "exposed_comm": _exposed,
        "copy": causes.copies,
        "input_wait": loading.input_wait,
        "optimizer": causes.optimizer,
        "idle": _idle,
    }
    return parts[max(parts, key=evidence.mean)](evidence)


def _idle(evidence: Evidence) -> Finding | None:
    return causes.idle(evidence)[0]


def _exposed(evidence: Evidence) -> Finding | None:
    """The axis with most exposed communication, or all of it."""
    of_axes = axes.by_axis(evidence)
    return of_axes[0] if of_axes else communication.exposed(evidence)


def _in_order(evidence: Evidence, verdict: Finding, candidates: Sequence[Finding]) -> tuple[Finding, ...]:
    """The verdict, what makes it doubtful, the others by gain; then each symptom below its cause."""
    beside = _by_gain([*whole_run.beside_steps(evidence), *whole_run.growing(evidence)])
    if beside and whole_run.leads(beside[0], verdict):
        candidates = [*candidates, replace(verdict, basis=None)]
        verdict, beside = beside[0], beside[1:]
    candidates = [*candidates, *beside]
    disturbances = disturbed.disturbed(evidence, verdict)
    remaining = _by_gain([*candidates, *disturbances.minor])
    before = [*disturbances.first]
    largest = next(iter(remaining), verdict)
    if largest.id is FindingKind.OVERSUBSCRIBED and _gain(largest) > max(REMOVABLE, _gain(verdict)):
        before.append(remaining.pop(0))
    ordered = with_symptoms(evidence, (*_by_gain(before), verdict, *disturbances.doubt, *remaining))
    first = ordered[0]
    if isinstance(first.facts, Disturbed):
        ordered = (replace(first, facts=replace(first.facts, leads=True)), *ordered[1:])
    return with_confidence(evidence, _on_usual_step(evidence, ordered))


def _on_usual_step(evidence: Evidence, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Stated on the median untraced step, as gains are; as they are where that is not known."""
    if not evidence.traced_ratio:
        return tuple(findings)
    factor = 1 / evidence.traced_ratio
    return tuple(replace(finding, facts=finding.facts.on_usual_step(factor)) for finding in findings)


def _by_gain(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: -(finding.gain_ns or -1))
