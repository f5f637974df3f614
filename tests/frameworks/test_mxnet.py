"""MXNet in a venv of its own: one process, and two workers with a server and a scheduler."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.frameworks.retired_support import (
    EXAMPLES,
    PERFSCOPE,
    Recorded,
    collective,
    environment,
    losses,
    record,
    train,
)

pytestmark = pytest.mark.frameworks
STEPS = 12
# examples/train_mxnet.py: convolutions 3->16->32 with 3x3 kernels and biases, batch norms' scale and shift,
# dense layers 32->64->4.
NUM_PARAMS = (3 * 16 * 9 + 16) + 2 * 16 + (16 * 32 * 9 + 32) + 2 * 32 + (32 * 64 + 64) + (64 * 4 + 4)


@pytest.fixture(scope="module")
def python() -> str:
    path = os.environ.get("PERFSCOPE_MXNET_PYTHON", "")
    if not path or not Path(path).exists():
        pytest.skip("no venv with MXNet (tests/frameworks/make-mxnet-venv.sh; PERFSCOPE_MXNET_PYTHON)")
    return path


@pytest.fixture(scope="module")
def alone(python: str, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(python, example(), "--steps", str(STEPS), cwd=tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def pair(python: str, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    options = ("--steps", str(STEPS), "--workers", "2")
    return record(python, example(), *options, cwd=tmp_path_factory.mktemp("pair"))


def example() -> str:
    return str(EXAMPLES / "train_mxnet.py")


def test_every_update_is_a_step_with_the_samples_of_its_batch(alone: Recorded) -> None:
    assert alone.errors() == []
    assert [one["step"] for one in alone.steps(0)] == list(range(STEPS))
    assert {one["samples"] for one in alone.steps(0)} == {16}
    assert alone.rank(0)["framework"] == {"name": "mxnet", "version": "1.9.1"}
    assert alone.rank(0)["finished"] is True


def test_the_report_has_throughput_and_where_the_step_went(alone: Recorded) -> None:
    report = alone.report()
    assert report["throughput_samples_per_s"] > 0
    parts = report["ranks"][0]["breakdown_ns"]
    assert parts["compute"] > 0.2 * sum(parts.values())
    assert parts["optimizer"] > 0
    assert parts["exposed_comm"] == 0
    assert not report["layers"]


def test_the_rank_says_what_mxnet_cannot_tell_and_that_it_is_retired(alone: Recorded) -> None:
    rank = alone.rank(0)
    assert [one["what"] for one in rank["missing"]] == ["layers"]
    assert any("retired" in note for note in rank["notes"])


def test_losses_are_those_of_a_training_without_perfscope(
    python: str, alone: Recorded, tmp_path: Path
) -> None:
    plain = train(python, example(), "--steps", str(STEPS), cwd=tmp_path)
    assert losses(plain) == losses(alone.output)
    assert len(losses(plain)) == 3
    assert sorted(path.name for path in alone.run.parent.iterdir()) == ["run"]  # no profile.json beside it


def test_two_workers_are_two_ranks_and_the_servers_none(pair: Recorded) -> None:
    assert pair.errors() == []
    assert pair.ranks() == ["0", "1"]
    for rank in (0, 1):
        meta = pair.rank(rank)
        assert (meta["rank"], meta["world_size"], meta["rank_source"]) == (rank, 2, "mxnet kvstore")
        assert len(pair.steps(rank)) == STEPS
        assert meta["backend"] == "kvstore dist_sync"
        assert meta["groups"][0]["ranks"] == [0, 1]


def test_every_traced_step_exchanges_the_gradients_of_the_whole_model(pair: Recorded) -> None:
    report = pair.report()
    reduce = collective(report, "all_reduce", "kvstore")
    traced = report["ranks"][0]["num_traced_steps"]
    assert reduce["count"] == traced >= 2
    assert reduce["bytes"] == traced * NUM_PARAMS * 4
    assert (reduce["group_size"], reduce["dtype"]) == (2, "float32")
    assert reduce["num_matched"] == traced
    assert all(rank["breakdown_ns"]["exposed_comm"] > 0 for rank in report["ranks"])


def test_losses_of_two_workers_are_those_without_perfscope(
    python: str, pair: Recorded, tmp_path: Path
) -> None:
    plain = train(python, example(), "--steps", str(STEPS), "--workers", "2", cwd=tmp_path)
    assert losses(plain) == losses(pair.output)
    assert len(losses(plain)) == 6


def test_an_asynchronous_store_is_no_collective(python: str, tmp_path: Path) -> None:
    options = ("--steps", "8", "--workers", "2", "--store", "dist_async")
    recorded = record(python, example(), *options, cwd=tmp_path)
    assert recorded.errors() == []
    report = recorded.report()
    assert {one["collective"] for one in report["collectives"]} == {"send", "recv"}
    sent = collective(report, "send", "kvstore")
    assert sent["bytes"] == report["ranks"][0]["num_traced_steps"] * NUM_PARAMS * 4
    assert sent["wait_ns"] is None


SYMBOLIC = """
import mxnet as mx, numpy as np
x = np.random.RandomState(0).randn(80, 6).astype("float32"); y = (x.sum(1) > 0).astype("float32")
batches = mx.io.NDArrayIter(x, y, 8, label_name="softmax_label")
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
mx.mod.Module(net).fit(batches, num_epoch=2, optimizer="adam")
"""


def test_a_module_trained_with_fit_is_cut_into_its_updates(python: str, tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(SYMBOLIC)
    recorded = record(python, "fit.py", cwd=tmp_path)
    assert recorded.errors() == []
    assert len(recorded.steps(0)) == 20
    assert {one["samples"] for one in recorded.steps(0)} == {8}
    assert recorded.report()["ranks"][0]["breakdown_ns"]["optimizer"] > 0


GLUON = """
import mxnet as mx
from mxnet import gluon, autograd
net = gluon.nn.Dense(3); net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {{"learning_rate": 0.1}})
def step(n=4):
    with autograd.record():
        loss = net(mx.nd.ones((n, 5))).sum()
    loss.backward()
    trainer.step(n)
    return loss
{loop}
"""


def gluon(python: str, folder: Path, loop: str) -> Recorded:
    (folder / "train.py").write_text(GLUON.format(loop=textwrap.dedent(loop)))
    return record(python, "train.py", cwd=folder)


def test_the_trainings_own_profile_is_its_own(python: str, tmp_path: Path) -> None:
    loop = """
        mx.profiler.set_config(filename="mine.json", profile_all=True)
        for _ in range(8): step()
        mx.profiler.set_state("run")
        step().wait_to_read()
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        for _ in range(20): step()
    """
    recorded = gluon(python, tmp_path, loop)
    assert recorded.errors() == []
    assert len(recorded.steps(0)) == 29
    own = (tmp_path / "mine.json").read_text()
    assert "FullyConnected" in own
    assert "perfscope" not in own


def test_two_trainers_that_take_turns_make_one_step_together(python: str, tmp_path: Path) -> None:
    loop = """
        other = gluon.nn.Dense(2); other.initialize()
        second = gluon.Trainer(other.collect_params(), "adam")
        for _ in range(10):
            step()
            with autograd.record(): loss = other(mx.nd.ones((4, 5))).sum()
            loss.backward(); second.step(4)
    """
    recorded = gluon(python, tmp_path, loop)
    assert recorded.errors() == []
    assert len(recorded.steps(0)) == 10


BROKEN_WEIGHTS = """
    for number in range(12):
        print(number, step().asscalar() > 0, flush=True)
        if number == 3:
            net.weight.set_data(mx.nd.random.normal(0, -1, (3, 5)))
"""
BROKEN_BYSTANDER = """
    for number in range(12):
        print(number, step().asscalar() > 0, flush=True)
        if number == 3:
            lost = mx.nd.random.normal(0, -1, (3, 5))
"""


@pytest.mark.parametrize("loop", [BROKEN_WEIGHTS, BROKEN_BYSTANDER])
def test_an_operator_that_fails_in_the_engine_has_the_effect_it_has_without_perfscope(
    python: str, tmp_path: Path, loop: str
) -> None:
    # MXNet tells of the failure whoever waits first, once; in a traced step perfscope waits, too.
    (tmp_path / "train.py").write_text(GLUON.format(loop=textwrap.dedent(loop)))
    ends = []
    for before in ((), (*PERFSCOPE, "run", "-o", str(tmp_path / "run"), "--")):
        ended = subprocess.run(
            [*before, python, "train.py"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        ends.append((ended.returncode, ended.stdout, "MXNetError" in ended.stderr))
    assert ends[0] == ends[1]
    assert ends[0][2]  # sooner or later somebody waited
