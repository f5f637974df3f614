"""Which findings are consequences of a cause that is also present (vocabulary/symptoms.py).

The table says what a cause makes appear; the figures of both must allow it. A cause is no smaller than half
of what it explains. A rank that takes longer than its peers is explained by a shortage of CPUs as far as it
waits for one for longer than they do, beyond what its own work explains, in the same traced steps; where that
was not read, not if the excess is in one layer or in no operator, and only on a host that a disturbance hit.
Communication is explained by ranks that come late as far as it is waiting. What a training thread does
besides training explains as much as it takes of the traced steps that the finding is drawn from, on the same
rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from perfscope.analysis.findings import disturbed, machine
from perfscope.analysis.findings.causes import waited_for_cpu
from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.results import Finding
from perfscope.messages.findings.axes import AxisComm
from perfscope.messages.findings.communication import ExposedComm
from perfscope.messages.findings.host_calls import ObjectCollectives
from perfscope.messages.findings.page_faults import PageFaultChurn
from perfscope.messages.findings.ranks import Imbalance, SlowBesidePasses
from perfscope.messages.findings.whole_run import BesideSteps
from perfscope.vocabulary.findings import COMMUNICATION, INPUT
from perfscope.vocabulary.findings import FindingKind as Kind
from perfscope.vocabulary.symptoms import NO_CPU, SLOW_RANKS, SYMPTOMS

EXPLAINS = 0.5  # of the symptom's gain that the cause must cost, and of a rank's excess that it must explain
CLEARLY = 2.0  # times the symptom's gain, where the figures say nothing else of it
SEVERE = 0.25  # of the step that threads wait for a CPU: computation takes longer by it, too
MOSTLY = 0.5  # of the communication that must be waiting for ranks


def with_symptoms(evidence: Evidence, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Each cause with its symptoms right after it, in the place of the first of them.

    A symptom of a symptom stands below the first cause. No finding is a symptom of its own symptom: the order
    of `findings` decides who is asked first.
    """
    cause_of: dict[int, int] = {}
    for number, finding in enumerate(findings):
        causes = [
            other
            for other, cause in enumerate(findings)
            if finding.id in SYMPTOMS.get(cause.id, ())
            and _root(cause_of, other) != number
            and _explains(evidence, cause, finding)
        ]
        if causes:
            cause_of[number] = max(causes, key=lambda other: (findings[other].gain_ratio or 0.0, -other))
    roots = [_root(cause_of, number) for number in range(len(findings))]
    result = []
    for root in dict.fromkeys(roots):
        below = [number for number, its in enumerate(roots) if its == root and number != root]
        kinds = tuple(dict.fromkeys(findings[number].id for number in below))
        result.append(replace(findings[root], symptoms=kinds))
        result += [replace(findings[number], symptom_of=findings[root].id) for number in below]
    return tuple(result)


def _root(cause_of: Mapping[int, int], number: int) -> int:
    while number in cause_of:
        number = cause_of[number]
    return number


def _explains(evidence: Evidence, cause: Finding, finding: Finding) -> bool:
    if cause.id in (Kind.DISTURBED, Kind.OVERSUBSCRIBED):
        return _lack_of_cpus(evidence, cause, finding)
    if isinstance(cause.facts, (BesideSteps, PageFaultChurn)):
        return _beside(evidence, cause, finding)
    if not _weighs(cause, finding):
        return False
    if isinstance(cause.facts, ObjectCollectives) and finding.id in COMMUNICATION:
        return cause.facts.transfer_ratio >= EXPLAINS * (finding.gain_ratio or 0.0)
    if finding.id in COMMUNICATION:
        return _waits_for(evidence, cause, finding)
    same_rank = cause.rank is None or finding.rank is None or cause.rank == finding.rank
    return same_rank if finding.id in SLOW_RANKS else True


def _weighs(cause: Finding, finding: Finding) -> bool:
    """Whether the cause costs enough to explain what the finding would bring; unknown figures do not say."""
    if finding.gain_ratio is None:
        return True
    return cause.gain_ratio is not None and cause.gain_ratio >= EXPLAINS * finding.gain_ratio


def _lack_of_cpus(evidence: Evidence, cause: Finding, finding: Finding) -> bool:
    """Too few CPUs, for whatever reason, or slow ones."""
    is_severe = _is_severe(evidence, cause)
    if not is_severe and cause.gain_ratio is None:
        return False
    if finding.id in SLOW_RANKS and finding.rank is not None:
        return _slow_for_want_of_cpus(evidence, cause, finding)
    if isinstance(finding.facts, Imbalance) and finding.facts.has_larger_inputs:
        return False  # it has more to compute
    if finding.id in COMMUNICATION:
        return _waits_for_want_of_cpus(evidence, cause, finding)
    if finding.id is Kind.COMPUTE_BOUND:
        return is_severe
    if finding.id in INPUT:  # a loader may be slow by itself, with as little CPU time
        return (cause.gain_ratio or 0.0) >= CLEARLY * (finding.gain_ratio or 0.0)
    if finding.id in (Kind.HOST_BOUND, Kind.IDLE_BOUND) and waited_for_cpu(evidence) is not None:
        return False  # waiting for a CPU is a finding of its own, or little
    if finding.id in NO_CPU - {Kind.PREEMPTED}:
        return cause.gain_ratio is not None and _weighs(cause, finding)
    return is_severe or _weighs(cause, finding)


def _beside(evidence: Evidence, cause: Finding, finding: Finding) -> bool:
    """Work of the training thread that is timed apart, or its page faults, by its share of traced steps."""
    taken = _taken(evidence, cause)
    if not taken:
        return False
    if isinstance(cause.facts, PageFaultChurn) and cause.facts.is_of_before:
        return False  # the steps that the finding is drawn from have it no more
    mean, last = sum(taken.values()) / len(taken), max(taken, key=lambda rank: taken[rank])
    if finding.gain_ratio is None:
        return mean >= SEVERE
    if finding.id in COMMUNICATION:
        is_enough = taken[last] - mean >= EXPLAINS * finding.gain_ratio
        return is_enough and _waits_for(evidence, replace(cause, rank=last), finding)
    if finding.id not in SLOW_RANKS:
        return mean >= EXPLAINS * finding.gain_ratio
    rank = last if finding.rank is None else finding.rank
    other_shares = [share for other, share in taken.items() if other != rank]
    more = taken.get(rank, 0.0) - sum(other_shares) / len(other_shares) if other_shares else 0.0
    return more > 0 and more >= EXPLAINS * _excess(evidence, finding)


def _taken(evidence: Evidence, cause: Finding) -> Mapping[int, float]:
    """Rank -> share of the traced steps that the cause takes; of page faults, of the median step."""
    if isinstance(cause.facts, BesideSteps):
        return evidence.beside.get(cause.facts.part, {})
    return {
        faults.rank: faults.cost_ratio for faults in evidence.page_faults if faults.cost_ratio is not None
    }


def _excess(evidence: Evidence, finding: Finding) -> float:
    """What a slow rank takes more than its peers, as a share of the step; at least what it saves."""
    slow = next((slow for slow in evidence.what_ifs.slow if slow.rank == finding.rank), None)
    saved = finding.gain_ratio or 0.0
    return saved if slow is None or not evidence.step else max(saved, slow.excess_ns / evidence.step)


def _is_severe(evidence: Evidence, cause: Finding) -> bool:
    if cause.id is Kind.OVERSUBSCRIBED:
        return machine.starves(evidence) or (cause.gain_ratio or 0.0) >= SEVERE
    return disturbed.is_at_work(evidence)


def _waits_for_want_of_cpus(evidence: Evidence, cause: Finding, finding: Finding) -> bool:
    """Transfers within a host take CPUs as well; between hosts a link may be behind them."""
    own_host = cause.id is Kind.OVERSUBSCRIBED and len({rank.host for rank in evidence.ranks}) == 1
    if cause.gain_ratio is None:
        return own_host and finding.id is not Kind.SERIALIZED
    return _weighs(cause, finding) and (own_host or _waits_for(evidence, cause, finding))


def _slow_for_want_of_cpus(evidence: Evidence, cause: Finding, finding: Finding) -> bool:
    assert finding.rank is not None
    if isinstance(finding.facts, SlowBesidePasses):
        return False  # a neighbor slows the passes, too
    slow = next((slow for slow in evidence.what_ifs.slow if slow.rank == finding.rank), None)
    if slow is not None and evidence.step:
        peers, excess = slow.peers_ns / evidence.step, slow.excess_ns / evidence.step
        more = evidence.cpu_waits.beyond_work(finding.rank, peers + excess, peers)
        if more is not None:
            return more >= EXPLAINS * excess
    if slow is not None and slow.part_excess_ns > disturbed.ONE_PLACE * slow.excess_ns:
        return False
    if cause.id is Kind.OVERSUBSCRIBED:
        return _is_severe(evidence, cause)
    return disturbed.hits(evidence, finding.rank)


def _waits_for(evidence: Evidence, cause: Finding, finding: Finding) -> bool:
    """Whether most of the communication is waiting for the ranks that the cause makes late."""
    facts = finding.facts
    if finding.id is Kind.SERIALIZED:
        return True
    if isinstance(facts, AxisComm):
        if facts.wait_ns is None or facts.transfer_ns is None:
            return False
        return facts.wait_ns >= MOSTLY * (facts.wait_ns + facts.transfer_ns)
    if not isinstance(facts, ExposedComm) or not facts.waits.is_mostly_waiting:
        return False
    late = facts.late
    return cause.rank is None or late is None or late.rank == cause.rank
