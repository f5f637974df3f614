"""What the ranks of the tests of meshes do: several meshes in one start of them."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from perfscope.runners.comm import Call
from perfscope.runners.config import PIPELINES, BenchConfig
from perfscope.runners.data.registry import open_feed
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.mesh_axes import MeshParallel
from perfscope.runners.world import World
from tests.runners.pp_cases import Sends, configure, gloo_events, trained_alone
from tests.runners.ranks import run_ranks


def mesh(text: str, **other: Any) -> BenchConfig:
    """A small transformer on a mesh, in float64."""
    axes = Mesh.parse(text)
    settings: dict[str, Any] = {
        "model": "transformer",
        "input_shape": (16,),
        "learning_rate": 0.1,
        "steps": 3,
    }
    return configure("mesh", axes.num_ranks, mesh=axes, **{**settings, **other})


def _cases(*names: str) -> dict[str, BenchConfig]:
    """`MESH`, `MESH MODEL` or `MESH schedule of its pipeline`, by that name."""
    cases = {}
    for name in names:
        text, _, word = name.partition(" ")
        settings = {"pipeline" if word in PIPELINES else "model": word} if word else {}
        cases[name] = mesh(text, **settings)
    return cases


# Of one start of ranks each.
CASES: dict[str, dict[str, BenchConfig]] = {
    "axes": {
        **_cases("dp=2", "tp=2", "pp=2", "cp=2", "fsdp=2", "ep=2 moe-nano"),
        # AdamW uses a gradient three times: where ranks have parts of it, it must be summed once before.
        **{
            f"cp=2 {kind}": mesh("cp=2", cp_attention=kind, model="llama-nano")
            for kind in ("ring", "all-to-all")
        },
        "sp=2 adamw": mesh("sp=2", optimizer="adamw", momentum=0.0, learning_rate=0.001),
    },
    "two ranks": {
        **_cases(
            *("pp=2 gpipe", "pp=2 interleaved", "pp=2 zero-bubble", "fsdp=2 gpt-nano"),
            *("tp=2 llama-nano", "cp=2 llama-nano", "sp=2 llama-nano"),
        ),
        **{f"{axis}=2 accumulated": mesh(f"{axis}=2", accumulate=2) for axis in ("dp", "fsdp", "tp", "cp")},
        **{
            f"{axis}=2 recomputed": mesh(f"{axis}=2", activation_checkpointing=True)
            for axis in ("dp", "fsdp", "pp")
        },
    },
    "four ranks": {
        **_cases(
            *("tp=2,pp=2 moe-nano", "dp=2,fsdp=2", "fsdp=2,tp=2", "fsdp=2,pp=2", "fsdp=2,cp=2"),
            *("fsdp=2,sp=2 llama-nano", "ep=4 moe-nano", "dp=2,ep=2 moe-nano", "fsdp=2,ep=2 moe-nano"),
            "ep=2,pp=2 moe-nano",
        ),
        **{
            f"{text} {kind}": mesh(text, cp_attention=kind)
            for text in ("cp=4", "dp=2,cp=2", "tp=2,cp=2", "cp=2,pp=2", "sp=2,cp=2")
            for kind in ("ring", "all-to-all")
        },
    },
    "eight ranks": _cases(
        *("dp=2,tp=2,pp=2", "dp=2,fsdp=2,tp=2", "fsdp=2,tp=2,pp=2", "dp=2,fsdp=2,ep=2 moe-nano"),
        *("dp=2,tp=2,cp=2", "dp=2,cp=2,pp=2"),
    ),
    "sixteen ranks": _cases("dp=2,tp=2,cp=2,pp=2", "dp=2,fsdp=2,tp=2,pp=2"),
    # Left to `make test-sweep`.
    "sweep of two ranks": _cases("fsdp=2 moe-nano", "sp=2 moe-nano"),
    "sweep of four ranks": _cases(
        *("dp=2,cp=2 gpt-nano", "tp=2,cp=2 llama-nano", "cp=2,pp=2 llama-nano", "fsdp=2,pp=2 zero-bubble"),
        *("sp=2,pp=2", "sp=2,cp=2", "ep=2,cp=2 moe-nano", "ep=2,sp=2 moe-nano"),
    ),
}


@dataclass(frozen=True)
class Trained:
    """One mesh and what came of it, by rank.

    Attributes:
        config: what was run.
        calls: of the ledger, over all steps.
        traced: (event, elements) -> how often in the second step, by torch's own trace.
        difference: the largest of a weight from that of one process.
    """

    config: BenchConfig
    calls: list[Counter[Call]]
    traced: list[Sends]
    difference: float


@cache
def trained(group: str) -> dict[str, Trained]:
    """Every mesh of one group, in one start of its ranks."""
    configs = CASES[group]
    num_ranks = next(iter(configs.values())).num_ranks
    found = run_ranks(num_ranks, "tests.runners.mesh_cases:train_all", configs=configs)
    runs = {}
    for name, config in configs.items():
        calls, traced, states = zip(*(ranks[name] for ranks in found), strict=True)
        state, reference = states[0], trained_alone(config).state
        assert reference is not None and list(state) == list(reference)
        difference = max(float((state[key] - value).abs().max()) for key, value in reference.items())
        runs[name] = Trained(config, list(calls), list(traced), difference)
    return runs


def train_all(world: World, configs: dict[str, BenchConfig]) -> dict[str, tuple[Any, Any, Any]]:
    """On a rank: calls, trace and (on rank 0) weights of each mesh."""
    return {name: _train(world, config) for name, config in configs.items()}


def _train(world: World, config: BenchConfig) -> tuple[Any, Any, Any]:
    scheme = MeshParallel(plan(config), world)
    feed = open_feed(config, world.device)
    scheme.build(build_model(config))
    world.ledger.clear()
    part, num_parts = scheme.data_part
    sends: Sends = Counter()
    for number in range(config.steps):
        with gloo_events(sends) if number == 1 else nullcontext():
            scheme.step(feed.batch(number, part, num_parts))
    calls = world.ledger.calls
    return calls, sends, scheme.full_state()
