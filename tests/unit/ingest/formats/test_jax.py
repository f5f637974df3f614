"""JAX's profile of two traced steps of examples/train_jax.py, rank 0 of 2 (JAX 0.10.2, CPU, gloo)."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfscope.errors import TraceError
from perfscope.ingest.formats.frameworks import reader_of
from perfscope.ingest.formats.hlo import Modules
from perfscope.ingest.formats.jax import read_jax
from perfscope.ingest.formats.op_names import place_of
from perfscope.ingest.formats.trace import FrameworkTrace
from perfscope.ingest.run import ingest_run
from perfscope.rundir import layout

PROFILE = Path(__file__).parents[3] / "data" / "frameworks" / "jax-two-processes.jax.xplane.pb.gz"
# 3x3 convolutions 3->32->32->64->128, dense layers 128->256->4, all with biases.
NUM_PARAMS = 896 + 9248 + 18496 + 73856 + 33024 + 1028
LAYERS = ("conv0", "conv1", "conv2", "conv3", "hidden", "head")


@pytest.fixture(scope="module")
def trace() -> FrameworkTrace:
    return read_jax(PROFILE)


@pytest.fixture(scope="module")
def rows(trace: FrameworkTrace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trace.table(0, 0).to_pylist()
    return found


def of(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def test_the_suffix_leads_to_the_reader() -> None:
    assert reader_of(".jax.xplane.pb") is read_jax


def test_steps_are_the_probes_marks_in_unix_time(trace: FrameworkTrace) -> None:
    assert [step for step, _, _ in trace.steps] == [3, 4]
    for _, start, end in trace.steps:
        assert 1_795_314_000 * 10**9 < start < end < 1_795_315_000 * 10**9  # recorded on 2026-11-22


def test_threads_have_the_roles_that_the_breakdown_asks_for(trace: FrameworkTrace) -> None:
    assert Counter(lane.role for lane in trace.lanes) == {"main": 1, "executor": 2}


def test_every_layer_runs_forward_and_backward_in_each_step(rows: list[dict[str, Any]]) -> None:
    for step in (3, 4):
        for layer in LAYERS:
            for phase in ("forward", "backward"):
                assert of(rows, step=step, layer=layer, phase=phase, kind="compute"), (step, layer, phase)
    assert {row["layer"] for row in of(rows, phase="optimizer")} == {"optimizer"}


def test_convolutions_and_products_have_the_work_of_their_shapes(rows: list[dict[str, Any]]) -> None:
    flops: Counter[tuple[str, str]] = Counter()
    for row in of(rows, step=3, kind="compute"):
        flops[row["layer"], row["phase"]] += row["flops"] or 0
    sides = {"conv1": (32, 32, 32), "conv2": (16, 32, 64), "conv3": (8, 64, 128)}
    for layer, (side, inputs, outputs) in sides.items():
        forward = 2 * 4 * side * side * 9 * inputs * outputs  # a batch of 4
        assert flops[layer, "forward"] == forward
        assert flops[layer, "backward"] == 2 * forward  # of the input and of the weights
    assert flops["conv0", "backward"] == flops["conv0", "forward"] == 2 * 4 * 32 * 32 * 9 * 3 * 32
    assert flops["hidden", "forward"] == 2 * 4 * 128 * 256


def test_the_all_reduce_carries_the_gradients_of_all_parameters(
    trace: FrameworkTrace, rows: list[dict[str, Any]]
) -> None:
    calls = of(rows, kind="comm")
    assert [row["step"] for row in calls] == [3, 4]
    for row in calls:
        assert (row["collective"], row["group"], row["group_size"]) == ("all_reduce", "jax", 2)
        assert (row["in_bytes"], row["out_bytes"], row["dtype"]) == (
            4 * NUM_PARAMS,
            4 * NUM_PARAMS,
            "float32",
        )
    assert trace.groups == [{"name": "jax", "ranks": [0, 1]}]
    assert trace.world_size == 2


def test_nothing_that_encloses_operators_is_computation(rows: list[dict[str, Any]]) -> None:
    names = {row["name"] for row in of(rows, kind="compute")}
    assert not any("::" in name or name.startswith(("PjitFunction", "end:")) for name in names)
    for lane in {row["lane"] for row in rows}:
        spans = sorted(
            (row["start_ns"], row["start_ns"] + row["dur_ns"]) for row in of(rows, lane=lane, kind="compute")
        )
        assert all(first[1] <= second[0] for first, second in pairwise(spans))


def test_copies_to_the_device_are_seen_on_the_training_thread(rows: list[dict[str, Any]]) -> None:
    assert {row["name"] for row in of(rows, kind="copy")} == {"DevicePutWithSharding"}


def test_the_share_of_time_that_has_a_layer_is_told(trace: FrameworkTrace) -> None:
    assert len(trace.notes) == 1
    assert "of the operators' time has a layer" in trace.notes[0]


def test_scopes_take_the_names_of_layers_json(tmp_path: Path) -> None:
    """Flax's scopes begin with the model's class, its parameters do not."""
    windows = tmp_path / "windows"
    windows.mkdir()
    inside = gzip.decompress(PROFILE.read_bytes()).replace(b"(conv1)", b"(N/cv1)")
    (windows / "0.jax.xplane.pb").write_bytes(inside)
    assert of(read_jax(windows / "0.jax.xplane.pb").table(0, 0).to_pylist(), layer="N/cv1")
    (tmp_path / "layers.json").write_text(json.dumps({"root": "step", "layers": [{"layer": "cv1"}]}))
    rows = read_jax(windows / "0.jax.xplane.pb").table(0, 0).to_pylist()
    assert of(rows, layer="cv1") and of(rows, layer="conv2") and not of(rows, layer="N/cv1")


def test_a_profile_without_modules_keeps_its_times(tmp_path: Path) -> None:
    whole = gzip.decompress(PROFILE.read_bytes())
    path = tmp_path / "0.jax.xplane.pb"
    path.write_bytes(whole.replace(b"/host:metadata", b"/host:metadatb"))
    trace = read_jax(path)
    rows = trace.table(0, 0).to_pylist()
    assert len(of(rows, kind="compute", layer=None)) == len(of(rows, kind="compute")) > 100
    assert [row["collective"] for row in of(rows, kind="comm")] == ["all_reduce"] * 2
    assert "no compiled modules" in trace.notes[0]


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.999])
def test_a_profile_that_was_cut_off_says_so(tmp_path: Path, kept: float) -> None:
    whole = gzip.decompress(PROFILE.read_bytes())
    path = tmp_path / "0.jax.xplane.pb"
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(TraceError):
        read_jax(path)


def test_what_is_no_profile_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "0.jax.xplane.pb"
    path.write_bytes(b'{"traceEvents": []}')
    with pytest.raises(TraceError):
        read_jax(path)


def test_modules_are_found_by_name_and_number() -> None:
    modules = Modules(gzip.decompress(PROFILE.read_bytes()))
    module = modules.find("jit_step", None)
    assert module is not None and module.devices == (0, 2048)
    reduce = module.instructions["all-reduce"]
    assert (reduce.opcode, reduce.groups, reduce.operand_bytes) == ("all-reduce", ((0, 1),), 4 * NUM_PARAMS)
    assert modules.find("jit_step", 10**6) is None and modules.find("jit_other", None) is None


@pytest.mark.parametrize(
    ("op_name", "layer", "phase"),
    [
        ("jit(step)/transpose(jvp(head))/dot_general", "head", "backward"),
        ("jit(step)/jvp(Net)/Conv_0/conv_general_dilated", "Net/Conv_0", "forward"),
        ("jit(step)/jit(main)/transpose(jvp(Net))/Dense_0/dot_general", "Net/Dense_0", "backward"),
        ("jit(step)/shard_map/jvp(conv1)/jit(relu)/max", "conv1", "forward"),
        ("jit(step)/transpose(jvp(block))/checkpoint/rematted_computation/mlp/mul", "block/mlp", "backward"),
        ("jit(step)/while/body/closed_call/jvp(cell)/tanh", "cell", "forward"),
        ("jit(step)/jvp(vmap(attention))/add", "attention", "forward"),
        ("jit(step)/optimizer/mul", "optimizer", "optimizer"),
        ("jit(step)/jit(apply_updates)/add", None, "optimizer"),
        ("jit(step)/jvp(a)/mul;jit(step)/jvp(b)/add", "a", "forward"),
        ("jit(evaluate)/head/dot_general", "head", "other"),
        ("jit(step)/broadcast_in_dim", None, "other"),
        ("jit(step)/cond/branch_1_fun/loss/neg", "loss", "other"),
        ("", None, "other"),
    ],
)
def test_an_operators_name_tells_layer_and_phase(op_name: str, layer: str | None, phase: str) -> None:
    assert place_of(op_name)[:2] == (layer, phase)


def test_products_have_the_bytes_of_their_operands_and_result(rows: list[dict[str, Any]]) -> None:
    # 4 samples, 128 features in and 256 out; XLA may make two instructions of it.
    found = [row for row in of(rows, step=3, layer="hidden", kind="compute") if row["flops"]]
    assert found
    for row in found:
        assert row["bytes_read"] is not None and row["bytes_written"] is not None
    forward = [row for row in found if row["phase"] == "forward"]
    weights, inputs, outputs = 4 * 128 * 256, 4 * 4 * 128, 4 * 4 * 256
    assert sum(row["bytes_written"] for row in forward) >= outputs
    assert weights + inputs <= sum(row["bytes_read"] for row in forward) <= 2 * (weights + inputs + outputs)


def test_what_reads_a_part_of_its_operand_has_no_bytes(rows: list[dict[str, Any]]) -> None:
    parts = [row for row in rows if row["name"].startswith(("slice", "dynamic-slice", "gather"))]
    assert all(row["bytes_read"] is None for row in parts)


def test_calls_beside_the_profile_go_on_its_main_thread(tmp_path: Path, trace: FrameworkTrace) -> None:
    """XPlane numbers threads by itself: the probe's calls would stand on a second main thread."""
    windows = tmp_path / "ranks" / "0" / "windows"
    windows.mkdir(parents=True)
    (windows / "0.jax.xplane.pb.gz").write_bytes(PROFILE.read_bytes())
    _, start, end = trace.steps[0]
    row = [start + 10, end - start - 20, 4711, "comm", "other", None, "MPI.Allreduce"]
    call = [*row, "all_reduce", "world", 2, 80, 80, "float64", None]
    document = {
        "version": 1, "monotonic_ns": 0, "unix_ns": 0, "main_tid": 4711, "lanes": {}, "steps": [],
        "num_lost": 0, "columns": list(layout.CALL_COLUMNS), "rows": [call],
        "groups": [{"name": "world", "ranks": [0, 1]}],
    }  # fmt: skip
    (windows / "0.calls.json").write_text(json.dumps(document))
    (tmp_path / "run.json").write_text('{"schema_version": 1, "origin": "run", "status": "finished"}')
    (tmp_path / "ranks" / "0" / "rank.json").write_text('{"schema_version": 1, "rank": 0, "host": "a"}')
    [summary] = ingest_run(tmp_path)
    main = [lane for lane in summary.lanes if lane.role == "main"]
    assert len(main) == 1
    table = pq.read_table(next((tmp_path / "derived" / "timeline").glob("*.parquet")), partitioning=None)
    [found] = [one for one in table.to_pylist() if one["name"] == "MPI.Allreduce"]
    assert (found["lane"], found["step"], found["in_bytes"]) == (main[0].lane, 3, 80)
