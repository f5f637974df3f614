"""Vision transformers, recurrent and 3-D models: whole-layer schemes train them as one process does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from perfscope.runners.config import BenchError
from perfscope.runners.data.registry import held_out, open_feed
from perfscope.runners.data.volumes import SyntheticVolumes
from perfscope.runners.learning.evaluation import HeldOutSet
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.world import Alone, World
from tests.runners.mp_cases import config_of
from tests.runners.ranks import run_ranks
from tests.runners.training import train_here

VIT: dict[str, Any] = {"model": "vit-tiny", "input_shape": (3, 32, 32), "steps": 2, "batch": 4}
LSTM: dict[str, Any] = {"model": "lstm-nano", "input_shape": (12,), "steps": 3}
VOLUME: dict[str, Any] = {
    **{"model": "flood-filling", "input_shape": (2, 3, 4, 5), "num_classes": 2, "steps": 2, "batch": 4}
}
ON_TWO = [
    *({"scheme": scheme, **VIT, "model": "vit"} for scheme in ("dp.packed", "pp.gpipe")),
    *({"scheme": scheme, **LSTM} for scheme in ("dp.ddp", "dp.fsdp", "dp.dist_update", "pp.1f1b")),
    *({"scheme": scheme, **VOLUME} for scheme in ("dp.perlayer", "pp.gpipe")),
]


@pytest.fixture(scope="module")
def on_two() -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = run_ranks(2, "tests.runners.mp_cases:against_serial", cases=ON_TWO)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "index", range(len(ON_TWO)), ids=[" ".join((one["scheme"], one["model"])) for one in ON_TWO]
)
def test_weights_and_calls_are_those_expected(index: int, on_two: list[list[dict[str, Any]]]) -> None:
    for answers in on_two:
        assert answers[index]["calls"] == answers[index]["expected"]
    assert on_two[0][index]["moved"] > 1e-5
    assert on_two[0][index]["difference"] < 1e-12


@pytest.mark.parametrize("noise", [None, 0.2])
def test_voxels_follow_from_the_object_and_the_best_is_that_of_knowing_it(noise: float | None) -> None:
    settings = {**VOLUME, "batch": 300, "input_shape": (2, 9, 9, 9), "label_noise": noise}
    config = config_of(1, scheme="serial", **settings)
    feed = open_feed(config)
    assert isinstance(feed, SyntheticVolumes) and feed.best is not None
    batch = feed.batch(2, 0, 1)
    parts = [feed.batch(2, part, 3) for part in range(3)]
    assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)
    assert torch.equal(torch.cat([part.inputs for part in parts]), batch.inputs)
    assert batch.inputs.shape == (300, 2, 9, 9, 9) and batch.targets.shape == (300, 9**3)
    objects = feed._objects.flatten(1)
    known = (batch.inputs[:, 0].flatten(1) @ (2 * objects - 1).double().T).argmax(1)  # the nearest
    right = float((objects[known] == batch.targets).double().mean())
    assert right == pytest.approx(feed.best.accuracy, abs=0.01)
    assert not torch.equal(held_out(config, num=300).inputs, batch.inputs)
    alone = float(((batch.inputs[:, 0].flatten(1) > 0) == batch.targets).double().mean())
    assert alone < feed.best.accuracy - 0.15  # of a voxel without its neighbors


@pytest.mark.slow
def test_the_network_learns_more_than_a_voxel_by_itself_tells() -> None:
    config = config_of(
        1,
        **{**VOLUME, "scheme": "serial", "input_shape": (2, 6, 6, 6), "batch": 8, "steps": 40},
        held_out=64,
        **{"dtype": "float32", "optimizer": "adamw", "learning_rate": 3e-3, "momentum": 0.0},
    )
    state = train_here(World(Alone(), 0, torch.device("cpu")), config).state
    model = build_model(config)
    assert state is not None
    model.load_state_dict(state)
    figures = HeldOutSet(plan(config), torch.device("cpu")).evaluate(model)
    assert figures.top1 > 0.75 and figures.auc is not None and figures.auc > 0.8


def test_the_recurrent_model_learns_the_language() -> None:
    settings = {**LSTM, "input_shape": (16,), "num_classes": 8, "steps": 60, "batch": 16}
    config = config_of(1, scheme="serial", **settings, momentum=0.9, learning_rate=0.3, dtype="float32")
    outcome = train_here(World(Alone(), 0, torch.device("cpu")), config)
    assert outcome.held_out_loss is not None and outcome.held_out_loss < 1.4  # entropy of the chain: 0.9


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scheme": "mp.filter", **VIT}, "mp.filter cannot divide the layers of vit-tiny"),
    ({"scheme": "hy.owt", **VIT, "model": "mobilenet-v2"}, "cannot divide the layers of mobilenet-v2"),
    ({"scheme": "mp.spatial", **VIT, "model": "inception-v3"}, "cannot divide the layers of inception-v3"),
    ({"scheme": "mp.fc_tp", **LSTM}, "mp.fc_tp cannot divide the layers of lstm-nano"),
    ({"scheme": "cp.gather", **LSTM}, "lstm-nano has no attention that cp could cut"),
    ({"scheme": "mesh", "mesh": Mesh.parse("cp=2"), **LSTM}, "lstm-nano has no attention that cp could cut"),
    ({"scheme": "mesh", "mesh": Mesh.parse("tp=2"), **VIT}, "no transformer block that tp could cut"),
    ({"scheme": "dp.packed", **VOLUME, "num_classes": 4}, "use --classes 2, not 4"),
    ({"scheme": "dp.packed", **VOLUME, "input_shape": (3, 8, 8)}, "CHANNELSxDEPTHxHEIGHTxWIDTH such as"),
    ({"scheme": "dp.packed", **VOLUME, "data": "/"}, "flood-filling takes volume inputs"),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_cannot_be_is_one_line(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(BenchError, match=reason) as error:
        plan(config_of(2, **settings))
    assert "\n" not in str(error.value)
