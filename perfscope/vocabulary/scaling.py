"""Quantities of scaling studies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fitted(str, Enum):
    """What a scaling law is fitted to, with its unit."""

    THROUGHPUT = "throughput (samples/s)"
    STEP_TIME = "time per step (s)"
    SAMPLE_TIME = "time per sample (s)"


class ModeReason(Enum):
    """Why scaling counts as strong, as weak or as neither."""

    STATED = "stated"
    ONE_SIZE = "one_size"  # one number of ranks
    NOT_RECORDED = "not_recorded"  # samples per rank
    SAME_PER_RANK = "same_per_rank"  # weak
    DIVIDED = "divided"  # strong
    NEITHER = "neither"


class FitRefusal(Enum):
    """Why a law is not fitted, or gives no value for some number of ranks."""

    TOO_FEW_SIZES = "too_few_sizes"
    ONE_RANK_NOT_KNOWN = "one_rank_not_known"
    CONSTANT_AS_GOOD = "constant_as_good"
    NOT_A_SIZE = "not_a_size"
    TOO_FAR = "too_far"


class FitNote(Enum):
    """What else there is to know of a fitted law."""

    LEFT_OUT = "left_out"  # figures that are no measurement
    ONE_REPEAT = "one_repeat"
    NO_SERIAL_PART = "no_serial_part"
    NO_PEAK = "no_peak"
    NO_TERM = "no_term"


@dataclass(frozen=True)
class RefusedFit:
    """Why there is no fit, with the figures that its message states.

    Attributes:
        needed: different numbers of ranks that the law takes, or how many times the largest it reaches.
        available: different numbers of ranks that there are, or the largest.
        num_ranks: that was asked for.
        level: of a constant, samples/s.
        constant_error, error: mean relative errors of the constant and of the law.
    """

    kind: FitRefusal
    needed: int = 0
    available: int = 0
    num_ranks: float = 0.0
    level: float = 0.0
    constant_error: float = 0.0
    error: float = 0.0


@dataclass(frozen=True)
class FitRemark:
    """A note with the number that its message states."""

    note: FitNote
    count: int = 0
