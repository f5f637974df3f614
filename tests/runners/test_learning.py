"""Evaluations between steps: the same training, the same end on all ranks, the whole held-out set."""

from __future__ import annotations

import copy
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from perfscope.analysis.learning import noise_scale
from perfscope.rundir.scheme_records import NoiseNorms
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.registry import held_out, open_feed
from perfscope.runners.learning.evaluation import HeldOutSet
from perfscope.runners.learning.noise import NoiseMeasurement, _gradient
from perfscope.runners.learning.pauses import Pauses
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.local import loss_of
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.world import Alone, World
from tests.runners.ranks import run_ranks
from tests.runners.training import train_here

BASE = BenchConfig(
    scheme="serial",
    model="table_mlp",
    input_shape=(32,),
    num_classes=8,
    batch=24,
    steps=12,
    learning_rate=0.05,
    dtype="float64",
    label_noise=0.1,
    held_out=600,
    evaluate_every=4,
    noise_every=8,
    device="cpu",
)
EXACT = ("dp.ddp", "dp.packed", "dp.fwd_overlap", "dp.dist_update", "dp.fsdp", "dp.local_sgd", "pp.gpipe")
SERVED = ("ps.sync", "easgd.sync1", "easgd.sync3", "easgd.sync_ar", "easgd.original")
UNORDERED = ("ps.async_sgd", "easgd.async", "hogwild.sgd", "easgd.hogwild")
ENDING: dict[str, Any] = {"target": "accuracy=0.5", "steps": 400, "evaluate_every": 8, "noise_every": None}


def on_two(scheme: str, **settings: Any) -> BenchConfig:
    return replace(BASE, scheme=scheme, num_ranks=2, **settings)


def alone() -> World:
    return World(Alone(), 0, torch.device("cpu"))


@pytest.fixture(scope="module")
def found() -> list[Any]:
    """What each of two ranks found: one start for all cases."""
    configs = [on_two(scheme) for scheme in (*EXACT, *SERVED, *UNORDERED)]
    return run_ranks(2, "tests.runners.learning_cases:with_and_without", configs=configs)


@pytest.mark.parametrize("scheme", (*EXACT, *SERVED))
def test_pauses_change_no_weight(found: list[Any], scheme: str) -> None:
    assert found[0][scheme]["difference"] < 1e-15


@pytest.mark.parametrize("scheme", (*EXACT, *SERVED, *UNORDERED))
def test_every_scheme_is_evaluated_where_it_was_asked_for(found: list[Any], scheme: str) -> None:
    rows = found[0][scheme]["evaluations"]
    assert [row["step"] for row in rows] == [4, 8, 12] and {row["num_samples"] for row in rows} == {600}
    assert rows[-1]["loss"] < rows[0]["loss"] and 0 <= rows[0]["top1"] <= rows[0]["top5"] <= 1
    assert not found[1][scheme]["evaluations"]
    for rank in found:
        entry = rank[scheme]
        assert [pause["step"] for pause in entry["pauses"]] == [4, 8, 12]
        ends = entry["step_ends_ns"]
        for pause in entry["pauses"][:-1]:  # its time is between two steps
            assert 0 < pause["ns"] <= ends[pause["step"] + 1] - ends[pause["step"]]
    (noise,) = found[0][scheme]["noise"]
    assert noise["step"] == 8 and noise["small_batch"] == 3 and noise["big_batch"] == 24
    assert noise["small_sq"] > noise["big_sq"] > 0


@pytest.mark.parametrize("scheme", (*EXACT, *SERVED, *UNORDERED))
def test_what_pauses_send_is_in_no_ledger(found: list[Any], scheme: str) -> None:
    for rank in found:
        assert rank[scheme]["calls"] == rank[scheme]["predicted"]


def test_all_schemes_of_equal_weights_measure_the_same(found: list[Any]) -> None:
    exact = train_here(alone(), BASE).learning
    for scheme in ("dp.ddp", "dp.fwd_overlap", "dp.fsdp", "pp.gpipe"):
        entry = found[0][scheme]
        assert [row["loss"] for row in entry["evaluations"]] == pytest.approx(
            [row["loss"] for row in exact["evaluations"]], rel=1e-9
        )
        assert [row["top1"] for row in entry["evaluations"]] == [row["top1"] for row in exact["evaluations"]]
        for name in ("small_sq", "big_sq"):  # the ranks share the same small batches
            assert entry["noise"][0][name] == pytest.approx(exact["noise"][0][name], rel=1e-9)


def test_a_target_ends_the_run_on_all_ranks_together() -> None:
    configs = [
        on_two(scheme, **ENDING) for scheme in ("dp.packed", "ps.async_sgd", "pp.gpipe", "hogwild.sgd")
    ]
    ranks = run_ranks(2, "tests.runners.learning_cases:with_and_without", configs=configs)
    for config in configs:
        entries = [rank[config.full_name] for rank in ranks]
        (steps,) = {entry["num_steps"] for entry in entries}
        assert 0 < steps < 400 and steps % 8 == 0
        assert {entry["target_step"] for entry in entries} == {steps}
        tops = [row["top1"] for row in entries[0]["evaluations"]]
        assert tops[-1] >= 0.5 > max(tops[:-1], default=0)


def test_figures_are_those_of_the_whole_set_at_once() -> None:
    config = replace(BASE, held_out=700)
    samples, model = held_out(config, num=None), build_model(config)
    assert len(samples.inputs) == 700
    figures = HeldOutSet(plan(config), torch.device("cpu")).evaluate(model)
    with torch.no_grad():
        outputs = model(samples.inputs)
    assert figures.loss == pytest.approx(float(functional.cross_entropy(outputs, samples.targets)))
    assert figures.top1 == float((outputs.argmax(1) == samples.targets).double().mean())
    among = (outputs.topk(5).indices == samples.targets[:, None]).any(1)
    assert figures.top5 == float(among.double().mean())
    assert figures.by_metric()["perplexity"] == pytest.approx(exp(figures.loss))


def test_tokens_are_evaluated_one_by_one() -> None:
    config = replace(
        BASE, model="transformer", input_shape=(12,), num_classes=4, dtype="float32", held_out=40
    )
    figures = HeldOutSet(plan(config), torch.device("cpu")).evaluate(build_model(config))
    samples = held_out(config, num=None)
    assert samples.targets.shape == (40, 12) and figures.top5 is None
    with torch.no_grad():
        right = build_model(config).eval()(samples.inputs).argmax(-1) == samples.targets
    assert figures.top1 == pytest.approx(float(right.double().mean()))


def test_the_noise_scale_is_that_of_the_gradients_of_single_samples() -> None:
    """From the covariance itself, over many samples, against the estimate from a few batches' norms."""
    config = replace(BASE, batch=64, num_classes=4, input_shape=(16,))
    model, feed = build_model(config), open_feed(config)
    many = open_feed(replace(config, batch=2048, seed=config.seed)).batch(7, 0, 1)
    gradients = []
    for index in range(len(many.targets)):
        model.zero_grad()
        loss_of(model, type(many)(many.inputs[index : index + 1], many.targets[index : index + 1])).backward()
        gradients.append(torch.cat([value.grad.flatten() for value in model.parameters()]))
    each = torch.stack(gradients)
    trace = float(each.var(0).sum())
    signal = float(each.mean(0).square().sum()) - trace / len(each)
    world = alone()
    group = world.groups("world", [(0,)])
    measured = NoiseMeasurement(feed, config.batch, 100, group)
    rows = [NoiseNorms(step=step, **measured.measure(model)._asdict()) for step in range(40)]
    assert noise_scale(rows) == pytest.approx(trace / signal, rel=0.2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target": "accuracy"}, "write METRIC=VALUE"),
        ({"target": "speed=3"}, "write METRIC=VALUE"),
        ({"target": "accuracy=much"}, "'much' is not a number"),
        ({"target": "accuracy=90"}, "at most 1"),
        ({"target": "loss=0"}, "above 0"),
        ({"target": "perplexity=1"}, "above 1"),
        ({"target": "top5=0.9", "num_classes": 5}, "more than 5 classes"),
        (
            {"model": "resnet50", "input_shape": (3, 33, 33)},
            "--noise-every needs .* resnet50",
        ),
        ({"scheme": "dp.local_sgd", "num_ranks": 2, "evaluate_every": 6}, "a multiple of 4"),
        ({"scheme": "dp.local_sgd", "num_ranks": 2, "noise_every": 6}, "--noise-every a multiple of 4"),
    ],
)
def test_a_target_that_cannot_be_is_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BenchError, match=words) as error:
        plan(replace(BASE, **settings))
    assert "\n" not in str(error.value)


def test_the_noise_measurement_leaves_evaluations_as_they_are() -> None:
    """Its forward passes move the running statistics of a BatchNorm (no such model passes plan())."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)).double()
    found = []
    for every in (None, 8):
        job = plan(replace(BASE, noise_every=every))
        scheme = find_scheme("serial")(job, alone())
        scheme.build(copy.deepcopy(model))
        pauses = Pauses(scheme, copy.deepcopy(model), open_feed(BASE), alone())
        pauses.after(8)
        found.append(pauses.as_json())
    assert not found[0]["noise"] and found[1]["noise"]
    assert found[0]["evaluations"] == found[1]["evaluations"]


def test_small_batches_are_moved_to_the_device_of_the_weights() -> None:
    """The meta device takes no tensors of another, and is there on every machine."""
    model = build_model(BASE)
    params = list(model.to("meta").parameters())
    assert _gradient(model, params, open_feed(BASE), 0, 8).device.type == "meta"


def test_queued_work_of_a_gpu_ends_before_the_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    scheme = find_scheme("serial")(plan(BASE), alone())
    pauses = Pauses(scheme, build_model(BASE), open_feed(BASE), alone())
    pauses.settle(4)
    assert not waited
    pauses._world = World(Alone(), 0, torch.device("cuda"))
    for done in range(1, 5):
        pauses.settle(done)
    assert waited == [torch.device("cuda")]  # behind step 4, which a pause follows


@pytest.mark.parametrize("steps", [3, 20, 100])
def test_a_target_alone_is_looked_for_at_whole_periods(steps: int) -> None:
    config = on_two("dp.local_sgd", target="accuracy=0.9", steps=steps, evaluate_every=None, noise_every=None)
    plan(config)
    every = find_scheme(config.scheme).evaluation_interval(config)
    assert every == {3: 4, 20: 4, 100: 8}[steps]


def test_a_target_alone_evaluates_often_enough(tmp_path: Path) -> None:
    config = replace(BASE, evaluate_every=None, noise_every=None, target="loss=0.01", steps=40)
    rows = train_here(alone(), config).learning["evaluations"]
    assert [row["step"] for row in rows] == list(range(2, 41, 2))
