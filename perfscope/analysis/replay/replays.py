"""All windows of a run, ready to be replayed with something changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.collective_waits import JudgedCalls
from perfscope.analysis.mainline import MainLine
from perfscope.analysis.missing import Missing, missing_figure
from perfscope.analysis.replay.build import build_program
from perfscope.analysis.replay.engine import Replayed, Schedule, replay, schedule
from perfscope.analysis.replay.program import Change, Program
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure

DISTORTED = 0.25  # of the median step by which a window may be off before nearer ones are preferred
UNEXPLAINED = 0.15  # of the ranks' time in communication that is attributed to no call: too much to go by
CLOSE = 0.05  # of the measured time by which a replay may be off


class ReplayWindow(Struct, frozen=True, kw_only=True, eq=False):
    """One window's program, how to run it, and what it gives unchanged."""

    program: Program
    plan: Schedule
    base: Replayed

    @property
    def num_steps(self) -> int:
        return len(self.program.steps)

    @property
    def measured_ns(self) -> float:
        """Until the last rank's last step was over, since ranks began (`Program.begin`)."""
        return float(self.program.measured[:, -1].max())

    @property
    def error_ns(self) -> float:
        """How far the unchanged replay is off."""
        return abs(self.base.wall_ns - self.measured_ns)


class Replays(Struct, frozen=True, kw_only=True, eq=False):
    """Windows that all traced ranks share; at least one."""

    windows: tuple[ReplayWindow, ...]

    @property
    def num_steps(self) -> int:
        return sum(window.num_steps for window in self.windows)

    @property
    def measured_ns(self) -> float:
        """The mean traced step."""
        return sum(window.measured_ns for window in self.windows) / self.num_steps

    @property
    def base_ns(self) -> float:
        """The mean step as replayed without any change."""
        return sum(window.base.wall_ns for window in self.windows) / self.num_steps

    @property
    def error_ratio(self) -> float:
        """|replayed - measured| / measured of the unchanged replay, mean over the windows' time."""
        off = sum(window.error_ns for window in self.windows)
        total = sum(window.measured_ns for window in self.windows)
        return off / total if total else 0.0

    @property
    def num_calls(self) -> int:
        """Matched calls in all windows together."""
        return sum(int((window.program.kind >= 0).sum()) for window in self.windows)

    def nearest(self, usual_ns: float | None) -> Replays:
        """Without windows that a profiler or chance distorted, where others are near the median step.

        Args:
            usual_ns: the usual (untraced) step; None: not known, all windows stay.
        """
        if usual_ns is None or len(self.windows) < 2:
            return self
        off = [abs(window.measured_ns / window.num_steps / usual_ns - 1) for window in self.windows]
        most = max(DISTORTED, 2 * min(off))
        kept = tuple(window for window, deviation in zip(self.windows, off, strict=True) if deviation <= most)
        return replace(self, windows=kept)

    @property
    def unexplained_ratio(self) -> float:
        """Communication that no matched call explains, as a share of all ranks' time."""
        time = sum(float(window.program.cells.local.sum()) for window in self.windows)
        waited = sum(window.measured_ns * len(window.program.ranks) for window in self.windows)
        lost = sum(window.program.unexplained_ns for window in self.windows)
        return lost / max(waited, time, 1.0)

    def rank_ns(self, change: Callable[[Program], Change | None] | None = None) -> float:
        """T of METRICS §3, the longest time of a rank, per step; as replayed, with a change or without."""
        total = 0.0
        for window in self.windows:
            changed = change(window.program) if change is not None else None
            run = window.base if changed is None else replay(window.program, window.plan, changed)
            total += float((run.step_ends[:, -1] - window.program.begin).max())
        return total / self.num_steps

    @property
    def measured_rank_ns(self) -> float:
        """The same as measured."""
        longest = (float((w.program.measured[:, -1] - w.program.begin).max()) for w in self.windows)
        return sum(longest) / self.num_steps

    def step_ns(self, change: Callable[[Program], Change | None]) -> float | None:
        """The mean step with a change; None where the change does not apply to any window."""
        changes = [change(window.program) for window in self.windows]
        if all(changed is None for changed in changes):
            return None
        walls = (
            window.base.wall_ns if changed is None else replay(window.program, window.plan, changed).wall_ns
            for window, changed in zip(self.windows, changes, strict=True)
        )
        return sum(walls) / self.num_steps


def _better(program: Program, plan: Schedule, doubt_ns: float) -> ReplayWindow:
    """With ranks that begin together; as they really began where only that gives the measured times.

    Args:
        program: a window.
        plan: its levels.
        doubt_ns: residual of the hosts' clocks: ranks that seem to begin closer than twice that may not.
    """
    together = ReplayWindow(program=program, plan=plan, base=replay(program, plan))
    if together.error_ns <= CLOSE * together.measured_ns or program.skew.max() <= 2 * doubt_ns:
        return together
    apart = program.with_skew()
    skewed = ReplayWindow(program=apart, plan=plan, base=replay(apart, plan))
    return skewed if skewed.error_ns < together.error_ns else together


def make_replays(
    lines: Mapping[int, Mapping[int, MainLine]], matches: Sequence[JudgedCalls], clocks: ClockFit
) -> tuple[Replays | None, tuple[Missing, ...]]:
    """Programs of all windows, and which windows could not be made one.

    Args:
        lines: window -> rank -> main line.
        matches: every matched call.
        clocks: how the hosts' clocks stand to each other.
    """
    of_window: dict[int, list[JudgedCalls]] = defaultdict(list)
    for match in matches:
        of_window[match.window].append(match)
    most = max((len(ranks) for ranks in lines.values()), default=0)
    windows, missing = [], []
    for number, ranks in sorted(lines.items()):
        if len(ranks) < most:
            counts = {"count": len(ranks), "total": most}
            missing.append(_no_replay(number, Cause.RANKS_TRACED_WINDOW, **counts))
            continue
        program = build_program(ranks, of_window[number], clocks)
        if program is None:
            missing.append(_no_replay(number, Cause.OTHER_STEPS_TRACED))
            continue
        plan = schedule(program)
        if plan.num_stuck:
            missing.append(_no_replay(number, Cause.CIRCULAR_WAIT, count=plan.num_stuck))
            continue
        hosts = [line.host for line in ranks.values()]
        several = len({clocks.clock_of(rank, host) for rank, host in zip(ranks, hosts, strict=True)}) > 1
        doubt = float(clocks.doubts(list(ranks), hosts).max()) if several else 0.0
        windows.append(_better(program, plan, doubt))
    return (Replays(windows=tuple(windows)) if windows else None), tuple(missing)


def _no_replay(window: int, cause: Cause, **detail: Any) -> Missing:
    return missing_figure(Figure.REPLAY, cause, window=window, **detail)
