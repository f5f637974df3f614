"""Ranks whose traces name no hosts: several clocks only where causality proves them, and every time moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analysis.allocations import allocations_of
from perfscope.analysis.clocks.fit import UNKNOWN_NS, RankClock, RankClocks
from perfscope.analysis.clocks.unnamed import on_one_clock, rank_clocks
from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import cause_text, figure_text
from tests.support.clock_world import SECOND, World
from tests.support.synthetic_run import EPOCH, MAIN, SyntheticRun, comm, span

US, MS = 1000, 1_000_000


def world(*ahead_ns: int, drift: float = 0.0, **more: Any) -> World:
    drifts = [0.0, *[drift] * (len(ahead_ns) - 1)]
    return World(rng=np.random.default_rng(3), ahead_ns=list(ahead_ns), drift_ppm=drifts, **more)


def clocks_of(ranks: World) -> RankClocks | None:
    return rank_clocks(ranks.calls, sorted(ranks.hosts))


def worst_error(ranks: World, clocks: RankClocks, rank: int, against: int = 0) -> int:
    begin = np.arange(ranks.num_windows) * ranks.apart_s
    at = np.rint(np.concatenate([begin, begin + ranks.window_s]) * SECOND).astype(np.int64)
    moved = clocks.to_reference(rank, ranks.shows(rank, at)) - clocks.later_ns
    return int(np.abs(moved - ranks.shows(against, at)).max())


def test_drift_is_taken_out_of_every_window() -> None:
    drifting = world(0, 0, drift=20, apart_s=60)
    drifting.collectives(60)
    clocks = clocks_of(drifting)
    assert clocks is not None
    assert clocks.of(1).drift_ppm == pytest.approx(20, abs=0.1)
    assert worst_error(drifting, clocks, 1) <= (clocks.worst_residual_ns or 0) < 30 * US


def test_ranks_that_nothing_compares_with_the_first_are_not_aligned_to_it() -> None:
    apart = world(0, 5 * MS, 900 * MS, 907 * MS, 900 * MS)
    apart.collectives(40, members=[0, 1])
    apart.collectives(40, members=[2, 3])
    clocks = clocks_of(apart)
    assert clocks is not None and clocks.unlinked == (2, 3, 4)
    assert [clock.reference for clock in clocks.ranks] == [0, 0, 2, 2, 4]
    assert clocks.of(4).residual_ns is None
    assert clocks.residual_ns == max(clocks.of(rank).residual_ns or 0 for rank in range(4))
    assert clocks.worst_residual_ns == clocks.residuals([0, 1])[1] < 30 * US
    assert clocks.residuals([0, 1, 2]).tolist()[2] == clocks.residuals([1, 4])[1] == UNKNOWN_NS
    # Among themselves they can be compared.
    assert clocks.residuals([2, 3]).max() < 30 * US
    assert worst_error(apart, clocks, 3, against=2) < 30 * US


def test_messages_both_ways_link_ranks_that_share_no_collective(tmp_path: Path) -> None:
    """Ranks 1 and 2, of two groups; without their messages rank 2 is not compared with rank 0."""
    for name, linked in (("alone", False), ("linked", True)):
        run = unnamed_run(tmp_path / name, {0: 0, 1: 0, 2: 5 * MS, 3: 5 * MS + 2 * MS}, messages=linked)
        of_ranks = analyze_run(run.read()).clocks.of_ranks
        assert of_ranks is not None and of_ranks.unlinked == (() if linked else (2, 3))


@pytest.mark.parametrize("late_us", [20, 100, 500])
def test_a_rank_that_leaves_late_every_time_does_not_have_another_clock(late_us: int) -> None:
    one_clock = world(0, 0, 0, 0)
    one_clock.collectives(60, bias_ns=late_us * US)
    assert clocks_of(one_clock) is None
    varying = world(0, 0, 0, 0)
    varying.collectives(60, late_ratio=1.0, late_ns=late_us * US)
    assert clocks_of(varying) is None


def test_calls_that_no_offset_explains_do_not_move_a_clock() -> None:
    """One call in twenty is matched with another one."""
    wrong = world(0, 0, num_windows=1)
    [calls] = wrong.collectives(60)
    calls.enter[1, ::20] += SECOND
    calls.exit[1, ::20] += SECOND
    assert clocks_of(wrong) is None


def unnamed_run(
    path: Path, ahead_ns: dict[int, int], *, messages: bool = False, base_ns: int = 0, **summary: Any
) -> SyntheticRun:
    """All ranks of a group of two enter an all_reduce within 100 us and leave it at once, 40 times."""
    run = SyntheticRun(path, world_size=len(ahead_ns))
    rng = np.random.default_rng(7)
    late = rng.integers(0, 100 * US, (40, len(ahead_ns)))
    for rank, ahead in ahead_ns.items():
        group = [first := rank // 2 * 2, first + 1]
        at = base_ns + ahead
        run.rank(rank, host="")
        spans = [
            comm(k * MS + at + int(entered), 200 * US - int(entered), k, group=f"g{first}", group_size=2)
            for k, entered in enumerate(late[:, rank])
        ]
        if messages and rank in (1, 2):
            ends = ("send", "recv") if rank == 1 else ("recv", "send")
            for k in range(20):
                for part, kind in enumerate(ends):
                    start = k * MS + at + (300 + 300 * part) * US
                    columns = {"collective": kind, "group": "pp", "group_size": 4, "peer": 3 - rank}
                    spans.append(comm(start, 100 * US, 100 + 2 * k + part, **columns))
        spans.append(span(at, 40 * MS, "op", name="aten::mm", lane=MAIN))
        groups = [{"pg_name": f"g{first}", "name": f"g{first}", "ranks": group}]
        spans.sort(key=lambda row: row["start_ns"])
        run.window(rank, spans, [(0, at, at + 40 * MS)], host="", groups=groups, **summary)
    return run


def test_a_run_says_which_ranks_it_cannot_align(tmp_path: Path) -> None:
    analysis = analyze_run(unnamed_run(tmp_path, {0: 0, 1: 5 * MS, 2: 900 * MS, 3: 900 * MS}).read())
    said = {figure_text(missing): cause_text(missing) for missing in analysis.missing}
    assert "no synchronizing collective" in said["clocks of ranks 2, 3"]
    assert any("rank 1 is 5.00 ms ahead of that of rank 0" in remark for remark in analysis.remarks)
    waits = {row.group: row.max_wait_ns for row in analysis.collectives}
    assert set(waits) == {"g0", "g2"} and all((wait or 0) < 200 * US for wait in waits.values())


def test_allocations_move_with_the_operators_that_made_them(tmp_path: Path) -> None:
    ahead = {0: 0, 1: 700 * MS}
    run = SyntheticRun(tmp_path, world_size=2)
    for rank, at in ahead.items():
        run.rank(rank, host="")
        curve = {
            "device": 0,
            "num_events": 2,
            "t_ns": [EPOCH + at + 10, EPOCH + at + 20 * MS],
            "allocated": [10, 50],
            "peak_ns": EPOCH + at + 20 * MS,
            "peak_allocated": 50,
            "peak_thread": MAIN,
        }
        spans = [
            span(at + 15 * MS, 10 * MS, "op", name="aten::mm", lane=MAIN, launch_ns=EPOCH + at),
            span(at + 30 * MS, 1, "op", name="aten::add", lane=MAIN),
        ]
        run.window(rank, spans, [(0, at, at + 40 * MS)], host="", allocations=[curve])
    clocks = tuple(
        RankClock(rank=rank, reference=0, offset_ns=at, drift_ppm=0.0, at_ns=0, residual_ns=0)
        for rank, at in ahead.items()
    )
    source = on_one_clock(run.read(), RankClocks(ranks=clocks, residual_ns=0)).part([0, 1])
    windows, _ = allocations_of(source)
    assert [(window.rank, window.peak_operator) for window in windows] == [(0, "aten::mm"), (1, "aten::mm")]
    assert [window.peak_at_ns for window in windows] == [20 * MS - 10] * 2
    first, second = source.summaries()
    assert first.steps == second.steps and first.allocations == second.allocations
    rows = source.timeline(1, 0, ("start_ns", "launch_ns")).to_pylist()
    assert rows == [
        {"start_ns": EPOCH + 15 * MS, "launch_ns": EPOCH},
        {"start_ns": EPOCH + 30 * MS, "launch_ns": None},
    ]


def test_times_of_traces_that_begin_at_zero_stay_positive() -> None:
    early = world(0, 900 * MS, -3 * MS, num_windows=1)
    early.collectives(40)
    for _, calls in early.calls:
        begin = min(int(calls.enter.min()), int(calls.exit.min())) - 1
        calls.enter[:] -= begin
        calls.exit[:] -= begin
    clocks = clocks_of(early)
    assert clocks is not None and clocks.later_ns > 890 * MS
    for rank in early.hosts:
        assert clocks.to_reference(rank, np.array([0, 5])).min() >= 0
    [(_, calls)] = early.calls
    leave = [clocks.to_reference(rank, row) for rank, row in zip(calls.ranks, calls.exit, strict=True)]
    assert np.ptp(np.stack(leave), axis=0).max() < 100 * US
