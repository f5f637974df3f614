"""Experts that are given unequal numbers of tokens."""

from __future__ import annotations

from perfscope.messages.findings.facts import Prediction
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject, predicted
from perfscope.units import format_ns


class UnequalExperts(FindingFacts, frozen=True, kw_only=True):
    OF_TRACED_STEPS = ("wait_ns",)

    imbalance: float  # most loaded rank over the mean, of the costliest layer
    wait_ns: int  # per step and rank, over all layers of experts
    num_layers: int
    prediction: Prediction

    def text(self, subject: Subject) -> FindingText:
        more = f" and {self.num_layers - 1} more" if self.num_layers > 1 else ""
        lead = "Experts are unbalanced"
        where = "" if subject.layer is None else f"in layer {subject.layer}, "
        ranks = "Ranks" if subject.layer is None else f"In layer {subject.layer}{more}, ranks"
        return FindingText(
            f"{lead}: {where}rank {subject.rank} has the most tokens; the most "
            f"loaded rank of a step has {self.imbalance:.2f} times the mean.",
            f"{ranks} wait {format_ns(self.wait_ns)} per step on average "
            f"until the experts of the last rank are done.{predicted(self.prediction)}",
            "Balance the tokens: an auxiliary loss for load balance, a smaller capacity factor, or the "
            "busiest experts on different ranks.",
            lead,
        )
