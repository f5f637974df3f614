"""What the ranks of the tests of meshes do: several meshes in one start of them."""

from __future__ import annotations

from functools import cache
from typing import Any

from perfscope.runners.config import BenchConfig
from perfscope.runners.mesh import Mesh
from perfscope.runners.train import TrainingOutcome
from tests.runners.pp_cases import Trained, configure, trained_alone
from tests.runners.ranks import run_ranks


def mesh(text: str, **other: Any) -> BenchConfig:
    """A small transformer on a mesh, in float64."""
    axes = Mesh.parse(text)
    settings: dict[str, Any] = {"model": "transformer", "input_shape": (16,), "learning_rate": 0.1, **other}
    return configure("mesh", axes.num_ranks, mesh=axes, **settings)


# Of one start of ranks each.
CASES: dict[str, dict[str, BenchConfig]] = {
    "axes": {text: mesh(text) for text in ("dp=2", "tp=2", "pp=2", "cp=2")},
    "schedules": {
        f"pp=2 {name}": mesh("pp=2", pipeline=name) for name in ("gpipe", "interleaved", "zero-bubble")
    },
    "models": {
        f"{text} {model}": mesh(text, model=model)
        for model in ("gpt-nano", "llama-nano", "moe-nano")
        for text in ("dp=2", "tp=2", "pp=2", "cp=2")
        if (model, text) != ("gpt-nano", "tp=2")  # it has 3 heads
    },
    "pairs": {
        text: mesh(text)
        for text in ("dp=2,tp=2", "dp=2,pp=2", "tp=2,pp=2", "tp=2,cp=2", "dp=2,cp=2", "cp=2,pp=2")
    },
    "models, pairs": {
        f"{text} {model}": mesh(text, model=model)
        for model, text in (
            ("gpt-nano", "cp=2,dp=2"),
            ("llama-nano", "tp=2,cp=2"),
            ("llama-nano", "cp=2,pp=2"),
            ("moe-nano", "tp=2,cp=2"),
            ("moe-nano", "tp=2,pp=2"),
        )
    },
    "three": {text: mesh(text) for text in ("dp=2,tp=2,pp=2", "dp=2,cp=2,tp=2")},
}


@cache
def trained(group: str) -> dict[str, Trained]:
    """Every mesh of one group, in one start of its ranks; all are traced."""
    configs = CASES[group]
    num_ranks = next(iter(configs.values())).num_ranks
    found: list[tuple[dict[str, TrainingOutcome], Any]] = run_ranks(
        num_ranks, "tests.runners.pp_cases:run_all", configs=configs, traced=tuple(configs)
    )
    return {
        name: Trained(
            config,
            [outcomes[name] for outcomes, _ in found],
            trained_alone(config),
            [sends[name] for _, sends in found],
        )
        for name, config in configs.items()
    }
