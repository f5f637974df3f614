"""Communication as the cause: which kind of it, by what the replay says each remedy would bring."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfscope.analysis import advice
from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.findings.ranks import late, waits_of
from perfscope.analysis.results import CollectiveCall, CollectiveResult, Finding
from perfscope.analysis.whatif.changes import SMALL_BYTES
from perfscope.analysis.whatif.results import WhatIf
from perfscope.messages.findings.communication import ExposedComm
from perfscope.messages.findings.facts import Sent, SmallCalls
from perfscope.vocabulary.findings import FindingKind

SERIAL = 0.4  # of the exposed communication: an ideal network that saves less leaves mostly dependences
_HELPS = 0.6  # of what an ideal network would bring: a remedy that brings as much is the one to name


def exposed(evidence: Evidence) -> Finding | None:
    """Exposed communication, under the name of what would help most."""
    cost = evidence.mean("exposed_comm")
    if not cost:
        return None
    remedy = _remedy(evidence)
    gain_ns, gain_ratio = evidence.gain("zero_transfer", cost) if evidence.calls else evidence.all_of(cost)
    if remedy.merged is not None:
        gain_ns, gain_ratio = remedy.merged.gain_ns, remedy.merged.gain_ratio
    gain_ns, gain_ratio = evidence.of_communication(gain_ns, gain_ratio)
    top = longest(evidence)
    kinds = {collective.collective for collective in evidence.collectives}
    last, ideal = late(evidence), evidence.what_ifs.of("zero_transfer") if evidence.calls else None
    overlapped = evidence.what_ifs.of("full_overlap")
    return Finding(
        id=remedy.kind,
        facts=ExposedComm(
            exposed=evidence.of_step(cost),
            collective=top.collective if top and len(kinds) == 1 else None,
            late=last,
            overlap_ratio=_overlap_ratio(evidence),
            waits=waits_of(evidence),
            library=longest_library(evidence),
            sends_gradients=_averages_gradients(evidence),
            longest=top.collective if top else "",
            sent=tuple(
                Sent(
                    collective=collective.collective,
                    num_calls=collective.count,
                    num_bytes=collective.bytes or 0,
                )
                for collective in evidence.collectives
            ),
            small_bytes=SMALL_BYTES,
            small=remedy.small,
            ideal_step_ns=ideal.step_ns if ideal else None,
            ideal_gain_ns=ideal.gain_ns if ideal else 0,
            ideal_gain_ratio=ideal.gain_ratio if ideal else 0.0,
            overlap_gain_ns=overlapped.gain_ns if overlapped else 0,
            overlap_gain_ratio=overlapped.gain_ratio if overlapped else 0.0,
            fast_link_step_ns=remedy.fast_link_step_ns,
            is_one_host=_is_one_host(evidence),
        ),
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
        rank=last.rank if last else None,
        collective=top.collective if top else None,
    )


class _Remedy(Struct, frozen=True, kw_only=True):
    """What kind of communication problem it is, by what would help."""

    kind: FindingKind = FindingKind.COMM_BOUND
    merged: WhatIf | None = None  # of small calls
    small: SmallCalls | None = None
    fast_link_step_ns: int | None = None


def _remedy(evidence: Evidence) -> _Remedy:
    """Which remedy the replay says would bring most of what an ideal network would."""
    ideal = evidence.what_ifs.of("zero_transfer")
    if ideal is None or not evidence.calls:
        return _Remedy()
    merged, faster = evidence.what_ifs.of("one_bucket"), evidence.what_ifs.of("double_bandwidth")
    overlapped = evidence.what_ifs.of("full_overlap")
    if merged is not None and merged.gain_ns >= _HELPS * ideal.gain_ns:
        small = _small_calls(evidence, merged)
        if small is not None:
            return _Remedy(kind=FindingKind.SMALL_COLLECTIVES, merged=merged, small=small)
    if ideal.gain_ratio < SERIAL * evidence.mean("exposed_comm") / evidence.step:
        return _Remedy(kind=FindingKind.SERIALIZED)
    nothing_overlaps = (_overlap_ratio(evidence) or 0.0) < 0.1
    if nothing_overlaps and overlapped is not None and overlapped.gain_ns >= 0.9 * ideal.gain_ns:
        return _Remedy(kind=FindingKind.NO_OVERLAP)
    # Twice the bandwidth halves what depends on it: more than a third of the whole gain is the link's.
    is_of_link = not are_small_inside_host(evidence, evidence.calls)
    if faster is not None and faster.gain_ns >= 0.35 * ideal.gain_ns and is_of_link:
        return _Remedy(kind=FindingKind.SLOW_LINK, fast_link_step_ns=faster.step_ns)
    return _Remedy()


def are_small_inside_host(evidence: Evidence, calls: Sequence[CollectiveCall]) -> bool:
    """Whether these calls are small and leave no host: what they take is no matter of bandwidth.

    Their times differ by chance, where threads wait for a CPU, and a slope by size is then no rate of a link.
    """
    sizes = [call.bytes for call in calls if call.bytes is not None]
    return _is_one_host(evidence) and bool(sizes) and sum(sizes) < len(sizes) * SMALL_BYTES


def _is_one_host(evidence: Evidence) -> bool:
    hosts = {rank.host for rank in evidence.ranks}
    return len(hosts) == 1 and "" not in hosts  # of a trace they may not be known


def _small_calls(evidence: Evidence, merged: WhatIf) -> SmallCalls | None:
    """Calls too small to use the link: merged into buckets they would pay their latency once."""
    small = [call for call in evidence.calls if call.bytes is not None and call.bytes < SMALL_BYTES]
    small = [call for call in small if call.collective == "all_reduce"]
    steps = max((part.num_steps for _, part in evidence.traced), default=0)
    if not small or not steps:
        return None
    return SmallCalls(
        calls_per_step=len(small) / steps,
        mean_bytes=sum(call.bytes or 0 for call in small) / len(small),
        shortest_ns=min(call.transfer_ns for call in small),
        merged_step_ns=merged.step_ns,
        library=advice.library_of(evidence.metas, tuple({call.group for call in small})),
    )


def _overlap_ratio(evidence: Evidence) -> float | None:
    """Of all ranks' communication; None without any."""
    measured = [rank for rank, _ in evidence.traced if rank.comm_ns]
    total = sum(rank.comm_ns or 0 for rank in measured)
    overlapped = sum((rank.comm_ns or 0) * (rank.overlap_ratio or 0) for rank in measured)
    return overlapped / total if total else None


def longest(evidence: Evidence) -> CollectiveResult | None:
    """The collective that takes most time."""
    return max(evidence.collectives, key=lambda collective: collective.duration_ns, default=None)


def longest_library(evidence: Evidence) -> str:
    """The library that carries the calls that take most time."""
    top = longest(evidence)
    return advice.library_of(evidence.metas, (top.group,) if top is not None else ())


def _averages_gradients(evidence: Evidence) -> bool:
    """False for bench runs that send something else: activations, weights to and from a server."""
    scheme = evidence.run.scheme
    if scheme is None or scheme.axes is None:
        return True
    return scheme.parallelism == "data" and scheme.optimisation == "decentralised"
