"""Traced windows: when they are taken, and what they cost.

The first window starts at a fixed step, the same on every rank. Later ones are announced by rank 0
in plan.json a few steps ahead, so that all ranks trace the same steps; rank 0 announces one only
when the cost so far, plus the last window's cost again, stays within the overhead budget of the
time trained. A rank that cannot see the plan (no shared file system) takes the first window only.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional

from ..rundir import layout
from ..vocabulary.defaults import FIRST_WINDOW_STEP, RUN
from ..vocabulary.notes import NoteKind
from .calls import CallLog
from .files import Shield, check_descriptors, check_process_name
from .layer_counters import LayerCounters
from .phases import Phases
from .recorder import Recorder

POLL_INTERVAL_NS = 50_000_000
SECOND_AFTER = 5  # times what the first window cost, since training began
SETTLE_STEPS = 4  # untraced steps a window's own are compared with
LEAD_NS = 200_000_000  # a plan must reach every rank before its step does
_ENDED = "the training's own profiler ended it"


class Governor:
    """Keeps the cost of windows within a share of the training time. Pure arithmetic, no clock.

    Args:
        budget: allowed ratio of window cost to elapsed time; 0 = no window at all.
        num_windows: most windows to take.
    """

    def __init__(self, budget: float, num_windows: int) -> None:
        self.budget = budget
        self.num_windows = num_windows
        self.taken = 0
        self.cost_ns = 0
        self.last_cost_ns = 0

    def add(self, cost_ns: int) -> None:
        self.taken += 1
        self.cost_ns += cost_ns
        self.last_cost_ns = cost_ns

    def allows(self, elapsed_ns: int) -> bool:
        """True when one more window like the last keeps the total within budget.

        The first window falls into the warm-up, and its cost holds the start of the profiler: soon a second
        one is taken whatever the budget, so that no short run is judged by its first steps alone.
        """
        if self.taken >= self.num_windows or self.budget <= 0:
            return False
        if self.taken < 2 and elapsed_ns >= SECOND_AFTER * self.cost_ns:
            return True
        return self.cost_ns + self.last_cost_ns <= self.budget * elapsed_ns


class Windows:
    """Opens and closes the profiler at step boundaries.

    Args:
        recorder: where results go.
        config: `windows`, `first_step`, `steps_per_window`, `overhead`, `trace` of PERFSCOPE_CONFIG.
        start: starts the framework's profiler; returns False when the training itself uses it. None: there is
            none, and `calls` are all there is to a window.
        stop: stops it and writes the trace to the path given; returns False when there was none any more.
        new_mark: name -> context manager that puts a span into the trace; None: there is no trace.
        suffix: how the trace's file name ends, one of layout.TRACE_FORMATS.
        calls: records what probes time themselves while a window is open.
        counters: reads the training thread's counters while torch's profiler traces a window, where
            `layer_counters` of PERFSCOPE_CONFIG asks for it.
        phases: are marked in the trace.
        abandon: stops the profiler and throws the trace away: there is no place for it.
    """

    def __init__(
        self,
        recorder: Recorder,
        config: Dict[str, Any],
        start: Optional[Callable[[], bool]],
        stop: Optional[Callable[[str], bool]],
        new_mark: Optional[Callable[[str], Any]],
        *,
        suffix: str = layout.KINETO,
        calls: Optional[CallLog] = None,
        counters: Optional[LayerCounters] = None,
        phases: Optional[Phases] = None,
        abandon: Optional[Callable[[], None]] = None,
    ) -> None:
        self._recorder = recorder
        self.trace_by(start, stop, new_mark, suffix, abandon)
        self._calls = calls
        self._phases = phases
        self._counters = counters if config.get("layer_counters") else None
        self._per_window = max(1, int(config.get("steps_per_window", RUN.steps_per_window)))
        wanted = int(config.get("windows", RUN.windows)) if config.get("trace", True) else 0
        self.governor = Governor(float(config.get("overhead", RUN.overhead)), wanted)
        first = max(FIRST_WINDOW_STEP, int(config.get("first_step", FIRST_WINDOW_STEP)))
        self._next_step: Optional[int] = first if self.governor.allows(0) else None
        self._next_window = 0  # its id: the same on every rank, also on one that missed a window
        self._plan_path = os.path.join(recorder.run_dir, layout.PLAN_JSON)
        self._next_poll = 0
        self._begun = 0  # when training began
        self._recent: Deque[int] = deque(maxlen=16)  # untraced step durations
        self._traced: list = []
        self._mark: Any = None
        self._step: Optional[int] = None  # the traced step under way
        self._step_start = 0
        self._info: Dict[str, Any] = {}
        self.active = -1  # id of the open window

    def trace_by(
        self,
        start: Optional[Callable[[], bool]],
        stop: Optional[Callable[[str], bool]],
        new_mark: Optional[Callable[[str], Any]],
        suffix: str,
        abandon: Optional[Callable[[], None]] = None,
    ) -> None:
        """The profiler of the windows from now on; arguments as for the class. None is open."""
        self._start_profiler = start
        self._stop_profiler = stop
        self._abandon_profiler = abandon
        self._new_mark = new_mark
        self._suffix = suffix if start is not None else layout.CALLS

    def wants(self, step: int) -> bool:
        """True when a window is due at the boundary before `step`."""
        return self.active < 0 and self._next_step is not None and step >= self._next_step

    def open(self, step: int, began: int) -> bool:
        """Start tracing with `step`; its cost counts from `began`.

        Returns:
            False when the profiler is not to be had now (tried again ten steps later).
        """
        put_off = self._put_off()
        if put_off:
            self._recorder.note("a window was put off: " + put_off, NoteKind.WINDOW)
            self._next_step = step + 10
            return False
        self.active = self._next_window
        self._next_step = None
        self._next_window += 1
        self._traced = []
        self._recorder.anchor()
        if self._calls is not None:
            self._calls.open()
        if self._counters is not None and self._suffix == layout.KINETO:
            self._counters.open()
        now = time.monotonic_ns()
        self._info = {
            "window": self.active,
            "file": "%s/%d%s" % (layout.WINDOWS, self.active, self._suffix),
            "first_step": step,
            "num_steps": 0,
            "start_ns": now,
            "start_cost_ns": now - began,
        }
        if self._phases is not None:
            self._phases.window_opens(self._new_mark)
        self._open_step(step)
        return True

    def _put_off(self) -> str:
        """Start the profiler; why that cannot be now, or ""."""
        if self._start_profiler is None:
            return ""
        try:
            check_descriptors()
            check_process_name()
        except OSError as error:
            return str(error.strerror)
        return "" if self._start_profiler() else "the training itself was using the profiler"

    def _open_step(self, step: int) -> None:
        self._step = step
        self._step_start = time.monotonic_ns()
        if self._new_mark is not None:
            self._mark = self._new_mark(layout.MARK_STEP + str(step))
            self._mark.__enter__()
        if self._counters is not None:
            self._counters.step_begins()

    def boundary(self, step: int) -> bool:
        """A step of the open window ended and `step` begins; True when the window is now closed."""
        self._close_step()
        if self._info["num_steps"] >= self._per_window:
            self.close()
            return True
        self._open_step(step)
        return False

    def _close_step(self, is_complete: bool = True) -> None:
        if self._step is None:
            return
        step, self._step = self._step, None
        if not is_complete:
            return  # its mark stays open until the trace is written: a profiler keeps no open span
        if self._counters is not None:
            self._counters.step_ended(step)
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)
        if self._calls is not None:
            self._calls.step(step, self._step_start, time.monotonic_ns())
        self._info["num_steps"] += 1

    def close(self, is_complete: bool = True) -> None:
        """Stop tracing and write the trace. Whatever fails, the profiler is off afterwards.

        Args:
            is_complete: the step under way has ended; else it is none of the window's.
        """
        self._close_step(is_complete)
        if self._phases is not None:
            self._phases.window_closes()
        info, window, self.active = self._info, self.active, -1
        info["end_ns"] = began = time.monotonic_ns()
        empty = not is_complete and not info["num_steps"]
        reason = "it ended within its first step" if empty else ""
        try:
            with Shield():  # C++ writes traces: a limit on the size of files is not to end the training
                reason = self._write(str(window), empty) or reason
        except OSError as error:
            reason = error.strerror or str(error)
            self._forget_readings()
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)
        if reason:
            info["file"] = None
            self._recorder.note("window %d was lost: %s" % (window, reason), NoteKind.WINDOW)
        self._recorder.anchor()
        info["stop_cost_ns"] = time.monotonic_ns() - began
        info["cost_ns"] = info["start_cost_ns"] + info["stop_cost_ns"]
        self.governor.add(info["cost_ns"])
        if self.governor.taken == 1:
            self._recent.clear()  # steps before the first window were warming up
        self._next_poll = 0

    def _write(self, name: str, empty: bool) -> str:
        """Write trace and calls of window `name`, nothing of one without a step. Why it is lost, or ""."""
        try:
            path = os.path.join(self._recorder.windows_folder(), name)
        except OSError:
            if self._abandon_profiler is not None:
                self._abandon_profiler()  # it ends in any case
            raise
        written = self._save(path + self._suffix)
        if empty and written and self._stop_profiler is not None:
            os.unlink(path + self._suffix)  # readers would take all of it for one step
        if empty:
            self._forget_readings()
            return "" if written else _ENDED
        if self._calls is not None:
            alone = self._stop_profiler is None
            self._calls.close(path + layout.CALLS, self._recorder.meta["main_tid"], alone)
        if self._counters is not None:
            self._counters.close(path + layout.COUNTERS)
        return "" if written else _ENDED

    def _forget_readings(self) -> None:
        """What calls and counters have of the open window is lost."""
        if self._calls is not None:
            self._calls.abandon()
        if self._counters is not None:
            self._counters.abandon()

    def _save(self, path: str) -> bool:
        if self._stop_profiler is None:
            return True
        aside = path + ".tmp"
        try:
            written = self._stop_profiler(aside)
            if written:
                os.replace(aside, path)
            return written
        finally:
            for leftover in (aside, aside + ".tmp"):  # Kineto writes to a `.tmp` of its own first
                if os.path.exists(leftover):
                    os.unlink(leftover)  # on a full disk these would take the room of the steps

    def abandon(self) -> None:
        """The probe is being disabled: forget the open window (the profiler is stopped by the caller)."""
        self.active = -1
        self._mark = self._step = None
        self._info = {}
        self._next_step = None
        if self._phases is not None:
            self._phases.window_closes()
        self._forget_readings()

    def settle(self) -> None:
        """Add the slow-down of the traced steps to the cost and note the window, once they are all known."""
        info, self._info = self._info, {}
        slowdown = 0
        if self._recent and self._traced:
            slowdown = max(0, sum(self._traced) - self._usual_ns() * len(self._traced))
        info["slowdown_ns"] = slowdown
        info["cost_ns"] += slowdown
        self.governor.cost_ns += slowdown
        self.governor.last_cost_ns += slowdown
        self._recorder.append(layout.WINDOWS_JSONL, info)
        self._recorder.save_meta(overhead=self.cost())

    def finish(self, is_complete: bool = True) -> None:
        """Training ended: close what is open and account for it. `is_complete`: as for `close`."""
        if self.active >= 0:
            self.close(is_complete)
        if self._info:
            self.settle()

    def _usual_ns(self) -> int:
        """Median of the last untraced steps; `LEAD_NS` while there is none."""
        return sorted(self._recent)[len(self._recent) // 2] if self._recent else LEAD_NS

    def cost(self) -> Dict[str, Any]:
        return {"windows_ns": self.governor.cost_ns, "windows": self.governor.taken}

    def step_done(self, step: int, duration: int, window: int, now: int) -> None:
        """Every finished step passes here; rank 0 plans the next window, the others look for the plan."""
        if not self._begun:
            self._begun = now - duration
        if window >= 0:
            self._traced.append(duration)
        else:
            self._recent.append(duration)
        if self.active >= 0:
            return
        if self._info and len(self._recent) >= SETTLE_STEPS:
            self.settle()
        if not self._info and self._next_step is None and now >= self._next_poll and self.governor.taken:
            self._next_poll = now + POLL_INTERVAL_NS
            if self.governor.taken < self.governor.num_windows:
                self._plan(step, now)

    def _plan(self, step: int, now: int) -> None:
        if self._recorder.rank == 0:
            if self.governor.allows(now - self._begun):
                self._next_step = step + 3 + LEAD_NS // max(1, self._usual_ns())
                plan = {
                    "attempt": self._recorder.attempt,
                    "window": self._next_window,
                    "first_step": self._next_step,
                }
                if not self._recorder.write_plan(plan):
                    self._next_step = None  # the others would not trace the same steps
            return
        try:
            with open(self._plan_path) as file:
                plan = json.load(file)
        except (OSError, ValueError):
            return
        if plan.get("attempt") != self._recorder.attempt:
            return  # announced before a restart
        if plan["window"] >= self._next_window and plan["first_step"] > step + 1:
            self._next_step, self._next_window = plan["first_step"], plan["window"]
