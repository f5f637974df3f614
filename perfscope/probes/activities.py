"""What the training thread does between updates besides training: evaluations, rollouts, checkpoints, garbage
collection. Cumulative times; the difference between two step boundaries is the step's.

A stretch of forward passes without gradients lasts from the first of their module calls to the last, and one
mean distance between calls more, because only their beginnings are seen. The batch it was given by a loader
is part of it. It is an evaluation where a loader gave it data or a module was in evaluation mode, a rollout
where neither is the case and a library of environments is loaded, else one of both. The parts do not overlap:
garbage collected and checkpoints written within a stretch are not counted for it.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Any, Dict, Optional, Tuple

from ..vocabulary.run_parts import RunPart
from .marks import Marks
from .phases import Phases
from .usage import COLUMNS as USAGE_COLUMNS
from .usage import Usage, between

COLUMNS = ("evaluation_ns", "rollout_ns", "inference_ns", "checkpoint_ns", "gc_ns", *USAGE_COLUMNS)
UNKNOWN: Tuple[Optional[int], ...] = (None,) * len(COLUMNS)
_EVALUATION, _ROLLOUT, _INFERENCE, _CHECKPOINT, _GC = range(5)
_NUM_KINDS = 5
_NOTHING = (0,) * _NUM_KINDS
# Libraries whose environments a policy is run in.
_ENVIRONMENTS = (
    *("gymnasium", "gym", "envpool", "pettingzoo", "dm_env", "procgen_env", "procgen", "torchrl"),
    *("stable_baselines3", "vizdoom", "minigrid", "brax", "pufferlib", "isaacgym", "habitat"),
)
_clock = time.monotonic_ns

Reading = Tuple[Tuple[int, ...], Any]  # times by kind, and the process's usage


class _Stretch:
    """Forward passes without gradients, under way."""

    def __init__(self, start: int, elsewhere: int) -> None:
        self.start = self.last = start
        self.elsewhere = elsewhere  # time of other kinds up to here
        self.num_calls = 0
        self.waiting = 0  # waited for a batch that no call has taken yet
        self.evaluates = False  # a loader gave it data, or a module was in evaluation mode
        self.unseen = False  # calls are no longer looked at

    def end(self, now: int) -> int:
        if self.unseen or self.num_calls < 2:
            return now
        distance = (self.last - self.start) // (self.num_calls - 1)
        return min(now, self.last + distance)

    def kind(self) -> int:
        if self.evaluates:
            return _EVALUATION
        return _ROLLOUT if any(name in sys.modules for name in _ENVIRONMENTS) else _INFERENCE


class Activities:
    """One process's. Everything but garbage collection is called in the thread that trains.

    Args:
        phases: whose time is cut where steps are; None: there are none.

    Attributes:
        marks: says on disk that these go on.
    """

    def __init__(self, phases: Optional[Phases] = None) -> None:
        self._phases = phases
        self.marks = Marks()
        self._usage = Usage()
        self._watching = False
        self.reset()

    def reset(self) -> None:
        """Nothing has been seen of any training."""
        self._usage.reset()
        self.marks.reset()
        self._ns = [0] * _NUM_KINDS
        self._stretch: Optional[_Stretch] = None
        self._loaded: Optional[Tuple[int, int]] = None  # the last wait for a batch: begin, ns
        self._saving = 0  # nested calls that write checkpoints
        self._saving_since = self._collecting_since = 0
        self.first: Optional[Tuple[int, ...]] = None  # times by kind when the first step began

    def watch(self) -> None:
        """Look at garbage collections from now on."""
        if not self._watching:
            self._watching = True
            gc.callbacks.append(self._collects)

    def _collects(self, phase: str, info: Dict[str, Any]) -> None:
        if phase == "start":
            self._collecting_since = _clock()
        elif self._collecting_since:
            if not self._saving:  # else it is part of the checkpoint
                self._ns[_GC] += _clock() - self._collecting_since
            self._collecting_since = 0

    # -- forward passes without gradients ---------------------------------------------------------------

    def inferred(self, now: int, module: Any) -> int:
        """A module is called without gradients.

        Returns:
            ns that the training waited for a batch which proves to be for this.
        """
        stretch, taken = self._stretch, 0
        if stretch is None:
            start = now
            if self._loaded is not None:
                start, taken = self._loaded
            stretch = self._stretch = _Stretch(start, self._elsewhere())
            stretch.evaluates = taken > 0
        elif stretch.waiting:
            taken, stretch.waiting = stretch.waiting, 0
            stretch.evaluates = True
        self._loaded = None
        stretch.unseen = False
        stretch.last = now
        stretch.num_calls += 1
        stretch.evaluates = stretch.evaluates or not getattr(module, "training", True)
        self.marks.goes_on(now, RunPart.EVALUATION if stretch.evaluates else RunPart.INFERENCE)
        return taken

    def overlooks(self) -> None:
        """Calls without gradients are not looked at any more for now."""
        if self._stretch is not None:
            self._stretch.unseen = True
            is_evaluation = self._stretch.evaluates
            self.marks.goes_on(
                _clock(), RunPart.EVALUATION if is_evaluation else RunPart.INFERENCE, unseen=True
            )

    def loaded(self, began: int, duration: int) -> None:
        """The training has waited for a batch."""
        part = RunPart.INPUT if self._stretch is None else RunPart.EVALUATION
        self.marks.goes_on(began + duration, part)
        if self._stretch is None:
            self._loaded = (began, duration)
            return
        self._stretch.waiting += duration
        if self._stretch.unseen:
            self._stretch.last, self._stretch.unseen = began, False

    def trains(self, now: int) -> None:
        """The training goes on: what was under way besides has ended."""
        self._loaded = None
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            end = stretch.end(now)
            self._ns[stretch.kind()] += max(0, end - stretch.start - (self._elsewhere() - stretch.elsewhere))

    def _elsewhere(self) -> int:
        return self._ns[_CHECKPOINT] + self._ns[_GC]

    # -- checkpoints ------------------------------------------------------------------------------------

    def save_begins(self) -> None:
        """A function that writes a checkpoint is called."""
        self._saving += 1
        if self._saving == 1:
            self._saving_since = _clock()
            self.trains(self._saving_since)
            self.marks.begins(RunPart.CHECKPOINT)

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is written."""
        return self._saving > 0

    def save_ended(self) -> None:
        self._saving = max(0, self._saving - 1)
        if not self._saving:
            self._ns[_CHECKPOINT] += _clock() - self._saving_since
            self.marks.ended(RunPart.CHECKPOINT)

    # -- readings ---------------------------------------------------------------------------------------

    def updated(self) -> Tuple[int, ...]:
        """Times by kind, up to now: a step's work is done, and it may be the last."""
        if self._phases is not None:
            self._phases.suppose_end(_clock())
        return tuple(self._ns)

    def read(self) -> Reading:
        """At a step boundary."""
        times = tuple(self._ns)
        if self._phases is not None:
            self._phases.cut(_clock())
        if self.first is None:
            self.first = times
        return times, self._usage.read()

    def facts(self) -> Dict[str, Dict[str, int]]:
        """For rank.json: times of the whole process, and those before the first step."""
        first = self.first or (0,) * _NUM_KINDS
        return {
            "total": {name: self._ns[kind] for kind, name in enumerate(COLUMNS[:_NUM_KINDS])},
            "before": {name: first[kind] for kind, name in enumerate(COLUMNS[:_NUM_KINDS])},
        }


class StepReadings:
    """Readings at the boundaries of one line of steps, which are often known to be boundaries only later.

    Args:
        activities: of the process; None: nothing is known of what it does.
    """

    def __init__(self, activities: Optional[Activities] = None) -> None:
        self._activities = activities
        self._first: Optional[Reading] = None  # where the step under way began
        self._end: Optional[Reading] = None  # where it may have ended ...
        self._next: Optional[Reading] = None  # ... and the next begun
        self._updated: Optional[Tuple[int, ...]] = None

    def _read(self) -> Optional[Reading]:
        return None if self._activities is None else self._activities.read()

    def begins(self) -> None:
        """A step begins now."""
        self._first = self._read()

    def supposed(self) -> None:
        """The step under way may end here, and another begin."""
        self._end = self._next = self._read()

    def resumed(self) -> None:
        """The step that may have begun begins only now."""
        self._next = self._read()

    def updated(self) -> None:
        """The step's work is done, should no other follow."""
        if self._activities is not None:
            self._updated = self._activities.updated()

    def ended(self, *, supposed: bool, last: bool = False) -> Tuple[Optional[int], ...]:
        """The step under way has ended: what was done and used in it, by COLUMNS.

        Args:
            supposed: where it was supposed to end; else it ends now.
            last: none follows; it ended at its update, and what was used until then is not known.
        """
        if last and not supposed:
            end = None if self._updated is None else (self._updated, None)
        else:
            end = self._end if supposed else self._read()
        first, self._first = self._first, self._next if supposed else end
        if first is None or end is None:
            return UNKNOWN
        times = _NOTHING
        if end[0] != first[0]:  # of most steps they are the same
            times = tuple(max(0, end[0][kind] - first[0][kind]) for kind in range(_NUM_KINDS))
        return (*times, *between(first[1], end[1]))
