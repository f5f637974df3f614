"""Communication as the cause: which kind of it, by what the replay says each remedy would bring."""

from __future__ import annotations

from msgspec import Struct

from perfscope.analysis import advice
from perfscope.analysis.findings.evidence import Evidence
from perfscope.analysis.findings.ranks import certain_calls, devices_of_one, late, wait_or_transfer
from perfscope.analysis.results import Finding
from perfscope.analysis.whatif.changes import SMALL_BYTES
from perfscope.analysis.whatif.results import WhatIf
from perfscope.messages.advice import CommAdvice
from perfscope.units import format_bytes, format_count, format_ns, format_ratio


def exposed(evidence: Evidence, verdict: bool) -> Finding | None:
    """Communication that nothing hides, under the name of what would help most."""
    cost = evidence.mean("exposed_comm")
    if not cost:
        return None
    kind = _kind(evidence)
    gain_ns, gain_ratio = evidence.gain("zero_transfer", cost) if evidence.calls else evidence.all_of(cost)
    if kind is not None and kind.gain_ns is not None and kind.gain_ratio is not None:
        gain_ns, gain_ratio = kind.gain_ns, kind.gain_ratio
    top = max(evidence.collectives, key=lambda collective: collective.duration_ns, default=None)
    name = (
        top.collective
        if top and len({collective.collective for collective in evidence.collectives}) == 1
        else None
    )
    what = f"exposed {name}" if name else "communication not overlapped with compute"
    slug = kind.slug if kind else "comm_bound"
    lead = _LEADS[slug][0 if verdict else 1]
    title = f"{lead}: {evidence.of_step(cost)} is {what}"
    late_rank, times = late(evidence)
    if late_rank is not None:
        calls = format_count(len(certain_calls(evidence)))
        title += f"; rank {late_rank} enters last in {format_count(times)} of {calls} calls"
    return Finding(
        id=slug,
        title=(kind.title if kind and kind.title else title) + ".",
        detail="".join(
            (
                kind.detail if kind else "",
                longest_words(evidence).calls_are,
                _hidden(evidence),
                wait_or_transfer(evidence),
            )
        ),
        action=kind.action if kind and kind.action else _communication_action(evidence, late_rank, slug),
        gain_ns=gain_ns,
        gain_ratio=gain_ratio,
        rank=late_rank,
        collective=top.collective if top else None,
    )


_LEADS = {
    "serialised": ("Bound by waiting for other ranks", "Ranks wait for each other"),
    "comm_bound": ("Communication-bound", "Communication is exposed"),
    "slow_link": ("Limited by network bandwidth", "The network is slow for the bytes sent"),
    "no_overlap": ("Communication-bound without overlap", "Communication is not overlapped"),
    "small_collectives": ("Latency-bound: many small calls", "Many small calls"),
}
SERIAL = 0.4  # of the exposed communication: an ideal network that saves less leaves mostly dependences
_HELPS = 0.6  # of what an ideal network would bring: a remedy that brings as much is the one to name


class _Kind(Struct, frozen=True, kw_only=True):
    """What kind of communication problem it is."""

    slug: str
    title: str = ""
    detail: str = ""
    action: str = ""
    gain_ns: int | None = None
    gain_ratio: float | None = None


def _kind(evidence: Evidence) -> _Kind | None:
    """Which remedy the replay says would bring most of what an ideal network would; None: no one does."""
    ideal = evidence.what_ifs.of("zero_transfer")
    if ideal is None or not evidence.calls:
        return None
    merged, faster = evidence.what_ifs.of("one_bucket"), evidence.what_ifs.of("double_bandwidth")
    hidden = evidence.what_ifs.of("full_overlap")
    note = f"On an ideal network the step would take {format_ns(ideal.step_ns)}. "
    if merged is not None and merged.gain_ns >= _HELPS * ideal.gain_ns:
        small = _small_calls(evidence, merged, note)
        if small is not None:
            return small
    share = evidence.mean("exposed_comm") / evidence.step
    if ideal.gain_ratio < SERIAL * share:
        return _Kind(
            slug="serialised",
            title=(
                f"Ranks wait for each other's work: {evidence.of_step(share * evidence.step)} is exposed "
                f"communication, and an ideal network would save {format_ratio(ideal.gain_ratio)} of the step"
            ),
            detail=note,
            action=(
                "Shorten what ranks wait for: more micro-batches in a pipeline, even stages, fewer points at "
                "which all must meet. A faster link brings little."
            ),
        )
    nothing_hidden = _hidden_share(evidence) < 0.1
    if nothing_hidden and hidden is not None and hidden.gain_ns >= 0.9 * ideal.gain_ns:
        return _Kind(slug="no_overlap", detail=note)
    # Twice the bandwidth halves what depends on it: more than a third of the whole gain is the link's.
    if faster is not None and faster.gain_ns >= 0.35 * ideal.gain_ns:
        bandwidth = f"With twice the bandwidth the step would take {format_ns(faster.step_ns)}. "
        return _Kind(slug="slow_link", detail=note + bandwidth)
    return _Kind(slug="comm_bound", detail=note)


def _small_calls(evidence: Evidence, merged: WhatIf, note: str) -> _Kind | None:
    """Calls too small to use the link: merged into buckets they would pay their latency once."""
    small = [call for call in evidence.calls if call.bytes is not None and call.bytes < SMALL_BYTES]
    small = [call for call in small if call.collective == "all_reduce"]
    steps = max((part.num_steps for _, part in evidence.traced), default=0)
    if not small or not steps:
        return None
    advice_of = advice.communication(evidence.metas, tuple({call.group for call in small}))
    shortest = min(call.transfer_ns for call in small)
    total_bytes = sum(call.bytes or 0 for call in small)
    return _Kind(
        slug="small_collectives",
        title=(
            f"{format_count(len(small) / steps)} all_reduce calls per step carry only "
            f"{format_bytes(total_bytes / len(small))} each; merged into buckets "
            f"the step would take {format_ns(merged.step_ns)}"
        ),
        detail=f"The shortest of them still takes {format_ns(shortest)}: latency, not bandwidth. {note}",
        action=advice_of.merge,
        gain_ns=merged.gain_ns,
        gain_ratio=merged.gain_ratio,
    )


def _hidden(evidence: Evidence) -> str:
    """How much of the communication computation covers."""
    if not any(rank.comm_ns for rank, _ in evidence.traced):
        return ""
    return f"{format_ratio(_hidden_share(evidence))} of the communication overlaps with compute. "


def _hidden_share(evidence: Evidence) -> float:
    """Of all ranks' communication; 0 without any."""
    measured = [rank for rank, _ in evidence.traced if rank.comm_ns]
    total = sum(rank.comm_ns or 0 for rank in measured)
    return sum((rank.comm_ns or 0) * (rank.overlap_ratio or 0) for rank in measured) / total if total else 0.0


def _communication_action(evidence: Evidence, late_rank: int | None, kind: str) -> str:
    if devices_of_one(evidence):
        return longest_words(evidence).overlap
    if not evidence.in_calls_ns or evidence.waiting_ns is None:
        return "Trace every rank to distinguish waiting from transfer."
    if evidence.waiting_ns > evidence.in_calls_ns / 2 and kind != "slow_link":
        late_ranks = f"rank {late_rank}" if late_rank is not None else "the ranks that enter last"
        return f"The link is not the cause: find out what delays {late_ranks} before the collective."
    if not _averages_gradients(evidence):
        return (
            "Give each call more to do (a larger batch), use fewer ranks in the group, or keep the group "
            "inside a host; `perfscope bench list` lists what this scheme sends."
        )
    advice_of = longest_words(evidence)
    counted = [
        collective
        for collective in evidence.collectives
        if collective.collective == (advice_of.counts or _longest(evidence))
    ]
    calls = sum(collective.count for collective in counted)
    sent = sum(collective.bytes or 0 for collective in counted)
    if calls and 0 < sent < calls * SMALL_BYTES and advice_of.small:
        return advice_of.small
    if 0 < calls <= evidence.steps_per_rank and advice_of.one_call:
        return advice_of.one_call
    hidden, ideal = evidence.what_ifs.of("full_overlap"), evidence.what_ifs.of("zero_transfer")
    if ideal is not None and (hidden.gain_ns if hidden else 0) < 0.5 * ideal.gain_ns:
        bring = format_ratio(hidden.gain_ratio if hidden else 0.0, 0)
        return (
            f"Send fewer bytes ({advice_of.fewer_bytes}) or use a faster link: overlapping all of it would "
            f"bring {bring} of the step at most."
        )
    return advice_of.overlap


def longest_words(evidence: Evidence) -> CommAdvice:
    """The words of the library that carries the calls on which most time goes by."""
    top = max(evidence.collectives, key=lambda collective: collective.duration_ns, default=None)
    return advice.communication(evidence.metas, (top.group,) if top is not None else ())


def _longest(evidence: Evidence) -> str:
    """The kind of call that takes most time."""
    top = max(evidence.collectives, key=lambda collective: collective.duration_ns, default=None)
    return top.collective if top is not None else ""


def _averages_gradients(evidence: Evidence) -> bool:
    """False for bench runs that send something else: activations, weights to and from a server."""
    scheme = evidence.run.scheme
    if scheme is None or scheme.axes is None:
        return True
    return scheme.parallelism == "data" and scheme.optimisation == "decentralised"
