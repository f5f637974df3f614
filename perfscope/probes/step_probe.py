"""What every framework's probe but torch's shares: steps, windows, and the boundary to the training.

A subclass puts its hooks in and calls `boundary` where a training step begins. All that it calls from inside
the training goes through `guarded`: after three faults of one hook the probe stays silent.

Where the program marks its steps itself (`perfscope.step()`), own_steps.py cuts them. The framework's probe
then lends its profiler and its facts (`Process.lend`): `in_use`, `may_trace`, `wait`, `describe`.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Iterable, Optional

from ..rundir import layout
from .memory import peak_rss
from .process import Process
from .recorder import Recorder
from .steps import Step
from .training_thread import TrainingThread
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

    Attributes:
        off: this probe is to stay silent.
        trace: as given; a subclass may exchange it until the first window.
        windows: None until the process proves to train with this framework.
        index: number of the step that is under way, or comes next. Times are CLOCK_MONOTONIC, ns.
        started: when the step under way began; None: none is.
        ended: when a step's work was done last (`step_ended`).
        samples: of the step under way; None: not known.
        window: id of the window that traces the step under way, -1: none.
        cost_ns: time spent on steps outside windows.
    """

    def __init__(self, process: Process, name: str, trace: Optional[Trace] = None) -> None:
        self.process = process
        self.name = name
        self.trace = trace
        self.start_afresh()
        process.on_reset(self._reset)

    def start_afresh(self) -> None:
        """Nothing has been seen of any training. A subclass adds what it keeps of one."""
        self.off = False
        self.windows: Optional[Windows] = None
        self.index = 0
        self.started: Optional[int] = None
        self.ended = 0
        self.window = -1
        self.samples: Optional[int] = None
        self.cost_ns = 0
        self._input_ns = 0
        self._late_input_ns = 0  # waited for since the step's work was done
        self._sees_input = False
        self._optimizer_ns: Optional[int] = None
        self._closed_at = self._closing_ns = (
            0  # when a window was cut within the step, and how long that took
        )
        self._thread = TrainingThread(self._training_moved)

    def _reset(self) -> None:
        self.start_afresh()
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

    def write(self, step: Step, end: int) -> None:
        """A step has ended, at `end`. To be overridden where its time is not known yet."""
        assert self.process.recorder is not None and self.windows is not None
        self.process.recorder.add_step(step, end)
        self.windows.step_done(step.step, step.dur_ns, step.window, end)

    def profiler(self) -> Optional[Trace]:
        """What the next window is traced by."""
        return self.trace

    # -- for steps that somebody else cuts ------------------------------------------------------------

    def in_use(self) -> bool:
        """Whether the program computes with this framework; it may only have imported it."""
        return False

    def may_trace(self) -> bool:
        """Whether the framework's profiler may be used here."""
        return self.trace is not None

    def wait(self) -> Any:
        """Wait for work that the program has handed over."""

    def describe(self, recorder: Recorder) -> None:
        """Write what is known of the model, and what will be missing. Called before and after windows."""

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
        if self.process.guard.fault("%s %s" % (self.name, where), error) or self.process.broken:
            self.off = True
            self._abandon()

    def _abandon(self) -> None:
        if self.windows is None:
            return
        was_open = self.windows.active >= 0
        self.windows.abandon()
        self.window = -1
        trace = self.profiler() if was_open else None
        try:
            if trace is not None:
                trace.abandon()
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
        if recorder is None or self.windows is not None:
            return recorder
        self._thread.settle()
        recorder.meta["main_tid"] = threading.get_native_id()
        self.windows = Windows(recorder, process.config, None, None, None, calls=process.calls)
        process.cutter = self
        process.on_finish(self.finish)
        recorder.save_meta(**self.facts())
        return recorder

    def boundary(self, samples: Optional[int] = None) -> None:
        """A training step of `samples` samples begins here; the one before, if there was one, ends.

        Call it through `guarded`. Calls from other threads than the first are counted, and named as missing.
        """
        began = _clock()
        opening = self.windows is None
        recorder = self.promote()
        if recorder is None or self.windows is None:
            return
        if not self._thread.update_begins():
            self._thread.update_ends()
            return
        if opening:  # the rank's files and its sampler: no part of this step, nor what each step costs
            began = _clock()
        if self.started is not None:
            self._input_ns += self._late_input_ns
            self.end_step(began)
        self._late_input_ns = 0
        self.samples = samples
        turned = self._turn_windows(self.index, began)
        self.started = _clock() if turned else began
        if not turned:
            self.cost_ns += _clock() - began

    def step_ended(self) -> None:
        """The step's work is done, as far as the program can tell: its end if no other step follows."""
        self.ended = _clock()

    def add_input(self, duration_ns: int) -> None:
        """The training has waited so long for a batch. It counts for the step whose time it is part of.

        That is the step under way, though the batch be the next one's. What was waited for before any step
        lies in none.
        """
        self._sees_input = True
        if self.started is None:
            return
        if self.ended < self.started:
            self._input_ns += duration_ns
        else:
            self._late_input_ns += duration_ns  # not part of the step, should it be the last

    def add_optimizer(self, duration_ns: int) -> None:
        self._optimizer_ns = (self._optimizer_ns or 0) + duration_ns

    def end_step(self, end: int) -> None:
        """The step under way ended at `end`. None is under way until `boundary`, or `started` is set."""
        assert self.started is not None and self.windows is not None
        start, self.started = self.started, None
        duration = end - start - (self._closing_ns if start <= self._closed_at < end else 0)
        step = Step(
            self.index,
            start,
            max(0, duration),
            self.window,
            max(0, min(self._input_ns, duration)) if self._sees_input else None,
            None,
            self._optimizer_ns,
            1,
            self.samples,
        )
        self._input_ns, self._optimizer_ns = 0, None
        self.index += 1
        self.window = self.windows.active  # it may have been cut within this step
        self.write(step, end)

    def drop_step(self) -> None:
        """What is under way was no step. An open window ends."""
        self.started = None
        self._input_ns = self._late_input_ns = 0
        self._end_window(False)

    def take_over(self, starts: Iterable[int]) -> None:
        """Steps began at these moments, one after the other; the last is under way.

        What was under way is left out: nothing tells where it ended.
        """
        self.drop_step()
        for start in starts:
            if self.started is not None:
                self.end_step(start)
            self.started = start

    def cut_window(self) -> None:
        """End the open window now: an evaluation begins, the training starts a profiler of its own."""
        self._end_window(self.started is None or self.ended > self.started)

    def _end_window(self, is_complete: bool) -> None:
        windows = self.windows
        if windows is not None and windows.active >= 0:
            self.window_closing()
            self._closed_at = _clock()
            windows.close(is_complete)
            self.window_closed()
            self._closing_ns = _clock() - self._closed_at
            if self.started is None:
                self.window = -1

    def step_aside(self) -> None:
        """The training is about to use this framework's profiler itself: an open window, whoever's, ends."""
        cutter = self.process.cutter or self
        cutter.guarded("yield", cutter.cut_window)

    @property
    def in_window(self) -> bool:
        return self.windows is not None and self.windows.active >= 0

    @property
    def will_trace(self) -> bool:
        """The step under way is traced, or the next one will be."""
        windows = self.windows
        return windows is not None and (windows.active >= 0 or windows.wants(self.index + 1))

    @property
    def on_training_thread(self) -> bool:
        return self.windows is None or self._thread.has_work_here()

    # -- inside ---------------------------------------------------------------------------------------

    def _training_moved(self) -> None:
        """Another thread goes on with the training."""
        self.cut_window()
        if self.process.recorder is not None:
            self.process.recorder.meta["main_tid"] = threading.get_native_id()

    def _turn_windows(self, step: int, began: int) -> bool:
        """Open, go on with or close a window before `step`; True when perfscope spent time on it."""
        windows = self.windows
        assert windows is not None
        if windows.active >= 0:
            self.window_closing()
            if windows.boundary(step):
                self.window = -1
                self.window_closed()
                return True
            return False
        if windows.wants(step):
            trace = self.profiler()
            if trace is None:
                windows.trace_by(None, None, None, layout.CALLS)
            else:
                windows.trace_by(trace.start, trace.stop, trace.new_mark, trace.suffix, trace.abandon)
            if windows.open(step, began):
                self.window = windows.active
                self.window_opened()
            return True
        return False

    def finish(self) -> Dict[str, Any]:
        """The process ends: write the last step, close what is open.

        Returns:
            For rank.json.
        """
        windows, recorder = self.windows, self.process.recorder
        if windows is None or recorder is None:
            return {}
        if self.started is not None and self.ended > self.started:
            self.end_step(self.ended)
        self._thread.report(self.process)
        recorder.flush()  # before the window: should closing it fail, the steps are safe
        if not self.off:
            if windows.active >= 0:
                self.window_closing()
            windows.finish(self.started is None)
        overhead = dict(windows.cost(), always_on_ns=self.cost_ns)
        return dict(
            self.facts(), overhead=overhead, memory={"peak_rss_bytes": peak_rss(), "peak_device_bytes": None}
        )
