"""Steps that the training itself marks: `perfscope.step()`, or a loop that a probe found (MPI's).

A framework of the program's lends its profiler and its facts. A program of none has windows that hold what
probes time themselves (MPI calls); what the main thread does besides is taken for its computation.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Optional

from .framework_probe import FrameworkProbe, Trace
from .process import Process, current
from .step_probe import StepProbe

NAME = "python"
OUTSIDE = "outside communication"


def boundary(samples: Any = None) -> None:
    """A step begins here."""
    probe = the_probe()
    count = samples if isinstance(samples, int) and samples >= 0 else None
    if probe.on_training_thread:
        probe.step_ended()  # the call itself: no other may follow
    probe.guarded("step", probe.boundary, count)


@functools.lru_cache(maxsize=None)
def the_probe() -> "OwnSteps":
    return OwnSteps(current())


class OwnSteps(StepProbe):
    """Steps cut by calls, windows by the profiler of the framework that computes."""

    def __init__(self, process: Process) -> None:
        super().__init__(process, NAME)

    def start_afresh(self) -> None:
        super().start_afresh()
        self._lender: Optional[FrameworkProbe] = None

    @property
    def lender(self) -> Optional[FrameworkProbe]:
        """The framework that the program computes with; None: none that perfscope knows."""
        if self._lender is None:
            self._lender = next((probe for probe in self.process.lenders if probe.in_use()), None)
        return self._lender

    def profiler(self) -> Optional[Trace]:
        lender = self.lender
        return lender.trace if lender is not None and lender.may_trace() else None

    def facts(self) -> Dict[str, Any]:
        if self.lender is not None:
            return self.lender.facts()
        return {"framework": {"name": NAME, "version": ""}, "device": "cpu"}

    def memory(self) -> Dict[str, Any]:
        return super().memory() if self.lender is None else self.lender.memory()

    def boundary(self, samples: Optional[int] = None) -> None:
        if self.will_trace:
            self.window_closing()  # a traced step ends when its work does, and holds no other's
        super().boundary(samples)

    def window_opened(self) -> None:
        if self.lender is not None:
            self.lender.window_opened()
        if self.profiler() is None:
            self.process.calls.tell(outside=OUTSIDE)

    def window_closing(self) -> None:
        if self.lender is not None:
            self.lender.wait()

    def window_closed(self) -> None:
        if self.lender is not None:
            self.lender.window_closed()
        self._describe()

    def finish(self) -> Dict[str, Any]:
        if self.windows is not None:
            self.guarded("describe", self._describe)
        return super().finish()

    def _describe(self) -> None:
        recorder = self.process.recorder
        if self.lender is not None and recorder is not None:
            recorder.save_meta(**self.facts())  # it may not have been in use when the rank was opened
            self.lender.describe(recorder)
