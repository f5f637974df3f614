"""Why a rank was late, as a sentence."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from perfscope.units import format_ns
from perfscope.vocabulary.lateness import LateReason


class Lateness(Struct, kw_only=True):
    """What is known of a late entry; filled in while the reason is looked for."""

    reason: LateReason
    rank: int
    lateness_ns: int
    excess_ns: int
    layer: str | None = None
    phase: str | None = None
    has_layers: bool = True  # the traces name layers at all
    loader: str = "data loader"  # what the framework gets its batches from
    part_ns: int = 0  # of `excess_ns`, in that layer and phase
    ratio: float = 0.0  # computation, its own over the others'
    alike: bool = False  # all layers are slower by about that
    spread: bool = False  # many layers are slower
    by: str = ""  # who or what is to blame outside the rank
    meanwhile: str = ""  # what disturbed its host in that window
    collective: str = ""
    group: str | None = None
    on_device: bool = False  # the line is a device's
    before: bool = False  # in the step before the traced ones
    early_rank: int = -1  # who waited longest ...
    early_ns: int = 0  # ... and how long


def late_sentence(late: Lateness) -> str:
    """One sentence that begins with the rank."""
    return f"Rank {late.rank} {_WORDS[late.reason](late)}."


def _more(late: Lateness) -> str:
    return f"{format_ns(late.excess_ns)} more than the others"


def _where(late: Lateness) -> str:
    """``layer features.3, backward``."""
    if late.layer is None:
        return "operators outside every layer"
    return f"{late.phase} of {late.layer}" if late.phase else late.layer


def _alike(late: Lateness) -> str:
    return ", in all layers alike" if late.has_layers else ""


def _compute(late: Lateness) -> str:
    if late.alike:
        return f"computed {_more(late)}, {late.ratio:.2f} times as long{_alike(late)}"
    if not late.has_layers:
        return f"computed {_more(late)}"
    if late.spread:
        return f"computed {_more(late)}, spread over many layers"
    if late.part_ns >= late.excess_ns:
        return f"computed {_more(late)}, in {_where(late)}"
    return f"computed {_more(late)}, {format_ns(late.part_ns)} of it in {_where(late)}"


def _split(late: Lateness) -> str:
    return f"computed {_more(late)}: it has layers that most of them do not have, above all {_where(late)}"


def _upstream(late: Lateness) -> str:
    return f"was still computing what the other end has no part in, above all {_where(late)}: {_more(late)}"


def _numa(late: Lateness) -> str:
    alike = " in all layers alike" if late.has_layers else ""
    return f"computed {late.ratio:.2f} times as long as the others{alike}, and {late.by}"


def _noise(late: Lateness) -> str:
    alike = " in all layers alike" if late.has_layers else ""
    did = f"{late.ratio:.2f} times as long as the others{alike}" if late.alike else _more(late)
    return f"took {did} for the same work: {late.by}"


def _left(late: Lateness) -> str:
    where = f"{late.collective} on group {late.group}"
    return f"left the previous call, {where}, {format_ns(late.excess_ns)} late"


def _busy(late: Lateness) -> str:
    if not late.collective:
        return f"was in other communication for {_more(late)}"
    return f"was still in {late.collective} on group {late.group}, for {_more(late)}"


def _input(late: Lateness) -> str:
    where = ", at the end of the step before the traced ones" if late.before else ""
    return f"waited for its {late.loader} for {_more(late)}{where}"


def _idle(late: Lateness) -> str:
    if late.on_device:
        return f"had an idle device for {_more(late)}: its host launched late"
    return f"ran no operator for {_more(late)}: Python code, sleep, or another process on its CPU"


_WORDS: dict[LateReason, Callable[[Lateness], str]] = {
    LateReason.COMPUTE: _compute,
    LateReason.MODEL_SPLIT: _split,
    LateReason.UPSTREAM: _upstream,
    LateReason.NUMA_REMOTE: _numa,
    LateReason.DISTURBED: _noise,
    LateReason.OVERSUBSCRIBED: _noise,
    LateReason.INPUT_WAIT: _input,
    LateReason.OPTIMIZER: lambda late: f"was in the optimizer for {_more(late)}",
    LateReason.COPY: lambda late: f"copied between host and device for {_more(late)}",
    LateReason.IDLE: _idle,
    LateReason.EXPOSED_COMM: _busy,
    LateReason.LEFT_LATE: _left,
    LateReason.STARTED_LATE: lambda late: f"began the step {format_ns(late.excess_ns)} later than the others",
    LateReason.UNTRACED: lambda late: f"was outside the traced steps for {_more(late)}",
    LateReason.TOGETHER: lambda late: (
        f"entered with most of the others, {format_ns(late.lateness_ns)} late; rank {late.early_rank} was "
        f"early and waited {format_ns(late.early_ns)}"
    ),
    LateReason.UNCLEAR: lambda late: (
        f"entered {format_ns(late.lateness_ns)} later than the others, for several small reasons"
    ),
}
