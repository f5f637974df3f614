"""What the ranks of test_tied.py run: a tiny GPT whose head has the weights of its embedding."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from perfscope.runners.mesh import Mesh
from perfscope.runners.models import registry
from perfscope.runners.models.catalogue import MODELS
from perfscope.runners.models.transformer import GptSize, gpt
from perfscope.runners.world import Alone, World
from tests.runners.dp_cases import largest_difference
from tests.runners.mesh_cases import mesh
from tests.runners.training import train_here

NAME = "gpt-tied"


def with_tied_model() -> AbstractContextManager[Any]:
    """The registry with the model of that name."""
    like = next(model for model in MODELS if model.name == "gpt-nano")
    fill = gpt(GptSize(width=16, num_blocks=2, num_heads=4, tied=True))
    return mock.patch.object(registry, "MODELS", (*MODELS, replace(like, name=NAME, fill=fill)))


def against_one_process(world: World, meshes: list[str]) -> dict[str, tuple[float, float] | None]:
    """By mesh: the largest difference to one process, and what training changed; None: on another rank."""
    found: dict[str, tuple[float, float] | None] = {}
    with with_tied_model():
        for text in meshes:
            config = mesh(text, model=NAME)
            outcome = train_here(world, config)
            found[text] = None
            if outcome.state is not None:
                single = replace(config, scheme="serial", mesh=Mesh({}), num_ranks=1)
                alone = train_here(World(Alone(), 0, torch.device("cpu")), single)
                start = registry.build_model(config).state_dict()
                assert alone.state is not None
                found[text] = (
                    largest_difference(alone.state, outcome.state),
                    largest_difference(start, outcome.state),
                )
    return found
