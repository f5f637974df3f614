"""Steps that take longer as the run goes on."""

from __future__ import annotations

from enum import Enum

from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject
from perfscope.messages.lists import counted
from perfscope.units import format_ns, format_ratio


class GrowingPart(str, Enum):
    """What of a step grows."""

    INPUT = "input"
    GARBAGE_COLLECTION = "garbage_collection"
    OUTSIDE = "outside"
    PASSES = "passes"


_PARTS = {
    GrowingPart.INPUT: "that waits for input",
    GrowingPart.GARBAGE_COLLECTION: "in Python's garbage collection",
    GrowingPart.OUTSIDE: "outside the forward and backward passes",
    GrowingPart.PASSES: "in the forward and backward passes",
}
_ACTIONS = {
    GrowingPart.INPUT: "Look for what the dataset or its workers accumulate, and for a store that slows "
    "down as it fills.",
    GrowingPart.GARBAGE_COLLECTION: "Look for Python objects that the loop keeps: the collector visits all "
    "of them. Call `gc.freeze()` after the set-up.",
    GrowingPart.OUTSIDE: "Look for what the loop accumulates and reads again in each step: lists of losses, "
    "outputs or metrics over all past steps, logs that are rewritten whole.",
    GrowingPart.PASSES: "Look for inputs that get longer, for state that the model keeps over steps (a "
    "hidden state that is not detached, a cache without a limit), and for clocks that fall (see Machine).",
}
_ANY = (
    "Look for what the loop or the model accumulates, and for clocks that fall (see Machine): `perfscope run "
    "--stacks` shows the functions that take longer."
)


class StepsGrow(FindingFacts, frozen=True, kw_only=True):
    """Times of untraced steps, see analysis.whole_run.growth.StepGrowth."""

    first_ns: float
    last_ns: float
    num_steps: int
    part: GrowingPart | None
    part_ns: float

    def text(self, subject: Subject) -> FindingText:
        heading = "Steps get longer over the run"
        more = self.last_ns - self.first_ns
        title = (
            f"{heading}: from {format_ns(self.first_ns)} in the first eighth of "
            f"{counted(self.num_steps, 'step')} to {format_ns(self.last_ns)} in the last "
            f"({format_ratio(more / self.first_ns)} more)."
        )
        detail = "The medians of eight equal parts of the run rise steadily; traced steps are left out."
        if self.part is not None:
            whose = f"rank {subject.rank}" if subject.rank is not None else "the ranks"
            detail += f" The time of {whose} {_PARTS[self.part]} grows by {format_ns(self.part_ns)}."
        return FindingText(title, detail, _ACTIONS[self.part] if self.part is not None else _ANY, heading)
