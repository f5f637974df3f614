"""Calls that keep the training thread from its work in every step: syncs of files, collectives of objects.

Their times are of all steps, whether traced or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from msgspec import Struct

from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.phases import PhaseResult
from perfscope.analysis.results import Finding
from perfscope.messages.findings.host_calls import FileSync, ObjectCollectives
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.host_calls import OBJECT_COLLECTIVES, PICKLING, SOURCE, SYNCS

_ONLY = 2.0  # times the mean of the others from which on one rank is named
_NEARLY_ALL = 0.9  # of the steps: calls in fewer may be in no traced step


class _Calls(Struct, frozen=True, kw_only=True):
    """Of some functions, per mean step and rank.

    Attributes:
        names: those called, the longest first.
        ns: by rank, all ranks of the run.
        count: by rank.
        in_steps_ratio: by rank, the share of its steps with some of their time.
    """

    names: tuple[str, ...]
    ns: Mapping[int, float]
    count: Mapping[int, float]
    in_steps_ratio: Mapping[int, float]

    @property
    def mean_ns(self) -> float:
        return sum(self.ns.values()) / len(self.ns)

    @property
    def usual_ns(self) -> float:
        """Mean over all ranks, of those that call them in nearly every step."""
        usual = [ns for rank, ns in self.ns.items() if self.in_steps_ratio[rank] >= _NEARLY_ALL]
        return sum(usual) / len(self.ns)


def file_sync(evidence: Evidence) -> Finding | None:
    """The training thread waits until files are on their device: of the mean rank, or of the one that stands
    out, for which the others wait."""
    calls = _calls(evidence, SYNCS.values())
    step_ns = evidence.mean_step_ns
    if calls is None or not step_ns:
        return None
    worst = max(calls.ns, key=lambda rank: calls.ns[rank])
    other_times = [ns for rank, ns in calls.ns.items() if rank != worst]
    is_alone = bool(other_times) and calls.ns[worst] >= _ONLY * sum(other_times) / len(other_times)
    ns = calls.ns[worst] if is_alone else calls.mean_ns
    count = calls.count[worst] if is_alone else sum(calls.count.values()) / len(calls.count)
    gain_ratio = min(ns / step_ns, 1.0)
    return Finding(
        id=FindingKind.FILE_SYNC,
        facts=FileSync(names=calls.names, ns=ns, step_ns=step_ns, calls_per_step=count),
        gain_ns=round(gain_ratio * step_ns),
        gain_ratio=gain_ratio,
        rank=worst if is_alone else None,
        of_mean=True,
    )


def object_collectives(evidence: Evidence) -> Finding | None:
    """Collectives of Python objects. What the rank with the least time spends in them is no waiting for ranks
    that come late."""
    calls = _calls(evidence, OBJECT_COLLECTIVES)
    step_ns = evidence.mean_step_ns
    if calls is None or not step_ns:
        return None
    taking = [ns for ns in calls.ns.values() if ns]
    pickling = _pickling(evidence)
    gain_ratio = min(min(taking) / step_ns, 1.0)
    return Finding(
        id=FindingKind.OBJECT_COLLECTIVES,
        facts=ObjectCollectives(
            names=calls.names,
            ns=calls.mean_ns,
            step_ns=step_ns,
            calls_per_step=max(calls.count.values()),
            pickling_ns=None if pickling is None else pickling.mean_ns,
        ),
        gain_ns=round(gain_ratio * step_ns),
        gain_ratio=gain_ratio,
        of_mean=True,
    )


def gap_ratio(evidence: Evidence) -> float:
    """Share of the mean step of the mean rank in such calls in which no operator or communication runs.

    Of calls in nearly every step, which the traced ones have, too.
    """
    step_ns = evidence.mean_step_ns
    if not step_ns:
        return 0.0
    in_gaps = (_calls(evidence, SYNCS.values()), _pickling(evidence))
    return min(1.0, sum(calls.usual_ns for calls in in_gaps if calls is not None) / step_ns)


def _pickling(evidence: Evidence) -> _Calls | None:
    return _calls(evidence, PICKLING.values(), within=OBJECT_COLLECTIVES)


def _calls(evidence: Evidence, names: Collection[str], within: Collection[str] = ()) -> _Calls | None:
    """Of these functions, called by none of each other; None: the training thread called none in steps.

    Args:
        names: of phases.
        within: phases, one of which they must be in.
    """
    num_steps = {rank.rank: rank.num_steps for rank in evidence.ranks if rank.num_steps}
    ns, count, held = (dict.fromkeys(num_steps, 0.0) for _ in range(3))
    calls = {phase.path for phase in evidence.phases if phase.source == SOURCE and phase.is_training_thread}
    by_name: dict[str, int] = defaultdict(int)
    for phase in evidence.phases:
        if not _is_outermost(phase, calls, names, within):
            continue
        for of_rank in phase.ranks:
            if of_rank.rank in ns and of_rank.in_steps_ns:
                ns[of_rank.rank] += of_rank.in_steps_ns / num_steps[of_rank.rank]
                in_steps = of_rank.count * of_rank.in_steps_ns / of_rank.ns
                count[of_rank.rank] += in_steps / num_steps[of_rank.rank]
                held[of_rank.rank] = max(held[of_rank.rank], of_rank.num_steps / num_steps[of_rank.rank])
                by_name[phase.name] += of_rank.in_steps_ns
    if not by_name:
        return None
    longest = sorted(by_name, key=lambda name: -by_name[name])
    return _Calls(names=tuple(longest), ns=ns, count=count, in_steps_ratio=held)


def _is_outermost(
    phase: PhaseResult,
    calls: Collection[tuple[str, ...]],
    names: Collection[str],
    within: Collection[str],
) -> bool:
    """`calls`: paths of the phases of calls; a program may give its own phases the same names."""
    path = phase.path
    above = [path[depth - 1] for depth in range(1, len(path)) if path[:depth] in calls]
    return (
        phase.source == SOURCE
        and phase.is_training_thread
        and phase.name in names
        and not any(name in names for name in above)
        and (not within or any(name in within for name in above))
    )
