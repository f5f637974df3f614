"""Pipelines: where they are cut, what they send, and that they train as one process does."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.runners.config import BenchError
from perfscope.runners.mesh import Mesh
from perfscope.runners.models.shapes import LayerShape, ModelShape
from perfscope.runners.pipeline.partition import (
    bubble_ratio,
    cut,
    default_microbatches,
    num_cuttable,
)
from perfscope.runners.planning import plan
from perfscope.runners.schemes.pp_schedules import GPipe, Interleaved, OneForwardOneBackward, Pipeline
from perfscope.runners.schemes.registry import find_scheme
from tests.runners.pp_cases import TRACED, TRAINED, configure, trained
from tests.runners.training import expected_calls

PIPELINES = [
    (num_ranks, name)
    for num_ranks, configs in TRAINED.items()
    for name, config in configs.items()
    if issubclass(find_scheme(config.scheme), Pipeline)
]


def made_up(flops: list[int], crossing: list[int], with_params: list[bool]) -> ModelShape:
    """A chain of blocks with one layer each, or none."""
    names = tuple(f"block{index}" for index in range(len(flops)))
    layers, params = [], []
    for index, name in enumerate(names):
        if with_params[index]:
            layers.append(
                LayerShape(
                    name=name,
                    kind="linear",
                    block=index,
                    in_shape=(1,),
                    out_shape=(1,),
                    weight_shape=(1, 1),
                    has_bias=False,
                    flops=flops[index],
                )
            )
            params.append((f"{name}.weight", (1, 1)))
    return ModelShape(
        layers=tuple(layers),
        params=tuple(params),
        blocks=names,
        cuts=tuple((size,) for size in crossing),
        activations=sum(crossing),
    )


def test_a_chain_is_cut_where_its_largest_stage_is_smallest() -> None:
    shape = made_up([4, 1, 1, 2], [1, 1, 1, 1], [True] * 4)
    assert [stage.blocks for stage in cut(shape, (1,), 2)] == [("block0",), ("block1", "block2", "block3")]


def test_of_equally_balanced_cuts_the_one_with_the_smallest_activations_is_taken() -> None:
    shape = made_up([4, 0, 0, 4], [9, 3, 7, 1], [True, False, False, True])
    assert [stage.flops for stage in cut(shape, (1,), 2)] == [4, 4]
    assert cut(shape, (1,), 2)[0].blocks == ("block0", "block1")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 4),
)
def test_no_other_cutting_is_better(blocks: list[tuple[int, int, bool]], num_stages: int) -> None:
    flops, crossing, with_params = (list(column) for column in zip(*blocks, strict=True))
    shape = made_up(flops, crossing, with_params)
    if num_cuttable(shape) < num_stages:
        with pytest.raises(ValueError, match="cannot be cut"):
            cut(shape, (1,), num_stages)
        return
    real = [value if has else 0 for value, has in zip(flops, with_params, strict=True)]
    costs = []
    for middle in combinations(range(1, len(blocks)), num_stages - 1):
        bounds = list(zip((0, *middle), (*middle, len(blocks)), strict=True))
        if all(any(with_params[first:last]) for first, last in bounds):
            largest = max(sum(real[first:last]) for first, last in bounds)
            costs.append((largest, sum(crossing[one - 1] for one in middle)))
    stages = cut(shape, (1,), num_stages)
    assert (max(stage.flops for stage in stages), sum(stage.out_size for stage in stages[:-1])) == min(costs)
    assert [name for stage in stages for name in stage.blocks] == list(shape.blocks)


@pytest.mark.parametrize(("model", "num_stages"), [("vgg16", 4), ("googlenet", 4), ("resnet50", 8)])
def test_stages_of_a_deep_network_come_close_to_equal_shares(model: str, num_stages: int) -> None:
    job = plan(
        configure("pp.gpipe", num_stages, model=model, input_shape=(3, 224, 224), num_classes=1000, batch=32)
    )
    stages = GPipe.stages(job)
    total = sum(layer.flops for layer in job.shape.layers)
    assert sum(stage.flops for stage in stages) == total
    assert sum(stage.params for stage in stages) == job.shape.num_params
    assert max(stage.flops for stage in stages) < 1.35 * total / num_stages


@pytest.mark.parametrize(
    ("group_batch", "num_ranks", "expected"),
    [(8, 2, 4), (32, 4, 8), (8, 4, 8), (6, 2, 3), (9, 2, 3), (2, 4, 2), (7, 4, 7), (1, 2, 1)],
)
def test_the_default_number_of_microbatches(group_batch: int, num_ranks: int, expected: int) -> None:
    assert default_microbatches(group_batch, num_ranks, lambda m: True) == expected


def test_the_default_number_of_microbatches_is_one_that_the_schedule_takes() -> None:
    def allowed(m: int) -> bool:
        return Interleaved.refused_microbatches(m, 4) is None

    assert default_microbatches(11, 4, allowed) == 1  # 11 would make two rounds, 1 is all else that divides
    assert default_microbatches(10, 4, allowed) == 10


def test_the_default_leaves_a_norm_two_values() -> None:
    """resnet50 at 16x16 ends in maps of 1x1: 8 microbatches of one sample would be the default else."""
    assert GPipe.num_microbatches(plan(configure("pp.gpipe", 4, model="resnet50"))) == 4


def test_the_share_of_waiting() -> None:
    assert bubble_ratio(4, 8) == 3 / 11
    assert bubble_ratio(4, 8, stages_per_rank=2) == 3 / 19
    assert bubble_ratio(1, 8) == 0


def test_bytes_of_a_cut_known_by_hand() -> None:
    """smallcnn at 16x16: conv1 8x8x16 after its pool, conv2 4x4x32, conv3 2x2x64."""
    job = plan(configure("pp.gpipe", 2, dtype="float32"))
    (forward,) = GPipe.traffic(job, 0)
    (backward,) = GPipe.traffic(job, 1)
    # cut behind pool2: 32 maps of 4x4, 4 microbatches of 2 samples, 4 bytes
    assert (forward.members, forward.bytes, forward.count) == ((0, 1), 2 * 32 * 4 * 4 * 4, 4)
    assert (backward.members, backward.bytes, backward.count) == ((1, 0), 2 * 32 * 4 * 4 * 4, 4)


def test_an_interleaved_pipeline_crosses_more_cuts() -> None:
    job = plan(configure("pp.interleaved", 2))
    assert [stage["rank"] for stage in Interleaved.layout(job)["stages"]] == [0, 1, 0, 1]
    forward = [one for rank in (0, 1) for one in Interleaved.traffic(job, rank) if "forward" in one.what]
    assert sorted(one.members for one in forward) == [(0, 1), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("scheme", "num_ranks", "settings", "message"),
    [
        ("pp.gpipe", 1, {}, "at least 2 pipeline parts"),
        ("pp.gpipe", 4, {"mesh": Mesh.positional(2, 1, 2)}, "dp must be 1"),
        ("pp.gpipe", 2, {"num_microbatches": 3}, "8 samples .* 3 equal microbatches"),
        ("pp.gpipe", 6, {}, "6 stages, but smallcnn has 5 blocks with parameters"),
        ("pp.interleaved", 4, {}, r"8 stages \(2 on each of 4 ranks\)"),
        ("pp.1f1b", 4, {"num_microbatches": 2}, "2 microbatches are fewer than the 4 stages"),
        ("pp.interleaved", 2, {"num_microbatches": 5, "batch": 10}, "2 equal rounds over 2 ranks"),
        ("hy.pp_dp", 4, {"mesh": Mesh.positional(4, 1, 1)}, "at least 2 pipeline parts"),
        ("hy.pp_dp", 4, {"mesh": Mesh.positional(2, 1, 2), "batch": 7}, "2 equal parts"),
        ("hy.pp_dp", 4, {"mesh": Mesh.positional(2, 2, 1)}, "tp must be 1"),
        ("pp.gpipe+topk", 2, {}, "cannot take"),
        ("hy.pp_dp", 4, {"model": "resnet50", "num_microbatches": 4}, "normalize over one value"),
    ],
)
def test_what_a_pipeline_cannot_do_is_said_in_one_line(
    scheme: str, num_ranks: int, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BenchError, match=message) as refused:
        plan(configure(scheme, num_ranks, **settings))
    assert "\n" not in str(refused.value)


@pytest.mark.torch
@pytest.mark.parametrize(("num_ranks", "name"), [one for one in PIPELINES if "+" not in one[1]])
def test_a_pipeline_trains_as_one_process_does(num_ranks: int, name: str) -> None:
    run = trained(num_ranks)[name]
    assert run.config.steps >= 5
    assert run.difference() < 1e-6
    told = [outcome.losses for outcome in run.ranks if outcome.losses[0] is not None]
    assert len(told) == (run.config.mesh.num_data_parts if run.config.mesh else 1)  # the last stages know it
    means = [sum(values) / len(values) for values in zip(*told, strict=True)]
    assert means == pytest.approx(run.serial.losses, abs=1e-9)


@pytest.mark.torch
def test_a_pipeline_with_squeezed_gradients_stays_near() -> None:
    run = trained(4)["pp_dp+fp16"]
    assert 0 < run.difference() < 1e-3
    assert run.difference() > 100 * trained(4)["pp_dp"].difference()


@pytest.mark.torch
@pytest.mark.parametrize(("num_ranks", "name"), PIPELINES)
def test_every_call_of_a_pipeline_was_predicted(num_ranks: int, name: str) -> None:
    run = trained(num_ranks)[name]
    job, scheme = plan(run.config), find_scheme(run.config.scheme)
    for rank, outcome in enumerate(run.ranks):
        assert outcome.calls == expected_calls(scheme.traffic(job, rank), run.config.steps)


@pytest.mark.torch
@pytest.mark.parametrize(("num_ranks", "name"), [one for one in PIPELINES if one[1] in TRACED[one[0]]])
def test_what_torch_sends_by_itself_was_predicted(num_ranks: int, name: str) -> None:
    run = trained(num_ranks)[name]
    job, scheme = plan(run.config), find_scheme(run.config.scheme)
    assert run.traced is not None
    for rank, events in enumerate(run.traced):
        predicted: Counter[int] = Counter()
        for one in scheme.traffic(job, rank):
            if one.by_library:
                predicted[one.bytes // job.element_size] += one.calls_in(1)
        assert predicted
        assert {size: n for (kind, size), n in events.items() if kind == "send"} == predicted


@pytest.mark.torch
def test_the_partition_is_recorded_by_each_rank() -> None:
    run = trained(2)["interleaved"]
    job = plan(run.config)
    for rank, outcome in enumerate(run.ranks):
        details = outcome.details
        assert details["own_stages"] == [rank, rank + 2]
        assert details["num_microbatches"] == 4
        assert details["bubble_ratio"] == 1 / 9
        blocks = [name for stage in details["stages"] for name in stage["blocks"]]
        assert blocks == list(job.shape.blocks)
        assert sum(stage["num_params"] for stage in details["stages"]) == sum(
            prod(shape) for _, shape in job.shape.params
        )


def test_1f1b_keeps_fewer_activations_for_the_same_traffic() -> None:
    gpipe, other = plan(configure("pp.gpipe", 2)), plan(configure("pp.1f1b", 2))
    assert GPipe.traffic(gpipe, 0) == OneForwardOneBackward.traffic(other, 0)
