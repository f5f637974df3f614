"""Tokens of experts in imported traces, by the splits of their all-to-all calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscope.analysis.results import RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.ingest.importing import import_traces
from perfscope.rundir.reader import RunReader
from perfscope.vocabulary.causes import Cause
from perfscope.vocabulary.figures import Figure
from tests.support.ingest_traces import Json, document, kernel, launch, note, shapes, span

WIDTH, LONGEST = 64, 30  # elements of a token; ranks of a group whose splits torch writes down
KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def exchange(at: float, sent: Sequence[int], received: Sequence[int], dtype: str = "BFloat16") -> list[Json]:
    """An uneven all-to-all as Kineto writes it down: operator, launch and kernel."""
    tokens: Json = {"Collective_name": "all_to_allv", "Group_size": len(sent), "Process_Group_Name": "3"}
    tokens |= {"In_msg_nelems": sum(sent) * WIDTH, "Out_msg_nelems": sum(received) * WIDTH, "dtype": dtype}
    tokens |= {"In_split_size": str([*sent]), "Out_split_size": str([*received])}
    number = int(at) + 1
    return [
        span("record_param_comms", at, 20, **tokens),
        launch(at + 5, number),
        kernel(KERNEL, at + 20, 50, number, stream=9, **tokens),
    ]


def rank_trace(rank: int, routed: Sequence[Sequence[int]], work: float) -> bytes:
    """A step of one rank: tokens to the experts, `work` us there for each, and the results back.

    Args:
        rank: whose.
        routed: tokens, by sender and receiver.
        work: us per token.
    """
    sent, received = routed[rank], [row[rank] for row in routed]
    done = 200 + work * sum(received)
    events = [
        note("ProfilerStep#1", 0, 5000),
        *exchange(100, sent, received),
        launch(180, 7),
        kernel("gemm", 200, work * sum(received), 7),
        *exchange(done, received, sent),
    ]
    world = len(routed)
    groups = [{"pg_name": "3", "pg_size": world, "ranks": [*range(world)]}]
    return document(
        events, distributedInfo={"backend": "nccl", "rank": rank, "world_size": world, "pg_config": groups}
    )


def imported(folder: Path, routed: Sequence[Sequence[int]], ranks: Sequence[int]) -> RunAnalysis:
    """The traces of these ranks."""
    files = [folder / f"rank-{rank}.json" for rank in ranks]
    for file, rank in zip(files, ranks, strict=True):
        file.write_bytes(rank_trace(rank, routed, work=2.0))
    import_traces(files, folder / "run")
    return analyze_run(RunReader(folder / "run"))


def test_ranks_have_the_tokens_that_the_splits_add_up_to(tmp_path: Path) -> None:
    experts = imported(tmp_path, [[100, 300], [50, 350]], (0, 1)).experts
    assert experts is not None
    (layer,) = experts.layers
    assert layer.layer == ""  # the traces have no modules
    assert [(rank.rank, rank.tokens, rank.bytes) for rank in layer.ranks] == [
        (0, 150, 150 * WIDTH * 2),
        (1, 650, 650 * WIDTH * 2),
    ]
    assert layer.imbalance == pytest.approx(650 / 400)
    assert layer.wait_ns == pytest.approx(500_000, rel=0.01)  # half of 2 us for each of 500 tokens


def test_of_one_rank_the_tokens_are_known_and_the_imbalance_is_missing(tmp_path: Path) -> None:
    analysis = imported(tmp_path, [[100, 300], [50, 350]], (1,))
    assert analysis.experts is not None
    assert [(rank.rank, rank.tokens) for rank in analysis.experts.incomplete] == [(1, 650)]
    assert not analysis.experts.layers
    (entry,) = (entry for entry in analysis.missing if entry.figure is Figure.EXPERT_IMBALANCE)
    assert entry.cause is Cause.EXPERTS_NOT_TRACED


def test_exchanges_that_do_not_return_what_they_got_are_no_experts(tmp_path: Path) -> None:
    """Embeddings: what comes in is used, and other rows go out."""
    events = [
        note("ProfilerStep#1", 0, 5000),
        *exchange(100, [10, 30], [20, 20]),
        *exchange(600, [30, 30], [10, 50]),
    ]
    file = tmp_path / "rank-0.json"
    file.write_bytes(document(events, distributedInfo={"backend": "nccl", "rank": 0, "world_size": 2}))
    import_traces([file], tmp_path / "run")
    assert analyze_run(RunReader(tmp_path / "run")).experts is None


@pytest.mark.parametrize(
    ("splits", "rows"),
    [
        ({"In_split_size": "[3, 5]", "Out_split_size": "[2, 4]"}, (8, 6)),
        ({"In_split_size": [3, 5], "Out_split_size": [2, 4]}, (8, 6)),
        ({"In_split_size": "[]", "Out_split_size": "[]"}, (None, None)),
        ({"In_split_size": f"{[1] * LONGEST}"[:-1] + ", ...]"}, (None, None)),  # cut: the sum is not known
        ({}, (None, None)),
    ],
)
def test_rows_of_a_call_are_the_sums_of_its_splits(
    tmp_path: Path, splits: Json, rows: tuple[int | None, int | None]
) -> None:
    tokens: Json = {
        "Collective_name": "all_to_allv",
        "In_msg_nelems": 8,
        "Out_msg_nelems": 6,
        "dtype": "Float",
    }
    events = [
        span("record_param_comms", 10, 20, **tokens, **splits),
        launch(15, 1),
        kernel(KERNEL, 20, 50, 1, **tokens, **splits),
    ]
    assert _rows(tmp_path, events) == rows


def test_rows_of_a_call_without_splits_are_those_of_its_tensors(tmp_path: Path) -> None:
    inputs = shapes([[6, WIDTH], [8, WIDTH], [], [], []], ["float", "float", "", "", ""])
    events = [
        span("c10d::alltoall_base_", 10, 20, **inputs),
        launch(15, 1),
        kernel(KERNEL, 20, 50, 1),
    ]
    assert _rows(tmp_path, events) == (8, 6)


def _rows(folder: Path, events: Sequence[Json]) -> tuple[int | None, int | None]:
    file = folder / "rank-0.json"
    file.write_bytes(document([note("ProfilerStep#1", 0, 100), *events]))
    import_traces([file], folder / "run")
    table = RunReader(folder / "run").timeline(0, 0)
    (call,) = [row for row in table.to_pylist() if row["kind"] == "comm" and row["device"] == 0]
    return call["in_rows"], call["out_rows"]
