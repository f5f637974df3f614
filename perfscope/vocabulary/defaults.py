"""Defaults of options that several packages share."""

from __future__ import annotations

from typing import NamedTuple


class Recording(NamedTuple):
    """How much of a run is traced.

    Attributes:
        windows: traced at most.
        steps_per_window: in each of them.
        overhead: share of the run's time that tracing may cost.
    """

    windows: int
    steps_per_window: int
    overhead: float


RUN = Recording(windows=3, steps_per_window=2, overhead=0.01)
CHECK = RUN._replace(windows=4)
# Traced steps are not counted in samples/s: what they cost is no matter.
SWEEP = Recording(windows=1, steps_per_window=1, overhead=1.0)
FRAMEWORKS = Recording(windows=1, steps_per_window=2, overhead=1.0)
SAMPLE_INTERVAL_MS = 100
HANG_AFTER_S = 60.0  # the shortest time without a step that is a hang
LIVE_EVERY_S = 60.0  # between the lines of `perfscope run --live`
METRICS_EVERY_S = 15.0  # between two states of its metrics file
# Step, counted from 0, that a window may begin with: past lazy initialization and DDP's bucket rebuild.
FIRST_WINDOW_STEP = 3
# A run of no more steps ends before its first window is written.
WARM_UP_STEPS = 6
