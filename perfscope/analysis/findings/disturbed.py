"""Something outside the training that disturbed it, and whether it is the verdict itself."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.machine.results import Disturbance
from perfscope.analysis.results import Finding
from perfscope.messages.findings.machine import SLOWER, Disturbed
from perfscope.vocabulary.findings import FindingKind

DECISIVE = 0.25  # of the mean step lost to disturbances: the code's own causes come after them
WORTH = 0.1  # of the mean step lost: what slow computation is laid at the disturbance
ONE_PLACE = 0.6  # of a slow rank's excess in one layer, or in no operator at all
SEVERE = 0.1  # of a host's CPUs (or other resource): doubt about every figure


class Placed(Struct, frozen=True, kw_only=True):
    """The finding that the run was disturbed, in the list that says where it belongs."""

    first: list[Finding] = []  # it costs more than the verdict's cause
    doubt: list[Finding] = []  # it may explain the figures
    minor: list[Finding] = []


def disturbed(evidence: Evidence, verdict: Finding) -> Placed:
    """Whether something else disturbed the run, and what its absence would bring.

    Args:
        evidence: of the run.
        verdict: the finding that stands first without it.
    """
    machine = evidence.machine
    if machine is None or machine.clean is not False:
        return Placed()
    inside = [disturbance for disturbance in machine.disturbances if disturbance.within_steps]
    ratio, gain_ns = machine.disturbed_ratio, machine.disturbed_ns
    causes_it = _causes(evidence, verdict, inside)
    if (
        ratio is None and causes_it
    ):  # all of the run was disturbed: what the verdict's cause costs is its doing
        ratio, gain_ns = verdict.gain_ratio, verdict.gain_ns
    first = causes_it or (ratio is not None and ratio >= DECISIVE and ratio > (verdict.gain_ratio or 0.0))
    worst = max(
        inside,
        key=lambda disturbance: (
            _lost(disturbance) if first else 0,
            disturbance.severity * (disturbance.end_ns - disturbance.start_ns),
        ),
    )
    rank = _hit_rank(evidence) if causes_it else None
    hit = tuple(sorted({number for disturbance in inside for number in disturbance.windows}))
    finding = Finding(
        id=FindingKind.DISTURBED,
        facts=Disturbed(
            kind=worst.kind,
            cause=worst.title,
            host=worst.host if len(evidence.hosts) > 1 else "",
            leads=first,
            num_steps=worst.num_steps_during,
            during_ns=worst.step_ns_during,
            otherwise_ns=worst.step_ns_otherwise,
            slowed_rank=rank,
            evidence=worst.evidence,
            num_others=len(inside) - 1,
            windows=hit if hit or machine.traced_disturbed is False else None,
        ),
        gain_ns=gain_ns,
        gain_ratio=ratio,
        rank=rank,
    )
    if first:
        return Placed(first=[finding])
    severe = worst.severity >= SEVERE or (ratio or 0.0) >= DECISIVE
    return Placed(doubt=[finding]) if severe else Placed(minor=[finding])


def _causes(evidence: Evidence, verdict: Finding, inside: Sequence[Disturbance]) -> bool:
    """Whether the verdict is what the disturbance does: slow computation where it was, in traced steps."""
    machine = evidence.machine
    assert machine is not None
    severe = [
        disturbance for disturbance in inside if disturbance.severity >= SEVERE and _slowed(disturbance)
    ]
    lost = machine.disturbed_ratio
    if not severe or machine.traced_disturbed is False or (lost is not None and lost < WORTH):
        return False
    if verdict.id is FindingKind.STRAGGLER:
        slow = evidence.what_ifs.slow[:1]
        # A neighbor slows everything that a rank does; what is in one place is caused by the rank.
        if not slow or slow[0].part_excess_ns > ONE_PLACE * slow[0].excess_ns:
            return False
        host = next((rank.host for rank in evidence.ranks if rank.rank == verdict.rank), "")
        return any(disturbance.host == host for disturbance in severe)
    return verdict.id in (FindingKind.IMBALANCE, FindingKind.COMPUTE_BOUND, FindingKind.PREEMPTED)


def _slowed(disturbance: Disturbance) -> bool:
    """Whether steps were slower in it than otherwise, or there are no others to compare them with."""
    if disturbance.step_ns_during is None or disturbance.step_ns_otherwise is None:
        return True
    return disturbance.step_ns_during >= SLOWER * disturbance.step_ns_otherwise


def _hit_rank(evidence: Evidence) -> int | None:
    """The rank that the disturbance slowed, where it is one."""
    slow = evidence.what_ifs.slow_at_times
    return slow[0].rank if len(slow) == 1 else None


def _lost(disturbance: Disturbance) -> int:
    """Time that steps of one rank lost in it, ns."""
    if disturbance.step_ns_during is None or disturbance.step_ns_otherwise is None:
        return 0
    return disturbance.num_steps_during * max(0, disturbance.step_ns_during - disturbance.step_ns_otherwise)
