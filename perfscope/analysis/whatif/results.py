"""A step without one of its costs, as the replay has it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace


class WhatIf(Struct, frozen=True, kw_only=True):
    """One changed thing and the step time it would give.

    Attributes:
        id: stable slug: perfect_balance, zero_transfer, full_overlap, no_input_wait, no_stragglers,
            double_bandwidth, one_bucket, roofline:LAYER; of one axis of the mesh zero_transfer:AXIS,
            full_overlap:AXIS, fast_link:AXIS; of a loader those of
            vocabulary.loading.LoaderChange, faster_store:FACTOR.
        title: what is changed, in words.
        step_ns: the predicted step, in the scale of the usual (untraced) step.
        gain_ns: median untraced step - step_ns; never negative.
        gain_ratio: gain_ns / median untraced step.
        evidence: figures it rests on.
        of_mean: these are of the mean untraced step, not the median one: waiting for input.
        caution: why it is doubtful; "" where nothing speaks against it.
    """

    id: str
    title: str
    step_ns: int
    gain_ns: int
    gain_ratio: float
    evidence: str
    caution: str = ""
    layer: str | None = None
    rank: int | None = None
    axis: str | None = None
    of_mean: bool = False


class ReplayCheck(Struct, frozen=True, kw_only=True):
    """How well the replay without any change gives the measured steps: what what-ifs can be trusted to."""

    num_steps: int
    measured_ns: int  # mean traced step
    replayed_ns: int  # time of the unchanged replay
    error_ratio: float  # |replayed - measured| / measured, mean over steps


def bounded(what_if: WhatIf, most_ns: float, evidence: str) -> WhatIf:
    """The same with a gain of `most_ns`, and `evidence` of it beside its own."""
    usual_ns, gain_ns = what_if.step_ns + what_if.gain_ns, max(0, round(most_ns))
    return replace(
        what_if,
        step_ns=usual_ns - gain_ns,
        gain_ns=gain_ns,
        gain_ratio=gain_ns / usual_ns if usual_ns else 0.0,
        evidence=f"{what_if.evidence}; {evidence}",
    )
