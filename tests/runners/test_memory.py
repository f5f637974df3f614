"""The model of memory against what torch's allocator gives out in real steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.cli.bench.memory import require_memory
from perfscope.runners.config import BenchConfig, BenchError
from perfscope.runners.job import Job
from perfscope.runners.learning.evaluation import samples_at_once
from perfscope.runners.memory.footprint import footprint
from perfscope.runners.memory.tape import record_tape
from perfscope.runners.planning import plan
from perfscope.runners.plans.work import Pace, pass_times
from tests.runners.memory_cases import memory_config
from tests.runners.ranks import run_ranks

_ADAM = {"optimizer": "adamw", "batch": 8}
_IMAGES = {"input_shape": (3, 64, 64), "momentum": 0.9, "batch": 8}
_PIPELINE: dict[str, Any] = {"optimizer": "adamw", "batch": 16, "num_microbatches": 4}
ALONE = {
    "transformer": memory_config("serial", "gpt-nano", **_ADAM),
    "accumulated": memory_config("serial", "smallcnn", batch=64, accumulate=4),
}
ALONE_SLOWER = {
    "checkpointing": memory_config("serial", "gpt-nano", **_ADAM, activation_checkpointing=True),
    "bfloat16": memory_config("serial", "gpt-nano", **_ADAM, dtype="bfloat16"),
    "llama": memory_config("serial", "llama-nano", **_ADAM),
    "resnet": memory_config("serial", "resnet18", **_IMAGES),
}
OF_TWO = {
    "ddp": memory_config("dp.ddp", "gpt-nano", mesh="dp=2", **_ADAM),
    "fsdp": memory_config("dp.fsdp", "gpt-micro", mesh="fsdp=2", **_ADAM),
    "fsdp of one large layer": memory_config("dp.fsdp", "alexnet", mesh="fsdp=2", **_IMAGES),
    "tp": memory_config("mesh", "gpt-micro", mesh="tp=2", **_ADAM),
    "cp": memory_config("mesh", "gpt-micro", mesh="cp=2", **_ADAM),
    **{
        f"pp {kind}": memory_config("mesh", "gpt-micro", mesh="pp=2", pipeline=kind, **_PIPELINE)
        for kind in ("1f1b", "gpipe", "interleaved", "zero-bubble")
    },
}
OF_FOUR = {
    f"{mesh} {kind}": memory_config("mesh", "gpt-micro", mesh=mesh, pipeline=kind, **_PIPELINE)
    for mesh, kind in (("pp=4", "1f1b"), ("tp=2,pp=2", "1f1b"), ("tp=2,pp=2", "zero-bubble"))
}
_ACCURACY = 0.1


def _predicted(config: BenchConfig) -> float:
    return footprint(record_tape(config), plan(config)).peak


def _assert_near(cases: dict[str, BenchConfig], num_ranks: int) -> None:
    ranks = run_ranks(num_ranks, "tests.runners.memory_cases:peaks", cases=cases)
    measured = {name: max(of_rank[name] for of_rank in ranks) for name in cases}
    errors = {name: _predicted(config) / measured[name] - 1 for name, config in cases.items()}
    assert {name: round(error, 3) for name, error in errors.items() if abs(error) > _ACCURACY} == {}


def test_memory_of_one_rank_is_predicted_to_a_tenth() -> None:
    _assert_near(ALONE, 1)


@pytest.mark.slow
def test_memory_of_other_models_and_precisions_is_predicted_to_a_tenth() -> None:
    _assert_near(ALONE_SLOWER, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("cases", "num_ranks"), [(OF_TWO, 2), (OF_FOUR, 4)])
def test_memory_on_meshes_is_predicted_to_a_tenth(cases: dict[str, BenchConfig], num_ranks: int) -> None:
    _assert_near(cases, num_ranks)


def _job(scheme: str, mesh: str | None = None, **settings: object) -> Job:
    return plan(memory_config(scheme, "gpt-nano", mesh=mesh, **{"batch": 8, **settings}))


def test_memory_grows_with_the_samples_by_what_activations_take() -> None:
    few, more, most = (_job("serial", batch=batch) for batch in (8, 16, 32))
    held = [footprint(record_tape(job.config), job) for job in (few, more, most)]
    assert held[0].weights == held[1].weights == held[2].weights == few.model_bytes
    first, second = held[1].peak - held[0].peak, held[2].peak - held[1].peak
    assert second == pytest.approx(2 * first, rel=0.01)


def test_shards_divide_what_lasts() -> None:
    whole, halves = _job("serial"), _job("dp.fsdp", "fsdp=2", batch=16)
    tape = record_tape(whole.config)
    held, of_shard = footprint(tape, whole), footprint(tape, halves)
    assert of_shard.weights == pytest.approx(held.weights / 2)
    assert of_shard.activations == pytest.approx(held.activations, rel=0.05)


def test_checkpointing_trades_memory_for_computation() -> None:
    pace = Pace(flops_per_s=1e12)
    plain, again = _job("serial", batch=64), _job("serial", batch=64, activation_checkpointing=True)
    tapes = [record_tape(job.config) for job in (plain, again)]
    assert footprint(tapes[1], again).peak < footprint(tapes[0], plain).peak
    times = [pass_times(tape, job, 0, pace) for tape, job in zip(tapes, (plain, again), strict=True)]
    assert times[1].forward == pytest.approx(times[0].forward)
    assert times[1].backward > 1.3 * times[0].backward


def test_arithmetic_of_a_tape_is_that_of_the_shapes() -> None:
    job = _job("serial")
    times = pass_times(record_tape(job.config), job, 0, Pace(flops_per_s=1.0))
    assert times.forward == pytest.approx(job.shape.flops() * 8, rel=0.02)
    assert times.backward == pytest.approx(2 * times.forward, rel=0.1)


def test_tensor_parallel_ranks_share_the_arithmetic_of_the_divided_layers() -> None:
    whole, halves = _job("serial"), _job("mesh", "tp=3")
    tape, pace = record_tape(whole.config), Pace(flops_per_s=1.0)
    alone, divided = pass_times(tape, whole, 0, pace), pass_times(tape, halves, 0, pace)
    assert alone.forward / 3 < divided.forward < 0.6 * alone.forward


def test_an_evaluation_takes_no_more_samples_than_training_where_they_are_large() -> None:
    large = plan(memory_config("serial", "gpt2-124m", batch=16, input_shape=(512,)))
    small = _job("serial", batch=8)
    assert samples_at_once(large) == 16
    assert 8 < samples_at_once(small) <= 256


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"model": "vgg16"}, "weights, gradients and optimizer state alone"),
        ({"scheme": "dp.fsdp", "model": "vgg16", "num_ranks": 2}, "weights alone"),
        ({"batch": 10_000}, "weights, gradients and activations"),
        ({"scheme": "dp.ddp", "batch": 1_000, "num_ranks": 2}, ""),
    ],
)
def test_a_run_that_cannot_fit_is_refused_with_one_line(
    settings: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with 1 GiB free: vgg16 has 0.5 GiB of weights, 1,000 samples of smallcnn take 0.2 GiB."""
    monkeypatch.setattr("perfscope.cli.bench.memory.read_host", lambda _: SimpleNamespace(free_bytes=1 << 30))
    job = plan(BenchConfig(**{"scheme": "serial", "device": "cpu", **settings}))
    if not what:
        return require_memory(job, job.num_ranks)
    with pytest.raises(
        BenchError, match=f"{what} of {job.config.model} take .* 1.00 GiB free; use a"
    ) as error:
        require_memory(job, job.num_ranks)
    assert "\n" not in str(error.value)
