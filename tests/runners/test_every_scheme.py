"""Every scheme of the registry on four ranks: weights, losses, calls, and what evaluations change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from perfscope.runners.config import BenchConfig
from perfscope.runners.inputs import InputKind
from perfscope.runners.planning import plan
from perfscope.runners.schemes.base import Scheme
from perfscope.runners.schemes.registry import SCHEMES, find_scheme
from perfscope.runners.train import train
from perfscope.runners.world import World
from tests.runners.pp_cases import configure, trained_alone
from tests.runners.ranks import run_ranks
from tests.runners.training import expected_calls

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.xdist_group("every scheme")]
NUM_RANKS, BOUND = 4, 1e-12  # of weights and losses in float64: sums are only taken in another order
MODELS: dict[InputKind, dict[str, Any]] = {
    InputKind.CLICKS: {"model": "dlrm-nano", "input_shape": (12,), "num_classes": 2},
    InputKind.TOKENS: {"model": "transformer", "input_shape": (16,), "num_classes": 8},
    InputKind.IMAGE: {"model": "smallcnn"},
}
ALL = [scheme.name for scheme in SCHEMES]
EQUAL = [scheme.name for scheme in SCHEMES if scheme.equals_serial]
ORDERED = [scheme.name for scheme in SCHEMES if scheme.deterministic]


def case(name: str) -> BenchConfig:
    """A few steps with the first kind of input that the scheme takes."""
    scheme = find_scheme(name)
    settings = next(MODELS[kind] for kind in reversed(MODELS) if kind in scheme.inputs)
    if name == "pp.interleaved":  # two stages on each rank
        settings = {"model": "googlenet", "learning_rate": 0.001, "steps": 2}
    # Of 12 samples each of 2, 3 or 4 workers has as many; momentum would be some servers' own.
    momentum = 0.9 if scheme.equals_serial else 0.0
    return configure(
        name,
        1 if name == "serial" else NUM_RANKS,
        **{"batch": 12, "steps": 4, "learning_rate": 0.05, "momentum": momentum, "period": None, **settings},
    )


def train_all(world: World, names: list[str]) -> dict[str, dict[str, Any]]:
    """On a rank: by scheme, calls, losses, and weights with and without pauses for evaluations."""
    found = {}
    for name in names:
        config = case(name)
        job = plan(config)
        outcome = train(job, world)
        scheme: type[Scheme] = find_scheme(name)
        paused = replace(config, evaluate_every=scheme.evaluation_interval(config) or 4, held_out=64)
        learned = train(plan(paused), world)
        found[name] = {
            "calls": {tuple(call): count for call, count in outcome.calls.items()},
            "predicted": dict(expected_calls(scheme.traffic(job, world.rank), config.steps)),
            "losses": outcome.losses,
            "state": outcome.state,
            "paused": learned.state,
            "evaluations": learned.learning["evaluations"],
        }
    return found


@pytest.fixture(scope="module")
def ranks() -> Iterator[list[dict[str, dict[str, Any]]]]:
    names = [name for name in ALL if name != "serial"]
    yield run_ranks(NUM_RANKS, f"{__name__}:train_all", names=names)


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - value.double()).abs().max()) for name, value in other.items())


@pytest.mark.parametrize("name", [name for name in EQUAL if name != "serial"])
def test_weights_and_losses_are_those_of_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    reference = trained_alone(case(name))
    assert reference.state is not None
    assert apart(ranks[0][name]["state"], reference.state) < BOUND
    per_rank = [found[name]["losses"] for found in ranks if found[name]["losses"]]
    for step, expected in enumerate(reference.losses):
        known = [losses[step] for losses in per_rank if losses[step] is not None]
        assert sum(known) / len(known) == pytest.approx(expected, abs=BOUND)


@pytest.mark.parametrize("name", [name for name in ORDERED if name != "serial"])
def test_calls_are_those_that_were_predicted(name: str, ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found[name]["calls"] == found[name]["predicted"]


@pytest.mark.parametrize("name", [name for name in ALL if name != "serial"])
def test_learning_is_measured_on_the_whole_held_out_set(name: str, ranks: list[dict[str, Any]]) -> None:
    rows = ranks[0][name]["evaluations"]
    assert rows and {row["num_samples"] for row in rows} >= {64}
    assert all(row["loss"] > 0 and 0 <= row["top1"] <= 1 for row in rows)
    if name in ORDERED:
        assert apart(ranks[0][name]["paused"], ranks[0][name]["state"]) < 1e-15
