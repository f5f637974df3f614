"""The backward of a layer is found whatever stands between the autograd engine and the node."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfscope.ingest.classify import HostClass
from perfscope.ingest.scopes import complete_wrappers
from perfscope.ingest.spill import HOST
from tests.support.ingest_traces import AUTOGRAD, TRACES, Json, document, ingest, note, span, text_of

HOOKS = TRACES / "cpu_grad_hooks"
WRAPPER = "autograd::engine::evaluate_function: "
# Of the network of train.py there. Forward: 2 * multiply-adds of a batch of 8.
FORWARD = {"conv": 2 * 8 * 4 * 8 * 8 * 3 * 3 * 3, "fc": 2 * 8 * 256 * 10, "head": 2 * 8 * 10 * 5}
# Backward: as much for the weight, as much for the input; the network's input needs no gradient.
BACKWARD = {"conv": FORWARD["conv"], "fc": 2 * FORWARD["fc"], "head": 2 * FORWARD["head"]}


@pytest.mark.parametrize("name", ["hooks", "fsdp2"])
def test_layers_whose_nodes_have_pre_hooks_get_forward_and_backward_flops(tmp_path: Path, name: str) -> None:
    trace = HOOKS / f"{name}.json.gz"
    events = json.loads(text_of(trace))["traceEvents"]
    assert any(
        event.get("name", "").startswith(WRAPPER + "ConvolutionBackward0")
        and "Sequence number" not in event["args"]
        for event in events
    )  # what this is about
    found = ingest(tmp_path, trace)

    def flops(phase: str, layer: str) -> int:
        rows = [row for row in found.rows if (row["phase"], row["layer"]) == (phase, layer)]
        return sum(row["flops"] or 0 for row in rows if row["name"].endswith(("mm", "linear", "conv2d")))

    def backward(layer: str) -> int:
        rows = [row for row in found.rows if (row["phase"], row["layer"]) == ("backward", layer)]
        products = ("aten::mm", "aten::addmm", "aten::convolution_backward")
        return sum(row["flops"] or 0 for row in rows if row["name"] in products)

    assert {layer: flops("forward", layer) for layer in FORWARD} == FORWARD
    assert {layer: backward(layer) for layer in BACKWARD} == BACKWARD


def test_the_gradient_of_a_bias_and_the_hook_itself_belong_to_the_layer_too(tmp_path: Path) -> None:
    found = ingest(tmp_path, HOOKS / "hooks.json.gz")
    backward = [row for row in found.rows if row["phase"] == "backward"]
    for layer in ("conv", "fc"):
        assert [row["name"] for row in backward if row["layer"] == layer].count("aten::mul") == 1
    assert {row["layer"] for row in backward if row["name"] == "aten::sum"} == {"fc", "head"}


def test_waiting_in_the_reduction_of_fsdp2_is_no_compute(tmp_path: Path) -> None:
    found = ingest(tmp_path, HOOKS / "fsdp2.json.gz")
    rows = found.named("RegisterPostBackwardFunctionBackward")
    assert rows
    assert {(row["kind"], row["phase"]) for row in rows} == {("host", "backward")}


def forward_of(layer: str, sequence: int, start: float) -> list[Json]:
    args: Json = {"Sequence_number": sequence, "Fwd_thread_id": 0}
    return [note(f"perfscope.layer:{layer}", start, 20), span("aten::sin", start + 5, 5, **args)]


def test_a_wrapper_without_a_number_takes_that_of_its_own_node_and_of_no_other(tmp_path: Path) -> None:
    numbered: Json = {"Fwd_thread_id": 1, "tid": AUTOGRAD}
    events = [
        *forward_of("a", 1, 0),
        *forward_of("b", 2, 100),
        # A hook that runs a backward of its own in between.
        span(WRAPPER + "SinBackward0", 200, 100, tid=AUTOGRAD),
        span("aten::neg", 205, 5, tid=AUTOGRAD),
        span(WRAPPER + "SinBackward0", 220, 20, tid=AUTOGRAD),
        span("SinBackward0", 225, 10, Sequence_number=2, **numbered),
        span("aten::cos", 226, 5, tid=AUTOGRAD),
        span("SinBackward0", 250, 40, Sequence_number=1, **numbered),
        span("aten::tan", 255, 5, tid=AUTOGRAD),
        # A wrapper that never had a number, and one whose node is a Python Function's.
        span(WRAPPER + "torch::autograd::AccumulateGrad", 300, 20, tid=AUTOGRAD),
        span("torch::autograd::AccumulateGrad", 305, 10, tid=AUTOGRAD),
        span("aten::add_", 306, 5, tid=AUTOGRAD),
        span(WRAPPER + "MineBackward", 330, 40, tid=AUTOGRAD),
        span("MineBackward", 340, 20, Sequence_number=1, **numbered),
        span("aten::exp", 345, 5, tid=AUTOGRAD),
    ]
    found = ingest(tmp_path, document(events))
    names = ("aten::neg", "aten::cos", "aten::tan", "aten::add_", "aten::exp")
    assert [(found.one(name)["phase"], found.one(name)["layer"]) for name in names] == [
        ("backward", None),
        ("backward", "b"),
        ("backward", "a"),
        ("backward", None),
        ("backward", "a"),
    ]


def test_a_node_whose_wrapper_began_before_these_rows_stands_for_itself() -> None:
    rows = np.zeros(3, HOST)
    rows["start"], rows["dur"] = [10, 100, 110], [50, 50, 20]
    rows["sequence"], rows["forward_thread"] = [7, -1, 8], [1, -1, 1]
    completed, bare = complete_wrappers(rows, np.array([HostClass.NODE, HostClass.WRAPPER, HostClass.NODE]))
    assert bare.tolist() == [True, False, False]
    assert completed["sequence"].tolist() == [7, 8, 8]
    assert rows["sequence"].tolist() == [7, -1, 8]
