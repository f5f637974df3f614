"""Models whose head has the weights of the embedding, and every pair of a scheme and a newer model."""

from __future__ import annotations

from functools import cache

import pytest

from perfscope.runners import planning
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.models.registry import find_model
from perfscope.runners.models.shapes import ModelShape
from perfscope.runners.planning import plan
from perfscope.runners.schemes.registry import SCHEMES
from perfscope.runners.sweep.settings import config_of
from tests.runners.mesh_cases import mesh
from tests.runners.ranks import run_ranks
from tests.runners.tied_cases import NAME, with_tied_model

NEWER = ("vit-tiny", "densenet121", "lstm-nano", "dlrm-nano", "inception-v3", "flood-filling", "mobilenet-v2")
CUTS_LAYERS = [scheme.name for scheme in SCHEMES if scheme.name.startswith(("mp.", "hy."))]
REPLICAS_OR_STAGES = {"hy.numa_replica", "hy.pp_dp"}  # whole layers: no kind of layer is new to them


@pytest.mark.slow
def test_tied_weights_train_along_each_axis_as_in_one_process() -> None:
    meshes = ["dp=2", "fsdp=2", "tp=2", "sp=2", "cp=2"]
    first, _ = run_ranks(2, "tests.runners.tied_cases:against_one_process", meshes=meshes)
    for name in meshes:
        difference, learned = first[name]
        assert difference < 1e-12 < 1e-4 < learned, (name, difference, learned)


@pytest.mark.parametrize("text", ["pp=2", "dp=2,pp=2"])
def test_stages_cannot_share_tied_weights_and_say_so(text: str) -> None:
    with with_tied_model(), pytest.raises(BenchError, match="share their weights") as error:
        plan(mesh(text, model=NAME))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("scheme", CUTS_LAYERS)
@pytest.mark.parametrize("model", NEWER)
def test_a_newer_model_is_planned_or_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, scheme: str, model: str
) -> None:
    monkeypatch.setattr(planning, "describe_model", _described)
    rows = next(one for one in SCHEMES if one.name == scheme)
    config = config_of(
        scheme,
        {"model": model, "ranks": 2, "batch": 8},
        default_input=lambda name: find_model(name).default_input or (3, 32, 32),
        default_classes=lambda name: find_model(name).default_classes,
    )
    try:
        job = plan(config)
    except BenchError as error:
        assert "\n" not in str(error)
        assert model in str(error) or scheme in str(error)
        assert scheme not in REPLICAS_OR_STAGES or model in ("densenet121",), str(error)
    else:
        assert scheme in REPLICAS_OR_STAGES or find_model(model).divisible
        for rank in range(2):
            rows.traffic(job, rank)


@cache
def _shape(model: str, size: tuple[int, ...], classes: int) -> ModelShape:
    config = BenchConfig(scheme="serial", model=model, input_shape=size, num_classes=classes)
    return _original(config)


_original = planning.describe_model


def _described(config: BenchConfig) -> ModelShape:
    return _shape(config.model, config.input_shape, config.num_classes)
