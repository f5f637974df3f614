"""Steps of a device whose host runs ahead of it.

A mark on the host says when the host began to launch a step. The device may then still have much to do of
earlier steps, and does this step's work long after the host has left it: between the host's marks it would
seem to idle, or to do another step's work. There a step lasts until the device has done the last computation
that it or an earlier step launched, and the first one begins with its first work on the device if that had to
wait for work that the trace does not show.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.ingest.steps import Steps
from perfscope.rundir.schema import KINDS

AHEAD = 0.1  # of the mean step by which the device must be behind
_COMPUTE = KINDS.index("compute")
_WORK = tuple(KINDS.index(kind) for kind in ("compute", "comm", "copy"))
_NONE = np.iinfo(np.int64).min

Ints = npt.NDArray[np.int64]


class DeviceSteps:
    """Learns from device rows where the work of each step begins and ends.

    Args:
        steps: by the host's marks.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        num = len(steps.spans)
        self._ends = np.full(num + 1, _NONE)  # of computation launched before the first step, and in each
        self._first: tuple[int, int] | None = None  # start and launch's end of the first step's first work

    def add(self, start: Ints, end: Ints, kinds: npt.NDArray[np.int32], launched: Ints, until: Ints) -> None:
        """Takes in device rows with a known launch, each array of shape (n,).

        Args:
            start: of the work, in the time of the trace's events.
            end: likewise.
            kinds: index into KINDS.
            launched: start of the call that launched it.
            until: end of that call.
        """
        step_index = self._steps.places(launched)
        is_known = (step_index >= 0) | (launched < self._steps.first_ns)
        computes = is_known & (kinds == _COMPUTE)
        np.maximum.at(self._ends, step_index[computes] + 1, end[computes])
        of_first = np.flatnonzero((step_index == 0) & np.isin(kinds, _WORK))
        if len(of_first):
            row = of_first[np.argmin(start[of_first])]
            first = int(start[row]), int(until[row])
            self._first = first if self._first is None else min(self._first, first)

    def spans(self) -> list[tuple[int, int, int]] | None:
        """(step, start_ns, end_ns) on the device; None where the host does not run ahead of it."""
        marks = self._steps.spans
        if not self._steps.is_marked or not marks or self._first is None:
            return None
        ends = np.array([end for _, _, end in marks], np.int64)
        begin = marks[0][1]
        least = AHEAD * (int(ends[-1]) - begin) / len(marks)
        work_begins, launched = self._first
        done = np.maximum.accumulate(self._ends)
        bounds = np.maximum(np.concatenate(([begin], ends)), done)
        if work_begins - launched > least:
            bounds[0] = max(bounds[0], work_begins)
        bounds = np.maximum.accumulate(bounds)
        if (bounds - np.concatenate(([begin], ends))).max() <= least:
            return None
        return [
            (step, start, end)
            for (step, _, _), start, end in zip(marks, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        ]
