"""Horovod with PyTorch, compiled once (PERFSCOPE_BUILD_HOROVOD=1 make test-frameworks)."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path

import pytest

from tests.frameworks.retired_support import EXAMPLES, Recorded, collective, losses, record, train

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        importlib.util.find_spec("horovod") is None,
        reason="Horovod is not built (PERFSCOPE_BUILD_HOROVOD=1 make test-frameworks builds it)",
    ),
]
STEPS = 12
LAUNCH = ("horovodrun", "-np", "2", "--gloo", "--network-interfaces", "lo")
TRAIN = ("python", str(EXAMPLES / "train_horovod.py"), "--steps", str(STEPS))
# examples/train_horovod.py: convolutions 3->16->32 with 3x3 kernels and biases, batch norms' scale and shift,
# linear layers 32->64->4; as many tensors.
SHAPES = (3 * 16 * 9, 16, 16, 16, 16 * 32 * 9, 32, 32, 32, 32 * 64, 64, 64 * 4, 4)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(*LAUNCH, *TRAIN, cwd=tmp_path_factory.mktemp("pair"))


def test_every_update_is_one_step_of_its_rank(pair: Recorded) -> None:
    assert pair.errors() == []
    assert pair.ranks() == ["0", "1"]
    for rank in (0, 1):
        meta = pair.rank(rank)
        assert (meta["rank"], meta["world_size"], meta["rank_source"]) == (rank, 2, "horovod")
        assert [one["step"] for one in pair.steps(rank)] == list(range(STEPS))
        assert {one["samples"] for one in pair.steps(rank)} == {16}
        assert meta["framework"]["name"] == "torch"
        assert meta["backend"] == "horovod gloo"
        assert meta["groups"] == [
            {"name": "global", "ranks": [0, 1], "backend": "horovod gloo", "desc": "horovod"}
        ]
        assert meta["root"]["dp_size"] == 2


def test_all_reduces_carry_the_gradients_of_the_whole_model(pair: Recorded) -> None:
    report = pair.report()
    reduce = collective(report, "all_reduce", "global")
    traced = report["ranks"][0]["num_traced_steps"]
    assert reduce["count"] == traced * len(SHAPES)
    assert reduce["bytes"] == traced * sum(SHAPES) * 4
    assert (reduce["group_size"], reduce["dtype"]) == (2, "float32")
    assert reduce["num_matched"] == reduce["count"]


def test_calls_follow_each_other_and_overlap_nowhere(pair: Recorded) -> None:
    for rank in (0, 1):
        calls = [row for row in pair.calls(rank) if row["kind"] == "comm"]
        ends = [row["start_ns"] + row["dur_ns"] for row in calls]
        assert all(end <= row["start_ns"] for end, row in zip(ends, calls[1:], strict=False))
        assert all(first <= second for first, second in pairwise(ends))


def test_the_step_is_split_up_with_layers_and_without_counting_twice(pair: Recorded) -> None:
    report = pair.report()
    assert report["throughput_samples_per_s"] > 0
    assert {"0", "4", "9"} <= {layer["layer"] for layer in report["layers"]}
    for rank in report["ranks"]:
        parts = rank["breakdown_ns"]
        assert sum(parts.values()) == rank["breakdown_step_ns"]
        assert 0 < parts["exposed_comm"] <= rank["comm_ns"]


def test_losses_are_those_of_a_training_without_perfscope(pair: Recorded, tmp_path: Path) -> None:
    plain = train(*LAUNCH, *TRAIN, cwd=tmp_path)
    assert losses(plain) == losses(pair.output)
    assert len(losses(plain)) == 6


EVERY_CALL = """
import horovod.torch as hvd, torch
hvd.init()
model = torch.nn.Linear(4, 2); optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(8):
    model(torch.ones(8, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()
    hvd.allreduce(torch.ones(10), name="one")
    hvd.grouped_allreduce([torch.ones(3), torch.ones(5)], name="several")
    hvd.allgather(torch.ones(6, dtype=torch.float64), name="gathered")
    hvd.broadcast(torch.ones(7, dtype=torch.int32), root_rank=0, name="cast")
    hvd.alltoall(torch.ones(8), name="exchanged")
    hvd.reducescatter(torch.ones(12), name="scattered")
hvd.shutdown()
"""


def test_every_kind_of_call_is_recorded_with_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(EVERY_CALL)
    recorded = record(*LAUNCH, "python", "calls.py", cwd=tmp_path)
    assert recorded.errors() == []
    found: dict[str, set[tuple[int, int]]] = {}
    for row in (*recorded.calls(0), *recorded.calls(1)):
        if row["kind"] == "comm":
            found.setdefault(row["collective"], set()).add((row["in_bytes"], row["out_bytes"]))
    assert found == {
        "all_reduce": {(40, 40), (32, 32)},
        "all_gather": {(48, 96)},
        "broadcast": {(28, 28)},
        "all_to_all": {(32, 32)},
        "reduce_scatter": {(48, 24)},
    }


def test_horovods_own_timeline_is_joined_to_the_traced_steps_of_rank_0(tmp_path: Path) -> None:
    recorded = record(*LAUNCH, *TRAIN, cwd=tmp_path, HOROVOD_TIMELINE=str(tmp_path / "timeline.json"))
    assert recorded.errors() == []
    told = [row["name"].split(" ")[0] for row in recorded.calls(0) if row["kind"] == "annotation"]
    assert {"NEGOTIATE_ALLREDUCE", "GLOO_ALLREDUCE"} <= set(told)
    assert (tmp_path / "timeline.json").exists()
    reduce = collective(recorded.report(), "all_reduce", "global")
    assert reduce["bytes"] % (sum(SHAPES) * 4) == 0  # what the timeline adds is not counted
