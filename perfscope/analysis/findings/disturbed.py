"""Something outside the training that disturbed it, and whether it is the verdict itself."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.machine.effects import windows_in_words
from perfscope.analysis.machine.results import Disturbance
from perfscope.analysis.results import Finding
from perfscope.messages.disturbances import WORDS
from perfscope.messages.lists import plural
from perfscope.messages.sentences import in_sentence
from perfscope.units import format_count, format_ns

DECISIVE = 0.25  # of the mean step lost to disturbances: the code's own causes come after them
WORTH = 0.1  # of the mean step lost: what slow computation is laid at the disturbance
ONE_PLACE = 0.6  # of a slow rank's excess in one layer, or in no operator at all
SLOWER = 1.02  # steps this many times longer than the others are slower
SEVERE = 0.1  # of a host's CPUs (or other resource): doubt about every figure


class Disturbed(Struct, frozen=True, kw_only=True):
    """The finding that the run was disturbed, in the list that says where it belongs."""

    first: list[Finding] = []  # it costs more than the verdict's cause
    doubt: list[Finding] = []  # it may explain the figures
    minor: list[Finding] = []


def disturbed(evidence: Evidence, verdict: Finding) -> Disturbed:
    """Whether something else disturbed the run, and what its absence would bring.

    Args:
        evidence: of the run.
        verdict: the finding that stands first without it.
    """
    machine = evidence.machine
    if machine is None or machine.clean is not False:
        return Disturbed()
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
    where = f"on {worst.host} " if len(evidence.hosts) > 1 else ""
    cause_text = f"{where}{in_sentence(worst.title.removesuffix('.'))}"
    effect = _effect(worst)
    if first and effect:
        title = f"{WORDS[worst.kind].slows} the steps: {effect}; {cause_text}."
    else:
        title = f"Interference from outside the training: {cause_text}{'; ' if effect else ''}{effect}."
    rank = _hit_rank(evidence) if causes_it else None
    title = f"{title.removesuffix('.')}; rank {rank} is slowed by it." if rank is not None else title
    hit = {number for disturbance in inside for number in disturbance.windows}
    traced = f" {windows_in_words(sorted(hit))}." if hit or machine.traced_disturbed is False else ""
    finding = Finding(
        id="disturbed",
        title=title,
        detail=_evidence(worst, inside, traced),
        action=WORDS[worst.kind].remedy,
        gain_ns=gain_ns,
        gain_ratio=ratio,
        rank=rank,
    )
    if first:
        return Disturbed(first=[finding])
    severe = worst.severity >= SEVERE or (ratio or 0.0) >= DECISIVE
    return Disturbed(doubt=[finding]) if severe else Disturbed(minor=[finding])


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
    if verdict.id == "straggler":
        slow = evidence.what_ifs.slow[:1]
        # A neighbour slows all that a rank does; what lies in one place is the rank's own.
        if not slow or slow[0].part_excess_ns > ONE_PLACE * slow[0].excess_ns:
            return False
        host = next((rank.host for rank in evidence.ranks if rank.rank == verdict.rank), "")
        return any(disturbance.host == host for disturbance in severe)
    return verdict.id in ("imbalance", "compute_bound", "preempted")


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


def _effect(disturbance: Disturbance) -> str:
    """``203 steps took 25.4 ms instead of 13.4 ms``; '' where that is not known."""
    if disturbance.step_ns_during is None or disturbance.step_ns_otherwise is None:
        return ""
    count, during = format_count(disturbance.num_steps_during), format_ns(disturbance.step_ns_during)
    if disturbance.step_ns_during >= SLOWER * disturbance.step_ns_otherwise:
        return f"{count} steps took {during} instead of {format_ns(disturbance.step_ns_otherwise)}"
    slower = "barely slower" if disturbance.step_ns_during >= disturbance.step_ns_otherwise else "not slower"
    return (
        f"its {count} steps were {slower} ({during}, {format_ns(disturbance.step_ns_otherwise)} without it)"
    )


def _evidence(worst: Disturbance, inside: list[Disturbance], traced: str) -> str:
    lines = "; ".join(worst.evidence)
    num_others = len(inside) - 1
    more = (
        f" {format_count(num_others)} other {plural('disturbance', num_others)} in section Machine."
        if num_others
        else ""
    )
    return f"Observed: {lines}.{traced}{more} Compare with other runs only after a run without interference."
