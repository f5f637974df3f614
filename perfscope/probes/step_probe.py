"""What every framework's probe but torch's shares: steps, windows, and the boundary to the training.

A subclass puts its hooks in and calls `boundary` where a training step begins. All that it calls from inside
the training goes through `guarded`: after three faults of one hook the probe stays silent.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Optional

from ..rundir import layout
from .memory import peak_rss
from .process import Process
from .recorder import Recorder
from .steps import Step
from .windows import Windows

_clock = time.monotonic_ns


class Trace:
    """A framework's profiler, as windows drive it. A subclass for each framework."""

    suffix = ""  # one of layout.TRACE_FORMATS

    def start(self) -> bool:
        """Begin tracing; False when the training itself is profiling."""
        raise NotImplementedError

    def stop(self, path: str) -> bool:
        """End tracing and leave the trace, one file, at `path`; False when there is none."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Switch the profiler off and throw away what it has."""
        raise NotImplementedError

    def new_mark(self, name: str) -> Any:
        """A context manager that puts a span of this name into the trace."""
        raise NotImplementedError


class StepProbe:
    """Cuts steps and opens windows for one framework.

    A step lasts from one `boundary` to the next, the last one to `step_ended`, if that was called.

    Args:
        process: of which this is a probe.
        name: of the framework: "tensorflow".
        trace: its profiler; None: it has none, a window holds the process's own calls.
    """

    def __init__(self, process: Process, name: str, trace: Optional[Trace] = None) -> None:
        self.process = process
        self.name = name
        self._trace = trace
        self._fresh()
        process.on_reset(self._reset)

    def _fresh(self) -> None:
        self.off = False
        self._windows: Optional[Windows] = None
        self._index = 0
        self._start: Optional[int] = None
        self._end = 0
        self._window = -1
        self._samples: Optional[int] = None
        self._input_ns: Optional[int] = None
        self._next_input_ns: Optional[int] = None
        self._optimizer_ns: Optional[int] = None
        self._cost_ns = 0
        self._thread = 0

    def _reset(self) -> None:
        self._fresh()
        self.forked()

    # -- for subclasses to give ---------------------------------------------------------------------

    def facts(self) -> Dict[str, Any]:
        """For rank.json: `framework` ({"name", "version"}), `device`, `num_threads`, `backend`, `groups`."""
        return {}

    def forked(self) -> None:
        """This is a forked child: forget what belongs to the parent."""

    def window_opened(self) -> None:
        """A window has just been opened: hooks that are only wanted in windows go in."""

    def window_closing(self) -> None:
        """The window's last step has ended and its trace is still being recorded: wait for pending work."""

    def window_closed(self) -> None:
        """The trace is written: take out what `window_opened` put in."""

    # -- called from hooks ----------------------------------------------------------------------------

    def guarded(self, where: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`call(*args)`; its fault is counted, kept from the training, and None returned."""
        if self.off:
            return None
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on whatever happened here
            self.fault(where, error)
            return None

    def fault(self, where: str, error: Exception) -> None:
        try:
            disable = self.process.guard.fault("%s %s" % (self.name, where), error) or self.process.broken
        except Exception:  # noqa: BLE001 - not even the error can be written (full disk): stop at once
            disable = True
        if disable:
            self.off = True
            self._abandon()

    def _abandon(self) -> None:
        if self._windows is None:
            return
        was_open = self._windows.active >= 0
        self._windows.abandon()
        self._window = -1
        try:
            if was_open and self._trace is not None:
                self._trace.abandon()
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on
            self.process.guard.counts["abandon " + type(error).__name__] = 1

    def promote(self) -> Optional[Recorder]:
        """This process trains with this framework: open its files.

        Returns:
            None where another framework cuts this process's steps, or nothing can be written.
        """
        process = self.process
        if self.off or not process.own_steps(self.name):
            return None
        recorder = process.open()
        if recorder is None or self._windows is not None:
            return recorder
        self._thread = threading.get_ident()
        recorder.meta["main_tid"] = threading.get_native_id()
        trace = self._trace
        self._windows = Windows(
            recorder,
            process.config,
            trace.start if trace is not None else None,
            trace.stop if trace is not None else None,
            trace.new_mark if trace is not None else None,
            suffix=trace.suffix if trace is not None else layout.CALLS,
            calls=process.calls,
        )
        process.on_finish(self._finish)
        recorder.save_meta(**self.facts())
        return recorder

    def boundary(self, samples: Optional[int] = None) -> None:
        """A training step of `samples` samples begins here; the one before, if there was one, ends.

        Call it through `guarded`. Calls from other threads than the first are passed over.
        """
        began = _clock()
        recorder = self.promote()
        if recorder is None or self._windows is None or threading.get_ident() != self._thread:
            return
        if self._start is not None:
            self._emit(recorder, began)
        self._input_ns, self._next_input_ns = self._next_input_ns, None
        self._samples = samples
        turned = self._turn_windows(self._index, began)
        self._start = _clock() if turned else began
        if not turned:
            self._cost_ns += _clock() - began

    def step_ended(self) -> None:
        """The step's work is done, as far as the program can tell: its end if no other step follows."""
        self._end = _clock()

    def add_input(self, duration_ns: int) -> None:
        """The training waited so long for its next batch; counted for the step that uses it.

        Between `step_ended` and `boundary` that is the next step; within a step call the current one.
        """
        if self._start is not None and self._end < self._start:
            self._input_ns = (self._input_ns or 0) + duration_ns
        else:
            self._next_input_ns = (self._next_input_ns or 0) + duration_ns

    def add_optimizer(self, duration_ns: int) -> None:
        self._optimizer_ns = (self._optimizer_ns or 0) + duration_ns

    def cut_window(self) -> None:
        """End the open window now: an evaluation begins, the training starts a profiler of its own."""
        windows = self._windows
        if windows is not None and windows.active >= 0:
            self.window_closing()
            windows.close()
            self._window = -1
            self.window_closed()

    @property
    def in_window(self) -> bool:
        return self._windows is not None and self._windows.active >= 0

    @property
    def on_training_thread(self) -> bool:
        return not self._thread or threading.get_ident() == self._thread

    # -- inside ---------------------------------------------------------------------------------------

    def _emit(self, recorder: Recorder, end: int) -> None:
        assert self._start is not None and self._windows is not None
        step = Step(
            self._index,
            self._start,
            max(0, end - self._start),
            self._window,
            self._input_ns,
            None,
            self._optimizer_ns,
            1,
            self._samples,
        )
        self._optimizer_ns = None
        self._index += 1
        recorder.add_step(step, end)
        self._windows.step_done(step.step, step.dur_ns, step.window, end)

    def _turn_windows(self, step: int, began: int) -> bool:
        """Open, go on with or close a window before `step`; True when perfscope spent time on it."""
        windows = self._windows
        assert windows is not None
        if windows.active >= 0:
            self.window_closing()
            if windows.boundary(step):
                self._window = -1
                self.window_closed()
                return True
            return False
        if windows.wants(step):
            if windows.open(step, began):
                self._window = windows.active
                self.window_opened()
            return True
        return False

    def _finish(self) -> Dict[str, Any]:
        windows, recorder = self._windows, self.process.recorder
        if windows is None or recorder is None:
            return {}
        if self._start is not None and self._end > self._start:
            self._emit(recorder, self._end)
        recorder.flush()  # before the window: should closing it fail, the steps are safe
        if not self.off:
            if windows.active >= 0:
                self.window_closing()
            windows.finish()
        overhead = dict(windows.cost(), always_on_ns=self._cost_ns)
        return dict(
            self.facts(), overhead=overhead, memory={"peak_rss_bytes": peak_rss(), "peak_device_bytes": None}
        )
