"""Something outside the training that disturbed it, and whether it is the verdict itself."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.machine.oversubscription import oversubscriptions
from perfscope.analysis.machine.results import Disturbance
from perfscope.analysis.results import Finding
from perfscope.messages.findings.machine import SLOWER, Disturbed
from perfscope.messages.findings.ranks import Imbalance, SlowBesidePasses
from perfscope.vocabulary.disturbances import DisturbanceKind
from perfscope.vocabulary.findings import FindingKind

DECISIVE = 0.25  # of the mean step lost to disturbances: the code's own causes come after them
MORE = 1.2  # times what the verdict's cause costs: of two that cost as much, the code's own comes first
WORTH = 0.1  # of the mean step lost: what slow computation is attributed to the disturbance
ONE_PLACE = 0.6  # of a slow rank's excess in one layer, or in no operator at all
CLEARLY = 1.5  # times what a comparison of steps gives, from which on waiting for CPUs is the better estimate
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
    causes_it = _causes(evidence, verdict)
    gain_ns, ratio, waited_for = _cost(evidence, inside)
    if (
        ratio is None and causes_it
    ):  # all of the run was disturbed: what the verdict's cause costs is its doing
        ratio, gain_ns = verdict.gain_ratio, verdict.gain_ns
    usual = evidence.step_ns.median if evidence.step_ns is not None else None
    if ratio is not None and gain_ns is not None and usual is not None and gain_ns > usual:
        gain_ns, ratio = evidence.share_of_step(ratio)  # few steps, much longer than the median one
    limit = max(DECISIVE, MORE * (verdict.gain_ratio or 0.0))
    first = causes_it or (ratio is not None and ratio >= limit)
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
            cpu_wait_ratio=waited_for,
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


def _cost(evidence: Evidence, inside: Sequence[Disturbance]) -> tuple[int | None, float | None, float | None]:
    """(ns, share of the step) that disturbances cost, and that share if estimated from waiting for CPUs.

    Steps outside of all disturbances are compared with; where these had less CPU than they wanted, too, by
    neighbors too small or short to count, waiting is the better estimate.
    """
    assert evidence.machine is not None
    ratio, gain_ns = evidence.machine.disturbed_ratio, evidence.machine.disturbed_ns
    waited_ns, waited = _waited_for(evidence, inside)
    if not any(map(_were_slower, inside)):
        gain_ns = ratio = None  # the mean step was longer, the median one was not: it is not known to cost
        if waited is None or waited < WORTH:
            return None, None, None
    elif ratio is None:
        return waited_ns, waited, None
    if waited is None or waited < WORTH or waited <= CLEARLY * (ratio or 0.0):
        return gain_ns, ratio, None
    return waited_ns, waited, waited


def _waited_for(evidence: Evidence, inside: Sequence[Disturbance]) -> tuple[int | None, float | None]:
    """What waiting for the CPUs that neighbors took costs, where no undisturbed step tells it."""
    hosts = {disturbance.host for disturbance in inside if disturbance.kind is DisturbanceKind.CPU_NEIGHBOR}
    waits = []
    for host in (host for host in evidence.hosts if host.name in hosts):
        cpu_wait = evidence.cpu_waits.most(rank.rank for rank in host.ranks)
        if cpu_wait is not None:
            neighbor_cpus = evidence.cpu_waits.others_cpus.get(host.name, 0.0)
            excess_threads = max(
                (sharing.threads - sharing.cpus for sharing in oversubscriptions(host)), default=0.0
            )
            neighbors_share = neighbor_cpus / (excess_threads + neighbor_cpus) if neighbor_cpus else 0.0
            waits.append(min(cpu_wait * neighbors_share, neighbor_cpus))  # no longer than they had CPUs
    return evidence.share_of_step(max(waits)) if waits else (None, None)


def is_at_work(evidence: Evidence) -> bool:
    """Whether disturbances slowed the traced steps notably."""
    machine = evidence.machine
    if machine is None or machine.traced_disturbed is False or not severe(evidence):
        return False
    _, ratio, _ = _cost(evidence, [entry for entry in machine.disturbances if entry.within_steps])
    return ratio is None or ratio >= WORTH


def severe(evidence: Evidence) -> list[Disturbance]:
    """Disturbances of the steps that took much, and did not leave the steps as they were."""
    disturbances = evidence.machine.disturbances if evidence.machine is not None else ()
    return [
        disturbance
        for disturbance in disturbances
        if disturbance.within_steps and disturbance.severity >= SEVERE and _slowed(evidence, disturbance)
    ]


def hits(evidence: Evidence, rank: int) -> bool:
    """Whether they were on the rank's host."""
    host = next((entry.host for entry in evidence.ranks if entry.rank == rank), "")
    return any(disturbance.host == host for disturbance in severe(evidence))


def _causes(evidence: Evidence, verdict: Finding) -> bool:
    """Whether the verdict is what the disturbance does: slow computation where it was, in traced steps."""
    if not is_at_work(evidence):
        return False
    if isinstance(verdict.facts, SlowBesidePasses):
        return False  # it slows the passes, too
    if verdict.id is FindingKind.STRAGGLER:
        slow = evidence.what_ifs.slow[:1]
        # A neighbor slows everything that a rank does; what is in one place is caused by the rank.
        if not slow or slow[0].part_excess_ns > ONE_PLACE * slow[0].excess_ns:
            return False
        return verdict.rank is not None and hits(evidence, verdict.rank)
    if isinstance(verdict.facts, Imbalance) and verdict.facts.has_larger_inputs:
        return False  # it has more to compute
    return verdict.id in (FindingKind.IMBALANCE, FindingKind.COMPUTE_BOUND, FindingKind.PREEMPTED)


def _slowed(evidence: Evidence, disturbance: Disturbance) -> bool:
    """Whether it slowed the steps. Those outside of it may have been disturbed, too, below what counts as a
    disturbance: where they were as slow, waiting for the CPUs that neighbors took tells.
    """
    if _were_slower(disturbance):
        return True
    _, waited_for = _waited_for(evidence, (disturbance,))
    return waited_for is not None and waited_for >= WORTH


def _were_slower(disturbance: Disturbance) -> bool:
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
