"""Nesting, phases, layers, launches: small traces in which the right answer is plain to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ingest_traces import (
    AUTOGRAD,
    BACKEND,
    MAIN,
    Json,
    document,
    ingest,
    kernel,
    launch,
    note,
    shapes,
    span,
)

MM = shapes([[4, 8], [8, 2]], ["float", "float"])


def backward(
    name: str, start: float, dur: float, sequence: int, *, thread: int = 1, tid: int = AUTOGRAD
) -> list[Json]:
    """A backward node in its wrapper."""
    args: Json = {"Sequence_number": sequence, "Fwd_thread_id": thread}
    wrapper = span(f"autograd::engine::evaluate_function: {name}", start, dur, tid=tid, **args)
    return [wrapper, span(name, start + 1, dur - 2, tid=tid, **args)]


def test_only_the_outermost_operator_becomes_a_row(tmp_path: Path) -> None:
    events = [span("aten::linear", 0, 50), span("aten::addmm", 10, 30), span("aten::view", 60, 5)]
    found = ingest(tmp_path, document(events))
    assert [row["name"] for row in found.rows] == ["aten::linear", "aten::view"]
    assert found.summary.events_skipped == 1


def test_what_vmap_maps_over_counts_with_the_innermost_operators(tmp_path: Path) -> None:
    one, transposed = [[1, 8], [8, 2]], ["float", "float"]
    events = [
        span("aten::linear", 0, 90, **shapes([[1, 8], [2, 8]], transposed)),
        span("aten::mm", 10, 70, **shapes(one, transposed)),
        span("aten::mm", 12, 60, **shapes(one, transposed)),
        span("aten::matmul", 15, 50, **shapes([[32, 1, 8], [8, 2]], transposed)),
        span("aten::mm", 20, 30, **shapes([[32, 8], [8, 2]], transposed)),
        span("aten::sum", 100, 20, **shapes([[4, 8]], ["float"])),  # with all dimensions: runs itself again
        span("aten::sum", 105, 10, **shapes([[4, 8]], ["float"])),
    ]
    found = ingest(tmp_path, document(events))
    assert [(row["name"], row["start_ns"] // 1000, row["flops"]) for row in found.rows if row["flops"]] == [
        ("aten::mm", found.one("aten::linear")["start_ns"] // 1000 + 20, 2 * 32 * 8 * 2),
        ("aten::sum", found.one("aten::linear")["start_ns"] // 1000 + 100, 4 * 8),
    ]


def test_the_cost_of_a_nest_is_counted_once_on_the_outermost_operator_that_has_one(tmp_path: Path) -> None:
    events = [
        span("aten::einsum", 0, 50),  # no model
        span("aten::mm", 10, 30, **MM),
        span("aten::mm", 15, 5, **MM),
        span("aten::mm", 60, 5, **MM),
    ]
    found = ingest(tmp_path, document(events))
    assert [(row["name"], row["depth"], row["flops"]) for row in found.rows] == [
        ("aten::einsum", 0, None),
        ("aten::mm", 1, 128),
        ("aten::mm", 0, 128),
    ]


def test_an_operator_on_a_dtensor_costs_what_it_does_on_this_rank(tmp_path: Path) -> None:
    """As torch records a column-wise linear layer: the outer operators have global shapes."""
    events = [
        span("aten::linear", 0, 90, **shapes([[4, 8], [2, 8]], ["float", "float"])),
        span("aten::mm", 10, 70, **MM),
        span("PythonSubclass", 12, 60, **MM),
        span("aten::mm", 20, 30, **shapes([[4, 8], [8, 1]], ["float", "float"])),
        span("aten::mm", 100, 10, **MM),  # on a plain tensor
    ]
    found = ingest(tmp_path, document(events))
    assert [(row["name"], row["dur_ns"], row["flops"]) for row in found.rows] == [
        ("aten::linear", 90_000, None),
        ("aten::mm", 30_000, 2 * 4 * 8),
        ("aten::mm", 10_000, 2 * 4 * 8 * 2),
    ]


def test_an_operator_that_waits_for_a_collective_hides_no_communication(tmp_path: Path) -> None:
    """A sum of DTensors, one of which is not yet there."""
    events = [
        span("aten::add", 0, 100),
        span("PythonSubclass", 5, 90),
        span("_c10d_functional::wait_tensor", 10, 60),
        span("aten::add", 75, 15),
        span("gloo:all_reduce", 0, 65, tid=BACKEND),
    ]
    found = ingest(tmp_path, document(events))
    assert [(row["name"], row["kind"], row["dur_ns"]) for row in found.rows if row["lane"] == MAIN] == [
        ("aten::add", "host", 100_000),
        ("PythonSubclass", "host", 90_000),
        ("_c10d_functional::wait_tensor", "host", 60_000),
        ("aten::add", "compute", 15_000),
    ]


def test_operators_inside_a_python_autograd_function_are_kept(tmp_path: Path) -> None:
    events = [
        span("MyFunction", 0, 50),
        span("aten::mul", 10, 30),
        span("aten::copy_", 12, 3),
        span("detach", 15, 5),
    ]
    found = ingest(tmp_path, document(events))
    assert [(row["name"], row["kind"], row["depth"]) for row in found.rows] == [
        ("MyFunction", "compute", 0),
        ("aten::mul", "compute", 1),
    ]


def test_a_region_that_waits_for_a_collective_hides_no_communication(tmp_path: Path) -> None:
    events = [
        span("GatherBackward", 0, 100),
        span("aten::cat", 0, 10),
        span("c10d::allreduce_", 10, 5),
        span("MyFunction", 200, 50),
        note("gloo:all_reduce", 12, 80, tid=BACKEND),
    ]
    found = ingest(tmp_path, document(events))
    kinds = {row["name"]: row["kind"] for row in found.rows}
    assert kinds["GatherBackward"] == "host"
    assert kinds["aten::cat"] == kinds["MyFunction"] == "compute"
    assert kinds["gloo:all_reduce"] == "comm"


def test_backward_wrappers_are_host_and_the_operators_inside_compute(tmp_path: Path) -> None:
    events = [*backward("MmBackward0", 0, 50, 7), span("aten::mm", 10, 20, tid=AUTOGRAD)]
    found = ingest(tmp_path, document(events))
    assert [(row["name"], row["kind"], row["phase"]) for row in found.rows] == [
        ("MmBackward0", "host", "backward"),
        ("aten::mm", "compute", "backward"),
    ]


def test_backward_finds_the_layer_of_the_last_forward_operator_with_its_sequence_number(
    tmp_path: Path,
) -> None:
    events = [
        note("perfscope.step:0", 0, 1000),
        note("perfscope.layer:a", 10, 90),
        span("aten::mm", 20, 10, Sequence_number=4, Fwd_thread_id=0),
        span("aten::size", 40, 10, Sequence_number=5, Fwd_thread_id=0),  # reads 5 without using it
        note("perfscope.layer:b", 110, 90),
        span("aten::relu", 120, 10, Sequence_number=5, Fwd_thread_id=0),
        *backward("ReluBackward0", 300, 50, 5),
        span("aten::threshold_backward", 310, 10, tid=AUTOGRAD),
        *backward("MmBackward0", 400, 50, 4),
        span("aten::mm", 410, 10, tid=AUTOGRAD),
        *backward("torch::autograd::AccumulateGrad", 500, 10, -1),
    ]
    found = ingest(tmp_path, document(events))
    layers = {row["name"]: row["layer"] for row in found.rows if row["phase"] == "backward"}
    assert layers == {
        "ReluBackward0": "b",
        "aten::threshold_backward": "b",
        "MmBackward0": "a",
        "aten::mm": "a",
        "torch::autograd::AccumulateGrad": None,
    }


def test_forward_that_runs_again_inside_backward_is_backward_of_its_layer(tmp_path: Path) -> None:
    events = [
        note("perfscope.layer:a", 10, 90),
        span("aten::mm", 20, 10, Sequence_number=1, Fwd_thread_id=0),
        *backward("CheckpointFunctionBackward", 300, 200, 1),
        note("perfscope.layer:a.inner", 310, 50, tid=AUTOGRAD),
        # The thread that recomputes counts for itself: number 1 again, of its own.
        span("aten::sin", 320, 10, tid=AUTOGRAD, Sequence_number=1, Fwd_thread_id=0),
        *backward("SinBackward0", 400, 50, 1, thread=2),
        span("aten::cos", 410, 10, tid=AUTOGRAD),
    ]
    found = ingest(tmp_path, document(events))
    assert [(found.one(n)["phase"], found.one(n)["layer"]) for n in ("aten::sin", "aten::cos")] == [
        ("backward", "a.inner"),
        ("backward", "a.inner"),
    ]
    assert found.one("aten::mm")["phase"] == "forward"


def test_optimizer_input_and_step_marks_set_kind_and_phase(tmp_path: Path) -> None:
    events = [
        note("perfscope.step:7", 0, 100),
        note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 10),
        span("aten::stack", 6, 2),
        span("aten::mul", 20, 5),
        note("Optimizer.step#SGD.step", 50, 20),
        span("aten::_foreach_add_", 55, 10),
        note("Optimizer.zero_grad#SGD.zero_grad", 75, 5),
        note("perfscope.step:8", 100, 50),
        note("perfscope.input", 105, 10),
        span("aten::sub", 155, 5),
    ]
    found = ingest(tmp_path, document(events))
    assert {row["name"]: (row["kind"], row["phase"], row["step"]) for row in found.rows} == {
        "perfscope.step:7": ("annotation", "forward", 7),
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": ("input", "other", 7),
        "aten::stack": ("compute", "other", 7),
        "aten::mul": ("compute", "forward", 7),
        "Optimizer.step#SGD.step": ("optimizer", "optimizer", 7),
        "aten::_foreach_add_": ("compute", "optimizer", 7),
        "Optimizer.zero_grad#SGD.zero_grad": ("optimizer", "optimizer", 7),
        "perfscope.step:8": ("annotation", "forward", 8),
        "perfscope.input": ("input", "other", 8),
        "aten::sub": ("compute", "other", -1),
    }


def test_perfscope_steps_win_over_profiler_steps_and_reach_to_the_next(tmp_path: Path) -> None:
    events = [
        note("ProfilerStep#1", 0, 40),
        note("perfscope.step:5", 1, 30),
        note("ProfilerStep#2", 50, 40),
        note("perfscope.step:6", 51, 30),
        span("aten::mul", 45, 2),
    ]
    found = ingest(tmp_path, document(events))
    assert found.summary.step_source == "perfscope"
    assert found.summary.steps == ((5, 1_000, 51_000), (6, 51_000, 81_000))
    assert found.one("aten::mul")["step"] == 5
    without = ingest(
        tmp_path / "b", document([event for event in events if "perfscope" not in event["name"]])
    )
    assert (without.summary.step_source, [s for s, _, _ in without.summary.steps]) == ("ProfilerStep", [1, 2])


def test_kernels_take_step_phase_and_layer_from_their_launch(tmp_path: Path) -> None:
    events = [
        note("ProfilerStep#0", 0, 100),
        note("perfscope.layer:head", 10, 50),
        span("aten::mm", 20, 20),
        launch(25, 11),
        launch(70, 12),
        note("ProfilerStep#1", 100, 100),
        kernel("gemm", 150, 10, 11),  # runs a step later
        kernel("fill", 165, 10, 12),
        kernel("Memcpy HtoD", 180, 5, 99, cat="gpu_memcpy", bytes=4096),
    ]
    found = ingest(tmp_path, document(events))
    gemm, fill, copy = (found.one(name) for name in ("gemm", "fill", "Memcpy HtoD"))
    assert (gemm["step"], gemm["launch_step"], gemm["launch_ns"]) == (1, 0, 25_000)
    assert (gemm["phase"], gemm["layer"], gemm["kind"]) == ("forward", "head", "compute")
    assert (fill["layer"], fill["launch_step"]) == (None, 0)
    assert (copy["kind"], copy["launch_ns"], copy["launch_step"]) == ("copy", None, None)
    assert (copy["bytes_read"], copy["bytes_written"]) == (4096, 4096)
    assert found.one("aten::mm")["kind"] == "host"  # on a host that feeds a device
    assert found.summary.events_cut == 1  # the copy


def test_a_kernel_whose_clock_runs_ahead_of_its_launch_still_finds_it(tmp_path: Path) -> None:
    found = ingest(tmp_path, document([kernel("gemm", 10, 5, 3), launch(11, 3), kernel("gemm", 30, 5, 3)]))
    assert [row["launch_ns"] for row in found.named("gemm")] == [
        11_000,
        11_000,
    ]  # a graph: two kernels, one launch


def test_c10d_operators_communicate_only_where_nothing_nearer_was_recorded(tmp_path: Path) -> None:
    op = span("c10d::allreduce_", 0, 50, **shapes([[[6]]], ["TensorList"]))
    alone = ingest(tmp_path / "a", document([op]))
    assert (alone.one("c10d::allreduce_")["kind"], alone.one("c10d::allreduce_")["collective"]) == (
        "comm",
        "all_reduce",
    )
    gloo = note("gloo:all_reduce", 10, 30, tid=BACKEND, **shapes([[6]], ["float"]))
    both = ingest(tmp_path / "b", document([op, gloo]))
    assert both.one("c10d::allreduce_")["kind"] == "host"
    row = both.one("gloo:all_reduce")
    assert (row["kind"], row["device"], row["in_bytes"], row["dtype"]) == ("comm", -1, 24, "float32")
    assert [lane.role for lane in both.summary.lanes if lane.lane == BACKEND] == ["backend"]


def test_arguments_of_a_collective_kernel_are_taken_as_they_are(tmp_path: Path) -> None:
    args: Json = {
        "Collective_name": "_allgather_base",
        "In_msg_nelems": 1000,
        "Out_msg_nelems": 4000,
        "Group_size": 4,
        "dtype": "BFloat16",
        "Process_Group_Name": "7",
        "Process_Group_Ranks": "[0, 1, 2, 3]",
    }
    events = [
        launch(1, 5),
        kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 5, 5, 5, **args),
    ]
    events += [
        launch(11, 6),
        kernel("ncclDevKernel_SendRecv(x)", 15, 5, 6, Collective_name="recv", Src_Rank=3, dtype="Float"),
    ]
    found = ingest(tmp_path, document(events))
    gather, receive = (row for row in found.rows if row["kind"] == "comm")
    assert [
        gather[c] for c in ("collective", "group", "group_size", "in_bytes", "out_bytes", "dtype", "seq")
    ] == [
        *("all_gather", "7", 4, 2000, 8000, "bfloat16", 0),
    ]
    assert (receive["collective"], receive["peer"]) == ("recv", 3)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([], ("default", 2)),
        ([{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}], ("0", 2)),
        ([{"pg_name": "0", "pg_size": 2}, {"pg_name": "1", "pg_size": 1}], ("unknown", None)),
    ],
)
def test_the_group_of_a_gloo_span_is_named_only_if_there_is_one(
    tmp_path: Path, groups: list[dict[str, object]], expected: tuple[str, int | None]
) -> None:
    events = [note("gloo:all_reduce", 10, 30, tid=BACKEND, **shapes([[6]], ["float"]))]
    found = ingest(
        tmp_path, document(events, distributedInfo={"rank": 0, "world_size": 2, "pg_config": groups})
    )
    assert (found.rows[0]["group"], found.rows[0]["group_size"]) == expected


def test_module_frames_give_layers_unless_there_are_marks(tmp_path: Path) -> None:
    def frame(name: str, start: float, dur: float) -> dict[str, object]:
        return span(name, start, dur, cat="python_function")

    frames = [
        frame("train.py(1): <module>", 0, 100),
        frame("nn.Module: DistributedDataParallel_0", 1, 90),
        frame("nn.Module: Net_0", 2, 80),
        frame("nn.Module: Linear_3", 10, 20),
        span("aten::linear", 12, 10),
    ]
    found = ingest(tmp_path / "a", document(frames))
    assert found.one("aten::linear")["layer"] == "Net_0.Linear_3"
    assert {row["name"] for row in found.rows if row["kind"] == "annotation"} == {
        *("DistributedDataParallel_0", "Net_0", "Net_0.Linear_3"),
    }
    marked = ingest(tmp_path / "b", document([*frames, note("perfscope.layer:fc", 11, 15)]))
    assert marked.one("aten::linear")["layer"] == "fc"
    assert [row["name"] for row in marked.rows] == ["fc", "aten::linear"]


def test_depth_counts_the_kept_spans_around_a_row(tmp_path: Path) -> None:
    events = [
        note("outer", 0, 100),
        span("autograd::engine::evaluate_function: X", 5, 80),  # no row, so no depth
        span("XBackward0", 6, 70),
        span("aten::mm", 10, 30),
        span("aten::mm", 40, 0),
        span("aten::mm", 120, 5),
    ]
    found = ingest(tmp_path, document(events))
    assert [row["depth"] for row in found.rows] == [0, 1, 2, 2, 0]


def test_integer_microsecond_rounding_does_not_break_nesting(tmp_path: Path) -> None:
    # Truncation makes the child end 1 µs after its parent.
    events = [
        note("perfscope.layer:a", 10, 10),
        span("aten::mm", 15, 6),
        note("perfscope.layer:b", 21, 10),
        span("aten::mm", 22, 3),
    ]
    found = ingest(tmp_path, document(events))
    assert [row["layer"] for row in found.named("aten::mm")] == ["a", "b"]


@pytest.mark.parametrize("marked", [True, False])
def test_what_a_closure_runs_is_no_time_of_the_optimizer(tmp_path: Path, marked: bool) -> None:
    """Marks of closures are perfscope's own; an imported trace has the layers and the backward nodes."""
    events = [
        span("Optimizer.step#SGD.step", 0, 100, cat="user_annotation"),
        *([span("perfscope.closure", 5, 60, cat="user_annotation")] if marked else []),
        span("Optimizer.zero_grad#SGD.zero_grad", 6, 4, cat="user_annotation"),
        span("aten::zero_", 7, 2),
        span("perfscope.layer:fc", 10, 20, cat="user_annotation"),
        span("aten::mm", 12, 10, **MM),
        span("aten::mse_loss", 32, 4),
        *backward("MseLossBackward0", 40, 20, 3, tid=MAIN),
        span("aten::mul", 45, 5),
        span("aten::_foreach_add_", 70, 20),
    ]
    found = ingest(tmp_path, document(events))
    phases = {row["name"]: row["phase"] for row in found.rows if str(row["name"]).startswith("aten::")}
    assert phases == {
        "aten::zero_": "optimizer",
        "aten::mm": "forward",
        "aten::mse_loss": "forward" if marked else "optimizer",
        "aten::mul": "backward",
        "aten::_foreach_add_": "optimizer",
    }
