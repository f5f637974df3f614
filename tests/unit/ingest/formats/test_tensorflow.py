"""TensorFlow profiles as timelines: made-up ones of known truth, and real ones that were recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.errors import TraceError
from perfscope.ingest.formats.tensorflow import read_tensorflow
from perfscope.ingest.formats.tensorflow_names import Naming
from perfscope.rundir.schema import PHASES
from tests.support import xspace
from tests.support.xspace import Event, Line

DATA = Path(__file__).parents[3] / "data" / "frameworks"
START = 1_700_000_000_000_000_000
US = 1_000_000  # ps
RELU = "model_1/encoder_2/conv1_1/Relu:Relu"


def rank_folder(tmp_path: Path, profile: bytes, **documents: Any) -> Path:
    (tmp_path / "windows").mkdir()
    for name, document in documents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    path = tmp_path / "windows" / "0.tensorflow.xplane.pb"
    path.write_bytes(profile)
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_tensorflow(path).table(0, 0).to_pylist()
    return found


def step(number: int, start: int, dur: int) -> Event:
    return Event(f"perfscope.step:{number}", start * US, dur * US)


LAYERS = {
    "root": "Model",
    "layers": [{"layer": name} for name in ("Model", "encoder", "encoder.conv1", "head")],
}


def test_times_are_unix_times_and_steps_come_from_the_marks(tmp_path: Path) -> None:
    main = Line(10, "python", 5_000, [step(3, 0, 100), Event(RELU, 10 * US, 5 * US), step(4, 100, 50)])
    path = rank_folder(tmp_path, xspace.host(main, started_ns=START), layers=LAYERS)
    trace = read_tensorflow(path)
    assert trace.steps == [(3, START + 5_000, START + 105_000), (4, START + 105_000, START + 155_000)]
    (row,) = trace.table(0, 0).to_pylist()
    assert (row["start_ns"], row["dur_ns"], row["step"]) == (START + 15_000, 5_000, 3)
    assert (row["kind"], row["phase"], row["layer"], row["lane"]) == (
        "compute",
        "forward",
        "encoder.conv1",
        10,
    )


def test_only_the_innermost_operators_are_compute(tmp_path: Path) -> None:
    main = Line(10, "python", 0, [step(0, 0, 100), Event("train_step", US, 98 * US)])
    pool = Line(
        11,
        "tf_Compute/11",
        0,
        [
            Event("ExecutorState::Process", 10 * US, 60 * US),
            Event("StatefulPartitionedCall:StatefulPartitionedCall", 11 * US, 50 * US),
            Event("model/head/MatMul:MatMul", 12 * US, 20 * US),
            Event("outer/Custom:CustomOp", 40 * US, 10 * US),
            Event("outer/inner/Add:AddV2", 41 * US, 5 * US),
        ],
    )
    path = rank_folder(tmp_path, xspace.host(main, pool, started_ns=START), layers=LAYERS)
    found = {row["name"]: row["kind"] for row in rows(path)}
    assert found == {
        "train_step": "host",
        "StatefulPartitionedCall": "host",
        "model/head/MatMul": "compute",
        "outer/Custom": "host",
        "outer/inner/Add": "compute",
    }
    roles = {lane.lane: lane.role for lane in read_tensorflow(path).lanes}
    assert roles == {10: "main", 11: "executor"}


def test_operators_that_run_eagerly_or_by_xla_are_compute_without_a_layer(tmp_path: Path) -> None:
    main = Line(
        10,
        "python",
        0,
        [
            step(0, 0, 100),
            Event("EagerExecute", 1 * US, 20 * US, {"eager_op": "MatMul", "is_func": 0}),
            Event("EagerLocalExecute: MatMul", 2 * US, 18 * US),
            Event("KernelAndDeviceFunc::Run", 5 * US, 10 * US),
            Event("EagerExecute", 30 * US, 9 * US, {"eager_op": "IteratorGetNext", "is_func": 0}),
            Event("KernelAndDeviceFunc::Run", 31 * US, 7 * US),
            Event("IteratorGetNextOp::DoCompute", 32 * US, 5 * US),
            Event("EagerExecute", 40 * US, 50 * US, {"eager_op": "__inference_step_9", "is_func": 1}),
            Event("KernelAndDeviceFunc::Run", 41 * US, 48 * US),
            Event("__inference_step_9:__inference_step_9", 42 * US, 40 * US),
            Event("dot_fusion.1", 50 * US, 3 * US, {"hlo_op": "dot_fusion.1"}),
        ],
    )
    path = rank_folder(tmp_path, xspace.host(main, started_ns=START), layers=LAYERS)
    found = rows(path)
    computed = [(row["name"], row["dur_ns"]) for row in found if row["kind"] == "compute"]
    assert computed == [("MatMul", 10_000), ("dot_fusion.1", 3_000)]
    assert {row["layer"] for row in found} == {None}
    assert [row["dur_ns"] for row in found if row["kind"] == "input"] == [5_000]
    eager, compiled = sorted(read_tensorflow(path).notes)
    assert "ran eagerly" in eager or "ran eagerly" in compiled
    assert "XLA" in eager + compiled


@pytest.mark.parametrize(
    ("name", "layer", "phase"),
    [
        ("model_1/encoder_1/conv1_1/convolution/Conv2D:_FusedConv2D", "encoder.conv1", "forward"),
        ("gradient_tape/model_1/head_1/MatMul/MatMul_1:MatMul", "head", "backward"),
        (
            "StatefulPartitionedCall/gradient_tape/model/encoder/conv1/B:BiasAddGrad",
            "encoder.conv1",
            "backward",
        ),
        ("while/body/_1/model/head/MatMul:MatMul", "head", "forward"),
        ("model_1/pool_1/MaxPool2d:MaxPool", "pool", "forward"),
        ("adam/head/Mul_3:Mul", None, "optimizer"),
        ("my_rule/AssignSubVariableOp:AssignSubVariableOp", None, "optimizer"),
        ("SGD/update/ResourceApplyGradientDescent:ResourceApplyGradientDescent", None, "optimizer"),
        ("compile_loss/sparse/Mean:Mean", None, "forward"),
        ("Cast_1:Cast", None, "other"),
    ],
)
def test_layer_and_phase_are_told_by_the_scopes(name: str, layer: str | None, phase: str) -> None:
    naming = Naming(["Model", "encoder", "encoder.conv1", "head"], "Model", ["my_rule"])
    naming.learn(["model_1/head_1/MatMul:MatMul"])
    op = naming.op(name)
    assert op is not None
    assert (op.layer, PHASES[op.phase]) == (layer, phase)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("sequential_1/conv2d_1/convolution/Conv2D:_FusedConv2D", "conv2d"),
        ("gradient_tape/sequential_1/conv2d_1_2/B:BiasAddGrad", "conv2d_1"),
        ("sequential_1/max_pooling2d_1/MaxPool2d:MaxPool", "max_pooling2d"),
        ("sequential_1/dense_1/MatMul:MatMul", "dense"),
    ],
)
def test_layers_that_keras_numbered_itself_are_told_apart(name: str, layer: str) -> None:
    """Keras 3 enters each layer's scope twice, so that TensorFlow makes every name's second form of it."""
    layers = ["sequential", "conv2d", "max_pooling2d", "conv2d_1", "dense"]
    naming = Naming(layers, "sequential", [])
    naming.learn([name, "sequential_1/conv2d_1/convolution/Conv2D:_FusedConv2D"])
    op = naming.op(name)
    assert op is not None
    assert op.layer == layer


def test_scopes_without_numbers_are_the_layers_own_names() -> None:
    """So it is in tf_keras: each scope is entered once."""
    names = ["model/conv2d/Conv2D:Conv2D", "model/conv2d_1/Conv2D:Conv2D"]
    naming = Naming(["model", "conv2d", "conv2d_1"], "model", [])
    naming.learn(names)
    assert [getattr(naming.op(name), "layer", None) for name in names] == ["conv2d", "conv2d_1"]


def test_a_model_inside_which_nothing_runs_by_itself_still_leads_to_its_layers() -> None:
    """A loop with two models of its own (a GAN): `sequential` is no layer of the list, only what is in it."""
    names = ["sequential_1/dense_1/MatMul:MatMul", "sequential_1_2/conv2d_1/convolution:Conv2D"]
    naming = Naming(["sequential.dense", "sequential_1.conv2d"], None, [])
    naming.learn(names)
    assert [getattr(naming.op(name), "layer", None) for name in names] == [
        "sequential.dense",
        "sequential_1.conv2d",
    ]


def test_without_the_ranks_files_layers_are_told_by_the_scopes_alone(tmp_path: Path) -> None:
    names = ["model/a_1/MatMul:MatMul", "gradient_tape/model/a_1/MatMul/MatMul:MatMul", "model/b/Relu:Relu"]
    line = Line(10, "python", 0, [Event(name, at * US, US) for at, name in enumerate(names)])
    path = tmp_path / "by-itself.xplane.pb"
    path.write_bytes(xspace.host(line, started_ns=START))
    assert [row["layer"] for row in rows(path)] == ["a", "a", "b"]


@pytest.mark.parametrize(
    "name", ["ExecutorState::Process", "train_step", "EagerExecute: ReadVariableOp", "a:b", ""]
)
def test_events_that_are_no_operators_are_none(name: str) -> None:
    assert Naming([], None, []).op(name) is None


def test_collectives_have_the_bytes_the_graph_was_traced_with(tmp_path: Path) -> None:
    meta = {
        "collective_ops": {"CollectiveReduceV2_1": {"kind": "x", "bytes": 4096, "dtype": "float32"}},
        "groups": [{"name": "workers", "ranks": [0, 1]}],
    }
    names = ("StatefulPartitionedCall/CollectiveReduceV2_1", "CollectiveGatherV2")
    events = [
        Event(f"{name}:{name[-20:].split('_')[0].rpartition('/')[2]}", at * US, US)
        for at, name in enumerate(names)
    ]
    main = Line(10, "python", 0, [step(0, 0, 90)])
    profile = xspace.host(main, Line(11, "tf_Compute", 0, events), started_ns=START)
    path = rank_folder(tmp_path, profile, rank=meta)
    first, second = rows(path)
    assert (first["kind"], first["collective"], first["group"], first["group_size"]) == (
        "comm",
        "all_reduce",
        "workers",
        2,
    )
    assert (first["in_bytes"], first["out_bytes"], first["dtype"]) == (4096, 4096, "float32")
    assert (second["collective"], second["in_bytes"]) == ("all_gather", None)
    assert any("bytes of 1 collectives" in note for note in read_tensorflow(path).notes)


def test_batches_taken_inside_the_train_function_are_waits_of_the_main_thread(tmp_path: Path) -> None:
    main = Line(10, "python", 0, [step(0, 0, 100)])
    getter = Line(11, "tf_data_iterator_get_next", 0, [
        Event("IteratorGetNextOp::DoCompute", 10 * US, 30 * US),
        Event("Iterator::Prefetch", 11 * US, 20 * US),
        Event("map/Add:AddV2", 12 * US, 5 * US),
    ])  # fmt: skip
    pool = Line(12, "tf_Compute", 0, [Event("model/head/MatMul:MatMul", 30 * US, 40 * US)])
    path = rank_folder(tmp_path, xspace.host(main, getter, pool, started_ns=START))
    waits = [row for row in rows(path) if row["kind"] == "input" and row["lane"] == 10]
    assert [(row["start_ns"] - START, row["dur_ns"]) for row in waits] == [(10_000, 20_000)]
    mapped = next(row for row in rows(path) if row["name"] == "map/Add")
    assert mapped["kind"] == "host"  # of the data pipeline, not of the model
    assert {lane.lane: lane.role for lane in read_tensorflow(path).lanes}[11] == "worker"


def test_a_profile_without_host_threads_is_refused(tmp_path: Path) -> None:
    path = rank_folder(tmp_path, xspace.space(xspace.Plane("/device:GPU:0")))
    with pytest.raises(TraceError, match="holds no threads of the host"):
        read_tensorflow(path)


def test_streams_of_a_gpu_are_device_lanes(tmp_path: Path) -> None:
    kernel = Event("volta_sgemm", 10 * US, 5 * US, {"tf_op": "gradient_tape/model/head/MatMul:MatMul"})
    lines = [
        Line(7, "Stream #7(Compute)", 0, [kernel, Event("MemcpyH2D", 20 * US, US)]),
        Line(8, "TensorFlow Ops", 0, [Event("MatMul", 0, US)]),
    ]
    profile = xspace.host(Line(10, "python", 0, [step(0, 0, 90)]), started_ns=START)
    profile += xspace.space(xspace.Plane("/device:GPU:1", lines))
    first, second = rows(rank_folder(tmp_path, profile, layers=LAYERS))
    assert (first["device"], first["lane"], first["kind"]) == (1, 7, "compute")
    assert (first["layer"], first["phase"]) == ("head", "backward")
    assert second["kind"] == "copy"


@pytest.mark.parametrize("name", ["tensorflow_cnn", "tensorflow_fit"])
def test_real_profiles_tell_layers_phases_and_two_steps(name: str) -> None:
    path = DATA / name / "windows" / "0.tensorflow.xplane.pb.gz"
    trace = read_tensorflow(path)
    assert [number for number, _, _ in trace.steps] == [3, 4]
    found = [row for row in rows(path) if row["kind"] == "compute"]
    pairs = {(row["layer"], row["phase"]) for row in found}
    for layer in ("conv_a", "conv_b", "pool", "head"):
        assert {(layer, "forward"), (layer, "backward")} <= pairs
    assert (None, "optimizer") in pairs
    assert {row["layer"] for row in found} <= {"conv_a", "conv_b", "pool", "head", "flatten", None}
    assert all(row["step"] in (3, 4) for row in found)
    convolutions = [row["name"] for row in found if "Conv2DBackpropFilter" in row["name"]]
    assert len(convolutions) == 4  # two layers, two steps: nothing twice
    assert any(row["kind"] == "input" for row in rows(path))
    assert trace.num_dropped == 0
    assert not trace.notes


def test_a_collective_begins_when_its_kernel_is_started_not_when_the_group_is_agreed_on(
    tmp_path: Path,
) -> None:
    node = "sgd/CollectiveReduceV2"
    kernels = [Event("CollectiveOpV2Kernel::Run", at * US, US, {"name": node}) for at in (10, 60)]
    calls = [Event(f"{node}:CollectiveReduceV2", at * US, 5 * US) for at in (14, 62)]
    lines = [Line(10, "python", 0, [step(0, 0, 90)]), Line(11, "tf_Compute", 0, kernels)]
    profile = xspace.host(*lines, Line(12, "collective_ops", 0, calls), started_ns=START)
    path = rank_folder(tmp_path, profile)
    found = [(row["start_ns"] - START, row["dur_ns"]) for row in rows(path) if row["kind"] == "comm"]
    assert found == [(10_000, 9_000), (60_000, 7_000)]
    assert {lane.lane: lane.role for lane in read_tensorflow(path).lanes}[12] == "backend"


@pytest.mark.parametrize("rank", [0, 1])
def test_real_collectives_of_two_workers_carry_the_models_gradients(rank: int) -> None:
    folder = DATA / "tensorflow_workers" / str(rank)
    path = folder / "windows" / "0.tensorflow.xplane.pb.gz"
    meta = json.loads((folder / "rank.json").read_text())
    calls = [row for row in rows(path) if row["kind"] == "comm"]
    gradients = [row for row in calls if row["in_bytes"] == meta["gradient_bytes"]]
    assert [row["step"] for row in gradients] == [3, 4]
    assert {(row["collective"], row["group"], row["group_size"]) for row in calls} == {
        ("all_reduce", "workers", 2)
    }
    assert sorted(row["in_bytes"] for row in calls) == [4, 4, meta["gradient_bytes"], meta["gradient_bytes"]]
