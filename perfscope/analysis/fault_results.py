"""Page faults of one rank, as a report has them."""

from __future__ import annotations

from msgspec import Struct


class RankFaults(Struct, frozen=True, kw_only=True):
    """One rank's ordinary steps (neither warm-up nor traced); means per step.

    Attributes:
        rank: of the job.
        minor_faults: of all threads, without input.
        major_faults: of all threads, that read from a disk.
        user_ns: CPU time of all threads in user mode.
        system_ns: CPU time of all threads in the kernel.
        thread_minor_faults: of the thread that trains; None: not recorded.
        thread_system_ns: of the thread that trains; None likewise.
        num_steps: that these means are of.
        cost_ratio: share of the step that the thread's page faults cost at most; None: not known.
        before_windows: median minor faults per step before the first window; None: too few steps.
        after_windows: likewise after it.
        changed_by_windows: steps before it differ from later ones by more than a tenth, and more than later
            ones do among themselves. Where less than half of the faults remain, the other values are of the
            steps before it. None: not known.
    """

    rank: int
    minor_faults: float
    major_faults: float
    user_ns: float
    system_ns: float
    thread_minor_faults: float | None
    thread_system_ns: float | None
    num_steps: int
    cost_ratio: float | None
    before_windows: float | None
    after_windows: float | None
    changed_by_windows: bool | None

    @property
    def are_of_before(self) -> bool:
        """Whether the means are of the steps before the first window."""
        return bool(self.changed_by_windows) and few_remain(self.before_windows, self.after_windows)


def few_remain(before: float | None, after: float | None) -> bool:
    """Whether less than half of the faults remain after the first window; else the later steps, which are
    many, stand for the training.
    """
    return before is not None and after is not None and after < before / 2
