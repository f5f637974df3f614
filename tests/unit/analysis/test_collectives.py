"""Matching calls across ranks, waiting against transfer, bandwidth, clocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analysis.comm_record import payload
from perfscope.analysis.results import CollectiveResult, RunAnalysis
from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import cause_text, figure_text
from perfscope.volumes import bus_factor
from tests.support.synthetic_run import SyntheticRun, comm

STEPS = [(0, 0, 1000), (1, 1000, 2000)]
Calls = list[dict[str, Any]]


def analyze(
    path: Path, ranks: dict[int, Calls], *, hosts: dict[int, str] | None = None, **manifest: Any
) -> RunAnalysis:
    run = SyntheticRun(path, **{"world_size": len(ranks), **manifest})
    for rank, calls in ranks.items():
        run.rank(rank, host=(hosts or {}).get(rank, "node0"))
        run.window(rank, calls, STEPS)
    return analyze_run(run.read())


def only(analysis: RunAnalysis) -> CollectiveResult:
    [result] = analysis.collectives
    return result


def test_waiting_is_told_from_transfer(tmp_path: Path) -> None:
    # Rank 2 enters 70 after rank 0 and 50 after rank 1; all leave at 110: the transfer takes 40.
    analysis = analyze(tmp_path, {0: [comm(0, 110, 0)], 1: [comm(20, 90, 0)], 2: [comm(70, 40, 0)]})
    result = only(analysis)
    assert (result.count, result.num_matched, result.group_size) == (1, 1, 3)
    assert result.duration_ns == 80
    assert result.transfer_ns == 40
    assert result.wait_ns == 40  # (70 + 50 + 0) / 3
    assert result.max_wait_ns == 70
    assert result.late_counts == ((2, 1),)
    assert result.bytes == 4096
    assert result.algbw_bytes_per_s == pytest.approx(4096 / 40e-9)
    assert result.busbw_bytes_per_s == pytest.approx(4096 / 40e-9 * 4 / 3)
    assert result.busbw_with_wait_bytes_per_s == pytest.approx(4096 / 80e-9 * 4 / 3)
    [call] = analysis.calls
    assert (call.late_rank, call.transfer_ns, call.start_skew_ns, call.end_skew_ns) == (2, 40, 70, 0)


def test_waiting_in_calls_that_overlap_is_not_counted_twice(tmp_path: Path) -> None:
    # Two calls at once on two threads: 100 in calls, of which 80 waiting, whatever the number of calls.
    early = [comm(0, 100, 0), comm(10, 90, 1)]
    late = [comm(80, 20, 0), comm(80, 20, 1)]
    analysis = analyze(tmp_path, {0: early, 1: late})
    assert only(analysis).wait_ns == 75  # per call, summed over calls: (80 + 70) / 2
    assert analysis.in_calls_ns == (100 + 20) / 2
    assert analysis.waiting_ns == (80 + 0) / 2


def test_calls_without_a_size_are_counted_and_the_others_keep_their_bytes(tmp_path: Path) -> None:
    # The second call is of a pickled object: nobody knows how many bytes it makes.
    def calls() -> Calls:
        return [comm(0, 40, 0), comm(100, 60, 1, in_bytes=None, out_bytes=None, dtype=None)]

    analysis = analyze(tmp_path, {0: calls(), 1: calls()})
    result = only(analysis)
    assert (result.count, result.bytes, result.num_unsized) == (2, 4096, 1)
    assert result.transfer_ns == 100
    assert result.algbw_bytes_per_s == pytest.approx(4096 / 40e-9)
    assert result.busbw_with_wait_bytes_per_s == pytest.approx(4096 / 40e-9)
    assert [figure_text(one) for one in analysis.missing if "1 of 2" in figure_text(one)] == [
        "bytes of 1 of 2 all_reduce calls on group 0"
    ]


def test_nobody_waits_longer_than_its_own_call(tmp_path: Path) -> None:
    # A broadcast's root may be gone before the last rank enters.
    calls = {0: [comm(0, 10, 0, collective="broadcast")], 1: [comm(50, 30, 0, collective="broadcast")]}
    result = only(analyze(tmp_path, calls))
    assert result.max_wait_ns == 10
    assert result.transfer_ns == 10


def test_calls_are_matched_within_steps_when_counts_differ(tmp_path: Path) -> None:
    # Rank 1 has a call of step 0 more (its trace began earlier): only step 1 can be matched by counting.
    zero = [comm(500, 10, 0), comm(1100, 100, 1), comm(1500, 60, 2)]
    one = [comm(100, 10, 0), comm(500, 10, 1), comm(1150, 50, 2), comm(1520, 40, 3)]
    analysis = analyze(tmp_path, {0: zero, 1: one})
    result = only(analysis)
    assert result.num_matched == 2
    assert result.transfer_ns == 50 + 40
    assert any("3 of 7 calls have no counterpart" in cause_text(missing) for missing in analysis.missing)


def test_calls_that_two_threads_start_in_any_order_are_told_apart_by_size(tmp_path: Path) -> None:
    # DDP broadcasts a model's buffers, one call per type, on two threads of the backend at once.
    def buffers(first: int, second: int) -> Calls:
        return [
            comm(first, 40, 0, collective="broadcast", in_bytes=32, out_bytes=32, dtype="int64"),
            comm(second, 60, 1, collective="broadcast", in_bytes=2048, out_bytes=2048),
        ]

    zero, one = buffers(10, 12), buffers(15, 11)
    one[0]["seq"], one[1]["seq"] = 1, 0
    analysis = analyze(tmp_path, {0: zero, 1: one})
    result = only(analysis)
    assert (result.num_matched, result.transfer_ns, result.dtype) == (2, 100, None)
    assert {(call.bytes, call.late_rank) for call in analysis.calls} == {(2048, 0), (32, 1)}


def test_calls_are_matched_from_the_end_when_no_step_helps_and_sizes_agree(tmp_path: Path) -> None:
    zero = [comm(2100, 100, 0, in_bytes=8), comm(2300, 100, 1, in_bytes=16)]
    one = [comm(2010, 10, 0, in_bytes=4), comm(2150, 50, 1, in_bytes=8), comm(2350, 50, 2, in_bytes=16)]
    assert only(analyze(tmp_path / "agree", {0: zero, 1: one})).num_matched == 2
    one[2]["in_bytes"] = 32
    result = only(analyze(tmp_path / "differ", {0: zero, 1: one}))
    assert result.num_matched == 0 and result.transfer_ns is None


def test_equal_counts_with_other_sizes_are_not_taken_for_the_same_calls(tmp_path: Path) -> None:
    zero = [comm(100, 10, 0, in_bytes=8), comm(1100, 10, 1, in_bytes=16)]
    one = [comm(1100, 10, 0, in_bytes=16), comm(1200, 10, 1, in_bytes=8)]
    analysis = analyze(tmp_path, {0: zero, 1: one})
    assert [(call.bytes, call.start_skew_ns) for call in analysis.calls] == [
        (16, 0)
    ]  # both have it in step 1


def test_one_rank_of_many_gives_durations_but_no_transfer(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, {0: [comm(0, 100, 0, group_size=8)]}, world_size=8)
    result = only(analysis)
    assert result.duration_ns == 100
    assert result.transfer_ns is None and result.wait_ns is None and result.late_counts == ()
    assert result.busbw_with_wait_bytes_per_s == pytest.approx(4096 / 100e-9 * 14 / 8)
    assert any(cause_text(missing) == "1 of the group's 8 ranks were traced" for missing in analysis.missing)


def test_groups_of_one_name_and_other_members_are_kept_apart(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, world_size=4)
    for rank in range(4):
        run.rank(rank)
        pair = [0, 1] if rank < 2 else [2, 3]
        groups = [{"pg_name": "tp", "ranks": pair}]
        run.window(rank, [comm(10 * rank, 100, 0, group="tp")], STEPS, groups=groups)
    analysis = analyze_run(run.read())
    assert [(result.group_size, result.wait_ns) for result in analysis.collectives] == [(2, 5), (2, 5)]


def test_device_collectives_are_not_counted_again_on_the_host(tmp_path: Path) -> None:
    calls = [comm(0, 500, 0), comm(100, 50, 0, device=0, lane=20)]
    result = only(analyze(tmp_path, {0: calls, 1: calls}))
    assert (result.count, result.duration_ns) == (1, 50)


def test_communication_without_a_name_is_counted_as_missing(tmp_path: Path) -> None:
    analysis = analyze(
        tmp_path, {0: [comm(0, 50, 0), comm(60, 30, 0, collective=None, group=None)]}, world_size=1
    )
    assert only(analysis).count == 1
    assert analysis.ranks[0].comm_ns == 40  # (50 + 30) / 2 steps
    assert any(figure_text(missing) == "1 communication spans" for missing in analysis.missing)


def test_clock_offsets_between_hosts_are_found_and_taken_off(tmp_path: Path) -> None:
    offset = 1_000_000  # node1's clock runs this far ahead
    skews, late = [0, 2, -2, 1, -1, 0, 1, 0, -1, 0], 30
    zero = [comm(100 * k, 80, k) for k in range(10)]
    one = [comm(100 * k + late + offset + skew, 80 - late, k) for k, skew in enumerate(skews)]
    analysis = analyze(tmp_path, {0: zero, 1: one}, hosts={0: "node0", 1: "node1"})
    assert analysis.clocks.offset_ns == {"node0": 0, "node1": offset}
    assert analysis.clock_residual_ns == 2
    result = only(analysis)
    assert result.late_counts == ((1, 10),)
    assert result.wait_ns == pytest.approx(late * 10 / 2, abs=1)
    assert result.num_waits_uncertain == 0


def test_waits_within_the_clocks_doubt_are_marked(tmp_path: Path) -> None:
    skews = [40, -40, 10, -10, 10, -10, 10, -10, 40, -40]
    zero = [comm(1000 * k, 100, k) for k in range(10)]
    one = [comm(1000 * k + skew, 100, k) for k, skew in enumerate(skews)]
    analysis = analyze(tmp_path, {0: zero, 1: one}, hosts={0: "node0", 1: "node1"})
    assert analysis.clock_residual_ns == 40
    assert only(analysis).num_waits_uncertain == 6  # the waits of 10; those of 40 are as long as the doubt


def test_ranks_of_one_host_share_its_clock(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, {0: [comm(0, 100, 0)], 1: [comm(0, 900, 0)]})
    assert analysis.clock_residual_ns is None
    assert only(analysis).num_waits_uncertain == 0


def test_a_late_sender_makes_the_receiver_wait(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, world_size=2)
    run.rank(0)
    run.rank(1)
    run.window(0, [comm(300, 50, 0, collective="send", peer=1, in_bytes=100)], STEPS)
    run.window(1, [comm(0, 350, 0, collective="recv", peer=0, out_bytes=100)], STEPS)
    analysis = analyze_run(run.read())
    by_kind = {result.collective: result for result in analysis.collectives}
    assert by_kind["recv"].wait_ns == 300 and by_kind["send"].wait_ns == 0
    assert by_kind["recv"].transfer_ns == by_kind["send"].transfer_ns == 50
    assert [(call.collective, call.late_rank) for call in analysis.calls] == [("send", 0)]


def test_a_peer_that_was_not_traced_is_said_to_be_missing(tmp_path: Path) -> None:
    analysis = analyze(tmp_path, {0: [comm(0, 50, 0, collective="send", peer=1)]}, world_size=2)
    assert only(analysis).transfer_ns is None
    assert any("other end" in cause_text(missing) for missing in analysis.missing)


@pytest.mark.parametrize(
    ("collective", "num_ranks", "factor"),
    [
        ("all_reduce", 4, 1.5), ("all_gather", 4, 0.75), ("reduce_scatter", 8, 0.875), ("all_to_all", 2, 0.5),
        ("broadcast", 8, 1.0), ("send", 2, 1.0), ("barrier", 4, None), ("unheard_of", 4, None),
    ],
)  # fmt: skip
def test_bus_factors_follow_the_table(collective: str, num_ranks: int, factor: float | None) -> None:
    assert bus_factor(collective, num_ranks) == factor


@pytest.mark.parametrize(
    ("collective", "in_bytes", "out_bytes", "size"),
    [
        ("all_reduce", 100, 100, 100), ("all_gather", 100, 400, 400), ("all_gather", 100, -1, 400),
        ("reduce_scatter", 400, 100, 400), ("reduce_scatter", -1, 100, 400), ("all_to_all", 400, 400, 400),
        ("gather", 100, -1, 400), ("scatter", -1, 100, 400), ("broadcast", 100, -1, 100),
        ("recv", -1, 100, 100), ("all_reduce", -1, -1, -1), ("barrier", 0, 0, -1),
    ],
)  # fmt: skip
def test_payload_follows_the_table(collective: str, in_bytes: int, out_bytes: int, size: int) -> None:
    result = payload(collective, np.array([in_bytes]), np.array([out_bytes]), 4)
    assert result.tolist() == [size]
