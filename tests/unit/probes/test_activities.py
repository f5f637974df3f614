"""What is done besides training adds up per step, without overlap."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.probes import activities as module
from perfscope.probes.activities import COLUMNS, Activities, StepReadings
from perfscope.probes.steps import Step, StepTracker

TRAINING, EVALUATING = SimpleNamespace(training=True), SimpleNamespace(training=False)


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "_clock", clock)
    return clock


def times(activities: Activities) -> dict[str, int]:
    return {name: value for name, value in zip(COLUMNS, activities.updated(), strict=False) if value}


def test_a_stretch_ends_one_call_after_its_last(clock: Clock) -> None:
    activities = Activities()
    for now in range(100, 600, 100):
        assert activities.inferred(now, TRAINING) == 0
    activities.trains(2_000)
    assert times(activities) == {"inference_ns": 500}


def test_batches_of_an_evaluation_are_part_of_it_and_not_of_the_input(clock: Clock) -> None:
    activities = Activities()
    activities.loaded(50, 50)
    assert activities.inferred(100, TRAINING) == 50
    activities.loaded(110, 40)
    assert activities.inferred(200, TRAINING) == 40
    activities.loaded(250, 60)  # the training's next batch
    activities.trains(310)
    assert times(activities) == {"evaluation_ns": 260}


def test_a_batch_that_the_training_takes_is_not_the_evaluations(clock: Clock) -> None:
    activities = Activities()
    activities.loaded(0, 50)
    activities.trains(60)
    assert activities.inferred(100, EVALUATING) == 0


def test_calls_that_are_no_longer_looked_at_go_on_to_the_next_event(clock: Clock) -> None:
    activities = Activities()
    activities.inferred(0, TRAINING)
    activities.inferred(10, TRAINING)
    activities.overlooks()
    activities.trains(5_000)
    assert times(activities) == {"inference_ns": 5_000}


def test_checkpoints_and_garbage_within_an_evaluation_do_not_count_twice(clock: Clock) -> None:
    activities = Activities()
    for now in (0, 100):
        activities.inferred(now, TRAINING)
    clock.now = 110
    activities._collects("start", {})
    clock.now = 150
    activities._collects("stop", {})
    activities.inferred(200, TRAINING)
    clock.now = 300
    activities.save_begins()
    activities.save_begins()  # torch.save within a function that saves
    clock.now = 900
    activities.save_ended()
    activities.save_ended()
    activities.trains(1_000)
    assert times(activities) == {"inference_ns": 260, "gc_ns": 40, "checkpoint_ns": 600}


def test_a_policy_in_an_environment_is_a_rollout(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", gc)
    activities = Activities()
    for start, called in ((0, TRAINING), (1_000, EVALUATING)):
        activities.inferred(start, called)
        activities.inferred(start + 100, called)
        activities.trains(start + 900)
    assert times(activities) == {"rollout_ns": 200, "evaluation_ns": 200}


def test_steps_have_what_was_done_between_their_boundaries(clock: Clock) -> None:
    activities = Activities()
    steps: list[Step] = []
    tracker = StepTracker(steps.append, StepReadings(activities))

    def step(now: int) -> None:
        tracker.root_forward(now, 4)
        tracker.optimizer_begins(1, now + 10)
        tracker.optimizer_ends(now + 20)

    step(0)
    activities.inferred(30, TRAINING)
    activities.inferred(40, TRAINING)
    activities.trains(90)
    step(100)
    step(200)
    activities.inferred(230, TRAINING)
    activities.trains(290)
    tracker.finish()
    assert [one.inference_ns for one in steps] == [20, 0, 0]  # the last one ended at its update
    assert activities.facts()["total"]["inference_ns"] == 80
    assert [one.minor_faults is None for one in steps] == [False, False, True]
    assert all(one.user_ns is not None and one.user_ns >= 0 for one in steps[:2])


def test_a_collection_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks: list[Any] = []
    monkeypatch.setattr(gc, "callbacks", callbacks)
    activities = Activities()
    activities.watch()
    activities.watch()
    assert len(callbacks) == 1
    gc.collect()
    callbacks[0]("start", {})
    callbacks[0]("stop", {})
    assert activities.updated()[COLUMNS.index("gc_ns")] > 0


def test_columns_of_a_step_are_those_of_the_activities() -> None:
    assert Step._fields[-len(COLUMNS) :] == COLUMNS
