"""Elastic averaging against its rules computed in one process, and the bound on its moving rate."""

from __future__ import annotations

import pytest
import torch

from perfscope.runners.config import BenchError
from perfscope.runners.planning import plan
from perfscope.runners.schemes.easgd_rules import elastic_center_update, elastic_worker_update
from tests.runners.async_cases import (
    BASE,
    alone,
    case,
    distance,
    elastic_by_arrival,
    synchronous_elastic,
    trained,
)

EXACT = 1e-9
SERVED = ("easgd.original", "easgd.async", "easgd.async_mom", "easgd.sync1")


def num_workers(scheme: str, num_ranks: int) -> int:
    return num_ranks - 1 if scheme in SERVED else num_ranks


@pytest.mark.torch
@pytest.mark.parametrize("scheme", ["easgd.sync1", "easgd.sync2", "easgd.sync3", "easgd.sync_ar"])
@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_synchronous_forms_follow_the_rules(num_ranks: int, scheme: str) -> None:
    found = trained(num_ranks)[scheme][0]
    workers = num_workers(scheme, num_ranks)
    assert found["details"] == {"moving_rate": 0.9 / workers, "num_workers": workers}
    expected = synchronous_elastic(BASE, workers, 0.9 / workers)
    assert distance(found["state"], expected) < EXACT


@pytest.mark.torch
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_overlap_changes_no_bit(num_ranks: int) -> None:
    second, third = (trained(num_ranks)[name][0] for name in ("easgd.sync2", "easgd.sync3"))
    assert all(torch.equal(second["state"][name], third["state"][name]) for name in second["state"])
    assert second["losses"] == third["losses"]


@pytest.mark.torch
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_round_robin_goes_in_strict_order(num_ranks: int) -> None:
    server = trained(num_ranks)["easgd.original"][0]
    workers = num_ranks - 1
    order = [t % workers for t in range(workers * BASE.steps)]
    assert [rank - 1 for rank in server["details"]["arrivals"]] == order
    assert distance(server["state"], elastic_by_arrival(BASE, workers, 0.9 / workers, order)) < EXACT


@pytest.mark.torch
@pytest.mark.parametrize("name", ["easgd.async", "easgd.async_mom", "easgd.async_mom 0.5"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_recorded_arrivals_explain_the_center(num_ranks: int, name: str) -> None:
    server = trained(num_ranks)[name][0]
    details = server["details"]
    workers = num_ranks - 1
    momentum = {"easgd.async": None, "easgd.async_mom": 0.9, "easgd.async_mom 0.5": 0.5}[name]
    assert details.get("momentum") == momentum
    assert details["moving_rate"] == (0.1 if momentum == 0.5 else 0.9 / workers)
    order = [rank - 1 for rank in details["arrivals"]]
    expected = elastic_by_arrival(BASE, workers, details["moving_rate"], order, momentum)
    assert distance(server["state"], expected) < EXACT


def test_a_lone_unlocked_worker_follows_the_rule() -> None:
    found = alone(case("easgd.hogwild", 1, moving_rate=0.3))
    assert distance(found.state, elastic_by_arrival(BASE, 1, 0.3, [0] * BASE.steps)) < EXACT
    assert found.details["staleness"] == {"0": BASE.steps}


@pytest.mark.parametrize("scheme", ["easgd.sync2", "easgd.sync3", "easgd.sync_ar"])
def test_a_lone_synchronous_worker_follows_the_rules(scheme: str) -> None:
    assert distance(alone(case(scheme, 1)).state, synchronous_elastic(BASE, 1, 0.9)) < EXACT


def test_the_rules_by_hand() -> None:
    def vector(value: float) -> torch.Tensor:
        return torch.tensor([value], dtype=torch.float64)

    weights, center = vector(1.0), vector(0.5)
    elastic_worker_update(weights, vector(2.0), center, rate=0.1, moving_rate=0.2)
    assert weights.item() == pytest.approx(1 - 0.2 - 0.1)
    weights, velocity = vector(1.0), vector(0.5)
    elastic_worker_update(weights, vector(2.0), center, 0.1, 0.2, velocity, momentum=0.9)
    assert velocity.item() == pytest.approx(0.25)
    assert weights.item() == pytest.approx(1 + 0.25 - 0.1)
    elastic_center_update(center, vector(1.0 + 0.7), 2, moving_rate=0.2)
    assert center.item() == pytest.approx(0.5 + 0.2 * (0.5 + 0.2))


@pytest.mark.parametrize(("moving_rate", "settles"), [(0.38, True), (0.42, False)])
def test_the_bound_is_where_workers_and_center_drift_apart(moving_rate: float, settles: bool) -> None:
    center = torch.zeros(1, dtype=torch.float64)
    workers = [torch.ones(1, dtype=torch.float64) for _ in range(4)]
    for _ in range(200):
        total = torch.stack(workers).sum(dim=0)
        for one in workers:
            elastic_worker_update(one, torch.zeros(1), center, 0.1, moving_rate)
        elastic_center_update(center, total, 4, moving_rate)
    gap = abs(workers[0].item() - center.item())
    assert gap == pytest.approx(abs(1 - moving_rate * 5) ** 200, rel=1e-6, abs=1e-12)
    assert (gap < 1) is settles


@pytest.mark.parametrize(
    "scheme",
    [
        "easgd.original",
        "easgd.async",
        "easgd.async_mom",
        "easgd.hogwild",
        "easgd.sync1",
        "easgd.sync2",
        "easgd.sync3",
        "easgd.sync_ar",
    ],
)
def test_a_diverging_moving_rate_is_refused(scheme: str) -> None:
    num_ranks = 5 if scheme in SERVED else 4  # 4 workers: the bound is 2 / 5
    batch = 20 if scheme in SERVED else 12
    plan(case(scheme, num_ranks, batch=batch, moving_rate=0.38))
    for wrong in (0.4, 0.42, 0.0, -0.1):
        with pytest.raises(BenchError, match=r"below 2/\(N\+1\) = 0.4 ") as caught:
            plan(case(scheme, num_ranks, batch=batch, moving_rate=wrong))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"), [({"momentum": 0.9}, "async_mom"), ({"period": 4}, "every step")]
)
def test_settings_that_the_rules_do_not_have_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(BenchError, match=words):
        plan(case("easgd.sync_ar", 2, **settings))
