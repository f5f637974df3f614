"""The replay against another event loop: unchanged it gives the trace, changed what really happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from perfscope.analysis.efficiency.pop import efficiency
from perfscope.analysis.efficiency.results import Efficiency
from perfscope.analysis.replay.replays import Replays, make_replays
from perfscope.analysis.whatif import changes
from perfscope.analysis.whatif.analyze import analyze_what_ifs
from perfscope.messages.missing import cause_text
from tests.support.programs import Recorded, simulate

MS = 1_000_000
WORLD = {"world": (0, 1)}


def replays(recorded: Recorded) -> Replays:
    found, missing = make_replays({0: recorded.lines}, recorded.matches, recorded.clocks)
    assert found is not None and missing == ()
    return found


def pop(recorded: Recorded, hosts: Sequence[str] = ()) -> Efficiency:
    names = dict(enumerate(hosts)) or dict.fromkeys(recorded.lines, "node0")
    found, _ = efficiency(replays(recorded), names, communicates=True)
    assert found is not None
    return found


def test_unchanged_the_replay_gives_the_trace() -> None:
    step = [("work", 3 * MS), ("call", "a", "world"), ("work", MS), ("call", "b", "world"), ("optimizer", MS)]
    slow = [("work", 5 * MS), ("call", "a", "world"), ("idle", MS), ("call", "b", "world"), ("optimizer", MS)]
    recorded = simulate([[step] * 3, [slow] * 3], WORLD, {"a": 2 * MS, "b": MS // 2})
    found = replays(recorded)
    assert found.base_ns * 3 == recorded.wall_ns
    assert found.error_ratio == 0
    window = found.windows[0]
    np.testing.assert_array_equal(window.base.step_ends, window.program.measured)


def test_instantaneous_transfers_leave_the_waiting() -> None:
    quick, slow = [("work", 3 * MS), ("call", "a", "world")], [("work", 5 * MS), ("call", "a", "world")]
    found = replays(simulate([[quick] * 4, [slow] * 4], WORLD, {"a": 2 * MS}))
    assert found.step_ns(changes.zero_transfer) == 5 * MS
    assert found.step_ns(changes.perfect_balance) == 6 * MS


def test_a_background_call_costs_what_computation_does_not_cover() -> None:
    step = [("work", 4 * MS), ("start", "a", "world"), ("work", 3 * MS), ("wait", "a"), ("work", MS)]
    recorded = simulate([[step] * 3] * 2, WORLD, {"a": 5 * MS})
    found = replays(recorded)
    assert found.base_ns == 10 * MS == recorded.wall_ns / 3
    assert found.step_ns(changes.zero_transfer) == 8 * MS
    half = found.step_ns(lambda program: changes.faster_links(program, {}, 2.0))
    assert half == 8 * MS  # 2.5 ms of transfer hide behind 3 ms of work
    overlapped = found.step_ns(changes.full_overlap)
    assert overlapped is not None and overlapped <= (3 * 8 + 2) * MS / 3


def test_queued_calls_move_up_when_those_before_them_become_quicker() -> None:
    """Three buckets asked for early, one after the other in one lane."""
    step: list[tuple[Any, ...]] = [("work", MS)]
    for name in "abc":
        step += [("start", name, "world"), ("work", MS)]
    step += [("wait", "a"), ("wait", "b"), ("wait", "c"), ("optimizer", MS)]
    recorded = simulate([[step] * 2] * 2, WORLD, dict.fromkeys("abc", 4 * MS))
    faster = simulate([[step] * 2] * 2, WORLD, dict.fromkeys("abc", 2 * MS))
    found = replays(recorded)
    assert found.base_ns * 2 == recorded.wall_ns
    assert found.step_ns(lambda program: changes.faster_links(program, {}, 2.0)) == faster.wall_ns / 2


def test_the_loader_of_one_rank_holds_the_others_up() -> None:
    quick, slow = (
        [("work", 3 * MS), ("call", "a", "world")],
        [("input", 4 * MS), ("work", 3 * MS), ("call", "a", "world")],
    )
    found = replays(simulate([[quick] * 2, [slow] * 2], WORLD, {"a": MS}))
    assert found.base_ns == 8 * MS
    assert found.step_ns(changes.no_input_wait) == 4 * MS


def test_ranks_that_began_apart_are_replayed_apart() -> None:
    step = [("work", 3 * MS), ("call", "a", "world"), ("work", MS)]
    recorded = simulate([[step], [step]], WORLD, {"a": MS}, late=[0, 6 * MS])
    found = replays(recorded)
    assert found.base_ns == recorded.wall_ns == 11 * MS
    assert found.step_ns(changes.equal_start) == 5 * MS


def slow_group(unit: int) -> Recorded:
    """16 ranks as TP4 x DP4; the links of one TP group are slow.

    In units: each TP call comes after work in which another rank of the group is the busy one, so that a
    rank's computation is 0.62 of the wall while the longest chain of work is 0.774 of it; TP transfers take
    0.166 in the slow group and 0.061 in the others, the DP call 0.06.
    """
    groups = {f"tp{g}": tuple(range(4 * g, 4 * g + 4)) for g in range(4)}
    groups |= {f"dp{m}": tuple(range(m, 16, 4)) for m in range(4)}
    # Two phases a step: ranks 0 and 1 of a group take turns at being busy, 0.387 + 0.387 = 0.774.
    long, short = 387 * unit, 233 * unit
    ranks = []
    for rank in range(16):
        group, member = divmod(rank, 4)
        kind = "slow" if group == 0 else "fast"
        work = [long, short] if member % 2 == 0 else [short, long]
        step = [
            *(("work", work[0]), ("call", kind, f"tp{group}")),
            *(("work", work[1]), ("call", kind, f"tp{group}")),
            ("call", "dp", f"dp{member}"),
        ]
        ranks.append([step] * 2)
    return simulate(ranks, groups, {"slow": 83 * unit, "fast": 30 * unit + unit // 2, "dp": 60 * unit})


def test_a_slow_link_inside_one_group_is_transfer_and_not_serialisation() -> None:
    """The shortcut max(execution - communication + wait) reads 0.879 and 0.705 here."""
    recorded = slow_group(10_000)
    found = pop(recorded)
    assert found.transfer == pytest.approx(0.774, abs=0.0005)
    assert found.serialisation == pytest.approx(0.801, abs=0.0005)
    assert found.load_balance == pytest.approx(1.0)
    assert found.parallel_efficiency == pytest.approx(0.774 * 0.801, abs=0.001)
    own = [
        sum(int(one.transfer.sum()) for one in recorded.matches if rank in one.ranks) for rank in range(16)
    ]
    shortcut = 1 - min(own) / recorded.wall_ns
    assert shortcut == pytest.approx(0.879, abs=0.0005)
    assert found.comm_efficiency / shortcut == pytest.approx(0.705, abs=0.0005)


def test_the_factors_multiply_and_split_by_node() -> None:
    quick, slow = [("work", 2 * MS), ("call", "a", "world")], [("work", 4 * MS), ("call", "a", "world")]
    hosts = ["node0", "node0", "node1", "node1"]
    recorded = simulate(
        [[quick] * 2, [slow] * 2, [quick] * 2, [quick] * 2], {"world": (0, 1, 2, 3)}, {"a": MS}
    )
    found = pop(recorded, hosts)
    assert found.serialisation is not None and found.transfer is not None
    assert found.lb_in is not None and found.lb_out is not None
    product = found.load_balance * found.serialisation * found.transfer
    assert found.parallel_efficiency == pytest.approx(product, rel=1e-12)
    assert found.lb_in * found.lb_out == pytest.approx(found.load_balance, rel=1e-12)
    assert (found.lb_in, found.lb_out) == (10 / 12, 3 / 4)
    assert found.step_ns == 5 * MS and found.ideal_step_ns == 4 * MS


def test_ranks_with_other_steps_are_not_replayed_and_it_is_said() -> None:
    step = [("work", MS), ("call", "a", "world")]
    recorded = simulate([[step] * 2, [step] * 2], WORLD, {"a": MS})
    other = simulate([[step] * 3, [step] * 3], WORLD, {"a": MS})
    lines = {0: recorded.lines[0], 1: other.lines[1]}
    found, missing = make_replays({0: lines}, [], recorded.clocks)
    assert found is None
    assert [cause_text(one) for one in missing] == ["its ranks did not trace the same steps"]


def test_calls_that_were_not_matched_stay_time_of_their_rank() -> None:
    step = [("work", 2 * MS), ("call", "a", "world"), ("work", MS)]
    recorded = simulate([[step] * 2, [step] * 2], WORLD, {"a": 3 * MS})
    found, _ = make_replays({0: recorded.lines}, [], recorded.clocks)
    assert found is not None and found.num_calls == 0
    assert found.base_ns == 6 * MS
    assert found.step_ns(changes.zero_transfer) is None
    factors, missing = efficiency(found, {0: "a", 1: "a"}, communicates=True)
    assert factors is not None and factors.transfer is None and factors.comm_efficiency == 0.5
    assert "no call could be matched" in cause_text(missing[0])


def test_an_end_that_is_written_down_late_is_the_end_that_was_waited_for() -> None:
    """gloo's spans may end milliseconds after the line went on; that time is no work of the line."""
    step = [("work", 3 * MS), ("call", "a", "world"), ("work", 4 * MS)]
    found = replays(simulate([[step] * 3] * 2, WORLD, {"a": 5 * MS}, written_late_ns=2 * MS))
    assert found.error_ratio == 0
    assert found.unexplained_ratio == 0
    assert found.step_ns(changes.zero_transfer) == pytest.approx(7 * MS, abs=MS)


def test_after_a_long_wait_a_call_may_be_written_down_later() -> None:
    """The line has gone on for 3 ms, on the CPU that the backend's thread needs for that."""
    quick, slow = (
        [("work", ms * MS, "first"), ("start", "a", "world"), ("wait", "a"), ("work", 5 * MS, "second")]
        for ms in (10, 40)
    )
    found = replays(simulate([[quick, slow], [slow, quick]], WORLD, {"a": MS}, written_late_ns=3 * MS))
    assert found.base_ns == 46 * MS
    assert found.step_ns(changes.perfect_balance) == pytest.approx(31 * MS, rel=0.01)


def test_no_saving_is_larger_than_the_step_however_much_tracing_stretched_it() -> None:
    step = [("input", MS), ("work", 3 * MS), ("call", "a", "world"), ("work", MS)]
    found = replays(simulate([[step] * 3] * 2, WORLD, {"a": 20 * MS}))
    usual = analyze_what_ifs(found, found.base_ns / 5, ())
    assert {one.id for one in usual.what_ifs} >= {"zero_transfer", "double_bandwidth", "no_input_wait"}
    for one in usual.what_ifs:
        assert 0 < one.step_ns < found.base_ns / 5
        assert 0 < one.gain_ratio < 1
        assert "traced steps took 5 times as long as the median step" in one.caution
    ideal, faster = usual.of("zero_transfer"), usual.of("double_bandwidth")
    assert ideal is not None and faster is not None and faster.gain_ns <= ideal.gain_ns


def test_a_rank_that_was_slow_in_one_step_only_is_no_straggler() -> None:
    quick, slow = [("work", 3 * MS), ("call", "a", "world")], [("work", 9 * MS), ("call", "a", "world")]
    once = replays(simulate([[quick] * 5, [slow, *[quick] * 4]], WORLD, {"a": MS}))
    always = replays(simulate([[quick] * 2, [slow] * 2], WORLD, {"a": MS}))
    assert analyze_what_ifs(once, None, ()).slow == ()
    assert [one.rank for one in analyze_what_ifs(once, None, ()).slow_at_times] == [1]
    found = analyze_what_ifs(always, None, ())
    assert [one.rank for one in found.slow] == [1]
    assert found.gain_ns("no_stragglers") == 6 * MS


def test_ranks_that_only_their_clocks_put_apart_begin_together() -> None:
    step = [("work", 3 * MS), ("call", "a", "world"), ("work", MS)]
    hosts = ["node0", "node1"]
    recorded = simulate([[step], [step]], WORLD, {"a": MS}, hosts=hosts, late=[0, 6 * MS])
    sure, _ = make_replays({0: recorded.lines}, recorded.matches, recorded.clocks)
    doubtful = structs.replace(recorded.clocks, residual_ns={"node0": 0, "node1": 4 * MS})
    unsure, _ = make_replays({0: recorded.lines}, recorded.matches, doubtful)
    assert sure is not None and unsure is not None
    assert sure.step_ns(changes.equal_start) is not None
    assert unsure.step_ns(changes.equal_start) is None


def test_t_of_the_efficiencies_is_the_longest_time_of_a_rank() -> None:
    step = [("work", 3 * MS), ("call", "a", "world"), ("work", MS)]
    recorded = simulate([[step], [step]], WORLD, {"a": MS}, late=[0, 6 * MS])
    found = pop(recorded)
    assert found.step_ns == 11 * MS  # rank 0's; from its begin to rank 1's end it is no longer
    assert found.parallel_efficiency == pytest.approx(4 / 11)
