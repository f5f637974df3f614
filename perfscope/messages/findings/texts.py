"""The text of a finding, and phrases that several findings use."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from perfscope.messages.findings.facts import PartOfStep, Prediction, WaitOrTransfer
from perfscope.units import format_ns, format_ratio
from perfscope.vocabulary.findings import FindingKind


class FindingText(NamedTuple):
    title: str  # one sentence with figures
    detail: str  # evidence, in sentences
    action: str  # what to do about it
    heading: str = ""  # what the title says before its figures; "": the title is not divided


class Subject(Struct, frozen=True, kw_only=True):
    """What a finding is about.

    Attributes:
        kind: of finding.
        rank: None: all ranks.
        layer: None: no single one.
        is_verdict: worded as what bounds the step.
    """

    kind: FindingKind
    rank: int | None = None
    layer: str | None = None
    is_verdict: bool = False


class FindingFacts(Struct, frozen=True, kw_only=True):
    """What a finding is made of: figures, ranks and codes; each kind of finding has its own.

    Times are ns per mean analyzed step and rank unless said otherwise. `framework` and `library` are the keys
    of `messages.advice`.

    Attributes:
        OF_TRACED_STEPS: names of the fields that are times of traced steps, beside PartOfStep and
            WaitOrTransfer. What the replay predicts is on the scale of the median step already.
    """

    OF_TRACED_STEPS: ClassVar[tuple[str, ...]] = ()

    def on_usual_step(self, factor: float) -> FindingFacts:
        """The same with times of traced steps on the scale of the median untraced one.

        Args:
            factor: median untraced step / mean traced step.
        """
        changed: dict[str, object] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (PartOfStep, WaitOrTransfer)):
                changed[name] = value.on_usual_step(factor)
            elif name in self.OF_TRACED_STEPS and value is not None:
                changed[name] = _scaled(value, factor)
        return replace(self, **changed)

    def text(self, subject: Subject) -> FindingText:
        """The finding in sentences."""
        raise NotImplementedError


def _scaled(value: object, factor: float) -> object:
    if isinstance(value, dict):
        return {name: _scaled(part, factor) for name, part in value.items()}
    assert isinstance(value, (int, float))
    return round(value * factor) if isinstance(value, int) else value * factor


def of_step(part: PartOfStep) -> str:
    """``41.0 % of the median step (12.3 ms of 30.1 ms)``."""
    share = format_ratio(part.part_ns / part.step_ns)
    name = "median step" if part.is_usual else "mean step" if part.has_step_marks else "traced time"
    return f"{share} of the {name} ({format_ns(part.part_ns)} of {format_ns(part.step_ns)})"


def predicted(prediction: Prediction) -> str:
    """A sentence, with a space before it."""
    doubt = f" ({prediction.caution})" if prediction.caution else ""
    return f" With {prediction.change} the step would take {format_ns(prediction.step_ns)}{doubt}."


def wait_or_transfer(waits: WaitOrTransfer) -> str:
    """How much of the time in calls is waiting for the last rank, and how much transfer."""
    if waits.num_devices:
        return (
            f"Waiting and transfer cannot be distinguished: the {waits.num_devices} devices belong to one "
            "process, and the trace does not show which of them entered a call last."
        )
    if not waits.in_calls_ns or waits.waiting_ns is None:
        return "Waiting and transfer cannot be distinguished: that needs the traces of every rank of a group."
    steps = max(waits.num_steps, 1)
    unit = "step" if waits.has_step_marks else "file"
    at_once = " (overlapping)" if waits.transfer_ns > 1.1 * (waits.in_calls_ns - waits.waiting_ns) else ""
    return (
        f"Average over ranks: {format_ns(waits.in_calls_ns / steps)} per {unit} in collectives, "
        f"{format_ratio(waits.waiting_ns / waits.in_calls_ns)} of it ({format_ns(waits.waiting_ns / steps)}) "
        f"waiting for the last rank to enter; the transfers themselves take "
        f"{format_ns(waits.transfer_ns / steps)}{at_once}."
    )
