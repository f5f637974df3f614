"""What a comparison of frameworks yields."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from perfscope.analysis.missing import Missing
from perfscope.analysis.study.figures import Composition, Interval
from perfscope.analysis.study.parity import Parity


class FrameworkPoint(Struct, frozen=True, kw_only=True):
    """A framework on one number of ranks: medians over its repeats, the composition a mean.

    Attributes:
        speeds: samples/s of each repeat that has one, slowest first.
        speedup: over the framework's own fewest ranks; efficiency = speedup x fewest / ranks.
        no_kernel_share: of the step, in which no operator, communication, copy or data wait was traced on the
            threads that train.
        traced_ratio: the mean traced step over the typical one: what tracing and the early place of a window
            make of a step. The composition is that of the traced steps.
        peak_memory_bytes: of all ranks together; servers and launchers are not in it.
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
    missing: tuple[Missing, ...] = ()
    speeds: tuple[float, ...] = ()
    traced_ratio: float | None = None


class FrameworkRow(Struct, frozen=True, kw_only=True):
    """One framework.

    Attributes:
        version: of its package; "0.9.1 and 0.10.2" where runs had several.
        how: it trains, in its program's words; "" where no run says.
        remark: what a user should know of it: "retired upstream ...".
        parity: by number of ranks, its losses against the reference's, the worst of its repeats; of the
            reference only where its own repeats do not agree.
    """

    name: str
    version: str
    remark: str
    is_reference: bool
    points: tuple[FrameworkPoint, ...]
    parity: Mapping[int, Parity] = {}
    how: str = ""

    def agrees(self, world_size: int) -> bool:
        """Whether it is known to learn what the reference learns."""
        if world_size in self.parity:
            return self.parity[world_size].agrees is True
        return self.is_reference

    def point(self, world_size: int) -> FrameworkPoint | None:
        """On so many ranks."""
        return next((point for point in self.points if point.world_size == world_size), None)

    def speed(self, world_size: int) -> float | None:
        """Samples/s on so many ranks."""
        point = self.point(world_size)
        return point.samples_per_s if point else None


class FrameworkStudy(Struct, frozen=True, kw_only=True):
    """One model in several frameworks; fastest on the fewest ranks first.

    Attributes:
        title: the model, with what else tells it from the other studies.
        trained: what was trained, in a phrase: "32 samples a step over all ranks, 1 thread per rank".
        agreement: one sentence on the losses.
        headline: one sentence on the speeds.
        scaling: one sentence on what more ranks bring; "" with one number of ranks.
        action: what to do; "" where nothing follows.
    """

    title: str
    reference: str
    rows: tuple[FrameworkRow, ...]
    world_sizes: tuple[int, ...]
    headline: str
    action: str = ""
    missing: tuple[Missing, ...] = ()
    trained: str = ""
    agreement: str = ""
    scaling: str = ""
