"""How far a finding can be trusted, and what speaks against it."""

from __future__ import annotations

from enum import Enum


class ConfidenceLevel(str, Enum):
    """The value is the code in the JSON report."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"  # not enough evidence for a verdict


class Doubt(str, Enum):
    """Why a level is no higher; what the figure beside it is."""

    FEW_STEPS = "few_steps"  # steps per rank that it rests on
    UNLIKE_UNTRACED = "unlike_untraced"  # mean traced step / median untraced one
    ALWAYS_ON_DIFFERS = "always_on_differs"  # what always-on timing gives / what the trace gives
    NO_UNTRACED_STEP = "no_untraced_step"  # untraced steps to compare with
    NO_STEP_MARKS = "no_step_marks"  # ranks of which each trace counts as one step
    DISTURBED = "disturbed"  # share of the traced windows that a disturbance hit
    SPREAD = "spread"  # between the medians of the run's halves, of the median step
    WITHIN_SPREAD = "within_spread"  # the saving / that spread
    UNSEEN_CALLS = "unseen_calls"  # share of the traced ranks with communication that no trace shows
    NOT_MEASURED = "not_measured"  # no figure: the cause is seen, what it costs is not
