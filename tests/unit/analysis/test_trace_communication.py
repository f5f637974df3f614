"""Communication of imported traces: groups, sizes, layers and axes, from what the files hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.analysis.communication_of_run import with_ports
from perfscope.analysis.machine.results import WireBytes
from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.ingest.classify import ACCUMULATE, BACKWARD_WRAPPER
from perfscope.ingest.importing import import_traces
from perfscope.rundir import layout
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.communication import Unattributed
from perfscope.vocabulary.figures import Figure
from perfscope.vocabulary.links import LinkClass, NoLink
from tests.support.ingest_traces import AUTOGRAD, TRACES, Json, document, kernel, launch, note, shapes, span

MEGABYTE = 1 << 20


def analyzed(folder: Path, *events: Json, **fields: object) -> RunAnalysis:
    """One rank's trace of these events."""
    trace = folder / "rank-0.json"
    trace.write_bytes(document(events, **fields))
    import_traces([trace], folder / "run")
    return analyze_run(RunReader(folder / "run"))


def device_call(name: str, at: float, stream: int, *, out: int, given: int) -> list[Json]:
    """An NCCL call as torch 2.0 records it: operator, launch, and a kernel that does not say which."""
    arguments = shapes([[out], [given], [], []], ["float", "float", "", ""])
    correlation = int(at) + 1
    return [
        span(f"c10d::{name}", at, 20, **arguments),
        launch(at + 5, correlation),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", at + 30, 50, correlation, stream=stream),
    ]


def test_sub_groups_have_the_size_that_input_and_output_tell(tmp_path: Path) -> None:
    """Independent figures: 587,202,560 bytes, 107.6 and 135.3 GB/s on groups of 8 in a world of 16."""
    import_traces([TRACES / "a100_8of16"], tmp_path / "run")
    analysis = analyze_run(RunReader(tmp_path / "run"))
    calls = {(entry.collective, entry.group): entry for entry in analysis.collectives}
    gather = calls["all_gather", "unknown (stream 285)"]
    scatter = calls["reduce_scatter", "unknown (stream 285)"]
    assert (gather.group_size, gather.bytes, scatter.group_size, scatter.bytes) == (
        *(8, 587_202_560),
        *(8, 587_202_560),
    )
    assert gather.busbw_with_wait_bytes_per_s == pytest.approx(107.6e9, rel=1e-3)
    assert scatter.busbw_with_wait_bytes_per_s == pytest.approx(135.3e9, rel=1e-3)
    others = [entry for key, entry in calls.items() if key[1] != "unknown (stream 285)"]
    assert {entry.group for entry in others} == {"unknown (stream 84)", "unknown (stream 363)"}
    assert all(entry.group_size is None and entry.busbw_with_wait_bytes_per_s is None for entry in others)
    device = analysis.ranks[0].device_ns
    assert device is not None
    assert (device.span, device.compute, device.comm, device.exposed_comm, device.idle) == (
        *(1_231_461_000, 210_998_000, 187_870_000),
        *(185_317_000, 793_037_000),
    )


def test_a_file_whose_calls_all_span_the_world_has_one_group(tmp_path: Path) -> None:
    world = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 4}}
    events = [
        note("ProfilerStep#1", 0, 1000),
        *device_call("_allgather_base_", 100, 20, out=4 * MEGABYTE, given=MEGABYTE),
        *device_call("alltoall_base_", 300, 20, out=MEGABYTE, given=MEGABYTE),
    ]
    analysis = analyzed(tmp_path, *events, **world)
    assert {(entry.collective, entry.group, entry.group_size) for entry in analysis.collectives} == {
        ("all_gather", "default", 4),
        ("all_to_all", "default", 4),
    }


def test_a_group_of_the_list_is_known_by_its_size(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "0", "pg_size": 8, "ranks": [*range(8)]},
        {"pg_name": "1", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "2", "pg_size": 4, "ranks": [0, 2, 4, 6]},
    ]
    info = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8, "pg_config": groups}}
    events = [
        note("ProfilerStep#1", 0, 1000),
        *device_call("_allgather_base_", 100, 20, out=4 * MEGABYTE, given=MEGABYTE),
        *device_call("alltoall_base_", 300, 20, out=MEGABYTE, given=MEGABYTE),
    ]
    analysis = analyzed(tmp_path, *events, **info)
    assert {(entry.collective, entry.group, entry.group_size) for entry in analysis.collectives} == {
        ("all_gather", "2", 4),
        ("all_to_all", "unknown", None),
    }


def test_spans_without_a_name_are_communication(tmp_path: Path) -> None:
    events = [
        note("ProfilerStep#1", 0, 1000),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 100, 50, 7),
    ]
    missing = analyzed(tmp_path, *events).missing
    assert Figure.COMM_SPANS in {entry.figure for entry in missing}
    assert Cause.NO_COMMUNICATION not in {entry.cause for entry in missing}


def test_a_thread_waits_for_the_message_that_ends_first(tmp_path: Path) -> None:
    """gloo's span of a message ends when it has been waited for, perhaps long after it was sent."""
    events = [
        note("ProfilerStep#1", 0, 1000),
        note("gloo:send", 100, 800),
        note("gloo:recv", 200, 300),
    ]
    communication = analyzed(tmp_path, *events).communication
    assert communication is not None
    (entry,) = communication.unattributed
    assert entry.collectives == {"send": 500_000, "recv": 300_000}
    assert communication.exposed_ns == 800_000


def test_one_group_may_serve_two_axes(tmp_path: Path) -> None:
    """DLRM: the world's gradients are data parallel, its exchange of embeddings is neither that nor ep."""
    import_traces([TRACES / "dlrm_v100_8ranks"], tmp_path / "run")
    communication = analyze_run(RunReader(tmp_path / "run")).communication
    assert communication is not None
    axes = {entry.axis: entry for entry in communication.by_axis}
    assert {axis: (entry.calls, entry.inferred, entry.group_size) for axis, entry in axes.items()} == {
        "world": (5, False, 8),
        "dp": (3, True, 8),
    }
    assert [entry.reason for entry in communication.unattributed] == [Unattributed.NO_LAYERS]


def test_buckets_of_a_trace_have_the_layers_of_the_gradients_before_them(tmp_path: Path) -> None:
    """ResNet-18 on MI300: two buckets of 2,873,320 and 8,816,192 bfloat16 gradients."""
    import_traces([TRACES / "mi300_resnet"], tmp_path / "run")
    communication = analyze_run(RunReader(tmp_path / "run")).communication
    assert communication is not None
    assert communication.unattributed == ()  # the device reduces after the host has left the step
    layers = {entry.layer.rpartition(".")[2]: entry for entry in communication.by_layer}
    assert len(layers) == 42  # 20 convolutions, 20 normalizations, the classifier, the buffers' broadcast
    in_buckets = [entry.bytes or 0 for name, entry in layers.items() if not name.startswith("Distributed")]
    assert sum(in_buckets) == 2 * 11_689_512  # of two bytes each
    assert layers["Conv2d_19"].bytes == 2 * 512 * 512 * 9
    assert layers["Linear_0"].bytes == 2 * 513 * 1000
    assert {entry.axis for entry in communication.by_axis} == {"dp"}


def backward(gradients: list[int], reduced: int, *, at: float = 100) -> list[Json]:
    """The backward pass of operators 1, 2 ... and in it an all-reduce of `reduced` elements."""
    events: list[Json] = []
    for number, elements in enumerate(gradients):
        start = at + 20 * number
        node: Json = {"Sequence_number": 1 + number, "Fwd_thread_id": 1}
        events += [
            span(f"{BACKWARD_WRAPPER} MulBackward0", start, 8, tid=AUTOGRAD, **node),
            span("MulBackward0", start + 1, 6, tid=AUTOGRAD, **node),
            span(f"{BACKWARD_WRAPPER} {ACCUMULATE}", start + 9, 10, tid=AUTOGRAD),
            span(ACCUMULATE, start + 10, 1, tid=AUTOGRAD, **shapes([[elements]], ["float"])),
        ]
    end = at + 20 * len(gradients)
    if reduced:
        events += [
            span("c10d::allreduce_", end - 8, 6, tid=AUTOGRAD),
            note("nccl:all_reduce", end - 7, 4, tid=AUTOGRAD, **shapes([[reduced]], ["float"])),
            launch(end - 6, 1, tid=AUTOGRAD),
            kernel("ncclKernel_AllReduce_RING_LL_Sum_float(x)", end, 60, 1, stream=20),
        ]
    return events


def forward(layers: list[str]) -> list[Json]:
    """Operators 1, 2 ... in layers, within a step."""
    events = [note("ProfilerStep#1", 0, 1000)]
    for number, layer in enumerate(layers, 1):
        events += [
            note(f"{layout.MARK_LAYER}{layer}", 10 * number, 8),
            span("aten::mul", 10 * number + 1, 4, Sequence_number=number, Fwd_thread_id=0),
        ]
    return events


def exposed(analysis: RunAnalysis) -> dict[str, int]:
    communication = analysis.communication
    assert communication is not None
    return {
        **{entry.layer: entry.exposed_ns for entry in communication.by_layer},
        **{entry.reason.value: entry.exposed_ns for entry in communication.unattributed},
    }


PAIR = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}}


def test_a_bucket_is_shared_by_bytes(tmp_path: Path) -> None:
    analysis = analyzed(tmp_path, *forward(["a", "b"]), *backward([100, 200], 300), **PAIR)
    assert exposed(analysis) == {"a": 20_000, "b": 40_000}


def test_gradients_of_earlier_passes_are_not_the_buckets(tmp_path: Path) -> None:
    """Gradient accumulation: the first backward pass reduces nothing."""
    passes = [*backward([100, 200], 0), *backward([100, 200], 300, at=300)]
    assert exposed(analyzed(tmp_path, *forward(["a", "b"]), *passes, **PAIR)) == {"a": 20_000, "b": 40_000}


def test_an_all_reduce_in_a_layer_is_no_bucket(tmp_path: Path) -> None:
    """Tensor parallelism: the backward pass of the second layer reduces, after the first gradient."""
    events = [*forward(["a", "b"]), *backward([100, 200], 300)]
    inside = span("c10d::allreduce_", 122, 2, tid=AUTOGRAD)
    assert exposed(analyzed(tmp_path, *events, inside, **PAIR)) == {"a": 20_000, "b": 40_000}


@pytest.mark.parametrize(
    ("layers", "reduced", "reason"),
    [(["a", "b"], 301, Unattributed.NO_BUCKETS), ([], 300, Unattributed.NO_LAYERS)],
)
def test_a_bucket_that_its_gradients_do_not_explain_has_a_reason(
    tmp_path: Path, layers: list[str], reduced: int, reason: Unattributed
) -> None:
    analysis = analyzed(tmp_path, *forward(layers), *backward([100, 200], reduced), **PAIR)
    assert exposed(analysis) == {reason.value: 60_000}
    assert analysis.communication is not None
    assert [(entry.axis, entry.inferred) for entry in analysis.communication.by_axis] == [("dp", True)]


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [
        (("a", "a"), NoLink.BETWEEN_DEVICES),
        (("a", "b"), NoLink.BETWEEN_HOSTS),
        (("a", None), NoLink.NO_HOSTS),
        (("a",), NoLink.NO_HOSTS),
    ],
)
def test_links_are_known_as_far_as_the_files_tell(
    tmp_path: Path, hosts: tuple[str | None, ...], reason: NoLink
) -> None:
    for rank, host in enumerate(hosts):
        info = {
            "backend": "nccl",
            "rank": rank,
            "world_size": 2,
            "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
        }
        events = [*forward([]), *device_call("_allgather_base_", 100, 20, out=2048, given=1024)]
        named = {} if host is None else {"host_name": host}
        (tmp_path / f"rank-{rank}.json").write_bytes(document(events, distributedInfo=info, **named))
    import_traces(sorted(tmp_path.glob("*.json")), tmp_path / "run")
    communication = analyze_run(RunReader(tmp_path / "run")).communication
    assert communication is not None
    [axis] = communication.by_axis
    assert (axis.link_class, axis.no_link, axis.ports) == (None, reason, ())
    if reason is not NoLink.BETWEEN_HOSTS:
        return
    carried = WireBytes(
        window=-1,
        start_ns=0,
        dur_ns=1,
        algorithmic_bytes=1,
        wire_bytes=1,
        link_class=LinkClass.FABRIC,
        links=("mlx5_0/1",),
        covered_ns=1,
    )
    known = with_ports(communication, [carried])
    assert known is not None
    [axis] = known.by_axis
    assert (axis.link_class, axis.no_link, axis.ports) == (LinkClass.FABRIC, None, ("mlx5_0/1",))


PAIR_OF_GPUS = [{"index": index, "vendor": "NVIDIA", "name": "NVIDIA H100"} for index in (0, 1)]


@pytest.mark.parametrize(
    ("links", "link", "reason"),
    [
        ([{"a": "gpu:0", "b": "gpu:1", "class": "gpu_link"}], LinkClass.GPU_LINK, None),
        ([{"a": "gpu:1", "b": "gpu:0", "class": "pcie"}], LinkClass.PCIE, None),
        ([], None, NoLink.BETWEEN_DEVICES),
        ([{"a": "gpu:0", "b": "gpu:1", "class": "bridge"}], None, NoLink.BETWEEN_DEVICES),
    ],
)
def test_the_topology_tells_what_is_between_the_devices_of_a_host(
    tmp_path: Path, links: list[Json], link: LinkClass | None, reason: NoLink | None
) -> None:
    events = [*forward([]), *device_call("_allgather_base_", 100, 20, out=2048, given=1024)]
    for rank in (0, 1):
        info = {"rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
        (tmp_path / f"rank-{rank}.json").write_bytes(document(events, distributedInfo=info, host_name="a"))
    import_traces(sorted(tmp_path.glob("*.json")), tmp_path / "run")
    for rank in (0, 1):
        path = tmp_path / "run" / "ranks" / str(rank) / "rank.json"
        record = {**json.loads(path.read_text()), "device": f"cuda:{rank} NVIDIA H100"}
        del record["checksum"]
        path.write_text(json.dumps(record))
    (tmp_path / "run" / "hosts" / "a").mkdir(parents=True, exist_ok=True)
    topology = {"gpus": PAIR_OF_GPUS, "links": links}
    (tmp_path / "run" / "hosts" / "a" / "topology.json").write_text(json.dumps(topology))
    communication = analyze_run(RunReader(tmp_path / "run")).communication
    assert communication is not None
    assert {(entry.link_class, entry.no_link) for entry in communication.by_axis} == {(link, reason)}


def test_the_links_of_a_group_of_unknown_ranks_are_not_known(tmp_path: Path) -> None:
    import_traces([TRACES / "a100_8of16"], tmp_path / "run")
    communication = analyze_run(RunReader(tmp_path / "run")).communication
    assert communication is not None
    assert {(entry.link_class, entry.no_link) for entry in communication.by_axis} == {
        (None, NoLink.NO_MEMBERS)
    }
