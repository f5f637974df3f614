"""Figures of the report that contradict each other."""

from __future__ import annotations

from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject
from perfscope.vocabulary.self_checks import Check

CHECKS = {
    Check.BREAKDOWN_SUM: "the parts of the step do not add up to the step",
    Check.DEVICE_SUM: "compute, communication, copies and idle time do not add up to the devices' time",
    Check.DEVICE_IDLE_SUM: "what the host was in does not add up to the devices' idle time",
    Check.DEVICE_IDLE_STEP: "the step is idle for longer than the devices are",
    Check.COMM_BY_LAYER_SUM: "the communication of layers does not add up to all of it",
    Check.COMM_BY_AXIS_SUM: "the communication along axes does not add up to all of it",
    Check.COMM_OF_STEP: "the communication by layer and axis is not that of the step",
    Check.COMM_PRESENT: "communication is both present and absent",
    Check.WAIT_WITHIN_CALLS: "ranks wait for longer in collectives than they are in them",
    Check.PATH_SUM: "the parts of the critical path do not add up to it",
    Check.PATH_IDLE: "the device is always busy, and most of the critical path is not on it",
    Check.PATH_VERDICT: "gaps bound the step, and the critical path has hardly any",
    Check.GAIN_WITHIN_STEP: "a saving is larger than the step",
    Check.GAIN_WITHIN_CAUSE: "a saving is larger than what would be removed",
    Check.WHAT_IF_STEP: "a predicted step and its saving do not add up to the step",
}


class ContradictedFigures(FindingFacts, frozen=True, kw_only=True):
    """`checks`: (check, what it is of, the figure, what it should be) of the first failure of each."""

    checks: tuple[tuple[Check, str, float, float], ...]

    def text(self, subject: Subject) -> FindingText:
        contradictions = "; ".join(
            f"{CHECKS[check]} ({f'{of}: ' if of else ''}{actual:.12g} against {expected:.12g})"
            for check, of, actual, expected in self.checks
        )
        lead = "Bug in perfscope"
        return FindingText(
            f"{lead}: {contradictions}.",
            "Figures of this report contradict each other, so it gives no verdict that rests on them.",
            "Report it with the output of `perfscope report --json`; `self_checks` lists the figures.",
            lead,
        )
