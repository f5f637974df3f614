"""Communication as the cause, and what helps against each kind of it."""

from __future__ import annotations

from perfscope.messages.advice import CommAdvice, comm_advice
from perfscope.messages.findings.facts import LateRank, PartOfStep, Sent, SmallCalls, WaitOrTransfer
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject, of_step, wait_or_transfer
from perfscope.messages.lists import plural
from perfscope.units import format_bytes, format_count, format_ns, format_ratio
from perfscope.vocabulary.findings import FindingKind

# kind -> (as the verdict, beside another one)
_LEADS = {
    FindingKind.SERIALIZED: ("Bound by waiting for other ranks", "Ranks wait for each other"),
    FindingKind.COMM_BOUND: ("Communication-bound", "Communication is exposed"),
    FindingKind.SLOW_LINK: ("Limited by network bandwidth", "The network is slow for the bytes sent"),
    FindingKind.NO_OVERLAP: ("Communication-bound without overlap", "Communication is not overlapped"),
    FindingKind.SMALL_COLLECTIVES: ("Latency-bound: many small calls", "Many small calls"),
}
_INSIDE_HOST = (
    "Limited by intra-host bandwidth",
    "Intra-host communication is slow for the bytes sent",
)


class ExposedComm(FindingFacts, frozen=True, kw_only=True):
    """`FindingKind` has which kind of communication problem it is."""

    exposed: PartOfStep
    collective: str | None  # None: several kinds
    late: LateRank | None
    overlap_ratio: float | None
    waits: WaitOrTransfer
    library: str  # of the calls that take most time
    sends_gradients: bool  # a bench scheme may send something else
    longest: str  # kind of call that takes most time
    sent: tuple[Sent, ...]
    small_bytes: int  # calls with fewer are small
    small: SmallCalls | None = None
    ideal_step_ns: int | None = None  # on an ideal network; None: not replayed
    ideal_gain_ns: int = 0
    ideal_gain_ratio: float = 0.0
    overlap_gain_ns: int = 0  # with all of it overlapped
    overlap_gain_ratio: float = 0.0
    fast_link_step_ns: int | None = None  # with twice the bandwidth, where that helps
    is_one_host: bool = False  # no call leaves it

    def text(self, subject: Subject) -> FindingText:
        title, heading = _title(self, subject)
        return FindingText(title, _detail(self), _action(self, subject.kind), heading)


def _title(of: ExposedComm, subject: Subject) -> tuple[str, str]:
    """The title, and its heading."""
    if of.small is not None:
        return (
            f"{format_count(of.small.calls_per_step)} all_reduce calls per step carry only "
            f"{format_bytes(of.small.mean_bytes)} each; merged into buckets the step would take "
            f"{format_ns(of.small.merged_step_ns)}.",
            "",
        )
    if subject.kind is FindingKind.SERIALIZED:
        lead = "Ranks wait for each other's work"
        return (
            f"{lead}: {of_step(of.exposed)} is exposed communication, and an ideal network would save "
            f"{format_ratio(of.ideal_gain_ratio)} of the step.",
            lead,
        )
    what = f"exposed {of.collective}" if of.collective else "communication not overlapped with compute"
    late = ""
    if of.late is not None:
        times, calls = format_count(of.late.num_late), format_count(of.late.num_calls)
        late = f"; rank {of.late.rank} enters last in {times} of {calls} {plural('call', of.late.num_calls)}"
    leads = _INSIDE_HOST if of.is_one_host and subject.kind is FindingKind.SLOW_LINK else _LEADS[subject.kind]
    lead = leads[0 if subject.is_verdict else 1]
    return f"{lead}: {of_step(of.exposed)} is {what}{late}.", lead


def _detail(of: ExposedComm) -> str:
    parts = []
    if of.small is not None:
        shortest = format_ns(of.small.shortest_ns)
        parts.append(f"The shortest of them still takes {shortest}: latency, not bandwidth. ")
    if of.ideal_step_ns is not None:
        parts.append(f"On an ideal network the step would take {format_ns(of.ideal_step_ns)}. ")
    if of.fast_link_step_ns is not None:
        parts.append(f"With twice the bandwidth the step would take {format_ns(of.fast_link_step_ns)}. ")
    if of.is_one_host and of.fast_link_step_ns is not None and not of.waits.num_devices:
        parts.append(
            "All ranks of these calls are on one host: its CPU cores copy the data between processes. "
        )
    parts.append(comm_advice(of.library).calls_are)
    if of.overlap_ratio is not None:
        parts.append(f"{format_ratio(of.overlap_ratio)} of the communication overlaps with compute. ")
    return "".join([*parts, wait_or_transfer(of.waits)])


def _action(of: ExposedComm, kind: FindingKind) -> str:
    if of.small is not None:
        return comm_advice(of.small.library).merge
    if kind is FindingKind.SERIALIZED:
        return (
            "Shorten what ranks wait for: more micro-batches in a pipeline, even stages, fewer points at "
            "which all must meet. A faster link brings little."
        )
    advice = comm_advice(of.library)
    if of.waits.num_devices:
        return advice.overlap
    if not of.waits.in_calls_ns or of.waits.waiting_ns is None:
        return "Trace every rank to distinguish waiting from transfer."
    if of.waits.is_mostly_waiting and kind is not FindingKind.SLOW_LINK:
        late_ranks = f"rank {of.late.rank}" if of.late is not None else "the ranks that enter last"
        return f"The link is not the cause: find out what delays {late_ranks} before the collective."
    if not of.sends_gradients:
        return (
            "Give each call more to do (a larger batch), use fewer ranks in the group, or keep the group "
            "inside a host; `perfscope bench list` lists what this scheme sends."
        )
    return _link_action(of, advice, inside_host=of.is_one_host and kind is FindingKind.SLOW_LINK)


def _link_action(of: ExposedComm, advice: CommAdvice, *, inside_host: bool) -> str:
    """How to send less, or earlier."""
    counted = [sent for sent in of.sent if sent.collective == (advice.counts or of.longest)]
    calls, num_bytes = sum(row.num_calls for row in counted), sum(row.num_bytes for row in counted)
    if calls and 0 < num_bytes < calls * of.small_bytes and advice.small:
        return advice.small
    if of.ideal_step_ns is not None and of.overlap_gain_ns < 0.5 * of.ideal_gain_ns:
        otherwise = "use fewer processes with more threads each" if inside_host else "use a faster link"
        return (
            f"Send fewer bytes ({advice.fewer_bytes}) or {otherwise}: overlapping all of it would "
            f"save at most {format_ratio(of.overlap_gain_ratio, 0)} of the step."
        )
    if 0 < calls <= of.waits.num_steps and advice.one_call:
        return advice.one_call
    if inside_host:
        return (
            f"Overlap more of it with the backward pass, send fewer bytes ({advice.fewer_bytes}), or use "
            "fewer processes with more threads each."
        )
    return advice.overlap
