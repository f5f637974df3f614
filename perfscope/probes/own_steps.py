"""Steps that the training itself marks: `perfscope.step()`. For programs of no framework perfscope knows.

A window of such a program holds what probes time themselves (MPI calls); what the main thread does besides is
taken for its computation.
"""

from __future__ import annotations

import functools
from typing import Any, Dict

from .process import Process, current
from .step_probe import StepProbe

NAME = "python"
OUTSIDE = "outside communication"


def boundary(samples: Any = None) -> None:
    """A step begins here."""
    probe = the_probe()
    count = samples if isinstance(samples, int) and samples >= 0 else None
    probe.step_ended()  # the call itself: no other may follow
    probe.guarded("step", probe.boundary, count)


@functools.lru_cache(maxsize=None)
def the_probe() -> "OwnSteps":
    return OwnSteps(current())


class OwnSteps(StepProbe):
    """Steps cut by calls, windows without a profiler."""

    def __init__(self, process: Process) -> None:
        super().__init__(process, NAME)

    def facts(self) -> Dict[str, Any]:
        return {"framework": {"name": NAME, "version": ""}, "device": "cpu"}

    def window_opened(self) -> None:
        self.process.calls.tell(outside=OUTSIDE)
