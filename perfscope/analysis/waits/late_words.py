"""Why a rank was late, as a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfscope.units import format_ns


@dataclass(slots=True, kw_only=True)
class Told:
    """What a sentence is made of, while it is found out."""

    reason: str
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


def sentence(told: Told) -> str:
    """One sentence that begins with the rank."""
    return f"Rank {told.rank} {_WORDS[told.reason](told)}."


def _more(told: Told) -> str:
    return f"{format_ns(told.excess_ns)} more than the others"


def _where(told: Told) -> str:
    """``layer features.3, backward``."""
    if told.layer is None:
        return "operators outside every layer"
    return f"{told.phase} of {told.layer}" if told.phase else told.layer


def _alike(told: Told) -> str:
    return ", in all layers alike" if told.has_layers else ""


def _compute(told: Told) -> str:
    if told.alike:
        return f"computed {_more(told)}, {told.ratio:.2f} times as long{_alike(told)}"
    if not told.has_layers:
        return f"computed {_more(told)}"
    if told.spread:
        return f"computed {_more(told)}, spread over many layers"
    if told.part_ns >= told.excess_ns:
        return f"computed {_more(told)}, in {_where(told)}"
    return f"computed {_more(told)}, {format_ns(told.part_ns)} of it in {_where(told)}"


def _split(told: Told) -> str:
    return f"computed {_more(told)}: it has layers that most of them do not have, above all {_where(told)}"


def _upstream(told: Told) -> str:
    return f"was still computing what the other end has no part in, above all {_where(told)}: {_more(told)}"


def _numa(told: Told) -> str:
    alike = " in all layers alike" if told.has_layers else ""
    return f"computed {told.ratio:.2f} times as long as the others{alike}, and {told.by}"


def _noise(told: Told) -> str:
    alike = " in all layers alike" if told.has_layers else ""
    did = f"{told.ratio:.2f} times as long as the others{alike}" if told.alike else _more(told)
    return f"took {did} for the same work: {told.by}"


def _left(told: Told) -> str:
    where = f"{told.collective} on group {told.group}"
    return f"left the call before, {where}, {format_ns(told.excess_ns)} later than the others"


def _busy(told: Told) -> str:
    if not told.collective:
        return f"was in other communication for {_more(told)}"
    return f"was still in {told.collective} on group {told.group}, for {_more(told)}"


def _input(told: Told) -> str:
    where = ", at the end of the step before the traced ones" if told.before else ""
    return f"waited for its {told.loader} for {_more(told)}{where}"


def _idle(told: Told) -> str:
    if told.on_device:
        return f"had an idle device for {_more(told)}: its host launched late"
    return f"ran no operator for {_more(told)}: Python code, sleeping, or another process on its CPU"


_WORDS: dict[str, Callable[[Told], str]] = {
    "compute": _compute,
    "model_split": _split,
    "upstream": _upstream,
    "numa_remote": _numa,
    "disturbed": _noise,
    "oversubscribed": _noise,
    "input_wait": _input,
    "optimizer": lambda told: f"was in the optimizer for {_more(told)}",
    "copy": lambda told: f"copied between host and device for {_more(told)}",
    "idle": _idle,
    "exposed_comm": _busy,
    "left_late": _left,
    "started_late": lambda told: f"began the step {format_ns(told.excess_ns)} later than the others",
    "untraced": lambda told: f"was outside the traced steps for {_more(told)}",
    "together": lambda told: (
        f"came with most of the others, {format_ns(told.lateness_ns)} behind; rank {told.early_rank} was "
        f"early and waited {format_ns(told.early_ns)}"
    ),
    "unclear": lambda told: (
        f"came {format_ns(told.lateness_ns)} later than the others, by several small things"
    ),
}
