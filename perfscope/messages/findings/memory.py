"""Memory of devices."""

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
