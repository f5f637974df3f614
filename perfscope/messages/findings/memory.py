"""Memory of devices and of processes."""

from __future__ import annotations

from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject
from perfscope.messages.lists import counted
from perfscope.units import format_bytes, format_ratio


def _others(num: int) -> str:
    if num < 1:
        return ""
    return f" {counted(num, 'more device')} {'is' if num == 1 else 'are'} nearly full."


class LowHeadroom(FindingFacts, frozen=True, kw_only=True):
    device: str
    host: str  # "" where there is one
    limit_bytes: int
    peak_bytes: int  # in use by all processes
    tensor_bytes: int | None  # most that the ranks' tensors took; None: not measured
    num_devices: int  # that are as full

    def text(self, subject: Subject) -> FindingText:
        heading = "Low memory headroom"
        where = f"device {self.device}" + (f" of {self.host}" if self.host else "")
        ratio = format_ratio(self.peak_bytes / self.limit_bytes)
        more = _others(self.num_devices - 1)
        if self.tensor_bytes is None:
            held = "How much of it tensors take was not measured: the allocator's cache is part of it."
        else:
            held = (
                f"Tensors took at most {format_bytes(self.tensor_bytes)} of it; the rest is the allocator's "
                "cache, libraries and other processes."
            )
        return FindingText(
            f"{heading}: at its peak {where} had {ratio} of its memory in use "
            f"({format_bytes(self.peak_bytes)} of {format_bytes(self.limit_bytes)}).",
            f"{held}{more} A longer sequence, a larger batch or fragmentation may end the run.",
            "Use a smaller batch per device, activation checkpointing, or shard parameters and optimizer "
            "state (FSDP, ZeRO).",
            heading,
        )


class MemoryGrows(FindingFacts, frozen=True, kw_only=True):
    """Resident memory of a process, see analysis.machine.results.RankMemory."""

    num_ranks: int
    first_bytes: int
    last_bytes: int
    bytes_per_step: float
    num_samples: int  # readings of the process over the run

    def text(self, subject: Subject) -> FindingText:
        heading = "Memory grows over the run"
        title = (
            f"{heading}: resident memory of rank {subject.rank} grows from "
            f"{format_bytes(self.first_bytes)} to {format_bytes(self.last_bytes)} "
            f"({format_bytes(self.bytes_per_step)} per step)."
        )
        detail = "It rises steadily to the end of the run."
        if self.num_ranks > 1:
            detail += f" Memory grows on {self.num_ranks:,} ranks, most on this one."
        return FindingText(
            title,
            detail,
            "Look for tensors that stay referenced: losses or outputs appended to a list with their graphs "
            "(use `loss.item()` or `.detach()`), caches without a limit, objects that the dataset keeps.",
            heading,
        )
