"""Communication along one axis of the mesh, or of one layer, as the cause."""

from __future__ import annotations

from perfscope.messages.advice import comm_advice
from perfscope.messages.findings.facts import PartOfStep, SmallCalls
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject, of_step
from perfscope.messages.links import TITLES as LINKS
from perfscope.messages.lists import counted
from perfscope.messages.whatif import FasterAxis
from perfscope.units import format_bytes, format_count, format_ns, format_rate, format_ratio
from perfscope.vocabulary.axes import Axis
from perfscope.vocabulary.findings import FindingKind
from perfscope.vocabulary.links import LinkClass

_AXES = {
    Axis.DP: "data parallelism",
    Axis.FSDP: "fully sharded data parallelism",
    Axis.TP: "tensor parallelism",
    Axis.SP: "sequence parallelism",
    Axis.PP: "pipeline parallelism",
    Axis.CP: "context parallelism",
    Axis.EP: "expert parallelism",
    Axis.NUMA: "replicas in NUMA domains",
}
_STATES = {
    FindingKind.SLOW_LINK: "is limited by its link",
    FindingKind.NO_OVERLAP: "is not overlapped with computation",
    FindingKind.COMM_BOUND: "is exposed",
    FindingKind.SERIALIZED: "is mostly ranks waiting for each other",
}
_ACTIONS = {
    Axis.FSDP: "Prefetch the all-gathers of the next layers (set_modules_to_forward_prefetch), or keep "
    "parameters after the forward pass (reshard_after_forward=False) where memory allows it.",
    Axis.PP: "Send smaller activations: more micro-batches, or a cut between stages where they are small.",
    Axis.EP: "Send fewer tokens: a smaller capacity factor, or experts of the same host first.",
}
_FEWER_RANKS = (
    "Use fewer ranks along {axis} or a larger batch, so that each call has more computation to overlap "
    "with; asynchronous tensor parallelism and sequence parallelism shorten what a layer waits for."
)


def axis_title(axis: str) -> str:
    """``tensor parallelism (tp)``; the name alone of axes that are not known."""
    title = {member.value: text for member, text in _AXES.items()}.get(axis)
    return f"{title} ({axis})" if title else axis


class AxisComm(FindingFacts, frozen=True, kw_only=True):
    """Exposed communication along one axis of several; per mean step and rank."""

    OF_TRACED_STEPS = ("wait_ns", "transfer_ns")

    axis: str
    inferred: bool
    exposed: PartOfStep
    collective: str | None  # with most of it; None: no call has a name
    layers: str | None  # name or pattern of layers with most of it; None: of no layer
    layers_ratio: float = 0.0  # of the axis' exposed communication
    group_size: int | None = None
    link: LinkClass | None = None
    calls: float = 0.0
    num_bytes: int | None = None
    wait_ns: int | None = None
    transfer_ns: int | None = None
    hidden_ratio: float | None = None
    library: str = ""
    small: SmallCalls | None = None
    faster: FasterAxis | None = None
    faster_link: LinkClass | None = None
    ideal_step_ns: int | None = None
    overlap_step_ns: int | None = None
    fast_link_step_ns: int | None = None

    def text(self, subject: Subject) -> FindingText:
        title, heading = _title(self, subject)
        return FindingText(title, _detail(self), _action(self, subject.kind), heading)


def _title(of: AxisComm, subject: Subject) -> tuple[str, str]:
    """The title, and its heading."""
    where = f" in {of.layers}" if of.layers else ""
    if of.small is not None:
        return (
            f"{format_count(of.small.calls_per_step)} all_reduce calls per step along {of.axis} carry only "
            f"{format_bytes(of.small.mean_bytes)} each; merged into buckets the step would take "
            f"{format_ns(of.small.merged_step_ns)}.",
            "",
        )
    mostly = f", mostly {of.collective}{where}" if of.collective else ""
    lead = f"Communication of {axis_title(of.axis)} {_STATES[subject.kind]}"
    return f"{lead}: {of_step(of.exposed)} is exposed{mostly}.", lead


def _detail(of: AxisComm) -> str:
    parts = [_calls(of)]
    if of.layers and of.layers_ratio:
        parts.append(f"{of.layers} has {format_ratio(of.layers_ratio, 0)} of what is exposed.")
    if of.wait_ns is not None and of.transfer_ns is not None:
        parts.append(
            f"The calls wait {format_ns(of.wait_ns)} for the last rank and transfer for "
            f"{format_ns(of.transfer_ns)}."
        )
    if of.hidden_ratio is not None:
        parts.append(f"{format_ratio(of.hidden_ratio, 0)} of it is hidden under computation.")
    if of.faster is not None and of.fast_link_step_ns is not None:
        over = f" over {LINKS[of.faster_link]}" if of.faster_link is not None else ""
        parts.append(
            f"Bytes move at {format_rate(of.faster.own_bytes_per_s)}, along {of.faster.axis}{over} at "
            f"{format_rate(of.faster.bytes_per_s)}; at that rate the step would take "
            f"{format_ns(of.fast_link_step_ns)}."
        )
    if of.overlap_step_ns is not None:
        parts.append(f"Hidden under computation, the step would take {format_ns(of.overlap_step_ns)}.")
    if of.ideal_step_ns is not None:
        parts.append(f"With zero-cost transfers it would take {format_ns(of.ideal_step_ns)}.")
    if of.inferred:
        parts.append("The axis is inferred from the calls; nothing names it.")
    return " ".join(parts)


def _calls(of: AxisComm) -> str:
    size = f" in groups of {counted(of.group_size, 'rank')}" if of.group_size else ""
    link = f" over {LINKS[of.link]}" if of.link is not None else ""
    carried = f" with {format_bytes(of.num_bytes)}" if of.num_bytes else ""
    return f"{format_count(of.calls)} calls per step and rank{carried}{size}{link}."


def _action(of: AxisComm, kind: FindingKind) -> str:
    if of.small is not None:
        return comm_advice(of.small.library).merge
    if (of.wait_ns or 0) > (of.transfer_ns or 0) and kind is not FindingKind.SLOW_LINK:
        return f"Find out what delays the ranks that enter the calls of {of.axis} last before the link."
    if kind is FindingKind.SLOW_LINK:
        return (
            f"Give {of.axis} the faster link: make it an inner axis of the mesh, so that its groups are "
            "ranks of one host or NUMA node, or send fewer bytes along it."
        )
    if of.axis in (Axis.TP, Axis.SP, Axis.CP):
        return _FEWER_RANKS.format(axis=of.axis)
    return {axis.value: action for axis, action in _ACTIONS.items()}.get(
        of.axis, comm_advice(of.library).overlap
    )


class UnevenComm(FindingFacts, frozen=True, kw_only=True):
    """A layer that communicates more than layers of the same name beside it; per mean step and rank."""

    OF_TRACED_STEPS = ("peer_ns",)

    pattern: str
    num_peers: int
    axis: str
    exposed: PartOfStep  # of the layer
    peer_ns: float  # median of the others
    num_bytes: int
    peer_bytes: float
    gain_ratio: float
    without_step_ns: int

    def text(self, subject: Subject) -> FindingText:
        times = self.num_bytes / self.peer_bytes
        return FindingText(
            f"Layer {subject.layer} sends {times:.1f} times the bytes of its peers along "
            f"{self.axis}: {of_step(self.exposed)} is its exposed communication.",
            f"It sends {format_bytes(self.num_bytes)} per step and rank; the median of the other "
            f"{self.num_peers} layers of {self.pattern} is {format_bytes(round(self.peer_bytes))}, "
            f"{format_ns(self.peer_ns)} of it exposed. With as much as they have, the step would take "
            f"{format_ns(self.without_step_ns)}, {format_ratio(self.gain_ratio)} less.",
            f"Compare how {subject.layer} is divided with the other layers of {self.pattern}: an output "
            "that is gathered twice, a missing shard, or another data type.",
        )
