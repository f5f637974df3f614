"""What every framework's probe but torch's shares: how steps are cut.

A subclass puts its hooks in and calls `boundary` where a training step begins.
"""

from __future__ import annotations

import time
from typing import Iterable, Optional

from .activities import UNKNOWN, StepReadings
from .framework_probe import FrameworkProbe
from .recorder import Recorder
from .steps import Step

_clock = time.monotonic_ns


class StepProbe(FrameworkProbe):
    """Cuts steps and opens windows for one framework.

    A step lasts from one `boundary` to the next, the last one to `step_ended`, if that was called.

    Attributes:
        index: number of the step that is under way, or comes next. Times are CLOCK_MONOTONIC, ns.
        started: when the step under way began; None: none is.
        ended: when a step's work was done last (`step_ended`).
        samples: of the step under way; None: not known.
    """

    def start_afresh(self) -> None:
        super().start_afresh()
        self.index = 0
        self.started: Optional[int] = None
        self.ended = 0
        self.samples: Optional[int] = None
        self._readings = StepReadings(self.process.activities)
        self._timely = False  # the beginning of the step under way was read when it began
        self._input_ns = 0
        self._late_input_ns = 0  # waited for since the step's work was done
        self._sees_input = False
        self._optimizer_ns: Optional[int] = None
        self._closed_at = self._closing_ns = (
            0  # when a window was cut within the step, and how long that took
        )

    def write(self, step: Step, end: int) -> None:
        """A step has ended, at `end`. To be overridden where its time is not known yet."""
        assert self.process.recorder is not None and self.windows is not None
        self.process.recorder.add_step(step, end)
        self.windows.step_done(step.step, step.dur_ns, step.window, end)

    def promote(self) -> Optional[Recorder]:
        """This process trains with this framework: open its files.

        Returns:
            None where another framework cuts this process's steps, or nothing can be written.
        """
        if self.off or not self.process.own_steps(self.name):
            return None
        if self.windows is not None:
            return self.process.recorder
        recorder = self.open()
        if recorder is not None:
            self.cuts_steps()
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
        else:
            self._timely = False
        self._late_input_ns = 0
        self.samples = samples
        turned = self._turn_windows(self.index, began)
        if turned or not self._timely:
            self._readings.begins()
        self._timely = True
        self.started = _clock() if turned else began
        if not turned:
            self.cost_ns += _clock() - began

    def step_ended(self) -> None:
        """The step's work is done, as far as the program can tell: its end if no other step follows."""
        self.ended = _clock()
        self._readings.updated()

    def add_input(self, duration_ns: int) -> None:
        """The training has waited so long for a batch. It counts for the step whose time it is part of.

        That is the step under way, though the batch be the next one's. What was waited for before any step
        is in none.
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

    def end_step(self, end: int, *, is_last: bool = False) -> None:
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
            None,
            None,
            *(self._readings.ended(supposed=False, last=is_last) if self._timely else UNKNOWN),
        )
        self._input_ns, self._optimizer_ns = 0, None
        self.index += 1
        self.window = self.windows.active  # it may have been cut within this step
        self.write(step, end)

    def drop_step(self) -> None:
        """What is under way was no step. An open window ends."""
        self.started = None
        self._input_ns = self._late_input_ns = 0
        self.cut_window(is_complete=False)

    def take_over(self, starts: Iterable[int]) -> None:
        """Steps began at these moments, one after the other; the last is under way.

        What was under way is left out: nothing tells where it ended.
        """
        self.drop_step()
        self._timely = False
        for start in starts:
            if self.started is not None:
                self.end_step(start)
            self.started = start

    def last_step(self) -> bool:
        if self.started is not None and self.ended > self.started:
            self.end_step(self.ended, is_last=True)
        return self.started is None

    def _close_window(self, is_complete: bool) -> None:
        traced, self._closed_at = self.window, _clock()
        super()._close_window(is_complete)
        self._closing_ns = _clock() - self._closed_at
        if self.started is not None:
            self.window = traced  # the step under way was traced until now

    @property
    def between_steps(self) -> bool:
        return self.started is None or self.ended > self.started

    @property
    def will_trace(self) -> bool:
        """The step under way is traced, or the next one will be."""
        windows = self.windows
        return windows is not None and (windows.active >= 0 or windows.wants(self.index + 1))
