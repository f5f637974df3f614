"""Calls that keep the training thread from its work in every step, in words."""

from __future__ import annotations

from perfscope.messages.findings.asleep import ASLEEP_ADVICE
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject
from perfscope.messages.lists import joined
from perfscope.units import format_ns, format_ratio
from perfscope.vocabulary.host_activity import HostActivity

_RARE = 0.1  # calls per step, below which it is said how many steps have one


class FileSync(FindingFacts, frozen=True, kw_only=True):
    """Syncs of files, of the rank that stands out, else of the mean one; all times are per mean step."""

    names: tuple[str, ...]
    ns: float
    step_ns: float
    calls_per_step: float

    def text(self, subject: Subject) -> FindingText:
        thread = (
            "the training thread" if subject.rank is None else f"the training thread of rank {subject.rank}"
        )
        lead = "Blocked in file I/O"
        title = (
            f"{lead}: for {format_ratio(self.ns / self.step_ns)} of the mean step ({format_ns(self.ns)} of "
            f"{format_ns(self.step_ns)}) {thread} waits in {joined(self.names)}."
        )
        detail = f"{_frequency(self.calls_per_step)}, timed in every step."
        return FindingText(title, detail, ASLEEP_ADVICE[HostActivity.FILES], lead)


class ObjectCollectives(FindingFacts, frozen=True, kw_only=True):
    """Collectives of Python objects, of the mean rank; all times are per mean step.

    Attributes:
        pickling_ns: None: this torch does not show it.
    """

    names: tuple[str, ...]
    ns: float
    step_ns: float
    calls_per_step: float
    pickling_ns: float | None

    @property
    def transfer_ratio(self) -> float:
        """Share of the step that is not pickling: waiting for other ranks, and transfer."""
        return (self.ns - (self.pickling_ns or 0.0)) / self.step_ns

    def text(self, subject: Subject) -> FindingText:
        lead = "Collectives of Python objects"
        title = (
            f"{lead} take {format_ratio(self.ns / self.step_ns)} of the mean step ({format_ns(self.ns)} of "
            f"{format_ns(self.step_ns)}): {joined(self.names)}."
        )
        detail = f"{_frequency(self.calls_per_step)}, timed in every step."
        if self.pickling_ns is not None:
            waiting = format_ns(self.ns - self.pickling_ns)
            detail += (
                f" They pickle and unpickle for {format_ns(self.pickling_ns)} on the CPU, and wait for other "
                f"ranks and transfers for {waiting}; a faster link shortens the transfers only."
            )
        return FindingText(
            title,
            detail,
            "Exchange tensors (`all_gather_into_tensor`, `broadcast`) instead of Python objects, or exchange "
            "the objects only every so many steps.",
            lead,
        )


def _frequency(calls_per_step: float) -> str:
    if calls_per_step >= _RARE:
        return f"{calls_per_step:.1f} calls per step"
    return f"One call in {1 / calls_per_step:,.0f} steps"
