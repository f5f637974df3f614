"""dp.adpsgd: averagings of random pairs, against a replay of the recorded order; no rank waits or hangs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from perfscope.runners.identity import identity
from perfscope.runners.planning import plan
from perfscope.runners.schemes.dp_adpsgd import FETCHED, UPDATED, AdPsgd
from tests.runners.adpsgd_cases import STEPS_OF_RANK, configs, replayed
from tests.runners.async_cases import BASE, alone, case, distance
from tests.runners.ranks import run_ranks

EXACT = 1e-9


@cache
def trained(num_ranks: int) -> list[dict[str, Any]]:
    """By rank: one start for all cases."""
    return run_ranks(num_ranks, "tests.runners.adpsgd_cases:everything")


def orders_of(ranks: list[Any]) -> dict[int, list[int]]:
    return {rank: found["details"]["own_order"] for rank, found in enumerate(ranks) if rank % 2}


@pytest.mark.torch
@pytest.mark.parametrize("name", ["plain", "momentum", "paused"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_the_recorded_averagings_explain_the_weights(num_ranks: int, name: str) -> None:
    ranks = [found[name] for found in trained(num_ranks)]
    expected = replayed(configs(num_ranks)[name], orders_of(ranks), (BASE.steps,) * num_ranks)
    assert distance(ranks[0]["state"], expected) < EXACT
    assert all(len(found["losses"]) == BASE.steps for found in ranks)


@pytest.mark.torch
def test_another_order_gives_other_weights() -> None:
    config, steps = case("dp.adpsgd", 2), (BASE.steps,) * 2
    alternately = replayed(config, {1: [0, FETCHED, UPDATED] * BASE.steps}, steps)
    first = replayed(config, {1: [0] * BASE.steps + [FETCHED, UPDATED] * BASE.steps}, steps)
    assert float((alternately - first).abs().max()) > 1e-6


@pytest.mark.torch
@pytest.mark.parametrize("name", ["plain", "momentum", "paused"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_what_was_sent_is_what_was_predicted(num_ranks: int, name: str) -> None:
    ranks = [found[name] for found in trained(num_ranks)]
    size, active = plan(configs(num_ranks)[name]).model_bytes, (num_ranks + 1) // 2
    for found in ranks:
        assert found["recorded"] == found["predicted"]
    whole = sum(count for found in ranks for call, count in found["recorded"].items() if call[3] == size)
    assert whole == 2 * active * BASE.steps  # there and back
    headers = sum(count for found in ranks for call, count in found["recorded"].items() if call[3] == 8)
    assert headers == active * (BASE.steps + num_ranks // 2)  # of each step, and to each at the end


@pytest.mark.torch
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_every_averaging_and_update_is_recorded(num_ranks: int) -> None:
    ranks = [found["plain"] for found in trained(num_ranks)]
    details = ranks[0]["details"]
    assert details["num_averagings"] == (num_ranks + 1) // 2 * BASE.steps
    assert sum(details["staleness"].values()) == num_ranks // 2 * BASE.steps
    for order in orders_of(ranks).values():
        assert order.count(FETCHED) == order.count(UPDATED) == BASE.steps


@pytest.mark.torch
def test_a_target_ends_all_ranks_at_the_same_step() -> None:
    ranks = [found["ended"] for found in trained(4)]
    assert {len(found["losses"]) for found in ranks} == {2}
    expected = replayed(configs(4)["ended"], orders_of(ranks), (2,) * 4)
    assert distance(ranks[0]["state"], expected) < EXACT


@pytest.mark.torch
def test_ranks_of_uneven_steps_end_and_wait_for_none() -> None:
    ranks = [found["uneven"] for found in trained(4)]
    orders = orders_of(ranks)
    expected = replayed(ranks[0]["config"], orders, STEPS_OF_RANK)
    assert distance(ranks[0]["state"], expected) < EXACT
    # Rank 2 has made all of its steps while rank 0, which is slow, made its first ones.
    assert any(2 in order[:4] for order in orders.values())
    assert all(2 not in order[order.index(0) + 1 :] for order in orders.values() if order.count(0) > 1)


@pytest.mark.slow
@pytest.mark.torch
def test_a_killed_peer_ends_the_others_with_an_error() -> None:
    with pytest.raises(AssertionError, match=r"(?s)rank 1 noticed: receiving from"):
        run_ranks(2, "tests.runners.adpsgd_cases:one_dies")


@pytest.mark.torch
def test_one_rank_is_serial_training() -> None:
    lone, serial = (alone(case(name, 1, momentum=0.9)) for name in ("dp.adpsgd", "serial"))
    assert max(float((lone.state[name] - serial.state[name]).abs().max()) for name in serial.state) < EXACT


def test_bytes_between_hosts_follow_the_partners_that_are_drawn() -> None:
    job = plan(case("dp.adpsgd", 4, num_hosts=2, steps=50))
    predicted = identity(job)["predicted"]
    by_link = predicted["bytes_algorithmic_per_step"]
    assert sum(by_link.values()) == pytest.approx(4 * job.model_bytes, rel=1e-3)
    apart = [
        call.calls_in(50)
        for rank in range(4)
        for call in AdPsgd.traffic(job, rank)
        if call.what == "weights" and job.host_of(rank) != job.host_of(call.members[1])
    ]
    assert by_link["ethernet"] == pytest.approx(sum(apart) / 50 * job.model_bytes, rel=1e-3)
    assert 25 < sum(apart) / 2 < 75  # of 100 averagings
