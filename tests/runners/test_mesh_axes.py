"""Meshes of several axes train as one process does, and send what was predicted, axis by axis."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscope.runners.config import BenchError
from perfscope.runners.job import Job
from perfscope.runners.planning import plan
from perfscope.runners.schemes.mesh_axes import MeshParallel
from perfscope.vocabulary.axes import Axis
from tests.integration.run_support import PERFSCOPE
from tests.runners.mesh_cases import CASES, Trained, mesh, trained
from tests.runners.pp_cases import Sends
from tests.runners.training import expected_calls

pytestmark = pytest.mark.torch
BOUND = 1e-12  # of a weight after 3 steps in float64; sums are only taken in another order
EVERY = [
    pytest.param(
        group,
        name,
        id=f"{group}: {name}",
        marks=[pytest.mark.slow, *([pytest.mark.sweep] if group.startswith("sweep") else [])],
    )
    for group, configs in CASES.items()
    for name in configs
    if group != "axes"
]
CALLS = {"send", "all_reduce", "all_gather", "all_to_all"}
_SEEN_AS = {"reduce_scatter": "all_reduce"}  # what gloo makes of it


def test_each_axis_alone_trains_as_one_process_does_and_sends_what_was_predicted() -> None:
    for run in trained("axes").values():
        assert run.difference < BOUND
        assert_calls_as_predicted(run)


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_a_mesh_trains_as_one_process_does(group: str, name: str) -> None:
    assert trained(group)[name].difference < BOUND


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_every_call_along_every_axis_was_predicted(group: str, name: str) -> None:
    assert_calls_as_predicted(trained(group)[name])


def assert_calls_as_predicted(run: Trained) -> None:
    """Own calls by the ledger, those of torch by its trace."""
    job = plan(run.config)
    for rank, (calls, events) in enumerate(zip(run.calls, run.traced, strict=True)):
        predicted = MeshParallel.traffic(job, rank)
        assert calls == expected_calls(predicted, run.config.steps)
        seen = Counter({key: number for key, number in events.items() if key[0] in CALLS})
        sent: Counter[tuple[str, int]] = Counter()
        for one in predicted:
            if one.collective != "all_to_all":
                whole = one.bytes // job.element_size
                if one.collective == "all_gather":  # gloo's event has the input
                    whole //= len(one.members)
                sent[_SEEN_AS.get(one.collective, one.collective), whole] += one.calls_in(1)
        assert {key: number for key, number in seen.items() if key[0] != "all_to_all"} == dict(sent)
    assert_rows_as_predicted(job, run.traced)


def assert_rows_as_predicted(job: Job, traced: Sequence[Sends]) -> None:
    """How many rows a rank gets is up to the routers; those of a group of experts together are known."""
    for members in job.mesh.groups(Axis.EP):
        predicted = [one for rank in members for one in MeshParallel.traffic(job, rank)]
        exchanged = [one for one in predicted if one.collective == "all_to_all"]
        calls: Counter[tuple[str, int]] = sum((traced[rank] for rank in members), Counter())
        rows = {key: number for key, number in calls.items() if key[0] == "all_to_all"}
        assert sum(rows.values()) == sum(one.calls_in(1) for one in exchanged)
        elements = sum(size * number for (_, size), number in rows.items())
        assert elements * job.element_size == sum(one.bytes * one.calls_in(1) for one in exchanged)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "model"),
    [("dp=2,pp=2", "transformer"), ("cp=2,tp=2", "transformer"), ("fsdp=2,ep=2", "moe-nano")],
)
def test_a_report_has_the_predicted_bytes_of_every_axis(tmp_path: Path, text: str, model: str) -> None:
    """Formula, ledger and trace of a recorded run; sizes in the trace are of sent and received messages."""
    settings = ("--model", model, "--input", "16", "--batch", "8", "--steps", "6", "--dtype", "float64")
    bench = ("bench", "run", "--mesh", text, *settings, "--device", "cpu", "-o", "run", "--ceilings", "off")
    for command in (bench, ("report", "run", "--json")):
        ended = subprocess.run(
            (*PERFSCOPE, *command), cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    job = plan(mesh(text, model=model))
    formula, own = Counter[str](), Counter[str]()
    for rank in range(job.num_ranks):
        for one in MeshParallel.traffic(job, rank):
            ends = 2 if one.collective == "send" else 1
            formula[one.axis] += ends * one.bytes * one.calls_in(1)
            own[one.axis] += 0 if one.by_library else one.bytes * one.calls_in(1)
    traced = {entry["axis"]: entry["bytes"] for entry in report["communication"]["by_axis"]}
    assert set(traced) == {str(axis) for axis in job.mesh.axes}
    for axis, size in traced.items():
        assert size == pytest.approx(formula[axis] / job.num_ranks, abs=1)
    ledger: Counter[str] = Counter()
    for file in (tmp_path / "run").rglob("bench.json"):
        for call in json.loads(file.read_text())["calls"]:
            ledger[call["axis"]] += call["bytes"] * call["count"]
    assert ledger == {axis: 6 * size for axis, size in own.items() if size}


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("tp=3", {}, "4 heads, which 3 ranks cannot share; tp=2 would do"),
        ("cp=3", {}, "16 tokens cannot be cut into 3 equal parts"),
        ("cp=2", {"model": "smallcnn", "input_shape": (3, 16, 16)}, "smallcnn has no sequence"),
        ("tp=2", {"model": "smallcnn", "input_shape": (3, 16, 16)}, "no transformer block that tp could cut"),
        ("pp=2,dp=2", {"num_microbatches": 3}, "equal microbatches"),
        ("pp=8", {}, "8 stages, but transformer has"),
        (
            "ep=2",
            {},
            "transformer has no experts that ep could divide; leave out ep, or use",
        ),
        ("ep=2", {"model": "smallcnn", "input_shape": (3, 16, 16)}, "smallcnn has no experts"),
        ("ep=3", {"model": "moe-nano", "batch": 12}, "4 experts, which 3 ranks cannot share; ep=2 would do"),
        ("ep=3", {"model": "moe-nano"}, "batch of 8"),
        ("fsdp=3", {}, "batch of 8"),
        ("sp=2", {"model": "smallcnn", "input_shape": (3, 16, 16)}, "smallcnn has no sequence that sp could"),
        ("sp=2", {"input_shape": (15,)}, "15 tokens cannot be cut into 2 equal parts; change sp"),
        ("cp=2,sp=2", {"input_shape": (18,)}, "18 tokens cannot be cut into 4 equal parts; change cp and sp"),
        ("sp=3", {"input_shape": (18,)}, "4 heads, which 3 ranks cannot share; sp=2 would do"),
        ("sp=2,tp=2", {}, "sp divides layers as tp does, over the same ranks"),
        ("pp=2", {"accumulate": 2}, "cannot take --accumulate 2"),
        ("tp=2", {"model": "gpt-nano"}, "3 heads, which 2 ranks cannot share"),
        ("pp=2", {"model": "gpt2-124m"}, "share their weights"),
        ("tp=4", {"model": "llama-nano"}, "2 heads, which 4 ranks cannot share; tp=2 would do"),
        (
            "cp=4",
            {"model": "llama-nano", "cp_attention": "all-to-all"},
            "2 heads, which 4 ranks cannot share; cp=2 would do",
        ),
        ("tp=2,cp=4", {"cp_attention": "all-to-all"}, "2 heads, which 4 ranks cannot share; cp=2 would do"),
        ("tp=4", {"model": "moe-nano"}, "2 heads, which 4 ranks cannot share; tp=2 would do"),
    ],
)
def test_a_mesh_that_cannot_be_is_one_line(text: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(BenchError, match=message) as refused:
        plan(mesh(text, **settings))
    assert "\n" not in str(refused.value)
