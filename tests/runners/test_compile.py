"""`--compile`: the same weights as eager, compiled before the first step, or refused in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.mesh import Mesh
from perfscope.runners.planning import plan
from perfscope.runners.schemes.compilation import compile_ahead
from perfscope.runners.schemes.registry import SCHEMES
from perfscope.runners.world import Alone, World
from tests.runners.compile_cases import compiled
from tests.runners.ranks import run_ranks
from tests.runners.test_dp import bench
from tests.runners.training import train_here

TOKENS: dict[str, Any] = {
    "model": "transformer",
    "input_shape": (8,),
    "batch": 4,
    "steps": 3,
    "compile": "aot_eager",
}
CHAIN: dict[str, Any] = {**TOKENS, "model": "mlp", "input_shape": (3, 4, 4)}
REPLICAS = (
    *("dp.packed", "dp.perlayer", "dp.dist_update", "dp.local_sgd", "dp.hierarchical", "dp.diloco"),
    *("dp.gossip", "hy.numa_replica"),
)
TAKE_IT = {"serial", "dp.ddp", "dp.fsdp", "dp.hsdp", "mesh", *REPLICAS}
FEW = [bench("dp.ddp", 2, **CHAIN)]
RUNS = [
    *(bench(name, 2, **CHAIN) for name in REPLICAS),
    bench("dp.fsdp", 2, **TOKENS),
    *(bench("mesh", 2, mesh=Mesh.parse(text), **TOKENS) for text in ("fsdp=2", "pp=2")),
]


def alone() -> World:
    return World(Alone(), 0, torch.device("cpu"))


@pytest.mark.parametrize("runs", [FEW, pytest.param(RUNS, marks=pytest.mark.slow)], ids=["few", "all"])
def test_weights_equal_eager_ones_and_no_graph_is_compiled_in_the_steps(runs: list[BenchConfig]) -> None:
    for rank in run_ranks(2, "tests.runners.compile_cases:against_eager", configs=runs):
        assert len(rank) == len(runs)
        for name, entry in rank.items():
            assert entry["ahead"] == entry["in_all"] > 0, (name, entry)
            assert entry["calls_alike"], name
            assert entry["details"]["compile_s"] > 0
            if "difference" in entry:
                assert entry["difference"] < 1e-12 < 1e-4 < entry["learned"], (name, entry)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"accumulate": 2}, marks=pytest.mark.slow),
        {"activation_checkpointing": True},
        {"dtype": "bfloat16"},
    ],
    ids=["accumulate", "checkpointing", "bfloat16"],
)
def test_options_of_a_step_go_with_it(settings: dict[str, Any]) -> None:
    config = replace(bench("serial", 1, **CHAIN), **settings)
    outcome, ahead, in_all = compiled(alone(), config)
    eager = train_here(alone(), replace(config, compile="none"))
    assert ahead == in_all > 0
    assert outcome.state is not None and eager.state is not None
    bound = 1e-3 if config.is_mixed else 1e-12
    assert all(torch.allclose(outcome.state[name], eager.state[name], atol=bound) for name in eager.state)


def test_a_rehearsal_leaves_gradients_and_buffers_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    config = BenchConfig(scheme="serial", compile="aot_eager")
    inputs, before = torch.randn(8, 3), {name: value.clone() for name, value in model.state_dict().items()}
    compile_ahead(model, config, torch.device("cpu"), lambda: model(inputs).square().sum().backward())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(param.grad is not None and not param.grad.any() for param in model.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler has some of its own
def test_generated_code_gives_the_weights_of_eager() -> None:
    config = replace(bench("serial", 1, **TOKENS), compile="default")
    outcome, ahead, in_all = compiled(alone(), config)
    eager = train_here(alone(), replace(config, compile="none"))
    assert ahead == in_all > 0
    assert outcome.state is not None and eager.state is not None
    assert all(torch.allclose(outcome.state[name], eager.state[name], atol=1e-12) for name in eager.state)


@pytest.mark.parametrize("scheme", [scheme.name for scheme in SCHEMES if scheme.name not in TAKE_IT])
def test_schemes_that_cannot_take_it_say_so_in_one_line(scheme: str) -> None:
    config = BenchConfig(scheme=scheme, num_ranks=2, compile="aot_eager")
    if scheme.startswith("emb."):
        config = replace(config, model="dlrm-small", input_shape=(16,), num_classes=2)
    if scheme.startswith("cp."):
        config = replace(config, model="transformer", input_shape=(8,))
    with pytest.raises(BenchError, match="cannot take --compile aot_eager: ") as error:
        plan(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("axis", ["tp", "sp", "cp", "ep"])
def test_meshes_that_divide_layers_cannot_take_it(axis: str) -> None:
    model = "moe-nano" if axis == "ep" else "transformer"
    config = BenchConfig(
        scheme="mesh", mesh=Mesh.parse(f"{axis}=2"), num_ranks=2, model=model, input_shape=(8,), batch=4
    )
    plan(config)
    with pytest.raises(BenchError, match=f"cannot take --compile aot_eager along {axis}: "):
        plan(replace(config, compile="aot_eager"))


@pytest.mark.parametrize("scheme", ["dp.fsdp", "dp.hsdp", "mesh"])
def test_sharded_weights_need_blocks_to_compile(scheme: str) -> None:
    config = replace(bench(scheme, 2, mesh=Mesh.parse("fsdp=2")), compile="aot_eager")
    plan(replace(config, compile="none"))
    with pytest.raises(BenchError, match="with smallcnn, which has no blocks") as error:
        plan(config)
    assert "\n" not in str(error.value)


def test_a_machine_without_a_compiler_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = BenchConfig(scheme="serial", device="cpu", compile="default")
    with pytest.raises(BenchError, match=r"no-such-compiler is not found .* use --compile aot_eager"):
        plan(config)
    plan(replace(config, compile="aot_eager"))
