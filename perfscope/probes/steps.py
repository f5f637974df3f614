"""Where one training step ends and the next begins.

A step is one optimizer update. It is cut at the first root-module forward after an optimizer
step, so that data loading and zero_grad of the coming batch belong to the step they follow.

With several optimizers the cut is only a candidate until the next optimizer steps: if that
optimizer has already stepped in this step, the candidate was a real boundary; if it has not
(the generator after the discriminator), the step goes on. Gradient accumulation needs no rule:
without an optimizer step there is no candidate. An optimizer that steps for the first time, after a
forward pass and when all optimizers of the last step have stepped, is another model's: a new step begins.
Optimizers that take turns, each on a batch of its own, make steps of their own: between two updates the
loader that the step's batch came from has given another one.

Updates written by hand pass no hook: the caller says where they are taken to be (`update_by_hand`).
"""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional, Set

from .activities import StepReadings


class Step(NamedTuple):
    """One finished step; the columns of steps.jsonl, in order. Times in ns, CLOCK_MONOTONIC."""

    step: int
    start_ns: int
    dur_ns: int
    window: int
    input_ns: Optional[int]  # None: the training's way of loading data is not one we can time
    backward_ns: Optional[int]
    optimizer_ns: Optional[int]  # None: the framework does not show where the update begins
    num_micro: int
    samples: Optional[int]
    tokens: Optional[int] = None  # None: the model takes none, or its probe does not count them
    forward_ns: Optional[int] = None  # from the model's forward pass to the backward pass
    # activities.COLUMNS: what the thread did besides training, what the process and then this thread used
    evaluation_ns: Optional[int] = None
    rollout_ns: Optional[int] = None
    inference_ns: Optional[int] = None
    checkpoint_ns: Optional[int] = None
    gc_ns: Optional[int] = None
    minor_faults: Optional[int] = None
    major_faults: Optional[int] = None
    user_ns: Optional[int] = None
    system_ns: Optional[int] = None
    written_bytes: Optional[int] = None
    thread_minor_faults: Optional[int] = None
    thread_user_ns: Optional[int] = None
    thread_system_ns: Optional[int] = None
    thread_switches: Optional[int] = None  # voluntary
    runqueue_ns: Optional[int] = None


BY_HAND = 0  # stands for the optimizer that is not there
_INPUT, _FORWARD, _BACKWARD, _OPTIMIZER, _MICRO, _SAMPLES, _UNKNOWN, _TOKENS, _WINDOW = range(9)


def _fresh(window: int) -> List[int]:
    return [0, 0, 0, 0, 0, 0, 0, 0, window]


class StepTracker:
    """Turns hook calls into steps. Knows nothing of any framework; the caller passes the times.

    Args:
        emit: receives every confirmed Step.
        readings: of what the process does and uses; None: nothing is read.
    """

    def __init__(self, emit: Callable[[Step], None], readings: Optional[StepReadings] = None) -> None:
        self._emit = emit
        self._readings = StepReadings() if readings is None else readings
        self.index = 0  # the step under way
        self.window = -1  # set by the caller while steps are traced
        self._start: Optional[int] = None
        self._current = _fresh(-1)
        self._acc = self._current  # where new time goes: the current step, or what follows the candidate
        self._stepped: Set[int] = set()  # optimizers that stepped in the current step
        self._ever: Set[int] = set()  # optimizers that stepped in any step
        self._whole: Set[int] = set()  # those of the last confirmed step
        self._awaiting = False  # an optimizer stepped since the last candidate
        self._candidate: Optional[int] = None
        self._candidate_start = 0
        self._repeated = _fresh(-1)  # of what follows the candidate: passes over the step's own batch
        self._depth = 0
        self._saw_input = self._saw_forward = self._saw_backward = False
        self._forward_start: Optional[int] = None  # of the first root forward since the last backward pass
        self._optimizer_start = 0
        self._evaluated = False  # a closure of the update under way has called the root
        self._closure_start: Optional[int] = None  # of its forward pass, until its backward pass ends
        self._in_closures = 0  # forward and backward within the update under way, ns
        self._last_update = 0
        self._late_input = 0  # waited for since the last update: no part of the step if it is the last
        self._loaders: Set[int] = set()  # that gave this step's batches
        self._late_loaders: Set[int] = set()  # that gave a batch since the last update
        self.fallback: Optional[int] = (
            None  # forward of another module since the update; used if no root came
        )
        self.num_optimizers = 1  # that stepped in the last confirmed step

    @property
    def at_boundary(self) -> bool:
        """True when a root forward now would start a new step, as far as can be known now."""
        return self._awaiting and len(self._stepped) >= self.num_optimizers

    @property
    def next_index(self) -> int:
        """Index of the step that a root forward now belongs to."""
        pending = self._candidate is not None or self._awaiting
        return self.index + 1 if pending and self._start is not None else self.index

    def root_forward(
        self,
        now: int,
        samples: Optional[int],
        tokens: Optional[int] = None,
        repeated: bool = False,
        num_micro: int = 1,
    ) -> None:
        """The root module is about to run forward.

        Args:
            samples: that this adds to the step; None: cannot be determined.
            tokens: likewise; None: the model takes none.
            repeated: they are of the batch of the step before, and count if this is another step.
            num_micro: micro-batches that this adds to the step.
        """
        if self._depth:
            # Inside an update (LBFGS calls a closure, often several times for one batch): never a boundary.
            if not self._evaluated:
                self._evaluated = True
                self._acc[_MICRO] += num_micro
                self._count(self._acc, samples, tokens)
            self._closure_start = now if self._closure_start is None else self._closure_start
            return
        if self._start is None:
            self._begin(now)
            self._current[_WINDOW] = self.window
        elif self._awaiting and self._candidate is None:
            self._suppose_boundary(now)
        self._awaiting = False
        if self._forward_start is None:
            self._forward_start = now
        self._acc[_MICRO] += num_micro
        self._count(self._acc, samples, tokens)
        if repeated and self._candidate is not None:
            self._count(self._repeated, samples, tokens)

    def count_newcomer(
        self, samples: Optional[int], tokens: Optional[int], repeated: bool, num_micro: int
    ) -> None:
        """Within the update that showed it: a forward pass before it was of this step's model."""
        self._acc[_MICRO] += num_micro
        self._count(self._acc, samples, tokens)

    def _begin(self, now: int) -> None:
        self._start = now
        self._readings.begins()

    def _suppose_boundary(self, now: int) -> None:
        self._readings.supposed()
        self._candidate = self._candidate_start = now
        self._acc, self._repeated = _fresh(self.window), _fresh(-1)

    def update_is_boundary(self, now: int) -> None:
        """No root forward comes between updates: the next step begins now, where this one ended."""
        if self._awaiting and self._candidate is None:
            self._suppose_boundary(now)
            self._awaiting = False

    def update_by_hand(self, now: int, goes_on: bool) -> None:
        """A backward pass ended at `now`; the update that no hook shows is taken to follow it.

        Args:
            goes_on: the pass added to the gradients of the one before: both are of one step.
        """
        if goes_on and self._candidate is not None:
            self._merge()
        self.optimizer_begins(BY_HAND, now)
        self.optimizer_ends(now)
        self.update_is_boundary(now)

    def emit_to(self, emit: Callable[[Step], None]) -> None:
        """Steps from now on go to `emit`."""
        self._emit = emit

    @property
    def updating(self) -> bool:
        """True inside an optimizer's step."""
        return self._depth > 0

    def correct(self, samples: int) -> None:
        """The samples counted last were so many fewer than there are."""
        self._acc[_SAMPLES] += samples

    @staticmethod
    def _count(into: List[int], samples: Optional[int], tokens: Optional[int]) -> None:
        into[_TOKENS] += tokens or 0
        if samples is None:
            into[_UNKNOWN] += 1
        else:
            into[_SAMPLES] += samples

    def resume(self, now: int) -> None:
        """Time until `now` was perfscope's own (a profiler was started or stopped at the boundary)."""
        if self._forward_start is not None:
            self._forward_start = now
        if self._candidate is not None:
            self._candidate_start = now
            self._readings.resumed()
            self._acc[_WINDOW] = self.window
        elif self._start is not None:
            self._begin(now)
            self._current[_WINDOW] = self.window

    def add_input(self, duration: int, loader: int = 0) -> None:
        """The training has waited `duration` ns for a batch. Waits before the first step are in none.

        Args:
            loader: identity of the loader that gave a batch; 0: none was given, or it is not known which did.
        """
        self._saw_input = True
        if loader:
            self._late_loaders.add(loader)
        if self._start is None:
            return
        self._acc[_INPUT] += duration
        if self._candidate is None:
            self._late_input += duration

    def add_backward(self, duration: int, now: int) -> None:
        """A backward pass of `duration` ns ended at `now`; if inside an update, that is none of its time."""
        self._saw_backward = True
        self._acc[_BACKWARD] += duration
        if self._forward_start is not None:
            self._saw_forward = True
            self._acc[_FORWARD] += max(0, now - duration - self._forward_start)
            self._forward_start = None
        if self._depth:
            start = now - duration if self._closure_start is None else self._closure_start
            self._in_closures += now - start
            self._closure_start = None

    def optimizer_begins(self, optimizer: int, now: int) -> bool:
        """Optimizer with identity `optimizer` enters step(); nested calls (ZeRO, super().step) are ignored.

        Returns:
            True when a step was cut although the root module was not called since the last update.
        """
        self._depth += 1
        if self._depth > 1:
            return False
        rootless = False
        self._optimizer_start = now
        self._evaluated, self._closure_start, self._in_closures = False, None, 0
        own_batch = not self._loaders.isdisjoint(self._late_loaders)
        repeats = own_batch or optimizer in self._stepped or self._is_another_models(optimizer)
        self._ever.add(optimizer)
        if self._candidate is not None:
            if repeats:
                self._confirm(self._candidate, self._candidate_start)
            else:
                self._merge()
        elif self._awaiting and repeats:
            # The root was not called in between (another model, or a functional one): cut at the forward
            # that was seen, else at the update itself.
            boundary = self._last_update if self.fallback is None else self.fallback
            self._acc = _fresh(self.window)
            if self.fallback is None:  # what was waited for since the last update is the next step's
                self._acc[_INPUT] = self._late_input
                self._current[_INPUT] -= self._late_input
            self._confirm(boundary, boundary)
            rootless = True
        if self._start is None:
            self._begin(now)
        self._stepped.add(optimizer)
        self._loaders |= self._late_loaders
        self._late_loaders.clear()
        self.fallback = None
        return rootless

    def _is_another_models(self, optimizer: int) -> bool:
        """A step of an optimizer not seen before that belongs to none of the steps so far."""
        forward = self._candidate is not None or self.fallback is not None
        is_complete = bool(self._stepped) and self._stepped == self._whole and self._whole != {BY_HAND}
        return forward and is_complete and optimizer not in self._ever

    def optimizer_ends(self, now: int) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return
        self._acc[_OPTIMIZER] += now - self._optimizer_start - self._in_closures
        self._last_update, self._late_input = now, 0
        self._forward_start = None  # no backward pass followed
        self._readings.updated()
        self._awaiting = True

    def finish(self) -> None:
        """Training ended: the last step lasts to its update, or to the forward that followed it."""
        if self._start is None or not self._stepped:
            return
        end = self._last_update if self._candidate is None else self._candidate
        if self._candidate is None:
            self._current[_INPUT] -= self._late_input
        self._confirm(end, end, is_last=True)
        self._start = None

    def _confirm(self, end: int, next_start: int, is_last: bool = False) -> None:
        start, done = self._start, self._current
        used = self._readings.ended(supposed=self._candidate is not None, last=is_last)
        self._current = self._acc if self._acc is not done else _fresh(self.window)
        self._acc = self._current
        self._candidate = None
        self._start = next_start
        self.num_optimizers = len(self._stepped)
        self._whole = set(self._stepped)
        self._stepped.clear()
        self._loaders.clear()
        self.index += 1
        if start is not None:
            self._emit(
                Step(
                    self.index - 1,
                    start,
                    end - start,
                    done[_WINDOW],
                    done[_INPUT] if self._saw_input else None,
                    done[_BACKWARD] if self._saw_backward else None,
                    None if self._whole == {BY_HAND} else done[_OPTIMIZER],
                    done[_MICRO],
                    None if done[_UNKNOWN] or not done[_MICRO] else done[_SAMPLES],
                    done[_TOKENS] or None,
                    done[_FORWARD] if self._saw_forward else None,
                    *used,
                )
            )

    def _merge(self) -> None:
        for field in range(_WINDOW):
            self._current[field] += self._acc[field] - self._repeated[field]
        self._acc = self._current
        self._candidate = None
