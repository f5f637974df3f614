"""Memory that is given back to the kernel and mapped again in every step."""

from __future__ import annotations

from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject
from perfscope.units import format_bytes, format_count, format_ns, format_ratio
from perfscope.vocabulary.heap import STILL_HEAP

_HEAP = " ".join(f"{name}={value}" for name, value in STILL_HEAP.items())


class PageFaultChurn(FindingFacts, frozen=True, kw_only=True):
    """Of the median step of the mean rank; `cost_ns` is at most what the faults cost."""

    num_faults: float
    num_bytes: float
    system_ratio: float  # of the process's CPU time
    cost_ns: float
    step_ns: float
    num_major: float
    num_after: float | None  # per step after the first window, where that changed them
    num_before: float | None  # likewise before it
    is_of_before: bool  # what is left after the window is too little to stand for the training

    def _changed(self) -> str:
        if self.num_after is None or self.num_before is None:
            return ""
        here, there, number = "before", "After", self.num_after
        if not self.is_of_before:
            here, there, number = "after", "Before", self.num_before
        return (
            f" This was measured {here} the first traced window. {there} it there are "
            f"{format_count(round(number))} page faults per step: memory that the trace left in the "
            "heap changes when the C library returns memory to the kernel. Without perfscope, expect the "
            "number from before the window."
        )

    def text(self, subject: Subject) -> FindingText:
        lead = "Bound by page faults" if subject.is_verdict else "Page-fault churn"
        major = (
            f" {format_count(round(self.num_major))} of them read from a disk (swapping)."
            if self.num_major >= 1
            else ""
        )
        return FindingText(
            f"{lead}: {format_count(round(self.num_faults))} page faults per step cost up to "
            f"{format_ratio(self.cost_ns / self.step_ns)} of the step ({format_ns(self.cost_ns)} of "
            f"{format_ns(self.step_ns)}).",
            f"{format_ratio(self.system_ratio)} of the CPU time is spent in the kernel. In every step the C "
            f"library returns {format_bytes(self.num_bytes)} to the kernel, which then maps and clears the "
            f"pages again.{major}{self._changed()}",
            f"Keep freed memory in the process: with glibc set `{_HEAP}` together (one of them alone turns "
            "off glibc's own adjustment and can make it worse), or preload jemalloc or tcmalloc, which also "
            "keep tensors beyond 32 MiB.",
            lead,
        )
