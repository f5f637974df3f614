"""Hybrids: which layers move what, and that they train as one process does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from perfscope.runners.config import BenchError
from perfscope.runners.hybrid.chain import GATHER_FEATURES, GATHER_SAMPLES, TO_OWN, Move, plan_chain
from perfscope.runners.job import Job
from perfscope.runners.mesh import Mesh
from perfscope.runners.planning import plan
from perfscope.runners.schemes.hy_auto import Auto
from perfscope.runners.schemes.hy_numa_replica import NumaReplica, children, parent
from perfscope.runners.schemes.hy_owt import HybridChain, OneWeirdTrick
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.traffic import Traffic
from tests.runners.pp_cases import TRAINED, configure, trained
from tests.runners.training import expected_calls

HYBRIDS = [
    (num_ranks, name)
    for num_ranks, configs in TRAINED.items()
    for name, config in configs.items()
    if issubclass(find_scheme(config.scheme), HybridChain | NumaReplica)
]
# All trainings on so many ranks are one launch: the one of four is left to `make test-slow`.
FEW_FIRST = [pytest.param(*one, marks=[pytest.mark.slow] if one[0] > 2 else []) for one in HYBRIDS]


def imagenet(scheme: str, model: str, batch: int = 256, num_ranks: int = 4) -> Job:
    """224 x 224, 1000 classes, float32."""
    return plan(
        configure(
            scheme,
            num_ranks,
            model=model,
            batch=batch,
            input_shape=(3, 224, 224),
            num_classes=1000,
            dtype="float32",
        )
    )


def elements(calls: list[Traffic], job: Job) -> float:
    """Moved elements in units of 2(P-1)/P: what an all-reduce of so many would move."""
    shares = {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5, "all_to_all": 0.5}
    return sum(shares[one.collective] * one.bytes * one.count for one in calls) / job.element_size


@pytest.mark.parametrize(
    ("model", "millions", "of_data_parallelism"),
    [("alexnet", 6.9, 61.1), ("vgg16", 23.2, 138.4), ("googlenet", 6.2, 7.0)],
)
def test_one_weird_trick_moves_what_the_literature_counts(
    model: str, millions: float, of_data_parallelism: float
) -> None:
    """|w_conv| + SUM_fc B*F_in at B = 256; the logits come on top, B*K/P."""
    job = imagenet("hy.owt", model)
    calls = list(OneWeirdTrick.traffic(job, 0))
    logits = [one for one in calls if "logits" in one.what]
    others = [one for one in calls if "logits" not in one.what]
    assert round(elements(others, job) / 1e6, 1) == millions
    assert round(job.shape.num_params / 1e6, 1) == of_data_parallelism
    assert elements(logits, job) == 256 * 1000 / 4


def test_one_weird_trick_switches_once() -> None:
    job = imagenet("hy.owt", "alexnet")
    assert OneWeirdTrick.chain_plan(job).moves == (
        Move(GATHER_SAMPLES, "fc6", 9216),
        Move(GATHER_FEATURES, "fc7", 4096),
        Move(GATHER_FEATURES, "fc8", 4096),
        Move(TO_OWN, None, 1000),
    )


@pytest.mark.parametrize(
    ("batch", "in_model_mode"),
    [
        (256, ["fc6", "fc7", "fc8"]),  # conv5: 256 * 256*13*13 > 256*256*3*3
        (8, ["conv3", "conv4", "conv5", "fc6", "fc7", "fc8"]),  # conv2: 8 * 64*27*27 > 192*64*5*5
    ],
)
def test_each_layer_moves_the_smaller_of_activations_and_weights(
    batch: int, in_model_mode: list[str]
) -> None:
    job = imagenet("hy.auto", "alexnet", batch)
    modes = Auto.modes(job)
    assert [name for name, mode in modes.items() if mode == "model"] == in_model_mode
    layers = Auto.layout(job)["layers"]
    for layer in job.shape.layers:
        assert layers[layer.name]["activations"] == batch * layer.in_size
        assert layers[layer.name]["mode"] == (
            "model" if batch * layer.in_size < layer.num_weights else "data"
        )


def test_the_automatic_choice_moves_less_than_either_fixed_one() -> None:
    auto, trick = imagenet("hy.auto", "alexnet", 8), imagenet("hy.owt", "alexnet", 8)
    chosen = elements(list(Auto.traffic(auto, 0)), auto)
    assert chosen < elements(list(OneWeirdTrick.traffic(trick, 0)), trick) < auto.shape.num_params


def test_containers_and_norms_stay_data_parallel() -> None:
    for model in ("googlenet", "resnet50"):
        modes = Auto.modes(imagenet("hy.auto", model, 4))
        assert {modes[name] for name in modes if name.startswith(("inception", "res", "bn"))} == {"data"}


def test_a_layer_that_cannot_be_cut_evenly_stays_data_parallel_with_the_reason() -> None:
    job = plan(configure("hy.auto", 4, num_classes=10))
    last = Auto.layout(job)["layers"]["fc5"]
    assert last["mode"] == "data"
    assert "10 outputs" in last["why"]
    assert Auto.chain_plan(job).moves[-1] == Move(TO_OWN, "fc5", 128)


def test_a_chain_that_begins_with_a_model_layer_gathers_nothing_there() -> None:
    shape = plan(configure("hy.owt", 2, model="mlp")).shape
    found = plan_chain(shape, {"fc1": "model", "fc2": "data", "fc3": "model"})
    assert found.starts_whole
    assert found.moves == (
        Move(TO_OWN, "fc2", 256),
        Move(GATHER_SAMPLES, "fc3", 128),
        Move(TO_OWN, None, 16),
    )


def test_the_tree_of_eight_replicas() -> None:
    assert [parent(place) for place in range(1, 8)] == [0, 0, 2, 0, 4, 4, 6]
    assert children(0, 8) == (4, 2, 1)
    assert children(4, 8) == (6, 5)
    assert children(0, 1) == ()


@pytest.mark.parametrize("size", range(1, 18))
def test_every_replica_hangs_on_the_tree_once(size: int) -> None:
    found = [(child, place) for place in range(size) for child in children(place, size)]
    assert sorted(found) == [(place, parent(place)) for place in range(1, size)]
    assert len(children(0, size)) == (size - 1).bit_length()  # the depth, too: log2


@pytest.mark.parametrize(
    ("scheme", "num_ranks", "settings", "message"),
    [
        ("hy.owt", 4, {"num_classes": 10}, "10 outputs of fc5 cannot be cut into 4"),
        ("hy.owt", 4, {"batch": 6}, "cannot be cut into 4 equal parts"),
        ("hy.owt", 4, {"mesh": Mesh.positional(2, 1, 2)}, "pp must be 1"),
        ("hy.owt+fp16", 2, {"model": "mlp"}, "every layer of mlp is model parallel"),
        ("hy.owt+prio", 2, {}, "cannot take"),
        ("hy.numa_replica", 4, {"batch": 6}, "batch of 6 cannot be cut into 4"),
        ("hy.numa_replica", 4, {"num_hosts": 4}, "must share a host"),
        ("hy.numa_replica+fp16", 2, {}, "cannot take"),
    ],
)
def test_what_a_hybrid_cannot_do_is_said_in_one_line(
    scheme: str, num_ranks: int, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BenchError, match=message) as refused:
        plan(configure(scheme, num_ranks, **settings))
    assert "\n" not in str(refused.value)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("num_ranks", "name"),
    [one for one in FEW_FIRST if "+" not in str(one.values[1])],
)
def test_a_hybrid_trains_as_one_process_does(num_ranks: int, name: str) -> None:
    run = trained(num_ranks)[name]
    assert run.config.steps >= 5
    assert run.difference() < 1e-6
    means = [sum(values) / num_ranks for values in zip(*(one.losses for one in run.ranks), strict=True)]
    assert means == pytest.approx(run.serial.losses, abs=1e-9)


@pytest.mark.torch
def test_one_weird_trick_with_squeezed_gradients_stays_near() -> None:
    run = trained(2)["owt+fp16"]
    assert 100 * trained(2)["owt"].difference() < run.difference() < 1e-3


@pytest.mark.torch
@pytest.mark.parametrize(("num_ranks", "name"), FEW_FIRST)
def test_every_call_of_a_hybrid_was_predicted(num_ranks: int, name: str) -> None:
    run = trained(num_ranks)[name]
    job, scheme = plan(run.config), find_scheme(run.config.scheme)
    for rank, outcome in enumerate(run.ranks):
        predicted = expected_calls(scheme.traffic(job, rank), run.config.steps)
        assert predicted
        assert outcome.calls == predicted


@pytest.mark.slow
@pytest.mark.torch
def test_the_tree_is_in_the_trace_as_predicted() -> None:
    run = trained(4)["numa, two chips"]
    job = plan(run.config)
    assert run.traced is not None
    for rank, events in enumerate(run.traced):
        predicted = Counter(
            (one.collective, one.bytes // job.element_size) for one in NumaReplica.traffic(job, rank)
        )
        sent = {key: n for key, n in events.items() if key[0] in {"send", "all_reduce"}}
        assert sent == predicted


@pytest.mark.torch
def test_the_choice_for_each_layer_is_recorded() -> None:
    for outcome in trained(2)["auto"].ranks:
        modes = outcome.details["modes"]
        assert modes == {"conv1": "data", "conv2": "data", "conv3": "model", "fc4": "model", "fc5": "model"}
        assert outcome.details["layers"]["conv3"] == {
            "mode": "model",
            "why": "b|x| < |w|",
            "activations": 8 * 32 * 4 * 4,
            "weights": 64 * 32 * 3 * 3,
        }
