"""Where steps are cut: the rules of perfscope/probes/steps.py on hand-written call sequences."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from perfscope.probes.steps import Step, StepTracker

A, B = 1, 2


class Script:
    """Feeds a tracker with one call per tick of 10 ns and keeps what it emits."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.tracker = StepTracker(self.steps.append)
        self.now = 0

    def forward(self, samples: int | None = 4) -> Script:
        self.now += 10
        self.tracker.root_forward(self.now, samples)
        return self

    def update(self, *optimizers: int) -> Script:
        for optimizer in optimizers:
            self.now += 10
            self.tracker.optimizer_begins(optimizer, self.now)
            self.now += 10
            self.tracker.optimizer_ends(self.now)
        return self

    def finish(self) -> list[Step]:
        self.tracker.finish()
        return self.steps


def test_one_optimizer_cuts_at_the_forward_after_each_update() -> None:
    script = Script()
    for _ in range(3):
        script.forward().update(A)
    steps = script.finish()
    assert [step.step for step in steps] == [0, 1, 2]
    assert [step.start_ns for step in steps] == [10, 40, 70]
    assert [step.dur_ns for step in steps] == [30, 30, 20]  # the last ends with its update


def test_gradient_accumulation_is_one_step_with_summed_samples() -> None:
    steps = Script().forward(4).forward(4).forward(3).update(A).forward(4).update(A).finish()
    assert [(step.num_micro, step.samples) for step in steps] == [(3, 11), (1, 4)]


def test_forward_lasts_from_the_first_pass_to_the_backward_pass_of_each_micro_batch() -> None:
    script = Script()
    for _ in range(2):
        for _ in range(3):
            script.forward()
            script.now += 20
            script.tracker.add_backward(5, script.now)
        script.update(A)
    assert [(step.forward_ns, step.backward_ns) for step in script.finish()] == [(45, 15), (45, 15)]


def test_a_pass_that_no_backward_pass_followed_and_the_profilers_start_are_not_in_the_forward_pass() -> None:
    script = Script().forward().update(A)
    script.forward()  # the boundary
    script.now += 1000
    script.tracker.resume(script.now)
    script.now += 30
    script.tracker.add_backward(20, script.now)
    script.update(A)
    assert [(step.forward_ns, step.dur_ns) for step in script.finish()] == [(0, 30), (10, 50)]


def test_optimizers_stepping_back_to_back_are_one_step() -> None:
    steps = Script().forward().update(A, B).forward().update(A, B).finish()
    assert len(steps) == 2
    assert steps[0].optimizer_ns == 20


def test_generator_and_discriminator_are_one_step_although_the_root_runs_between_them() -> None:
    script = Script()
    for _ in range(3):
        script.forward().update(A).forward().update(B)
    steps = script.finish()
    assert len(steps) == 3
    assert all(step.num_micro == 2 and step.optimizer_ns == 20 for step in steps)


def test_nested_optimizer_calls_count_once() -> None:
    script = Script().forward()
    tracker = script.tracker
    tracker.optimizer_begins(A, 20)
    tracker.optimizer_begins(B, 21)  # ZeroRedundancyOptimizer calls the wrapped one
    tracker.optimizer_ends(29)
    tracker.optimizer_ends(30)
    script.now = 30
    steps = script.forward().update(A).finish()
    assert len(steps) == 2 and steps[0].optimizer_ns == 10


def test_functional_model_without_module_calls_is_cut_at_its_updates() -> None:
    steps = Script().update(A).update(A).update(A).finish()
    assert [(step.start_ns, step.dur_ns) for step in steps] == [(10, 10), (20, 20), (40, 20)]


def test_samples_are_unknown_when_one_micro_batch_is() -> None:
    steps = Script().forward(4).forward(None).update(A).finish()
    assert steps[0].samples is None


def test_time_taken_by_the_profiler_belongs_to_no_step() -> None:
    script = Script().forward().update(A).forward()
    script.tracker.resume(1_000)
    script.now = 1_000
    steps = script.update(A).finish()
    assert steps[0].dur_ns == 30
    assert (steps[1].start_ns, steps[1].dur_ns) == (1_000, 20)


def test_training_that_never_updates_has_no_step() -> None:
    assert Script().forward().forward().finish() == []


@given(st.lists(st.sampled_from(["forward", "input", "backward", "update"]), max_size=60))
def test_every_nanosecond_of_input_and_backward_lands_in_exactly_one_step(calls: list[str]) -> None:
    script = Script()
    given_ns = {"input": 0, "backward": 0}
    for call in calls:
        if call == "forward":
            script.forward()
        elif call == "update":
            script.update(A)
        elif call == "input":
            script.now += 7
            script.tracker.add_input(7)
            given_ns["input"] += 7
        else:
            script.now += 5
            script.tracker.add_backward(5, script.now)
            given_ns["backward"] += 5
    before = list(script.steps)
    script.tracker.finish()
    steps = script.steps
    assert steps[: len(before)] == before
    assert [step.step for step in steps] == list(range(len(steps)))
    assert len(steps) == calls.count("update")
    assert sum(step.input_ns or 0 for step in steps) <= given_ns["input"]
    assert sum(step.backward_ns or 0 for step in steps) <= given_ns["backward"]
    assert all((step.input_ns or 0) <= step.dur_ns for step in steps)
    assert all((step.forward_ns or 0) <= step.dur_ns for step in steps)
    for earlier, later in itertools.pairwise(steps):
        assert earlier.start_ns + earlier.dur_ns <= later.start_ns


def test_waits_before_the_first_step_and_after_the_last_are_in_none() -> None:
    script = Script()
    script.tracker.add_input(1000)  # workers start
    script.forward()
    script.tracker.add_input(3)
    script.update(A)
    script.tracker.add_input(5)
    script.forward().update(A)
    script.tracker.add_input(1000)  # workers end
    assert [step.input_ns for step in script.finish()] == [8, 0]


def test_another_models_optimizer_begins_a_step_of_its_own() -> None:
    script = Script()
    for optimizer in (A, B, 3):
        for _ in range(4):
            script.forward().update(optimizer)
    steps = script.finish()
    assert len(steps) == 12
    assert all(
        earlier.start_ns + earlier.dur_ns == later.start_ns for earlier, later in itertools.pairwise(steps)
    )


def test_an_optimizer_that_joins_late_without_a_forward_of_its_own_makes_no_step() -> None:
    script = Script()
    for _ in range(3):
        script.forward().update(A)
    for _ in range(3):
        script.forward().update(A, B)
    assert len(script.finish()) == 6


def test_updates_by_hand_are_cut_at_backward_passes_until_an_optimizer_steps() -> None:
    script = Script()
    for goes_on in (False, False, True, False):
        script.forward()
        script.now += 10
        script.tracker.update_by_hand(script.now, goes_on)
    assert [(step.start_ns, step.dur_ns, step.num_micro, step.optimizer_ns) for step in script.steps] == [
        (10, 10, 1, None),
        (20, 40, 2, None),
    ]
    script.update(A)
    script.forward().update(A)
    assert [step.num_micro for step in script.finish()] == [1, 2, 1, 1]


def test_optimizers_that_take_turns_on_batches_of_a_loader_make_steps_of_their_own() -> None:
    script = Script()
    for optimizer in (A, B, A, B):
        script.tracker.add_input(1, loader=7)
        script.forward().update(optimizer)
    assert [step.num_micro for step in script.finish()] == [1, 1, 1, 1]


def test_a_batch_of_another_loader_between_two_updates_begins_no_step() -> None:
    script = Script()
    for optimizer, loader in ((A, 7), (B, 8)) * 3:
        script.tracker.add_input(1, loader)
        script.forward().update(optimizer)
    assert [step.num_micro for step in script.finish()] == [2, 2, 2]


def test_samples_of_a_batch_that_both_optimizers_use_count_once_unless_the_second_steps_again() -> None:
    script = Script()
    for optimizer, repeated in ((A, False), (B, True), (B, True), (A, False)):
        script.now += 10
        script.tracker.root_forward(script.now, 4, 9, repeated)
        script.update(optimizer)
    steps = script.finish()
    assert [(step.num_micro, step.samples, step.tokens) for step in steps] == [(2, 4, 9), (2, 8, 18)]
