"""The synchronous data-parallel family against serial training, its own predictions, and torch's trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from perfscope.runners import comm
from perfscope.runners.composed.shards import padded_elements
from perfscope.runners.config import BenchConfig, BenchError, parse_scheme
from perfscope.runners.data.registry import open_feed
from perfscope.runners.exchange import Exchange, PendingExchange
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.dp_ddp import ddp_buckets
from perfscope.runners.schemes.dp_gradients import gradients_by_layer
from perfscope.runners.schemes.dp_local import DiLoCo
from perfscope.runners.schemes.dp_senders import NewestFirst
from perfscope.runners.schemes.dp_update import owned
from perfscope.runners.schemes.local import loss_of
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.train import _draws_of
from perfscope.runners.world import Alone, World
from perfscope.vocabulary.axes import Axis
from tests.runners.dp_cases import largest_difference
from tests.runners.ranks import run_ranks
from tests.runners.training import train_here

EXACT = (
    "dp.ddp",
    "dp.perlayer",
    "dp.packed",
    "dp.fwd_overlap",
    "dp.dist_update",
    "dp.fsdp",
    "dp.hsdp",
    "dp.perlayer+prio",
    "dp.fwd_overlap+prio",
    "dp.hierarchical",
    "dp.hierarchical+topk(1)",
    # Everything is sent, so nothing may be lost: the hooks and keys of compression, without its error.
    "dp.ddp+topk(1)",
    "dp.packed+topk(1)",
    "dp.perlayer+topk(1)",
    "dp.fwd_overlap+topk(1)+prio",
)
SQUEEZED = (
    "dp.ddp+bf16",
    "dp.ddp+int8",
    "dp.ddp+powersgd(2)",
    "dp.packed+fp16",
    "dp.packed+onebit",
    "dp.fwd_overlap+mstopk(0.1)+prio",
)
CHUNK_KIB = 4  # tiny models have several chunks then
STEPS = 6


def bench(name: str, num_ranks: int, **settings: Any) -> BenchConfig:
    scheme, modifiers = parse_scheme(name)
    if scheme == "dp.hsdp":
        settings = {"mesh": Mesh.positional(num_ranks // 2, 2, 1), **settings}
    defaults: dict[str, Any] = {
        "model": "smallcnn",
        "batch": 8,
        "steps": STEPS,
        "input_shape": (3, 16, 16),
        "momentum": 0.9,
        "dtype": "float64",
        "learning_rate": 0.05,
        "num_ranks": num_ranks,
        "device": "cpu",
        "chunk_kb": CHUNK_KIB,
    }
    return BenchConfig(scheme=scheme, modifiers=modifiers, **{**defaults, **settings})


def _runs(num_ranks: int) -> list[BenchConfig]:
    runs = [bench(name, num_ranks) for name in EXACT]
    exact = EXACT[:7] if num_ranks == 2 else ()
    runs += [bench(name, num_ranks, model="mlp") for name in (*exact, *SQUEEZED, "dp.local_sgd")]
    runs.append(bench("dp.local_sgd", num_ranks, period=1, momentum=0.0))
    runs += [bench(name, num_ranks) for name in ("dp.gossip", "dp.diloco")]
    return runs


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> tuple[int, list[Any]]:
    """(P, what each rank found): one start for all cases."""
    num_ranks: int = request.param
    single = {"dtype": "float32", "momentum": 0.0}
    traced = [
        bench(name, num_ranks, **single) for name in ("dp.fsdp", "dp.hsdp", "dp.dist_update", "dp.ddp+int8")
    ]
    if num_ranks == 2:  # several buckets, and norms whose statistics DDP sends
        traced.append(bench("dp.ddp", 2, model="resnet50", input_shape=(3, 32, 32), batch=4, **single))
        traced.append(bench("dp.hsdp", 2, mesh=Mesh.positional(2, 1, 1), **single))
    found = run_ranks(
        num_ranks,
        "tests.runners.dp_cases:everything",
        configs=_runs(num_ranks),
        traced=traced,
    )
    return num_ranks, found


def test_every_exact_scheme_ends_with_the_weights_of_serial_training(ranks: tuple[int, list[Any]]) -> None:
    trained = ranks[1][0]["trained"]
    cases = [f"{one.full_name} {one.model}" for one in _runs(ranks[0]) if one.full_name in EXACT]
    assert len(cases) >= len(EXACT)
    differences = {case: trained[case]["difference"] for case in cases}
    assert all(value < 1e-12 for value in differences.values()), differences
    assert all(trained[case]["learned"] > 1e-2 for case in cases)


def test_calls_are_those_that_were_predicted_on_every_rank(ranks: tuple[int, list[Any]]) -> None:
    for rank, found in enumerate(ranks[1]):
        for case, entry in found["trained"].items():
            assert entry["calls"] == entry["predicted"], f"{case} on rank {rank}"
            by_itself = case.split()[0] in {"dp.ddp", "dp.fsdp", "dp.hsdp"}  # torch's calls are not ours
            assert bool(entry["calls"]) != by_itself, case


def test_priority_sends_the_same_bytes_in_more_calls(ranks: tuple[int, list[Any]]) -> None:
    trained = ranks[1][0]["trained"]
    for name in ("dp.perlayer", "dp.fwd_overlap"):
        plain, cut = (trained[f"{one} smallcnn"]["calls"] for one in (name, f"{name}+prio"))
        assert sum(call[3] * n for call, n in plain.items()) == sum(call[3] * n for call, n in cut.items())
        assert max(call[3] for call in cut) == CHUNK_KIB << 10 < max(call[3] for call in plain)
        assert sum(cut.values()) > sum(plain.values())


def test_each_rank_steps_its_optimizer_once_per_training_step(ranks: tuple[int, list[Any]]) -> None:
    for found in ranks[1]:
        steps = {case: entry["optimizer_steps"] for case, entry in found["trained"].items()}
        assert set(steps.values()) == {STEPS}, steps


def test_libraries_send_what_was_predicted_according_to_torchs_own_trace(
    ranks: tuple[int, list[Any]],
) -> None:
    for rank, found in enumerate(ranks[1]):
        for case, (traced, predicted) in found["traced"].items():
            assert traced == predicted, f"{case} on rank {rank}"
            assert traced, case


def test_loss_falls_for_every_scheme_also_with_squeezed_gradients(ranks: tuple[int, list[Any]]) -> None:
    num_ranks, found = ranks
    for case in found[0]["trained"]:
        if not case.endswith(" mlp"):
            continue
        means = [
            sum(one["trained"][case]["losses"][step] for one in found) / num_ranks for step in range(STEPS)
        ]
        assert means[-1] < 0.9 * means[0], f"{case}: {means}"
        if "topk" in case or "powersgd" in case:
            continue  # they send the rest in later steps than these few
        ours, serial = found[0]["trained"][case]["held_out"]
        assert ours < 1.25 * serial, f"{case}: loss {ours} on new samples, serial {serial}"


def test_local_sgd_equals_its_rule_simulated_in_one_process(ranks: tuple[int, list[Any]]) -> None:
    trained = ranks[1][0]["trained"]
    apart = trained["dp.local_sgd mlp"]  # 6 steps of period 4: the last period is cut short
    assert apart["simulated"] < 1e-12
    assert apart["difference"] > 1e-4
    together = trained["dp.local_sgd smallcnn"]  # period 1, no momentum
    assert together["simulated"] < 1e-12
    assert together["difference"] < 1e-12


def test_gossip_equals_its_rule_simulated_in_one_process(ranks: tuple[int, list[Any]]) -> None:
    """Of two ranks each is the other's only neighbor, so that both always have the mean, as in serial."""
    num_ranks, found = ranks
    gossip = found[0]["trained"]["dp.gossip smallcnn"]
    assert gossip["simulated"] < 1e-12
    assert (gossip["difference"] < 1e-12) == (num_ranks == 2)


@pytest.mark.slow
def test_diloco_makes_the_outer_step_of_torchs_nesterov(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank, by a plain loop: two steps of SGD, then one of the outer optimizer, three times."""
    config = bench("dp.diloco", 1, period=2, momentum=0.0)
    model, feed = build_model(config), open_feed(config)
    common = [param.detach().clone() for param in model.parameters()]
    outer = torch.optim.SGD(common, lr=0.7, momentum=0.9, nesterov=True)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        inner.zero_grad()
        loss_of(model, feed.batch(step, 0, 1)).backward()
        inner.step()
        if step % 2:
            for ours, param in zip(common, model.parameters(), strict=True):
                ours.grad = ours - param.detach()
            outer.step()
            with torch.no_grad():
                for ours, param in zip(common, model.parameters(), strict=True):
                    param.copy_(ours)
    state = train_here(World(Alone(), 0, torch.device("cpu")), config).state
    assert state is not None
    assert largest_difference(state, model.state_dict()) < 1e-12
    monkeypatch.setattr(DiLoCo, "outer_rate", 1.0)
    monkeypatch.setattr(DiLoCo, "outer_momentum", 0.0)
    plain = train_here(World(Alone(), 0, torch.device("cpu")), replace(config, scheme="dp.local_sgd")).state
    state = train_here(World(Alone(), 0, torch.device("cpu")), config).state
    assert state is not None and plain is not None
    assert largest_difference(state, plain) < 1e-12


def test_ranks_of_a_hierarchical_exchange_share_a_host() -> None:
    config = bench("dp.hierarchical", 4, num_hosts=4)
    with pytest.raises(BenchError, match="along numa must share a host, but ranks 0 to 1 do not"):
        plan(config)
    plan(replace(config, mesh=Mesh({Axis.DP: 4})))


def test_dropout_follows_from_the_seed_and_differs_between_replicas(ranks: tuple[int, list[Any]]) -> None:
    for found in ranks[1]:
        one, other = found["drawn"]["same"]
        assert one == other
        assert one != found["drawn"]["undrawn"][0]


def test_local_sgd_sends_what_was_predicted_also_in_a_cut_period(ranks: tuple[int, list[Any]]) -> None:
    for found in ranks[1]:
        for steps, (predicted, recorded) in found["sent"].items():
            assert predicted == pytest.approx(recorded), steps
            assert recorded > 0, steps


@pytest.mark.parametrize("scheme", ["serial", "dp.packed"])
def test_a_seed_gives_the_same_dropout_in_every_run(scheme: str) -> None:
    def losses(**settings: Any) -> list[float | None]:
        torch.manual_seed(len(settings))  # of the process; must not matter
        config = bench(scheme, 1, model="mlp", **{"dropout": 0.5, **settings})
        return train_here(World(Alone(), 0, torch.device("cpu")), config).losses

    assert losses() == losses(seed=0) == losses(steps=STEPS, seed=0)
    assert losses(seed=1) != losses()
    assert losses(dropout=0.4) != losses()


def test_replicas_draw_differently_and_ranks_of_a_model_group_alike() -> None:
    def draws(scheme: str, num_ranks: int, **settings: Any) -> list[int]:
        job = plan(bench(scheme, num_ranks, batch=24, **settings))
        found = []
        for rank in range(num_ranks):
            peers = Alone()
            peers.rank, peers.size = rank, num_ranks
            found.append(_draws_of(find_scheme(scheme)(job, World(peers, rank, torch.device("cpu")))))
        return found

    assert len(set(draws("dp.packed", 4))) == 4
    assert len(set(draws("dp.hsdp", 4, mesh=Mesh.positional(2, 2, 1)))) == 4
    first, *others = draws("hy.filter_dp", 4, mesh=Mesh.positional(2, 2, 1))
    assert others[0] == first and others[1] == others[2] != first
    assert draws("dp.packed", 2, seed=7) != draws("dp.packed", 2)


@pytest.mark.parametrize("name", ["dp.fwd_overlap", "dp.ddp"])
def test_a_killed_peer_ends_the_others_with_an_error(name: str) -> None:
    told = rf"(?s)rank 1 did not end.*rank 0: .*AssertionError: {name} noticed after [0-9]\.[0-9] s: "
    with pytest.raises(AssertionError, match=told):
        run_ranks(2, "tests.runners.dp_cases:one_dies", configs=[bench(name, 2, model="mlp")])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            bench("dp.packed", 4, mesh=Mesh.positional(2, 2, 1)),
            "dp.packed splits dp; tp must be 1 in mesh dp=2,tp=2",
        ),
        (bench("dp.ddp", 4, mesh=Mesh.positional(3, 1, 1)), "mesh dp=3 has 3 places, but there are 4 ranks"),
        (
            bench("dp.perlayer", 4, batch=6),
            "a batch of 6 cannot be cut into 4 equal parts, one per trainer; use 4,",
        ),
        (
            bench("dp.hsdp", 4, batch=6),
            "a batch of 6 cannot be cut into 4 equal parts, one per trainer; use 4",
        ),
        (bench("dp.hsdp", 4, mesh=Mesh.positional(2, 1, 2)), "dp.hsdp splits dp and fsdp; pp must be 1"),
        (bench("dp.fsdp+bf16", 2), r"dp.fsdp cannot take \+bf16"),
        (bench("dp.ddp+prio", 2), r"dp.ddp cannot take \+prio"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(config: BenchConfig, reason: str) -> None:
    with pytest.raises(BenchError, match=reason):
        plan(config)


def test_ddp_buckets_follow_the_limits_of_the_first_and_of_the_others() -> None:
    mib = 1 << 20
    assert ddp_buckets([]) == []
    assert ddp_buckets([10]) == [10]
    assert ddp_buckets([mib, 1]) == [mib, 1]  # reaching the limit closes a bucket
    assert ddp_buckets([mib - 1, 2, 24 * mib, mib, 5]) == [mib + 1, 25 * mib, 5]
    assert ddp_buckets([100 * mib, 30 * mib, 30 * mib]) == [100 * mib, 30 * mib, 30 * mib]
    assert ddp_buckets([mib, 1, mib, 2 * mib], 2) == [2 * mib + 1, 2 * mib]  # the first as the others


def test_ddp_buckets_equal_those_of_torchs_own_function() -> None:
    job = plan(bench("dp.ddp", 2, model="vgg16", input_shape=(3, 64, 64)))
    tensors = [
        torch.empty(shape, device="meta", dtype=torch.float64) for _, shape in reversed(job.shape.params)
    ]
    indices, _ = torch.distributed._compute_bucket_assignment_by_size(
        tensors, [1 << 20, 25 << 20], [False] * len(tensors)
    )
    expected = [sum(tensors[i].numel() * 8 for i in bucket) for bucket in indices]
    predicted = find_scheme("dp.ddp").traffic(job, 0)
    assert [one.bytes for one in predicted] == expected
    assert sum(expected) == job.model_bytes
    assert len(expected) > 5


def test_padding_is_counted() -> None:
    assert padded_elements((10, 3), 4) == 36
    assert padded_elements((12,), 4) == 12
    assert owned(10, 4) == 3
    assert owned(8, 4) == 2


class _Recorder(Exchange):
    """Notes in which order pieces were started."""

    def __init__(self) -> None:
        self.keys: list[Any] = []

    def _start_on(self, key: Any, flat: torch.Tensor, group: comm.Group) -> PendingExchange:
        self.keys.append(key)
        return _Done(flat * 2)

    def sends(self, numel: int, element_size: int, num_ranks: int, key: Any = None) -> list[Any]:
        raise NotImplementedError


class _Done(PendingExchange):
    def __init__(self, flat: torch.Tensor) -> None:
        self._flat = flat

    def wait(self) -> torch.Tensor:
        return self._flat


def test_priority_lets_new_layers_overtake_and_then_goes_in_forward_order() -> None:
    # 1 KiB: 256 elements of float32
    model = nn.Sequential(*(nn.Linear(size, 1, bias=False) for size in (102, 102, 640, 896)))
    layers = gradients_by_layer(model.named_parameters())
    exchange = _Recorder()
    group = comm.Group("data", (0,), 0, None, comm.Ledger())
    sender = NewestFirst(bench("dp.perlayer+prio", 1, chunk_kb=1), exchange, group, layers)
    for layer in reversed(layers):
        sender.ready(layer)
    # One chunk of layer 3 and one of layer 2; then the small layers, each with what its event has left over.
    assert exchange.keys == ["3#0", "2#0", "1#0", "0#0"]
    sender.flush()
    assert exchange.keys[4:] == ["2#1", "2#2", "3#1", "3#2", "3#3"]
    layers[3].flat.copy_(torch.arange(896.0))
    exchanged = NewestFirst(bench("dp.perlayer+prio", 1, chunk_kb=1), exchange, group, layers)
    exchanged.ready(layers[3])
    exchanged.flush()
    assert exchanged.wait(layers[3])
    assert not exchanged.wait(layers[3])
    assert torch.equal(layers[3].flat, torch.arange(896.0) * 2)
