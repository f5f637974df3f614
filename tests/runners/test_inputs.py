"""Tokens and tables: samples, models that learn them, and schemes that train them as they train images."""

from __future__ import annotations

from math import log, prod
from typing import Any

import pytest
import torch

from perfscope.runners.config import BenchError
from perfscope.runners.data.registry import held_out, open_feed
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.registry import build_model
from perfscope.runners.planning import describe_model, plan
from perfscope.runners.schemes.registry import find_scheme
from perfscope.runners.world import Alone, World
from perfscope.vocabulary.axes import Axis
from tests.runners.mp_cases import config_of
from tests.runners.pp_cases import traced_step
from tests.runners.ranks import run_ranks
from tests.runners.training import train_here

TOKENS: dict[str, Any] = {"model": "transformer", "input_shape": (12,), "learning_rate": 0.1, "steps": 3}
TABLE: dict[str, Any] = {"model": "table_mlp", "input_shape": (24,), "steps": 3}
ON_TWO = (
    [
        {"scheme": scheme, **TOKENS, **({"momentum": 0.0} if scheme.startswith("easgd") else {})}
        for scheme in (
            *("dp.packed", "dp.perlayer", "dp.fwd_overlap", "dp.dist_update", "dp.ddp", "dp.fsdp"),
            *("pp.gpipe", "pp.1f1b", "pp.interleaved", "ps.sync", "easgd.sync_ar", "mp.fc_tp", "cp.gather"),
        )
    ]
    + [
        {"scheme": scheme, **TOKENS, "model": model}
        for model, schemes in (
            ("llama-nano", ("dp.perlayer", "dp.fsdp", "pp.1f1b", "mp.fc_tp", "cp.gather")),
            ("moe-nano", ("dp.packed", "dp.fsdp", "pp.gpipe", "mp.fc_tp", "cp.gather")),
            ("gpt-nano", ("dp.ddp", "cp.gather")),
            ("tied", ("dp.packed", "dp.fwd_overlap", "dp.ddp", "dp.fsdp", "mp.fc_tp", "cp.gather")),
        )
        for scheme in schemes
    ]
    + [
        {"scheme": scheme, **TABLE}
        for scheme in (
            "dp.ddp",
            "dp.perlayer",
            "pp.1f1b",
            "mp.filter",
            "mp.channel",
            "mp.fc_tp",
            "hy.owt",
            "hy.auto",
        )
    ]
)


def test_tokens_are_windows_of_a_text_with_the_next_token_as_target() -> None:
    config = config_of(1, scheme="serial", batch=64, num_classes=11, model="transformer", input_shape=(20,))
    feed = open_feed(config)
    batch = feed.batch(3, 0, 1)
    assert batch.inputs.shape == batch.targets.shape == (64, 20) and batch.inputs.dtype == torch.int64
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1]) and int(batch.inputs.max()) < 11
    parts = [feed.batch(3, part, 4) for part in range(4)]
    assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)
    assert not torch.equal(held_out(config, num=64).inputs, batch.inputs)
    following = torch.zeros(11, 11)
    for token, after in zip(batch.inputs.flatten(), batch.targets.flatten(), strict=True):
        following[token, after] += 1
    assert float(following.max(1).values.sum() / following.sum()) > 0.7  # most follow from the one before


def test_rows_of_a_table_are_separable_and_learned() -> None:
    config = config_of(1, scheme="serial", batch=32, num_classes=5, **{**TABLE, "steps": 30})
    batch = open_feed(config).batch(0, 0, 1)
    assert batch.inputs.shape == (32, 24) and batch.targets.shape == (32,)
    assert float(batch.inputs.var()) == pytest.approx(1, rel=0.2)
    outcome = train_here(World(Alone(), 0, torch.device("cpu")), config)
    assert outcome.held_out_loss is not None and outcome.held_out_loss < 0.5 * log(5)


def test_the_language_model_learns_the_language() -> None:
    config = config_of(
        1, scheme="serial", model="transformer", input_shape=(16,), num_classes=8, steps=60, batch=16
    )
    outcome = train_here(World(Alone(), 0, torch.device("cpu")), config)
    assert outcome.losses[0] == pytest.approx(log(8), abs=0.5)
    assert outcome.held_out_loss is not None and outcome.held_out_loss < 1.4  # entropy of the chain: 0.9


def test_shapes_of_the_language_model_and_its_flops() -> None:
    shape = describe_model(
        config_of(1, scheme="serial", model="transformer", input_shape=(32,), num_classes=50)
    )
    d, t, v, blocks = 64, 32, 50, 4
    assert shape.num_params == v * d + t * d + blocks * (12 * d * d + 13 * d) + 2 * d + d * v + v
    assert shape.num_params == sum(layer.num_params for layer in shape.layers)
    assert shape.flops() == t * (blocks * (24 * d * d + 4 * t * d) + 2 * d * v)
    assert shape.blocks == ("embed", *(f"block{index}" for index in range(1, 5)), "norm", "head")
    assert shape.cuts[0] == (t, d) and shape.cuts[-1] == (t, v)
    first = shape.layers[0]
    assert (first.kind, first.in_shape, first.out_shape, first.needs_input_grad) == (
        *("embedding", (t,), (t, d)),
        False,
    )


def test_the_loss_is_the_mean_over_all_tokens() -> None:
    from perfscope.runners.schemes.local import cross_entropy

    outputs, targets = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    each = [-float(torch.log_softmax(outputs[b, t], 0)[targets[b, t]]) for b in range(3) for t in range(5)]
    assert float(cross_entropy(outputs, targets)) == pytest.approx(sum(each) / 15, rel=1e-5)
    assert float(cross_entropy(outputs[0], targets[0])) == pytest.approx(sum(each[:5]) / 5, rel=1e-5)


@pytest.fixture(scope="module")
def on_two() -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = run_ranks(2, "tests.runners.mp_cases:against_serial", cases=ON_TWO)
    return found


@pytest.mark.parametrize(
    "index", range(len(ON_TWO)), ids=[" ".join((one["scheme"], one["model"])) for one in ON_TWO]
)
def test_schemes_train_tokens_as_serial_does_and_send_what_they_predict(
    index: int, on_two: list[list[dict[str, Any]]]
) -> None:
    for answers in on_two:
        assert answers[index]["calls"] == answers[index]["expected"]
    answer = on_two[0][index]
    assert answer["moved"] > 1e-3
    if find_scheme(answer["case"]["scheme"]).equals_serial:
        assert answer["difference"] < 1e-12


def test_tensor_and_context_parallel_transformers_are_averaged_over_data_parts() -> None:
    cases = [
        {"scheme": "cp.gather", "mesh": Mesh({Axis.DP: 2, Axis.CP: 2}), **TOKENS},
        {"scheme": "hy.fctp_dp", "mesh": Mesh({Axis.DP: 2, Axis.TP: 2}), **TOKENS},
    ]
    for answers in (found := run_ranks(4, "tests.runners.mp_cases:against_serial", cases=cases)):
        assert all(answer["calls"] == answer["expected"] for answer in answers)
    assert all(answer["difference"] < 1e-12 for answer in found[0])


def test_a_pipeline_sends_whole_sequences_of_activations() -> None:
    case = {"scheme": "pp.gpipe", **TOKENS}
    job = plan(config_of(2, **case))
    sent = [find_scheme("pp.gpipe").traffic(job, rank) for rank in range(2)]
    microbatch = job.group_batch // find_scheme("pp.gpipe").num_microbatches(job)
    for (call,), traced in zip(sent, run_ranks(2, f"{__name__}:traced", case=case), strict=True):
        elements = microbatch * prod((12, 64))
        assert call.bytes == elements * 8
        assert traced["send", elements] == call.count


def traced(world: World, case: dict[str, Any]) -> Any:
    """gloo's events of one step on this rank."""
    return traced_step(world, config_of(world.size, **case))


REFUSED = [
    (
        {"scheme": "mp.filter"},
        "mp.filter cannot train transformer: it takes image and table inputs, not tokens",
    ),
    ({"scheme": "mp.spatial"}, "mp.spatial cannot train transformer: it takes image inputs, not tokens"),
    ({"scheme": "hy.owt"}, "hy.owt cannot train transformer: it takes image and table inputs, not tokens"),
    (
        {"scheme": "mp.spatial", **TABLE},
        "mp.spatial cannot train table_mlp: it takes image inputs, not",
    ),
    ({"scheme": "dp.ddp", "input_shape": (3, 8, 8)}, "takes tokens inputs: --input is a sequence length"),
    ({"scheme": "dp.ddp", "model": "mlp"}, "takes image inputs: --input is CHANNELSxHEIGHTxWIDTH"),
    ({"scheme": "mp.fc_tp", "model": "gpt-nano"}, "attention.qkv has 3 heads, which 2 ranks cannot share"),
    (
        {"scheme": "pp.gpipe", "model": "gpt2-124m"},
        "the first and the last layer of gpt2-124m share their weights, and would be in two stages",
    ),
    ({"scheme": "dp.ddp", "data": "/"}, "/train.bin cannot be read: No such file"),
]


@pytest.mark.parametrize(("settings", "reason"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_cannot_take_an_input_is_rejected_in_one_line(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(BenchError, match=reason) as error:
        plan(config_of(2, **{**TOKENS, **settings}))
    assert "\n" not in str(error.value)


def test_weights_of_the_language_model_are_finite_and_the_same_in_every_run() -> None:
    config = config_of(1, scheme="serial", **TOKENS)
    one, other = build_model(config).state_dict(), build_model(config).state_dict()
    assert all(torch.equal(one[name], other[name]) and one[name].isfinite().all() for name in one)
