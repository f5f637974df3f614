"""Optimizers, schedules and limits: torch's own, equal to one process, refused where a rule has no place."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.best import best_with_noise
from perfscope.runners.data.registry import held_out, open_feed
from perfscope.runners.data.synthetic import Synthetic
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.update_rules import schedule_factor
from perfscope.runners.world import Alone, World
from tests.runners.ranks import run_ranks
from tests.runners.test_dp import bench
from tests.runners.training import train_here

SCHEDULED: dict[str, Any] = {"schedule": "cosine", "warmup": 2}
NESTEROV: dict[str, Any] = {"optimizer": "nesterov", "weight_decay": 0.01, "clip_norm": 0.5, **SCHEDULED}
ADAMW: dict[str, Any] = {"optimizer": "adamw", "momentum": 0.0, "learning_rate": 1e-3, **SCHEDULED}
WHOLE = ("dp.ddp", "dp.packed", "dp.perlayer")  # of the gradient on each rank
DIVIDED = ("dp.fsdp", "dp.dist_update")
RUNS = [
    *(bench(scheme, 2, model="mlp", **NESTEROV) for scheme in WHOLE),
    *(bench(scheme, 2, model="smallcnn", **ADAMW) for scheme in (*WHOLE, *DIVIDED)),
    bench("dp.fwd_overlap", 2, model="smallcnn", **SCHEDULED),
]


def serial(**settings: Any) -> BenchConfig:
    return bench("serial", 1, **settings)


def alone(config: BenchConfig) -> Any:
    return train_here(World(Alone(), 0, torch.device("cpu")), config)


def test_ranks_end_with_the_weights_of_one_process_for_each_optimizer() -> None:
    found = run_ranks(2, "tests.runners.dp_cases:train_all", configs=RUNS)[0]
    assert len(found) == len(RUNS)
    for config in RUNS:
        entry = found[f"{config.full_name} {config.model}"]
        # Adam divides by sqrt(v) + 1e-8: rounding of gradients that are nearly 0 counts for more.
        bound = 1e-8 if config.optimizer == "adamw" else 1e-12
        assert entry["difference"] < bound < 1e-4 < entry["learned"], (config.full_name, entry["difference"])


@pytest.mark.parametrize("warmup", [0, 4])
def test_schedules_are_those_of_torch(warmup: int) -> None:
    steps = 20
    weight = torch.nn.Parameter(torch.zeros(1))

    def by_torch(kind: str) -> list[float]:
        from torch.optim import lr_scheduler as of

        optimizer = torch.optim.SGD([weight], lr=1.0)
        rest = steps - warmup
        behind: Any = {
            "constant": lambda: of.ConstantLR(optimizer, factor=1.0),
            "linear": lambda: of.LinearLR(optimizer, 1.0, 1e-12, total_iters=rest),
            "cosine": lambda: of.CosineAnnealingLR(optimizer, T_max=rest),
            "step": lambda: of.MultiStepLR(optimizer, [rest // 2, rest * 3 // 4], gamma=0.1),
        }[kind]
        if warmup:
            first = of.LinearLR(optimizer, 1 / warmup, 1.0, total_iters=warmup - 1)
            behind = of.SequentialLR(optimizer, [first, behind()], [warmup])
        else:
            behind = behind()
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            behind.step()
        return rates

    for kind in ("constant", "linear", "cosine", "step"):
        config = BenchConfig(scheme="serial", steps=steps, schedule=kind, warmup=warmup)
        assert [schedule_factor(config, step) for step in range(steps)] == pytest.approx(by_torch(kind)), kind


def test_clipping_limits_the_change_of_an_update() -> None:
    config = serial(model="mlp", momentum=0.0, learning_rate=1.0, clip_norm=0.01, steps=1)
    state = alone(config).state
    start = build_model(config).state_dict()
    change = torch.cat([(state[name] - value).flatten() for name, value in start.items()])
    assert float(change.norm()) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize(
    ("scheme", "ranks", "settings", "words"),
    [
        ("ps.async_sgd", 2, {"optimizer": "adamw"}, "an update of its own; leave it out"),
        ("ps.async_sgd", 2, {"schedule": "cosine"}, "share no count of steps"),
        ("hogwild.sgd", 2, {"warmup": 2}, "share no count of steps"),
        ("easgd.sync2", 2, {"weight_decay": 0.1}, "an update of its own"),
        ("dp.fsdp", 2, {"clip_norm": 1.0}, "no rank has the whole gradient"),
        ("pp.gpipe", 2, {"clip_norm": 1.0}, "no rank has the whole gradient"),
        ("dp.dist_update", 2, {"clip_norm": 1.0}, "no rank has the whole gradient"),
        ("mp.filter", 2, {"optimizer": "lars"}, "parts of some layers"),
        ("hy.owt", 2, {"optimizer": "lamb"}, "parts of some layers"),
        ("easgd.sync2", 2, {"optimizer": "lars"}, "an update of its own"),
        ("serial", 1, {"optimizer": "lamb", "momentum": 0.9}, "leave out --momentum"),
        ("dp.fwd_overlap", 2, {"optimizer": "nesterov", "momentum": 0.9}, "layer by layer"),
        ("serial", 1, {"optimizer": "nesterov"}, "add --momentum 0.9"),
        ("serial", 1, {"optimizer": "adamw", "momentum": 0.9}, "leave out --momentum"),
        ("serial", 1, {"warmup": 20}, "fewer than 20"),
        ("serial", 1, {"label_noise": 0.1, "data": "/nowhere.npz"}, "--label-noise is for synthetic data"),
    ],
)
def test_what_a_rule_has_no_place_for_is_one_line(
    scheme: str, ranks: int, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(BenchError, match=words) as error:
        plan(BenchConfig(scheme=scheme, num_ranks=ranks, **settings))
    assert "\n" not in str(error.value)


def test_a_server_averages_for_any_optimizer_and_elastic_averaging_follows_a_schedule() -> None:
    assert plan(BenchConfig(scheme="ps.sync", num_ranks=2, optimizer="adamw", clip_norm=1.0))
    assert plan(BenchConfig(scheme="easgd.sync2", num_ranks=2, schedule="cosine", warmup=3))


@pytest.mark.parametrize(
    ("model", "shape", "classes"), [("smallcnn", (3, 32, 32), 16), ("table_mlp", (64,), 8)]
)
def test_noisy_labels_bound_the_accuracy_of_the_nearest_center(
    model: str, shape: tuple[int, ...], classes: int
) -> None:
    settings: dict[str, Any] = {"model": model, "input_shape": shape, "num_classes": classes, "batch": 4000}
    clean, noisy = (open_feed(serial(label_noise=noise, **settings)) for noise in (None, 0.25))
    assert isinstance(noisy, Synthetic) and isinstance(clean, Synthetic)
    assert noisy.best is not None and clean.best is not None
    assert clean.best.accuracy == 1 and clean.best.loss == 0
    one, other = clean.batch(0, 0, 1), noisy.batch(0, 0, 1)
    assert torch.equal(one.inputs, other.inputs)
    kept = float((one.targets == other.targets).double().mean())
    assert kept == pytest.approx(noisy.best.accuracy, abs=0.03)
    assert noisy.best.accuracy == pytest.approx(0.75 + 0.25 / classes)
    centers = torch.stack([one.inputs[one.targets == label].mean(0) for label in range(classes)])
    guess = torch.cdist(one.inputs.flatten(1), centers.flatten(1)).argmin(1)
    assert float((guess == one.targets).double().mean()) > 0.995
    assert float((guess == other.targets).double().mean()) == pytest.approx(noisy.best.accuracy, abs=0.03)
    parts = torch.cat([noisy.batch(0, part, 4).targets for part in range(4)])
    assert torch.equal(parts, other.targets)


def test_the_best_is_unknown_where_classes_overlap() -> None:
    feed = open_feed(serial(model="table_mlp", input_shape=(2,), num_classes=16))
    assert isinstance(feed, Synthetic) and feed.best is None


def test_a_text_has_the_entropy_of_its_chain() -> None:
    settings: dict[str, Any] = {"model": "transformer", "input_shape": (16,), "num_classes": 8}
    feed = open_feed(serial(label_noise=0.4, batch=2000, **settings))
    assert isinstance(feed, Synthetic) and feed.best is not None
    assert feed.best == best_with_noise(8, 0.4) and 0 < feed.best.loss < log(8)
    batch = feed.batch(0, 0, 1)
    counts = torch.zeros(8, 8)
    counts.index_put_((batch.inputs.flatten(), batch.targets.flatten()), torch.ones(()), accumulate=True)
    given = counts / counts.sum(1, keepdim=True)
    measured = float(-(given * given.clamp_min(1e-9).log()).sum(1).mean())
    assert measured == pytest.approx(feed.best.loss, abs=0.03)
    assert float(given.max(1).values.mean()) == pytest.approx(feed.best.accuracy, abs=0.02)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.02}, 60),
        ({"optimizer": "nesterov", "momentum": 0.9, "learning_rate": 0.02, "weight_decay": 1e-4}, 60),
        ({"optimizer": "adamw", "momentum": 0.0, "learning_rate": 2e-3, "weight_decay": 0.01}, 60),
        ({"optimizer": "lars", "momentum": 0.9, "learning_rate": 10.0, "weight_decay": 1e-4}, 60),
        ({"optimizer": "lamb", "momentum": 0.0, "learning_rate": 0.01, "weight_decay": 0.01}, 60),
    ],
)
def test_each_optimizer_reaches_the_best_accuracy(settings: dict[str, Any], steps: int) -> None:
    common: dict[str, Any] = {"model": "table_mlp", "input_shape": (64,), "num_classes": 8, "batch": 64}
    config = serial(**{**common, **settings}, label_noise=0.1, steps=steps, schedule="cosine", warmup=5)
    feed = open_feed(config)
    assert isinstance(feed, Synthetic) and feed.best is not None
    state = alone(config).state
    model = build_model(config)
    model.load_state_dict(state)
    unseen = held_out(config, num=2000)
    accuracy = float((model(unseen.inputs).argmax(1) == unseen.targets).double().mean())
    assert accuracy > feed.best.accuracy - 0.03
