"""What a comparison of frameworks yields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfscope.analysis.missing import MissingFigure
from perfscope.analysis.study.figures import Composition, Interval
from perfscope.analysis.study.parity import Parity


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkPoint:
    """A framework on one number of ranks: medians over its repeats, the composition a mean.

    Attributes:
        speedup: over the framework's own fewest ranks; efficiency = speedup x fewest / ranks.
        no_kernel_share: of the step, in which no operator, communication, copy or data wait was traced on the
            threads that train.
        peak_memory_bytes: of all ranks together.
    """

    world_size: int
    runs: tuple[str, ...]
    samples_per_s: float | None
    samples_per_s_interval: Interval | None
    step_ns: float | None
    speedup: float | None
    efficiency: float | None
    composition: Composition | None
    no_kernel_share: float | None
    peak_memory_bytes: float | None
    num_disturbed: int = 0
    missing: tuple[MissingFigure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRow:
    """One framework.

    Attributes:
        remark: what a user should know of it: "retired upstream ...".
        parity: by number of ranks, its losses against the reference's; the reference has none.
    """

    name: str
    version: str
    remark: str
    is_reference: bool
    points: tuple[FrameworkPoint, ...]
    parity: Mapping[int, Parity] = field(default_factory=dict)

    def agrees(self, world_size: int) -> bool:
        """Whether it is known to learn what the reference learns."""
        return self.is_reference or (world_size in self.parity and self.parity[world_size].agrees is True)

    def speed(self, world_size: int) -> float | None:
        return next((one.samples_per_s for one in self.points if one.world_size == world_size), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkStudy:
    """One model in several frameworks; fastest on the fewest ranks first."""

    title: str
    reference: str
    rows: tuple[FrameworkRow, ...]
    world_sizes: tuple[int, ...]
    headline: str
    action: str = ""
    missing: tuple[MissingFigure, ...] = ()
