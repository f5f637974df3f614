"""Figures that several parts of a study are made of."""

from __future__ import annotations

from msgspec import Struct


class Interval(Struct, frozen=True, kw_only=True):
    """95 % interval of a median over repeats, or of a ratio of two such."""

    low: float
    high: float
    num_repeats: int  # of the side with fewer


class Composition(Struct, frozen=True, kw_only=True):
    """Where the mean traced step went, mean over ranks (METRICS §1). The parts add up to `step`."""

    step: float
    compute: float
    exposed_comm: float
    copy: float
    input_wait: float
    optimizer: float
    idle: float
    num_steps: int  # traced steps of the rank with fewest

    def share(self, part: str) -> float | None:
        """`part` of PARTS over the step; None where the step is 0."""
        return float(getattr(self, part)) / self.step if self.step > 0 else None
