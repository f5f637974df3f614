"""Micro-batches, recomputation and mixed precision: equal to the plain step, or refused in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.data.registry import open_feed
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import plan
from perfscope.runners.schemes.local import loss_of
from perfscope.runners.schemes.passes import Passes
from perfscope.runners.schemes.recomputation import checkpoint_activations
from perfscope.runners.world import Alone, World
from tests.runners.ranks import run_ranks
from tests.runners.test_dp import bench
from tests.runners.training import train_here

DIVIDED: dict[str, Any] = {"accumulate": 2, "model": "smallcnn"}
RECOMPUTED: dict[str, Any] = {"activation_checkpointing": True, "model": "mlp"}
DATA = ("dp.ddp", "dp.packed", "dp.perlayer+prio", "dp.fwd_overlap", "dp.dist_update", "hy.numa_replica")
RUNS = [
    *(bench(scheme, 2, **DIVIDED) for scheme in DATA),
    *(bench(scheme, 2, **RECOMPUTED) for scheme in (*DATA, "ps.sync")),
    bench("ps.sync", 2, **DIVIDED),
]


def along(axes: str) -> dict[str, Any]:
    """Settings of a small transformer on a mesh."""
    return {"mesh": Mesh.parse(axes), "model": "transformer", "input_shape": (16,)}


def alone(config: BenchConfig) -> Any:
    return train_here(World(Alone(), 0, torch.device("cpu")), config)


def test_micro_batches_and_recomputation_change_no_weight_and_no_call() -> None:
    plain = {"accumulate": 1, "activation_checkpointing": False}
    for rank in run_ranks(2, "tests.runners.passes_cases:against_plain", configs=RUNS, plain=plain):
        assert len(rank) == len(RUNS)
        for name, entry in rank.items():
            assert entry["calls"] == entry["predicted"], name
            if "difference" in entry:
                assert entry["difference"] < 1e-12 < 1e-4 < entry["learned"], (name, entry["difference"])


@pytest.mark.parametrize("model", ["transformer", "alexnet"])
def test_recomputation_keeps_less_and_gives_the_same_gradient(model: str) -> None:
    shape = (32,) if model == "transformer" else (3, 64, 64)
    config = BenchConfig(
        scheme="serial", model=model, input_shape=shape, batch=2, dtype="float64", num_classes=8
    )
    batch = open_feed(config).batch(0, 0, 1)

    def passes(recompute: bool) -> tuple[int, torch.Tensor]:
        built, kept = build_model(config), {}
        if recompute:
            checkpoint_activations(built)
        own = {value.untyped_storage().data_ptr() for value in built.parameters()}

        def keep(saved: torch.Tensor) -> torch.Tensor:
            memory = saved.untyped_storage()
            if memory.data_ptr() not in own:
                kept[memory.data_ptr()] = memory.nbytes()
            return saved

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
            loss = loss_of(built, batch)
        held = sum(kept.values())
        loss.backward()
        return held, torch.cat([value.grad.flatten() for value in built.parameters()])

    (all_kept, gradient), (kept, again) = passes(False), passes(True)
    assert float((gradient - again).abs().max()) < 1e-12 < float(gradient.abs().max())
    assert kept < 0.8 * all_kept


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_learns_as_float32(dtype: Any) -> None:
    config = BenchConfig(scheme="serial", model="table_mlp", input_shape=(64,), num_classes=8, steps=60)
    config = replace(config, learning_rate=0.05, device="cpu", momentum=0.9)
    full, mixed = alone(config), alone(replace(config, dtype=dtype))
    assert {value.dtype for value in mixed.state.values()} == {torch.float32}
    assert mixed.losses != full.losses
    assert mixed.held_out_loss < 0.3 * mixed.losses[0]
    assert ("loss_scale" in mixed.details) == (dtype == "float16")


def test_a_gradient_that_is_not_finite_makes_no_update_and_halves_the_scale() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    passes = Passes(BenchConfig(scheme="serial", dtype="float16"), torch.device("cpu"))
    scale = passes.details()
    for bad in (True, False):
        passes._scaler.scale(weight.sum()).backward()  # type: ignore[union-attr]
        if bad:
            assert weight.grad is not None
            weight.grad[0] = float("inf")
        passes.update(optimizer)
        if bad:
            assert weight.tolist() == [1, 1]
        optimizer.zero_grad()
    assert weight.tolist() == pytest.approx([0.9, 0.9])
    assert scale == {"loss_scale": 65536.0, "skipped_updates": 0}
    assert passes.details() == {"loss_scale": 32768.0, "skipped_updates": 1}


@pytest.mark.parametrize(
    ("scheme", "settings", "words"),
    [
        ("dp.fsdp", {"accumulate": 2}, "gather all weights again"),
        ("dp.fsdp", {"activation_checkpointing": True}, "gathers weights again"),
        ("dp.fsdp", {"dtype": "float16"}, "use bfloat16"),
        ("ps.async_sgd", {"dtype": "float16"}, "use bfloat16"),
        ("easgd.sync2", {"dtype": "float16"}, "use bfloat16"),
        ("pp.gpipe", {"accumulate": 2}, "leave it out"),
        ("mesh", {"accumulate": 2, **along("pp=2")}, "along pp: .* use --microbatches"),
        ("mesh", {"dtype": "bfloat16", **along("tp=2")}, "along tp: .* use float32 or float64"),
        ("mesh", {"dtype": "float16", **along("fsdp=2")}, "along fsdp: .* use bfloat16"),
        ("mesh", {"activation_checkpointing": True, **along("tp=2")}, "along tp: .* exchanged again"),
        ("mesh", {"activation_checkpointing": True, "model": "mlp"}, "which has no blocks"),
        ("mp.filter", {"activation_checkpointing": True}, "exchanged again"),
        ("hy.owt", {"dtype": "bfloat16"}, "use float32 or float64"),
        ("dp.packed", {"accumulate": 3}, "16 samples of a rank cannot be cut into 3"),
    ],
)
def test_what_a_scheme_cannot_do_is_one_line(scheme: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BenchError, match=words) as error:
        plan(BenchConfig(scheme=scheme, num_ranks=2, **settings))
    assert "\n" not in str(error.value)
