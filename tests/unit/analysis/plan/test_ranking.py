"""The algebra of a plan: steps, ranking, the Pareto front, agreement of orders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analysis.plan.ranking import bubble_s, hidden_s, order_agreement, planned, ranked
from perfscope.analysis.plan.records import Basis, Candidate, Memory

_SECONDS = st.floats(1e-6, 10)
_MEMORY = st.floats(1, 1e9).map(
    lambda size: Memory(
        weights=size, gradients=0.0, state=0.0, activations=0.0, buffers=0.0, peak=size, is_verified=True
    )
)
CANDIDATES = st.builds(
    Candidate,
    scheme=st.just("mesh"),
    mesh=st.just("dp=2"),
    num_ranks=st.integers(1, 64),
    batch=st.integers(1, 512),
    microbatches=st.integers(1, 32),
    dtype=st.just("float32"),
    checkpointing=st.booleans(),
    stages=st.integers(1, 8),
    schedule=st.sampled_from(["", "1f1b", "gpipe", "interleaved", "zero-bubble"]),
    forward_s=_SECONDS,
    backward_s=_SECONDS,
    update_s=_SECONDS,
    transfer_s=_SECONDS,
    overlaps=st.booleans(),
    flops=st.floats(1, 1e15),
    memory=_MEMORY,
)


_SENDING = Candidate(
    scheme="dp.ddp",
    mesh="dp=2",
    num_ranks=2,
    batch=8,
    microbatches=1,
    dtype="float32",
    checkpointing=False,
    stages=1,
    forward_s=1.0,
    backward_s=2.0,
    update_s=0.0,
    transfer_s=1.0,
    overlaps=True,
    flops=1.0,
    memory=Memory(
        weights=1.0, gradients=0.0, state=0.0, activations=0.0, buffers=0.0, peak=1.0, is_verified=True
    ),
)


@given(CANDIDATES, st.floats(0, 1))
def test_parts_of_a_step_add_up_to_it(candidate: Candidate, hidden: float) -> None:
    plan = planned(candidate, Basis.RATES, 1e12, hidden)
    total = plan.compute_ratio + plan.communication_ratio + plan.bubble_ratio
    assert abs(total - 1) < 1e-9
    assert (
        plan.sample_s * candidate.batch == plan.step_s
        or abs(plan.sample_s * candidate.batch / plan.step_s - 1) < 1e-12
    )
    own = candidate.forward_s + candidate.backward_s + candidate.update_s
    assert plan.step_s >= own * (1 - 1e-12)


@given(CANDIDATES)
def test_hidden_communication_never_exceeds_the_backward_pass(candidate: Candidate) -> None:
    all_hidden, none_hidden = (
        planned(candidate, Basis.RATES, 1e12, 1.0),
        planned(candidate, Basis.RATES, 1e12, 0.0),
    )
    saved = none_hidden.step_s - all_hidden.step_s
    allowed = min(candidate.backward_s, candidate.transfer_s) if candidate.overlaps else 0.0
    assert abs(saved - allowed) <= 1e-9 * none_hidden.step_s


@given(CANDIDATES, st.integers(2, 16))
def test_more_microbatches_never_make_the_bubble_longer(candidate: Candidate, times: int) -> None:
    more = replace(candidate, microbatches=candidate.microbatches * times)
    assert planned(more, Basis.RATES, 1e12, 0.0).step_s <= planned(candidate, Basis.RATES, 1e12, 0.0).step_s


def test_only_buckets_that_are_full_early_are_hidden() -> None:
    # backward pass of 2 s; the first bucket is full after a half of it, the second one at its end
    early = replace(_SENDING, buckets=((0.5, 0.8), (1.0, 0.2)))
    late = replace(_SENDING, buckets=((1.0, 1.0),))
    slow = replace(_SENDING, buckets=((0.5, 1.5), (1.0, 0.2)), transfer_s=1.7)
    assert hidden_s(early, 1.0) == pytest.approx(0.8)
    assert hidden_s(early, 0.5) == pytest.approx(0.4)
    assert hidden_s(late, 1.0) == 0.0
    assert hidden_s(slow, 1.0) == pytest.approx(1.0)  # the second bucket waits for the first


@given(CANDIDATES, st.floats(0.1, 1))
def test_ranks_that_share_cores_wait_less_for_a_pipeline(candidate: Candidate, ratio: float) -> None:
    work = candidate.forward_s + candidate.backward_s
    shared = planned(replace(candidate, alone_s=work * ratio), Basis.CALIBRATED, 1e12, 0.0)
    apart = planned(candidate, Basis.CALIBRATED, 1e12, 0.0)
    assert shared.step_s <= apart.step_s * (1 + 1e-12)
    assert shared.step_s >= (work + candidate.update_s + candidate.transfer_s) * (1 - 1e-12)


def test_schedules_wait_as_their_papers_say() -> None:
    held = Memory(
        weights=1.0, gradients=0.0, state=0.0, activations=0.0, buffers=0.0, peak=1.0, is_verified=True
    )
    like = Candidate(
        scheme="mesh",
        mesh="pp=4",
        num_ranks=4,
        batch=8,
        microbatches=8,
        dtype="float32",
        checkpointing=False,
        stages=4,
        forward_s=1.0,
        backward_s=2.0,
        update_s=0.0,
        transfer_s=0.0,
        overlaps=False,
        flops=1.0,
        memory=held,
    )
    schedules = ("gpipe", "1f1b", "interleaved", "zero-bubble")
    waits = {schedule: bubble_s(replace(like, schedule=schedule)) for schedule in schedules}
    # work (S-1)/m; of interleaved stages the half, and of these the forward pass alone
    assert waits == {"gpipe": 9 / 8, "1f1b": 9 / 8, "interleaved": 9 / 16, "zero-bubble": 3 / 16}


@given(st.lists(CANDIDATES, min_size=1, max_size=12), st.one_of(st.none(), st.floats(0.1, 10)))
def test_what_is_off_the_front_is_beaten_by_something_on_it(
    candidates: list[Candidate], price: float | None
) -> None:
    _, plans = ranked([planned(one, Basis.CALIBRATED, 1e12, 0.5, price) for one in candidates])
    assert [plan.sample_s for plan in plans] == sorted(plan.sample_s for plan in plans)
    front = [plan for plan in plans if plan.is_pareto]
    assert plans[0].sample_s == front[0].sample_s
    for plan in plans:
        beaten = any(
            other.sample_s <= plan.sample_s
            and other.candidate.memory.peak <= plan.candidate.memory.peak
            and (price is None or (other.cost or 0) <= (plan.cost or 0))
            and other is not plan
            for other in front
        )
        assert plan.is_pareto or beaten


def test_agreement_of_orders_counts_pairs() -> None:
    assert order_agreement([1, 2, 3], [10, 20, 30]) == 1.0
    assert order_agreement([1, 2, 3], [30, 20, 10]) == 0.0
    assert order_agreement([1, 2, 3], [10, 30, 20]) == 2 / 3
    assert order_agreement([1], [1]) is None
