"""Steps that take longer as the run goes on."""

from __future__ import annotations

from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject
from perfscope.messages.lists import counted
from perfscope.units import format_ns, format_ratio
from perfscope.vocabulary.run_parts import GrowingPart

_PARTS = {
    GrowingPart.INPUT: "waiting for input",
    GrowingPart.GARBAGE_COLLECTION: "in Python's garbage collection",
    GrowingPart.OUTSIDE: "outside the forward and backward passes",
    GrowingPart.PASSES: "in the forward and backward passes",
}
_ACTIONS = {
    GrowingPart.INPUT: "Look for what the dataset or its workers accumulate, and for a store that slows "
    "down as it fills.",
    GrowingPart.GARBAGE_COLLECTION: "Look for Python objects that the loop keeps: the collector visits all "
    "of them. If they must stay, raise `gc.set_threshold`, or call `gc.collect(); gc.freeze()` from time to "
    "time.",
    GrowingPart.OUTSIDE: "Look for what the loop accumulates and reads again in each step: lists of losses, "
    "outputs or metrics over all past steps, logs that are rewritten whole.",
    GrowingPart.PASSES: "Look for growing sequence lengths or input sizes, for state that the model keeps "
    "over steps (a hidden state that is not detached, a cache without a limit), and for dropping clock "
    "frequencies (see Machine).",
}
_ANY = (
    "Look for what the loop or the model accumulates, and for dropping clock frequencies (see Machine): "
    "`perfscope run --stacks` shows the functions that take longer."
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
            f"{heading}: the median goes from {format_ns(self.first_ns)} in the first eighth of "
            f"{counted(self.num_steps, 'step')} to {format_ns(self.last_ns)} in the last "
            f"({format_ratio(more / self.first_ns)} more)."
        )
        detail = "The medians of eight equal parts of the run rise steadily; traced steps are left out."
        if self.part is not None:
            who = f"Rank {subject.rank} spends" if subject.rank is not None else "Ranks spend"
            detail += f" {who} {format_ns(self.part_ns)} more of a step {_PARTS[self.part]}."
        return FindingText(title, detail, _ACTIONS[self.part] if self.part is not None else _ANY, heading)
