"""What every framework's probe shares: the rank's files, windows, and the boundary to the training.

All that a hook calls goes through `guarded`: an error of the probe's never reaches the training, and after
three of one hook the probe stays silent. When a window opens and closes is decided here; where a step begins
and ends is up to the subclass: StepProbe (step_probe.py) and TorchProbe (torch/probe.py).

Where the program marks its steps itself (`perfscope.step()`), own_steps.py cuts them. The framework's probe
then lends its profiler, its layer marks and its facts (`Process.lend`): `in_use`, `may_trace`, `wait`,
`describe`, `window_opened`, `window_closed`.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Optional, Tuple

from ..rundir import layout
from .memory import peak_rss
from .process import Process
from .recorder import Recorder
from .training_thread import TrainingThread
from .windows import Windows


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


class FrameworkProbe:
    """The life of one framework's probe in one process.

    Args:
        process: of which this is a probe.
        name: of the framework: "tensorflow".
        trace: its profiler; None: it has none, a window holds the process's own calls.

    Attributes:
        off: this probe is to stay silent.
        trace: as given; a subclass may exchange it until the first window.
        windows: None until the process proves to train with this framework.
        window: id of the window that traces the step under way, -1: none.
        cost_ns: time spent on steps outside windows.
    """

    survivable: Tuple[str, ...] = ()  # hooks without which steps can still be cut

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
        self.window = -1
        self.cost_ns = 0
        self._thread = TrainingThread(self._training_moved)

    def _reset(self) -> None:
        self.start_afresh()
        self.forked()

    # -- for subclasses to give ---------------------------------------------------------------------

    def opened(self, recorder: Recorder) -> None:
        """The rank's files have just been opened for this framework."""

    def facts(self) -> Dict[str, Any]:
        """For rank.json: `framework` ({"name", "version"}), `device`, `num_threads`, `backend`, `groups`."""
        return {}

    def memory(self) -> Dict[str, Any]:
        """For rank.json: the most memory that this process held, bytes; None: not known."""
        return {"peak_rss_bytes": peak_rss(), "peak_device_bytes": None}

    def forked(self) -> None:
        """This is a forked child: forget what belongs to the parent."""

    def window_opened(self) -> None:
        """A window has just been opened: hooks that are only wanted in windows go in."""

    def window_closing(self) -> None:
        """The window's last step has ended and its trace is still being recorded: wait for pending work."""

    def window_closed(self) -> None:
        """The trace is written: take out what `window_opened` put in."""

    def last_step(self) -> bool:
        """The process ends: write the step under way. Returns: no step is under way any more."""
        return True

    def profiler(self) -> Optional[Trace]:
        """What the next window is traced by."""
        return self.trace

    # -- for steps that the program marks itself ------------------------------------------------------

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
        """`error` happened in the hook `where`: after three of one hook no windows, and no steps."""
        broken = self.process.broken
        if self.process.guard.fault("%s %s" % (self.name, where), error) or broken:
            self.off = self.off or broken or where not in self.survivable
            self._abandon()

    def _abandon(self) -> None:
        """No more windows; the open one is lost."""
        if self.windows is None:
            return
        trace = self.profiler() if self.windows.active >= 0 else None
        self.windows.abandon()
        self.window = -1
        try:
            if trace is not None:
                trace.abandon()
        except Exception as error:  # noqa: BLE001 - the boundary: training goes on
            self.process.guard.counts["abandon " + type(error).__name__] = 1

    def open(self) -> Optional[Recorder]:
        """This process is a rank of a training: open its files. Once; later calls are free.

        Returns:
            None where nothing can be written.
        """
        recorder = self.process.open()
        if recorder is None or self.windows is not None:
            return recorder
        process = self.process
        self.windows = Windows(
            *(recorder, process.config, None, None, None),
            calls=process.calls,
            counters=process.counters,
            phases=process.phases,
        )
        process.on_finish(self.finish)
        self.opened(recorder)
        return recorder

    def cuts_steps(self) -> bool:
        """Whether this framework cuts the steps of the process; the first that asks does.

        The calling thread is the one that trains.
        """
        if not self.process.own_steps(self.name):
            return False
        self.process.cutter = self
        self._thread.settle()
        self._note_thread()
        return True

    def cut_window(self, is_complete: Optional[bool] = None) -> None:
        """End the open window now: an evaluation begins, the training starts a profiler of its own.

        Args:
            is_complete: the step under way has ended, and is one of the window's; None: see `between_steps`.
        """
        if self.in_window:
            self.window_closing()
            self._close_window(self.between_steps if is_complete is None else is_complete)

    def _close_window(self, is_complete: bool) -> None:
        assert self.windows is not None
        self.windows.close(is_complete)
        self.window = -1
        self.window_closed()

    def step_aside(self) -> None:
        """The training is about to use this framework's profiler itself: an open window, anyone's, ends."""
        cutter = self.process.cutter or self
        cutter.guarded("yield", cutter.cut_window)

    @property
    def between_steps(self) -> bool:
        """The last step's work is done, and the next one's has not begun, as far as the probe can see."""
        return True

    @property
    def in_window(self) -> bool:
        return self.windows is not None and self.windows.active >= 0

    @property
    def thread_ident(self) -> int:
        """Of the thread that trains."""
        return self._thread.ident

    @property
    def on_training_thread(self) -> bool:
        return self.windows is None or self._thread.has_work_here()

    # -- inside ---------------------------------------------------------------------------------------

    def _training_moved(self) -> None:
        """Another thread goes on with the training; a window's profiler was started in the one before."""
        self.cut_window()
        self._note_thread()

    def _note_thread(self) -> None:
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
        ended = self.last_step()
        self._thread.report(self.process)
        recorder.flush()  # before the window: should closing it fail, the steps are safe
        if not self.off:
            if windows.active >= 0:
                self.window_closing()
            windows.finish(ended)
        overhead = dict(windows.cost(), always_on_ns=self.cost_ns)
        return dict(self.facts(), overhead=overhead, memory=self.memory())
