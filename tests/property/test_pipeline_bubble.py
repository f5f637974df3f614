"""The bubble of simulated pipelines, whose causes are known."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analysis.pipeline.bubble import Bubble, decompose
from perfscope.analysis.pipeline.ideal import ideal_ratio, schedule_of
from perfscope.vocabulary.pipelines import Schedule, StageWork
from tests.support.pipelines import Action, F, Simulated, gpipe, interleaved, one_f_one_b, simulated

FORWARD_NS, BACKWARD_NS = 10_000, 20_000
Orders = list[list[Action]]
SHAPES = [
    *((Schedule.GPIPE, gpipe(p, m), p, m, 1) for p, m in ((2, 1), (2, 4), (3, 5), (4, 8), (8, 16))),
    *(
        (Schedule.ONE_F_ONE_B, one_f_one_b(p, m), p, m, 1)
        for p, m in ((2, 2), (2, 4), (3, 5), (4, 8), (8, 16))
    ),
    *((Schedule.INTERLEAVED, interleaved(p, m, v), p, m, v) for p, m, v in ((2, 4, 2), (4, 8, 2), (4, 8, 3))),
]
NAMES = [f"{schedule}-{p}x{m}x{v}" for schedule, _, p, m, v in SHAPES]


def plain(action: Action) -> int:
    return FORWARD_NS if action[2] is F else BACKWARD_NS


def parts_of(run: Simulated) -> Bubble:
    bubble = decompose(run.ranks, run.exposed)
    assert bubble is not None
    parts = (bubble.fill_ns, bubble.drain_ns, bubble.imbalance_ns, bubble.late_sends_ns, bubble.other_ns)
    assert sum(parts) == bubble.measured_ns and min(parts) >= 0
    work = sum(span.end_ns - span.start_ns for rank in run.ranks for span in rank)
    assert bubble.active_ns == len(run.ranks) * run.active_ns
    assert bubble.measured_ns == bubble.active_ns - work
    return bubble


@pytest.mark.parametrize(("schedule", "orders", "p", "m", "v"), SHAPES, ids=NAMES)
def test_equal_stages_have_the_bubble_of_the_formula(
    schedule: Schedule, orders: Orders, p: int, m: int, v: int
) -> None:
    run = simulated(orders, plain)
    bubble = parts_of(run)
    expected = Schedule.GPIPE if m == 1 else schedule
    assert schedule_of(run.ranks) is expected
    ideal = ideal_ratio(schedule, num_ranks=p, num_microbatches=m, stages_per_rank=v, mean_ns={})
    assert bubble.measured_ns / bubble.active_ns == pytest.approx(ideal)
    assert bubble.fill_ns + bubble.drain_ns == bubble.measured_ns
    assert bubble.balanced_ns == bubble.active_ns == bubble.equal_stages_ns


@pytest.mark.parametrize(("schedule", "orders", "p", "m", "v"), SHAPES, ids=NAMES)
def test_a_stage_that_takes_longer_is_imbalance(
    schedule: Schedule, orders: Orders, p: int, m: int, v: int
) -> None:
    slow = p // 2

    def unequal(action: Action) -> int:
        return plain(action) * (2 if action[0] == slow else 1)

    stages = p * v
    mean = (stages + 1) / stages
    equal = simulated(orders, lambda action: round(plain(action) * mean * stages) // stages)
    run = simulated(orders, unequal)
    bubble = parts_of(run)
    assert bubble.late_sends_ns == bubble.other_ns == 0
    assert bubble.imbalance_ns == pytest.approx(p * (run.active_ns - equal.active_ns), abs=2 * p * m * stages)
    assert bubble.equal_stages_ns == pytest.approx(p * equal.active_ns, abs=2 * p * m * stages)
    if schedule is Schedule.GPIPE:  # every stage once, the slowest m - 1 times more, forward and backward
        assert run.active_ns == (FORWARD_NS + BACKWARD_NS) * (p + 1 + 2 * (m - 1))


@pytest.mark.parametrize(("schedule", "orders", "p", "m", "v"), SHAPES, ids=NAMES)
def test_a_slow_link_makes_sends_late(schedule: Schedule, orders: Orders, p: int, m: int, v: int) -> None:
    fast, slow = simulated(orders, plain), simulated(orders, plain, link_ns=4_000)
    bubble = parts_of(slow)
    assert bubble.imbalance_ns == bubble.other_ns == 0
    assert bubble.late_sends_ns == p * (slow.active_ns - fast.active_ns)
    if schedule is Schedule.GPIPE:  # the first microbatch there, the last one back
        assert slow.active_ns - fast.active_ns == 2 * (p - 1) * 4_000


@pytest.mark.parametrize(("schedule", "orders", "p", "m", "v"), SHAPES, ids=NAMES)
def test_pauses_between_works_are_other_time(
    schedule: Schedule, orders: Orders, p: int, m: int, v: int
) -> None:
    calm = simulated(orders, plain, link_ns=2_000)
    pausing = simulated(orders, plain, link_ns=2_000, pause=lambda action: 500)
    bubble = parts_of(pausing)
    assert bubble.imbalance_ns == 0
    assert bubble.other_ns > 0
    assert bubble.late_sends_ns <= p * (calm.active_ns - simulated(orders, plain).active_ns)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    draw=st.randoms(use_true_random=False),
    link=st.integers(0, 30_000),
    spread=st.floats(0, 3),
)
def test_the_parts_add_up_whatever_the_times(shape: Any, draw: Random, link: int, spread: float) -> None:
    orders: Orders = shape[1]
    times: dict[Action, int] = {}
    pauses: dict[Action, int] = {}
    for action in (action for order in orders for action in order):
        times[action] = round(plain(action) * (1 + spread * draw.random()))
        pauses[action] = round(1_000 * draw.random())
    parts_of(simulated(orders, times.__getitem__, link_ns=link, pause=pauses.__getitem__))


ZERO_BUBBLE_NS = {
    F: 10_000,
    StageWork.INPUT_BACKWARD: 11_000,
    StageWork.WEIGHT_BACKWARD: 9_000,
    StageWork.BACKWARD: 20_000,
}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "schedule", "v"),
    [
        ("ScheduleInterleaved1F1B", Schedule.INTERLEAVED, 2),
        ("ScheduleLoopedBFS", Schedule.LOOPED_BFS, 2),
        ("ScheduleInterleavedZeroBubble", Schedule.ZERO_BUBBLE, 1),
        ("ScheduleInterleavedZeroBubble", Schedule.ZERO_BUBBLE, 2),
        ("ScheduleZBVZeroBubble", Schedule.ZB_V, 2),
    ],
)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12)])
def test_the_orders_that_torch_makes_have_the_bubble_of_the_formula(
    name: str, schedule: Schedule, v: int, p: int, m: int
) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    orders = torch_orders(schedules, name, p, m, v)
    times = ZERO_BUBBLE_NS if schedule is not Schedule.ZB_V else dict.fromkeys(ZERO_BUBBLE_NS, 10_000)
    run = simulated(orders, lambda action: times[action[2]])
    bubble = parts_of(run)
    assert schedule_of(run.ranks) is schedule
    ideal = ideal_ratio(schedule, num_ranks=p, num_microbatches=m, stages_per_rank=v, mean_ns=times)
    assert ideal is not None
    assert bubble.measured_ns / bubble.active_ns == pytest.approx(ideal)
    assert bubble.imbalance_ns == bubble.late_sends_ns == bubble.other_ns == 0


def torch_orders(schedules: object, name: str, p: int, m: int, v: int) -> Orders:
    class Stage:
        """What the constructors of schedules look at."""

        def __init__(self, index: int) -> None:
            self.stage_index, self.num_stages = index, p * v
            self.group_size, self.group_rank, self.group = p, 0, None
            self.has_backward, self.submod = True, None
            self.is_first, self.is_last = index == 0, index == p * v - 1

    indices = [0, p * v - 1] if "ZBV" in name else [turn * p for turn in range(v)]
    made = getattr(schedules, name)([Stage(index) for index in indices], m, loss_fn=lambda a, b: a)
    return [
        [
            (action.stage_index, action.microbatch_index, StageWork(action.computation_type.value))
            for action in actions
            if action is not None and action.computation_type.value in "FBIW"
        ]
        for _, actions in sorted(made.pipeline_order.items())
    ]
