"""Meshes of several axes train as one process does, and send what was predicted, axis by axis."""

from __future__ import annotations

from collections import Counter

import pytest

from perfscope.runners.config import BenchError
from perfscope.runners.planning import plan
from perfscope.runners.schemes.mesh_axes import MeshParallel
from tests.runners.mesh_cases import CASES, mesh, trained
from tests.runners.pp_cases import Trained
from tests.runners.training import expected_calls

pytestmark = pytest.mark.torch
BOUND = 1e-12  # of a weight after 6 steps in float64; sums are only taken in another order
EVERY = [
    pytest.param(group, name, id=name, marks=pytest.mark.slow)
    for group, configs in CASES.items()
    for name in configs
    if group != "axes"
]


def test_each_axis_alone_trains_as_one_process_does_and_sends_what_was_predicted() -> None:
    for run in trained("axes").values():
        assert run.difference() < BOUND
        assert_calls_as_predicted(run)


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_a_mesh_trains_as_one_process_does(group: str, name: str) -> None:
    assert trained(group)[name].difference() < BOUND


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_every_call_along_every_axis_was_predicted(group: str, name: str) -> None:
    assert_calls_as_predicted(trained(group)[name])


def assert_calls_as_predicted(run: Trained) -> None:
    """Own calls by the ledger, those of torch by its trace."""
    job = plan(run.config)
    assert run.traced is not None
    for rank, (outcome, events) in enumerate(zip(run.ranks, run.traced, strict=True)):
        predicted = MeshParallel.traffic(job, rank)
        assert outcome.calls == expected_calls(predicted, run.config.steps)
        sent: Counter[tuple[str, int]] = Counter()
        for one in predicted:
            whole = one.bytes // job.element_size
            if one.collective == "all_gather":  # gloo's event has the input
                whole //= len(one.members)
            kind = {"reduce_scatter": "all_reduce"}.get(one.collective, one.collective)
            sent[kind, whole] += one.count
        kinds = {"send", "all_reduce", "all_gather"}
        assert {key: number for key, number in events.items() if key[0] in kinds} == dict(sent)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("tp=3", {}, "4 heads, which 3 ranks cannot share; tp=2 would do"),
        ("cp=3", {}, "16 tokens cannot be cut into 3 equal parts"),
        ("cp=2", {"model": "smallcnn", "input_shape": (3, 16, 16)}, "smallcnn has no sequence"),
        ("tp=2", {"model": "smallcnn", "input_shape": (3, 16, 16)}, "no transformer block that tp could cut"),
        ("pp=2,dp=2", {"num_microbatches": 3}, "equal microbatches"),
        ("pp=8", {}, "8 stages, but transformer has"),
        ("ep=2", {}, "ep must be 1"),
        ("tp=2", {"model": "gpt-nano"}, "3 heads, which 2 ranks cannot share"),
        ("pp=2", {"model": "gpt2-124m"}, "share their weights"),
        ("tp=4", {"model": "llama-nano"}, "2 heads, which 4 ranks cannot share; tp=2 would do"),
        ("tp=4", {"model": "moe-nano"}, "2 heads, which 4 ranks cannot share; tp=2 would do"),
    ],
)
def test_a_mesh_that_cannot_be_is_one_line(text: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(BenchError, match=message) as refused:
        plan(mesh(text, **settings))
    assert "\n" not in str(refused.value)
