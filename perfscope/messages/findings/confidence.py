"""How far a finding can be trusted: what that rests on, and its sentence."""

from __future__ import annotations

from msgspec import Struct

from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject
from perfscope.messages.lists import counted
from perfscope.units import format_count, format_ratio
from perfscope.vocabulary.confidence import ConfidenceLevel, Doubt


class Reason(Struct, frozen=True, kw_only=True):
    """Something that speaks against a finding."""

    doubt: Doubt
    level: ConfidenceLevel  # the highest that it allows
    value: float | None  # what `Doubt` says; None: no figure


class Confidence(Struct, frozen=True, kw_only=True):
    """How far a finding can be trusted.

    Attributes:
        level: the lowest of its reasons'; high without any.
        reasons: what speaks against it, the weightiest first.
        num_steps: traced steps per rank, or of findings of always-on figures timed ones; None: of no steps.
        traced_ratio: mean traced step / median untraced one; None: not of traced steps, or none is untraced.
        spread_ratio: difference between the medians of the run's halves / median step; None: too few steps.
    """

    level: ConfidenceLevel
    reasons: tuple[Reason, ...] = ()
    num_steps: float | None = None
    traced_ratio: float | None = None
    spread_ratio: float | None = None

    @property
    def sentence(self) -> str:
        """``Confidence low: only 2 steps.``; "" of what needs no steps."""
        if self.level is ConfidenceLevel.HIGH and self.num_steps is None:
            return ""
        lowest = [reason for reason in self.reasons if reason.level is self.level]
        why = [reason_text(reason) for reason in lowest] or self._grounds()
        return f"Confidence {self.level.value}{': ' if why else ''}{'; '.join(why)}."

    def _grounds(self) -> list[str]:
        """What a high level rests on."""
        if self.num_steps is None:
            return []
        if self.traced_ratio is None:
            return [counted(round(self.num_steps), "step")]
        return [
            f"{counted(round(self.num_steps), 'traced step')}, {_times(self.traced_ratio)} as long as others"
        ]


def reason_text(reason: Reason) -> str:
    """A clause."""
    value = 0.0 if reason.value is None else reason.value
    return {
        Doubt.FEW_STEPS: f"only {counted(round(value), 'step')}",
        Doubt.UNLIKE_UNTRACED: f"traced steps took {_times(value)} as long as the median step",
        Doubt.ALWAYS_ON_DIFFERS: f"over all steps it is {_times(value)} what the traced steps show",
        Doubt.NO_UNTRACED_STEP: "no untraced steps to compare with",
        Doubt.NO_STEP_MARKS: "no step marks, so each trace counts as one step",
        Doubt.DISTURBED: f"{_windows(value)} disturbed",
        Doubt.SPREAD: f"step times of the run's halves differ by {format_ratio(value, 0)}",
        Doubt.WITHIN_SPREAD: f"the saving is {_times(value)} the difference between the run's halves",
        Doubt.UNSEEN_CALLS: f"{format_ratio(value, 0)} of the ranks communicate in untraced threads",
        Doubt.NOT_MEASURED: "what it costs was not measured",
    }[reason.doubt]


def _windows(share: float) -> str:
    return "the traced steps were" if share >= 1 else f"{format_ratio(share, 0)} of the traced windows were"


def _times(ratio: float) -> str:
    return f"{ratio:.2g} times" if ratio < 10 else f"{format_count(ratio)} times"


class NotEnoughEvidence(FindingFacts, frozen=True, kw_only=True):
    """In place of a verdict that the traced steps cannot carry."""

    reasons: tuple[Reason, ...]

    def text(self, subject: Subject) -> FindingText:
        why = "; ".join(reason_text(reason) for reason in self.reasons)
        lead = "Not enough evidence for a verdict"
        if all(reason.doubt is Doubt.UNSEEN_CALLS for reason in self.reasons):
            return FindingText(
                f"{lead}: {why}.",
                "Most of the step has no operator of the traced thread. How much of that is waiting for "
                "communication is not known.",
                "Communicate in the thread that trains (`async_op=True` overlaps it with computation as "
                "well), or read the time of these calls from the program itself.",
                lead,
            )
        return FindingText(
            f"{lead}: {why}.",
            "The traced steps are not typical of this run, so neither their parts nor what-ifs are reliable.",
            "Train for more steps and trace several windows (`perfscope run --windows 6`), on a machine "
            "without other load.",
            lead,
        )
