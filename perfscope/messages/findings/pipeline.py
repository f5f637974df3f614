"""Pipelines: stages that take longer than others, and a bubble larger than the schedule's."""

from __future__ import annotations

from perfscope.messages.findings.facts import Prediction
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject, predicted
from perfscope.messages.pipelines import BUBBLE_PARTS, SCHEDULES
from perfscope.units import format_ns, format_ratio
from perfscope.vocabulary.pipelines import Schedule


class UnequalStages(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("slowest_ns", "fastest_ns", "imbalance_ns")

    slowest: int
    slowest_ns: int  # per step
    fastest: int
    fastest_ns: int
    relative: float  # slowest over the mean stage
    imbalance_ns: int  # per step and rank
    prediction: Prediction

    def text(self, subject: Subject) -> FindingText:
        times = f"{self.slowest_ns / max(self.fastest_ns, 1):.2g} times"
        lead = "Pipeline stages are unequal"
        return FindingText(
            f"{lead}: stage {self.slowest} computes {times} as long as stage "
            f"{self.fastest}, {format_ns(self.slowest_ns)} per step.",
            f"That is {self.relative:.2f} times the mean stage. Because stages take unequal time, ranks wait "
            f"{format_ns(self.imbalance_ns)} per step on average.{predicted(self.prediction)}",
            f"Move layers from stage {self.slowest} to stage {self.fastest}.",
            lead,
        )


class LargeBubble(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("parts_ns",)

    schedule: Schedule
    measured_ratio: float
    ideal_ratio: float
    parts_ns: dict[str, int]  # of the bubble per step and rank, by name
    prediction: Prediction
    stages_ns: int = 0  # of what that saves, by equal stages alone: not in the finding's saving

    def _stages(self) -> str:
        if not self.stages_ns:
            return ""
        return f" {format_ns(self.stages_ns)} of that comes from equal stages and is not in the saving above."

    def text(self, subject: Subject) -> FindingText:
        excess = {part: time for part, time in self.parts_ns.items() if part not in ("fill", "drain")}
        largest = max(excess, key=lambda part: excess[part])
        listed = ", ".join(
            f"{format_ns(time)} {BUBBLE_PARTS[part].lower()}" for part, time in self.parts_ns.items() if time
        )
        return FindingText(
            f"The pipeline bubble is {format_ratio(self.measured_ratio, 0)} of the ranks' time; the ideal of "
            f"{SCHEDULES[self.schedule]} is {format_ratio(self.ideal_ratio, 0)}.",
            f"Per step and rank, the bubble is {listed}.{predicted(self.prediction)}{self._stages()}",
            _ACTIONS[largest],
        )


_ACTIONS = {
    "imbalance": "Balance the stages: move layers from the slowest to the fastest.",
    "late_sends": "Speed up sends between stages: a faster link, smaller activations, or sends that are "
    "posted before the next microbatch is computed.",
    "other": "Look at what ranks do between two microbatches: the loss, Python, logging.",
}
