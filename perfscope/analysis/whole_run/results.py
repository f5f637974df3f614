"""What the account of a whole run gives."""

from __future__ import annotations

from msgspec import Struct

from perfscope.vocabulary.run_parts import RunPart


class RunPartTime(Struct, frozen=True, kw_only=True):
    """Wall time of the run in one part."""

    part: RunPart
    ns: int


class RankRun(Struct, frozen=True, kw_only=True):
    """One rank's time of the run; the parts add up to the run's `wall_ns` exactly."""

    rank: int
    parts: tuple[RunPartTime, ...]  # in order of time; those of 0 ns are left out


class LongSteps(Struct, frozen=True, kw_only=True):
    """What steps hold beside the ordinary step, of one part.

    Attributes:
        part: of the run.
        num_steps: that hold some of it; of `other` and `cpu_wait`, steps of three times the median or more,
            or of the longer of two distinct lengths.
        every: steps between two of them in the median; None: fewer than three, or unevenly spaced.
        ns: all of it, of the rank that has most in each step.
        ratio: `ns` over the training's time from its first step to its last.
        longest_ns: most of it in one step.
        longest_step: which step that is.
        written_bytes: of checkpoints, what all ranks wrote to files in these steps; None: not known.
    """

    part: RunPart
    num_steps: int
    every: int | None
    ns: int
    ratio: float
    longest_ns: int
    longest_step: int
    written_bytes: int | None = None


class WholeRun(Struct, frozen=True, kw_only=True):
    """The wall time of a run.

    Attributes:
        wall_ns: from the start of the command to its end.
        parts: of the mean rank, in order of time; they add up to `wall_ns` exactly.
        ranks: the same for each rank.
        num_steps: of the mean rank.
        training_ns: from the first step's start to the last one's end, mean rank.
        usual_step_ns: median untraced step without what is timed apart, over all ranks.
        samples_per_s: all samples over the whole run; None: the number of samples is not known.
        training_samples_per_s: all samples over the training's time; None likewise.
        long_steps: most time first.
    """

    wall_ns: int
    parts: tuple[RunPartTime, ...]
    ranks: tuple[RankRun, ...]
    num_steps: int
    training_ns: int
    usual_step_ns: int
    samples_per_s: float | None
    training_samples_per_s: float | None
    long_steps: tuple[LongSteps, ...]

    def of(self, part: RunPart) -> int:
        """ns of the mean rank."""
        return sum(entry.ns for entry in self.parts if entry.part is part)
