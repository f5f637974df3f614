"""Layers: leaf attribution, work, and gradient buckets tied to the layers they carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analysis.buckets import match_buckets
from perfscope.analysis.layers import ModelFacts
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import cause_text, figure_text
from perfscope.rundir.records import LayerRow, LayersRecord
from perfscope.vocabulary.communication import Unattributed
from perfscope.vocabulary.figures import Figure
from tests.support.synthetic_run import EPOCH, SyntheticRun, comm, span

MODEL = {
    "root": "Net",
    "layers": [
        {"layer": "Net", "type": "Net", "params": 0, "param_bytes": 0, "param_shapes": []},
        {
            "layer": "conv",
            "type": "Conv2d",
            "params": 110,
            "param_bytes": 440,
            "param_shapes": [[10, 10], [10]],
        },
        {
            "layer": "norm",
            "type": "BatchNorm2d",
            "params": 20,
            "param_bytes": 80,
            "param_shapes": [[10], [10]],
        },
        {"layer": "head", "type": "Linear", "params": 55, "param_bytes": 220, "param_shapes": [[5, 10], [5]]},
    ],
}
FORWARD = {"phase": "forward"}
BACKWARD = {"phase": "backward"}


def mark(start: int, dur: int, layer: str) -> dict[str, Any]:
    return span(start, dur, "annotation", layer=layer, phase="forward", name=layer)


def step_of_net() -> list[dict[str, Any]]:
    return [
        mark(0, 400, "Net"),
        mark(0, 100, "conv"),
        span(10, 80, "compute", layer="conv", flops=1000, bytes_read=10, bytes_written=20, **FORWARD),
        span(20, 40, "compute", layer="conv", depth=1, **FORWARD),  # nested in the former
        mark(100, 50, "norm"),
        span(110, 30, "compute", layer="norm", **FORWARD),
        mark(150, 50, "head"),
        span(155, 30, "annotation", layer="head", phase="forward", name="my own mark"),
        span(160, 20, "compute", layer="head", **FORWARD),
        span(300, 10, "compute", layer="Net", **FORWARD),  # the root's own: a softmax, say
        span(400, 40, "compute", layer="head", **BACKWARD),
        span(440, 60, "compute", layer="norm", **BACKWARD),
        span(500, 100, "compute", layer="conv", flops=2000, **BACKWARD),
        comm(550, 100, 0, in_bytes=75 * 4),  # norm + head: 50 hidden, 50 exposed
        comm(650, 40, 1, in_bytes=110 * 4),  # conv: exposed
    ]


def analyze(path: Path, spans: list[dict[str, Any]], model: dict[str, Any] | None = None) -> RunAnalysis:
    run = SyntheticRun(path)
    run.rank(0)
    run.window(0, spans, [(0, 0, 1000)])
    run.write("ranks/0/layers.json", model or MODEL)
    return analyze_run(run.read())


def test_layers_get_their_own_operators_in_order_of_execution(tmp_path: Path) -> None:
    layers = analyze(tmp_path, step_of_net()).layers
    assert [layer.layer for layer in layers] == ["Net", "conv", "norm", "head"]
    assert [(layer.forward_ns, layer.backward_ns) for layer in layers] == [
        (10, 0),
        (80, 100),
        (30, 60),
        (20, 40),
    ]
    assert [layer.module_type for layer in layers] == ["Net", "Conv2d", "BatchNorm2d", "Linear"]
    assert [layer.calls for layer in layers] == [1, 1, 1, 1]
    assert [layer.num_params for layer in layers] == [0, 110, 20, 55]
    conv = layers[1]
    assert (conv.flops, conv.bytes) == (3000, 30)
    assert layers[2].flops is None and layers[2].bytes is None


def test_exposed_communication_goes_to_the_layers_of_the_bucket(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, step_of_net())
    exposed = {layer.layer: layer.exposed_comm_ns for layer in analysis.layers}
    assert exposed == {"Net": 0, "conv": 40, "norm": round(50 * 20 / 75), "head": round(50 * 55 / 75)}
    assert not [missing for missing in analysis.missing if "per layer" in figure_text(missing)]


def test_buckets_have_the_order_in_which_they_were_queued(tmp_path: Path) -> None:
    """Two threads of a backend may start the calls of a group in another order."""
    spans = step_of_net()
    del spans[-2:]
    spans.append(comm(550, 100, 0, in_bytes=110 * 4, launch_ns=EPOCH + 540))  # conv, queued last
    spans.append(comm(650, 40, 1, in_bytes=75 * 4, launch_ns=EPOCH + 530))  # norm + head
    exposed = {layer.layer: layer.exposed_comm_ns for layer in analyze(tmp_path, spans).layers}
    assert exposed == {"Net": 0, "conv": 50, "norm": round(40 * 20 / 75), "head": round(40 * 55 / 75)}


def test_buckets_that_do_not_add_up_tie_nothing_and_say_so(tmp_path: Path) -> None:
    spans = step_of_net()
    spans[-1]["in_bytes"] = 109 * 4
    analysis = analyze(tmp_path, spans)
    assert all(layer.exposed_comm_ns is None for layer in analysis.layers)
    assert any("do not add up" in cause_text(missing) for missing in analysis.missing)


def test_a_call_of_unknown_layer_leaves_no_layer_at_zero(tmp_path: Path) -> None:
    """An all-gather beside the buckets: activations of some layer, so that a zero would be a guess."""
    spans = [*step_of_net(), comm(700, 30, 2, collective="all_gather", in_bytes=400)]
    analysis = analyze(tmp_path, spans)
    assert {layer.layer: layer.exposed_comm_ns for layer in analysis.layers} == {
        "Net": None,
        "conv": 40,
        "norm": 13,
        "head": 37,
    }
    [why] = [cause_text(missing) for missing in analysis.missing if missing.figure is Figure.LAYER_COMM]
    assert "all_gather (30 ns)" in why and "30 ns of 120 ns per step" in why
    assert analysis.communication is not None
    [unattributed] = analysis.communication.unattributed
    assert unattributed.reason is Unattributed.NOT_QUEUED_IN_TRACE
    assert dict(unattributed.collectives) == {"all_gather": 30}
    assert analysis.communication.exposed_ns == 120


def test_a_hidden_call_takes_no_figure_away(tmp_path: Path) -> None:
    spans = [*step_of_net(), comm(520, 20, 2, collective="all_gather", in_bytes=400)]
    assert sum(layer.exposed_comm_ns or 0 for layer in analyze(tmp_path, spans).layers) == 90


def test_a_barrier_and_a_mean_loss_are_of_no_layer(tmp_path: Path) -> None:
    more = [comm(700, 30, 2, collective="barrier"), comm(740, 10, 3, in_bytes=4)]
    analysis = analyze(tmp_path, [*step_of_net(), *more])
    assert sum(layer.exposed_comm_ns or 0 for layer in analysis.layers) == 90
    assert analysis.communication is not None
    [unattributed] = analysis.communication.unattributed
    assert unattributed.reason is Unattributed.NO_LAYER_TENSORS
    assert dict(unattributed.collectives) == {"barrier": 30, "all_reduce": 10}
    [text] = [
        cause_text(missing) for missing in analysis.missing if missing.figure is Figure.COMM_OUTSIDE_LAYERS
    ]
    assert "barrier (30 ns) and all_reduce (10 ns)" in text


def test_gathers_of_all_parameters_are_those_of_the_layers(tmp_path: Path) -> None:
    """An optimizer that updated a part of each on every rank; in the order of registration."""
    sizes = (100, 10, 20, 55)  # weight and bias of conv; norm; head
    gathers = [
        comm(700 + 40 * k, 30, k, collective="all_gather", in_bytes=size * 4 // 2, out_bytes=size * 4)
        for k, size in enumerate(sizes)
    ]
    gathers[-1]["out_bytes"] = 57 * 4  # no size of a layer
    other = analyze(tmp_path / "other", [*step_of_net(), *gathers])
    assert sum(layer.exposed_comm_ns or 0 for layer in other.layers) == 90
    gathers[-1]["out_bytes"] = 55 * 4
    layers = {one.layer: one.exposed_comm_ns for one in analyze(tmp_path, [*step_of_net(), *gathers]).layers}
    assert layers == {"Net": 0, "conv": 40 + 60, "norm": 13 + 30, "head": 37 + 30}


def test_an_all_reduce_before_the_backward_pass_is_no_bucket(tmp_path: Path) -> None:
    """The sums of a loss over parts of the vocabulary, as large as a layer's gradients."""
    analysis = analyze(tmp_path, [*step_of_net(), comm(350, 30, 2, in_bytes=75 * 4)])
    assert {layer.layer: layer.exposed_comm_ns for layer in analysis.layers} == {
        "Net": None,
        "conv": 40,
        "norm": 13,
        "head": 37,
    }
    assert analysis.communication is not None
    [unattributed] = analysis.communication.unattributed
    assert unattributed.reason is Unattributed.NOT_QUEUED_IN_TRACE
    assert unattributed.exposed_ns == 30


def test_broadcast_statistics_are_the_normalization_layers(tmp_path: Path) -> None:
    """DistributedDataParallel sends running means and variances, 2 x 10 numbers, and one count of batches."""
    more = [
        comm(700, 30, 2, collective="broadcast", in_bytes=20 * 4),
        comm(740, 10, 3, collective="broadcast", in_bytes=8, dtype="int64"),
    ]
    layers = {one.layer: one.exposed_comm_ns for one in analyze(tmp_path, [*step_of_net(), *more]).layers}
    assert layers == {"Net": 0, "conv": 40, "norm": round(50 * 20 / 75 + 40), "head": round(50 * 55 / 75)}


def test_layers_are_averaged_over_steps_and_ranks(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    for rank, dur in ((0, 10), (1, 30)):
        run.rank(rank)
        calls = [mark(0, 50, "a"), mark(100, 50, "a"), mark(150, 20, "a")]
        ops = [span(0, dur, "compute", layer="a", **FORWARD), span(100, dur, "compute", layer="a", **FORWARD)]
        run.window(rank, [*calls, *ops], [(0, 0, 100), (1, 100, 200)])
    [layer] = analyze_run(run.read()).layers
    assert (layer.forward_ns, layer.calls) == (20, 1.5)


def test_on_a_gpu_kernels_decide_and_work_is_counted_once(tmp_path: Path) -> None:
    launched = {"device": 0, "lane": 7, "launch_ns": EPOCH, "launch_step": 0}
    spans = [
        span(0, 500, "compute", layer="conv", flops=100, **FORWARD),
        span(300, 70, "compute", layer="conv", flops=100, **launched, **FORWARD),
    ]
    [layer] = analyze(tmp_path, spans).layers
    assert (layer.forward_ns, layer.flops) == (70, 100)


def test_device_work_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    kernel = {"device": 0, "lane": 7, "launch_ns": EPOCH, "layer": "conv", **FORWARD}
    spans = [
        span(100, 50, "compute", **kernel, launch_step=-1),  # launched before the first step
        span(300, 60, "compute", **kernel, launch_step=0),
        span(5000, 70, "compute", **kernel, launch_step=0),  # the device lags behind
    ]
    [layer] = analyze(tmp_path, spans).layers
    assert layer.forward_ns == 130


def test_a_trace_without_layers_says_so(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, [span(0, 10, "compute")])
    assert analysis.layers == ()
    assert any(figure_text(missing) == "layers" for missing in analysis.missing)


ORDER = [("c", (7, 3)), ("b", ()), ("a", (50, 5))]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([65], [{"c": 10, "a": 55}]),
        ([10, 55], [{"c": 10}, {"a": 55}]),
        ([13 + 2, 50], [{"c": 10, "a": 5}, {"a": 50}]),  # cut inside a layer, bias first
        ([60, 5], [{"c": 10, "a": 50}, {"a": 5}]),  # or weight first
        ([3, 7, 55], [{"c": 3}, {"c": 7}, {"a": 55}]),
        ([10, 1, 55], [{"c": 10}, None, {"a": 55}]),  # a mean loss in between is no bucket
        ([1, 65, 2], [None, {"c": 10, "a": 55}, None]),
        ([64], None),
        ([10, 54], None),
        ([10], None),
        ([], None),
    ],
)
def test_buckets_are_cut_from_the_order_exactly_or_not_at_all(
    sizes: list[int], expected: list[dict[str, int] | None] | None
) -> None:
    assert match_buckets([ORDER], sizes) == expected


def test_the_last_bucket_may_be_padded_so_that_the_ranks_share_it_equally() -> None:
    total = sum(sum(counts) for _, counts in ORDER)
    whole = {layer: sum(counts) for layer, counts in ORDER if counts}
    assert match_buckets([ORDER], [total + 3], 4) == [whole]
    assert match_buckets([ORDER], [total + 3], 3) is None


def test_the_second_order_is_tried_when_the_first_does_not_fit() -> None:
    assert match_buckets([ORDER, list(reversed(ORDER))], [55, 10]) == [{"a": 55}, {"c": 10}]


def test_parameters_without_elements_carry_no_communication() -> None:
    """Of a rank that holds no part of a divided parameter; no call is divided by their sizes."""
    rows = (LayerRow(layer="a", type="Linear", params=8, param_shapes=((0, 4), (8,))),)
    assert ModelFacts.of(LayersRecord(root="Net", layers=rows)).shapes == (("a", (8,)),)
