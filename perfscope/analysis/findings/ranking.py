"""What bounds the step, in words with figures, and what removing each cause would bring.

The first finding is the verdict: the largest part of the mean analysed step. The others follow by the time
they would bring back. A sentence claims only what the run carries: who came last is said where every rank of
the group was traced, layers where the trace names them, waiting where it could be told from transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from perfscope.analysis.findings import causes, communication, machine, record
from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.results import Finding
from perfscope.units import format_count

NOTABLE = 0.05  # a cause below this share of the step is not worth a finding beside the verdict
REMOVABLE = 0.2  # a removable part from this share of the step on, and ...
AGAINST_COMPUTE = 0.5  # ... from this share of the computation on, is the verdict rather than the computation

# A cause and the time of the mean step that is laid to it, ns.
_Candidate: TypeAlias = tuple[Callable[[Evidence, float, bool], Finding], float]


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings, the verdict first; what makes every figure doubtful comes right after it.

    A disturbance that cost more than the verdict's cause, and much of the step, is the verdict itself.
    """
    held_up = communication.held_up(evidence)
    others = [
        *(communication.straggler(evidence) if held_up is None else ()),
        *communication.small_collectives(evidence),
        *machine.findings(evidence),
        *record.overhead(evidence),
        *record.attached(evidence),
        *record.killed(evidence),
    ]
    if not evidence.traced or not evidence.step:
        return _in_order(evidence, causes.untraced(evidence), others)
    parts: dict[str, _Candidate] = {
        "compute": (causes.compute, evidence.mean("compute")),
        "exposed_comm": (communication.exposed, evidence.mean("exposed_comm")),
        "copy": (causes.copies, evidence.mean("copy")),
        "input_wait": (causes.input_wait, evidence.mean("input_wait")),
        "optimizer": (causes.optimizer, evidence.mean("optimizer")),
        "idle": (causes.idle, evidence.mean("idle")),
    }
    if held_up is not None:
        parts["exposed_comm"] = (communication.holds_up, held_up)
    ranked = _ranked(parts, evidence)
    verdict = ranked[0][0](evidence, ranked[0][1], True)
    verdict = replace(verdict, detail=f"{verdict.detail} {_basis(evidence)}")
    beside = [cause(evidence, cost, False) for cause, cost in ranked[1:] if cost >= NOTABLE * evidence.step]
    removable = [finding for finding in beside if finding.gain_ns is not None]
    return _in_order(evidence, verdict, [*removable, *others])


def _in_order(evidence: Evidence, verdict: Finding, others: Sequence[Finding]) -> tuple[Finding, ...]:
    found = machine.disturbed(evidence, verdict)
    return (*found.first, verdict, *found.doubt, *_by_gain([*others, *found.minor]))


def _ranked(parts: Mapping[str, _Candidate], evidence: Evidence) -> list[_Candidate]:
    """Largest first, but a large removable part before the computation that must remain."""
    ranked = sorted(parts.values(), key=lambda cause: -cause[1])
    removable = max(
        (parts[part] for part in ("exposed_comm", "copy", "input_wait", "idle")), key=lambda c: c[1]
    )
    if removable[1] >= max(REMOVABLE * evidence.step, AGAINST_COMPUTE * evidence.mean("compute")):
        ranked.remove(removable)
        ranked.insert(0, removable)
    return ranked


def _basis(evidence: Evidence) -> str:
    """How much the verdict rests on."""
    ranks = len(evidence.traced)
    who = "one rank" if ranks == 1 else f"{format_count(ranks)} ranks"
    if evidence.breakdown_of == "file":
        return f"The traces of {who} have no step marks, so each counts as one step."
    steps = format_count(evidence.steps_per_rank)
    return f"Mean of {steps} traced step{'' if steps == '1' else 's'} on {who}."


def _by_gain(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: -(finding.gain_ns or -1))
