"""Parameter servers and Hogwild against serial training, replays of their records, and predictions."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from perfscope.runners.comm import Ledger
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.mpi import MpiPeers
from perfscope.runners.planning import plan
from perfscope.runners.schemes.passes import Passes
from perfscope.runners.schemes.ps_async import momentum_update
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.schemes.server_base import Staleness
from perfscope.runners.schemes.server_packed import PackedModel
from perfscope.runners.schemes.shared_memory import SharedWeights, UnlockedUpdates, merged
from tests.runners.async_cases import (
    ALL,
    BASE,
    LONG_STEPS,
    alone,
    bounded_by_arrival,
    case,
    distance,
    mean_held_out_loss_at_start,
    server_by_arrival,
    shared_by_arrival,
    trained,
)

EXACT = 1e-9
SERVED = ("ps.async_sgd", "ps.async_msgd", "easgd.original", "easgd.async", "easgd.async_mom")
UNLOCKED = ("hogwild.sgd", "easgd.hogwild")


def difference(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert set(state) == set(other)
    return max(float((state[name] - other[name]).abs().max()) for name in state)


@pytest.mark.torch
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_synchronous_server_trains_as_one_process_does(num_ranks: int, momentum: float) -> None:
    serial = alone(case("serial", 1, momentum=momentum))
    found = trained(num_ranks)["ps.sync momentum" if momentum else "ps.sync"]
    assert difference(found[0]["state"], serial.state) < EXACT
    mean = [sum(step) / len(step) for step in zip(*(rank["losses"] for rank in found[1:]), strict=True)]
    assert mean == pytest.approx(serial.losses, abs=EXACT)


@pytest.mark.torch
@pytest.mark.parametrize("scheme", ["ps.async_sgd", "ps.async_msgd"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_recorded_arrivals_explain_the_servers_weights(num_ranks: int, scheme: str) -> None:
    server = trained(num_ranks)[scheme][0]
    workers = [rank - 1 for rank in server["details"]["arrivals"]]
    momentum = server["details"].get("momentum")
    assert momentum == (0.9 if scheme == "ps.async_msgd" else None)
    expected = server_by_arrival(BASE, num_ranks - 1, workers, momentum)
    # Stale gradients with momentum may lead far away: rounding errors are relative to the weights.
    assert distance(server["state"], expected) < EXACT * max(1.0, float(expected.abs().max()))
    if num_ranks == 4:  # and another order does not: the replay can tell
        other = server_by_arrival(BASE, num_ranks - 1, sorted(workers), momentum)
        assert distance(server["state"], other) > 1e-6


@pytest.mark.torch
@pytest.mark.parametrize(("scheme", "momentum"), [("ps.async_sgd", 0.0), ("ps.async_msgd", 0.9)])
def test_one_worker_is_serial_training(scheme: str, momentum: float) -> None:
    serial = alone(case("serial", 1, momentum=momentum))
    assert difference(trained(2)[scheme][0]["state"], serial.state) < EXACT
    assert trained(2)[scheme][0]["details"]["staleness"] == {"0": BASE.steps}


@pytest.mark.torch
@pytest.mark.parametrize("bound", [0, 2])
def test_no_worker_is_further_ahead_than_the_bound(bound: int) -> None:
    server = trained(4)[f"ps.ssp {bound}"][0]
    details, steps = server["details"], dict.fromkeys((1, 2, 3), 0)
    leads = []
    for worker in details["arrivals"]:
        leads.append(steps[worker] - min(steps.values()))
        steps[worker] += 1
    assert max(leads) == details["largest_lead"] <= bound == details["bound"]
    assert details["num_waits"] >= (2 * BASE.steps if bound == 0 else 0)  # two of three, each step
    order = [rank - 1 for rank in details["arrivals"]]
    assert distance(server["state"], bounded_by_arrival(BASE, 3, order, bound)) < EXACT


@pytest.mark.torch
def test_several_servers_have_the_weights_of_one() -> None:
    serial = alone(case("serial", 1))
    assert difference(trained(4)["ps.sync 2 servers"][0]["state"], serial.state) < EXACT
    ranks = trained(4)["ps.async_sgd 2 servers"]
    orders = [[rank - 2 for rank in one["details"]["arrivals"]] for one in ranks[:2]]
    assert distance(ranks[0]["state"], shared_by_arrival(BASE, 2, orders)) < EXACT


@pytest.mark.torch
@pytest.mark.parametrize("name", ["ps.ssp 0", "ps.sync 2 servers", "ps.async_sgd 2 servers"])
def test_what_bounded_and_shared_servers_sent_was_predicted(name: str) -> None:
    ranks = trained(4)[name]
    num_servers, size = (2 if "servers" in name else 1), plan(case("ps.sync", 4)).model_bytes
    for rank, found in enumerate(ranks):
        assert found["recorded"] == found["predicted"]
        sent = sum(call[3] * count for call, count in found["recorded"].items())
        share = (4 - num_servers) / num_servers if rank < num_servers else 1
        assert sent == pytest.approx(share * size * BASE.steps, rel=1e-3)  # parts differ by an element


@pytest.mark.parametrize(
    ("scheme", "settings", "message"),
    [
        ("ps.async_sgd", {"staleness": 1}, "has no bound of staleness; leave out --staleness, or use ps.ssp"),
        ("easgd.async", {"servers": 2}, "has no servers that could share weights; leave out --servers"),
        ("dp.packed", {"servers": 2}, "has no servers that could share weights"),
        ("ps.sync", {"servers": 4}, "4 servers of 4 ranks leave no worker"),
        ("ps.sync", {"servers": 2, "optimizer": "lamb"}, "each server has a part of the gradient"),
        ("ps.sync", {"servers": 2, "clip_norm": 1.0}, "cannot take --clip-norm with --servers 2"),
    ],
)
def test_bounds_and_servers_that_cannot_be_are_one_line(
    scheme: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(BenchError, match=message):
        plan(case(scheme, 4, **settings))


def test_a_lone_hogwild_worker_is_serial_training() -> None:
    lone = alone(case("hogwild.sgd", 1))
    assert difference(lone.state, alone(case("serial", 1)).state) < EXACT
    assert lone.details == {
        "num_updates": BASE.steps,
        "staleness": {"0": BASE.steps},
        "overlapped_updates": 0,
    }


@pytest.mark.torch
@pytest.mark.parametrize("scheme", [*SERVED, *UNLOCKED])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_every_update_is_in_the_staleness_histogram(num_ranks: int, scheme: str) -> None:
    workers = num_ranks if scheme in UNLOCKED else num_ranks - 1
    details = trained(num_ranks)[scheme][0]["details"]
    updates = workers * BASE.steps
    assert details["num_updates"] == updates == sum(details["staleness"].values())
    assert all(0 <= int(key) < updates for key in details["staleness"])
    if scheme in SERVED:
        arrivals = details["arrivals"]
        assert sorted(arrivals) == sorted([*range(1, num_ranks)] * BASE.steps)
    else:
        assert 0 <= details["overlapped_updates"] <= updates


@pytest.mark.torch
@pytest.mark.parametrize("scheme", ALL)
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_what_was_sent_is_what_was_predicted(num_ranks: int, scheme: str) -> None:
    job = plan(case(scheme, num_ranks))
    for rank, found in enumerate(trained(num_ranks)[scheme]):
        assert found["recorded"] == found["predicted"]
        sent = sum(call[3] * count for call, count in found["recorded"].items())
        messages = {
            "hogwild": 0,
            "ps": num_ranks - 1 if rank == 0 else 1,
            "easgd": {"sync1": 2, "sync2": 2, "sync3": 2, "sync_ar": 1, "hogwild": 0}.get(
                scheme.partition(".")[2], num_ranks - 1 if rank == 0 else 1
            ),
        }[scheme.partition(".")[0]]
        assert sent == messages * job.model_bytes * BASE.steps


@pytest.mark.torch
@pytest.mark.parametrize("scheme", ALL)
def test_losses_fall_and_records_are_complete(scheme: str) -> None:
    found = trained(4)[f"{scheme} long"]
    start = mean_held_out_loss_at_start(case(scheme, 4, dtype="float32"))
    assert found[0]["held_out_loss"] < start
    for rank, one in enumerate(found):
        json.dumps(one["json"])
        assert one["num_ends"] == LONG_STEPS + 1
        served = rank == 0 and (scheme.startswith("ps.") or "overlapped_updates" not in found[0]["details"])
        if served and scheme not in ("easgd.sync2", "easgd.sync3", "easgd.sync_ar"):
            assert one["losses"] == [None] * LONG_STEPS
        else:
            assert all(isinstance(loss, float) for loss in one["losses"])


@pytest.mark.torch
def test_hogwild_learns_as_much_as_serial_from_as_many_samples() -> None:
    settings = {"dtype": "float32", "steps": LONG_STEPS, "learning_rate": 0.02}
    start = mean_held_out_loss_at_start(case("serial", 1, **settings))
    serial = alone(case("serial", 1, **settings)).held_out_loss
    hogwild = trained(4)["hogwild.sgd long"][0]["held_out_loss"]
    assert start - hogwild > (start - serial) / 2 > 0


@pytest.mark.torch
def test_shared_weights_are_seen_by_all_and_leave_no_file() -> None:
    for rank in trained(2)["share"]:
        assert rank["seen"] == [0, 1, 2, 3, 4]
        assert rank["num_maps"] >= 1
        assert rank["named"] == []


@pytest.mark.torch
def test_ranks_that_share_no_memory_all_say_so() -> None:
    lines = set(trained(2)["elsewhere"])
    assert lines == {
        "hogwild.sgd keeps the weights in the memory of one host, and rank 1 cannot map that of rank 0; "
        "start all ranks on one host"
    }


@pytest.mark.torch
def test_running_statistics_come_from_a_worker() -> None:
    state, nothing = trained(2)["norm"]
    assert nothing is None
    assert int(state["0.num_batches_tracked"]) == 2
    assert float(state["0.running_mean"].abs().max()) > 0


@pytest.mark.torch
def test_a_silent_or_lost_peer_is_one_line_in_time() -> None:
    heard = trained(2)["lost"][0]
    assert heard["silent"].startswith("receiving from any rank: Timed out")
    assert heard["gone"].startswith("receiving from rank 1: ")
    assert heard["gone_s"] < 45  # of 60 allowed: it was told, it did not wait
    assert "\n" not in heard["silent"] + heard["gone"]


@pytest.mark.parametrize(
    ("scheme", "num_ranks", "settings", "words"),
    [
        ("ps.sync", 1, {}, "at least 2 ranks"),
        ("ps.async_sgd", 4, {"batch": 16}, "use 15"),
        ("ps.async_sgd", 2, {"momentum": 0.9}, "ps.async_msgd"),
        ("hogwild.sgd", 2, {"momentum": 0.9}, "momentum 0"),
        ("hogwild.sgd", 4, {"num_hosts": 2}, "cannot run on 2 hosts"),
        ("hogwild.sgd", 2, {"backend": "nccl"}, "use --backend gloo or mpi"),
        ("ps.async_sgd", 2, {"backend": "nccl"}, "use --backend gloo or mpi"),
        ("dp.fsdp", 2, {"backend": "mpi"}, "use --backend gloo or nccl"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    scheme: str, num_ranks: int, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(BenchError, match=words) as caught:
        plan(case(scheme, num_ranks, **settings))
    assert "\n" not in str(caught.value)


def test_server_schemes_say_whose_samples_are_behind_an_update() -> None:
    def batch_of(scheme: str) -> int:
        return find_scheme(scheme).effective_batch(plan(case(scheme, 4)))

    assert [batch_of(name) for name in ("ps.sync", "ps.async_sgd", "hogwild.sgd", "easgd.sync2")] == [
        12,
        4,
        3,
        3,
    ]


def test_momentum_on_the_server_by_hand() -> None:
    weights, velocity = torch.tensor([1.0]), torch.tensor([0.5])
    momentum_update(weights, torch.tensor([2.0]), velocity, rate=0.1, momentum=0.9)
    assert velocity.item() == pytest.approx(0.25)
    assert weights.item() == pytest.approx(1.25)


def test_staleness_counts_what_others_did_since_the_fetch() -> None:
    staleness = Staleness()
    for worker in (1, 2, 1, 1, 2):
        staleness.arrived(worker)
    # 1: at start; 2: one by 1; 1: one by 2; 1: nobody; 2: two by 1
    assert staleness.as_json() == {
        "num_updates": 5,
        "staleness": {"0": 2, "1": 2, "2": 1},
        "arrivals": [1, 2, 1, 1, 2],
    }


def test_unlocked_updates_see_who_was_there() -> None:
    like = torch.zeros(3)
    shared = SharedWeights(torch.zeros(SharedWeights.bytes_for(like, 2), dtype=torch.uint8), like, 2)
    first, second = UnlockedUpdates(shared, 0), UnlockedUpdates(shared, 1)
    local = torch.empty(3)
    first.fetch(local)
    second.fetch(local)
    second.add(torch.ones(3), alpha=2.0)
    shared.writing[1] = 1  # caught in the middle of the next
    first.add(torch.ones(3), alpha=-0.5)
    assert shared.weights.tolist() == [1.5] * 3
    assert shared.updates.tolist() == [1, 1]
    assert first.as_json() == {"num_updates": 1, "staleness": {"1": 1}, "overlapped_updates": 1}
    assert merged([first.as_json(), second.as_json()]) == {
        "num_updates": 2,
        "staleness": {"0": 1, "1": 1},
        "overlapped_updates": 1,
    }


def test_a_packed_model_computes_and_saves_the_same() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    packed = PackedModel(model, Ledger(), Passes(BenchConfig(scheme="serial"), torch.device("cpu")))
    assert packed.weights.shape == (4 + 4 + 12 + 3,)
    assert difference(packed.state(packed.weights), before) == 0
    packed.weights += 1
    assert difference(packed.state(packed.weights - 1), before) < 1e-6
    assert float((model[1].weight.detach() - before["1.weight"] - 1).abs().max()) < 1e-6


def test_without_mpi4py_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(BenchError, match=r"pip install 'perfscope-hpc\[mpi\]"):
        MpiPeers()
