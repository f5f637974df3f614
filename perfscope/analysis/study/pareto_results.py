"""A setting among the others in time, memory and bytes."""

from __future__ import annotations

from msgspec import Struct

from perfscope.analysis.missing import Missing


class ParetoPoint(Struct, frozen=True, kw_only=True):
    """One setting; None: not known.

    `time_ns`: training time to the target where settings were ranked by it, else time per sample.
    `memory_bytes`: peak of the rank with most. `sent_bytes`: per step, all ranks and links, as recorded.
    `is_best`: no other setting dominates it; None where a figure is missing, or where it is `undecided`.
    `undecided`: one dominates it if their times differ, which the intervals of their repeats leave open.
    `missing`: what the runs themselves say of the figures that are not there.
    """

    title: str
    time_ns: float | None
    memory_bytes: float | None
    sent_bytes: float | None
    is_best: bool | None = None
    undecided: bool = False
    missing: tuple[Missing, ...] = ()

    @property
    def figures(self) -> tuple[float, float, float] | None:
        """All three; None where one is missing."""
        if self.time_ns is None or self.memory_bytes is None or self.sent_bytes is None:
            return None
        return self.time_ns, self.memory_bytes, self.sent_bytes
