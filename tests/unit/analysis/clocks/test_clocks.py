"""Hosts' clocks: exact arithmetic, what links hosts, what is marked, and clocks that somebody set."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analysis.clocks.center import gathered, weighted_median
from perfscope.analysis.clocks.fit import UNKNOWN_NS, ClockFit, fit_clocks
from perfscope.analysis.clocks.wall import step_notes, wall_steps
from perfscope.analysis.collective_waits import judge
from perfscope.analysis.comm_record import GroupKey
from perfscope.analysis.run import analyze_run
from perfscope.messages.missing import cause_text, figure_text
from perfscope.rundir.records import RankRecord, rank_record
from tests.support.clock_world import EPOCH, SECOND, World
from tests.support.synthetic_run import SyntheticRun, comm

MS = 1_000_000


def world(*ahead_ns: int, drift: float = 0.0, seed: int = 0, **more: Any) -> World:
    drifts = [0.0, *[drift] * (len(ahead_ns) - 1)]
    return World(rng=np.random.default_rng(seed), ahead_ns=list(ahead_ns), drift_ppm=drifts, **more)


def test_the_center_of_many_late_and_no_early_values_is_where_they_gather() -> None:
    values = np.array([10.0, 11, 9, 10, 10, 12, 500, 900, 4000, 70])
    assert gathered(values) == (10, 1.5)
    assert gathered(np.array([7.0])) == (7, 0) and gathered(np.array([1.0, 3.0])) == (2, 1)
    assert weighted_median(np.array([1.0, 2, 9]), np.array([1.0, 1, 5])) == 9


def test_times_are_moved_to_the_nanosecond() -> None:
    fit = ClockFit(
        reference="a",
        offset_ns={"a": 0, "b": 7},
        drift_ppm={"a": 0.0, "b": 50.0},
        at_ns={"a": 0, "b": EPOCH},
    )
    times = EPOCH + np.array([[0, 1], [20_000, 60 * SECOND]])
    assert (fit.to_reference("b", times) - EPOCH).tolist() == [[-7, -6], [19_992, 60 * SECOND - 3 * MS - 7]]
    assert fit.to_reference("a", times).tolist() == times.tolist()
    assert fit.to_reference("b", times[0, :0]).shape == (0,)


def test_one_host_has_nothing_to_compare() -> None:
    one = world(0, ranks_per_host=4)
    one.collectives(5)
    fit = fit_clocks(one.calls, one.hosts)
    assert (fit.reference, fit.worst_residual_ns, fit.unlinked) == ("host0000", None, ())
    assert fit_clocks([], {}).worst_residual_ns is None


def test_two_ways_to_a_host_may_be_as_good_as_each_other() -> None:
    """Axes of a mesh join hosts crosswise."""
    crosswise = world(0, 0, 0, 0)
    for members in ([0, 1], [0, 2], [1, 3], [2, 3]):
        crosswise.collectives(5, jitter_ns=0, members=members)
    fit = fit_clocks(crosswise.calls, crosswise.hosts)
    assert fit.unlinked == () and set(fit.offset_ns) == set(crosswise.hosts.values())


@pytest.mark.parametrize("num_calls", [1, 2, 3])
def test_few_calls_are_not_trusted_beyond_what_causality_says(num_calls: int) -> None:
    few = world(0, 10 * SECOND, num_windows=1)
    [calls] = few.collectives(num_calls, jitter_ns=0)
    fit = fit_clocks(few.calls, few.hosts)
    least = int((calls.exit - calls.enter).min())
    assert fit.residual_ns["host0001"] >= least / 2  # all exits agree, which three calls may by chance
    assert few.errors(fit)["host0001"] <= fit.residual_ns["host0001"]


def test_drift_is_not_read_into_one_short_window() -> None:
    short = world(0, 0, drift=50, num_windows=1, window_s=0.01)
    short.collectives(100)
    assert fit_clocks(short.calls, short.hosts).drift_ppm["host0001"] == 0


def test_a_host_that_always_leaves_late_shows_in_the_residual() -> None:
    biased = world(0, 0)
    biased.collectives(80, bias_ns=300_000)
    fit = fit_clocks(biased.calls, biased.hosts)
    assert biased.errors(fit)["host0001"] > 200_000  # exits alone cannot tell
    assert fit.residual_ns["host0001"] > 200_000


def test_hosts_without_anything_in_common_are_unlinked_and_their_waits_marked() -> None:
    apart = world(0, SECOND, -SECOND, 3 * SECOND)
    apart.collectives(40, members=[0, 1])
    island = apart.collectives(40, members=[2, 3])[0]
    fit = fit_clocks(apart.calls, apart.hosts)
    assert fit.unlinked == ("host0002", "host0003")
    assert set(fit.residual_ns) == {"host0000", "host0001"}
    assert fit.worst_residual_ns is not None and fit.worst_residual_ns < MS
    # Among themselves they can be compared.
    assert fit.residuals(["host0002", "host0003"]).max() < MS
    assert apart.errors(fit, against=2)["host0003"] < 20_000
    key = GroupKey("all_reduce", "0", ())
    assert not judge(key, 0, island, apart.hosts, fit).uncertain.all()
    # With the others they cannot.
    assert fit.residuals(["host0000", "host0003"]).tolist() == [0, UNKNOWN_NS]
    [across] = world(0, SECOND, -SECOND, 3 * SECOND, num_windows=1).collectives(9, members=[1, 2])
    judged = judge(key, 0, across, apart.hosts, fit)
    late = judged.late_row
    assert judged.uncertain[1 - late, np.arange(len(late))].all()


def test_messages_one_way_link_nothing() -> None:
    one_way = world(0, SECOND)
    one_way.messages(0, 1, 50, delay_ns=1e5, extra_ns=1e4)
    assert fit_clocks([], one_way.hosts, one_way.calls).unlinked == ("host0001",)


def test_collectives_go_before_messages_and_messages_reach_the_rest() -> None:
    mixed = world(0, SECOND, -SECOND, drift=30)
    mixed.collectives(60, members=[0, 1])
    shared = list(mixed.calls)
    for a, b in ((0, 1), (1, 0), (1, 2), (2, 1)):
        mixed.messages(a, b, 40, delay_ns=4e5, extra_ns=2e5)
    pairs = mixed.calls[len(shared) :]
    fit = fit_clocks(shared, mixed.hosts, pairs)
    assert fit.unlinked == ()
    assert fit.residual_ns["host0001"] < 100_000 < fit.residual_ns["host0002"]
    errors = mixed.errors(fit)
    assert all(errors[host] <= fit.residual_ns[host] for host in ("host0001", "host0002"))


def test_a_clock_that_was_set_between_windows_is_marked() -> None:
    jumped = world(0, 0)
    for window in range(3):
        jumped.ahead_ns[1] = 0 if window < 1 else 5 * SECOND
        jumped.num_windows = window + 1
        jumped.collectives(40)
        del jumped.calls[window:-1]  # earlier windows stay as they were
    fit = fit_clocks(jumped.calls, jumped.hosts)
    assert fit.drift_ppm["host0001"] == 0  # no clock drifts by seconds a minute
    assert fit.residual_ns["host0001"] >= 4.9 * SECOND


def test_waits_within_the_doubt_are_marked_and_longer_ones_are_not() -> None:
    pair = world(0, 10 * SECOND, drift=50)
    [first, *_] = pair.collectives(60, jitter_ns=30_000)
    fit = fit_clocks(pair.calls, pair.hosts)
    judged = judge(GroupKey("all_reduce", "0", ()), 0, first, pair.hosts, fit)
    doubt = fit.residual_ns["host0001"]
    rows = np.arange(2)[:, None]
    assert (judged.uncertain == ((rows != judged.late_row) & (judged.wait < doubt))).all()
    assert 0 < judged.uncertain.sum() < len(judged.seq)


def test_a_thousand_ranks_take_a_fraction_of_a_second() -> None:
    many = world(*range(0, 128 * MS, MS), ranks_per_host=8, num_windows=1)
    [calls] = many.collectives(5000)
    begun = time.process_time()
    fit = fit_clocks(many.calls, many.hosts)
    took = time.process_time() - begun
    copying = time.process_time()
    for _ in range(20):
        (calls.exit - calls.enter).min(axis=0)
    copying = time.process_time() - copying
    assert took < 5 * copying + 1  # nothing but a few passes over the exits, however busy the machine
    assert max(many.errors(fit).values()) < 20_000


# Clocks that somebody set


def anchors(*wall_minus_mono: int, every_s: int = 10) -> list[list[int]]:
    return [
        [k * every_s * SECOND, EPOCH + k * every_s * SECOND + gap] for k, gap in enumerate(wall_minus_mono)
    ]


def records_of(metas: dict[int, dict[str, Any]]) -> dict[int, RankRecord]:
    return {rank: rank_record(meta) for rank, meta in metas.items()}


def test_a_jump_of_the_wall_clock_is_found_where_all_ranks_of_the_host_see_it() -> None:
    metas = {
        0: {"host": "a", "anchors": anchors(0, 10, -10, 3_000_000_000, 3_000_000_000)},
        1: {"host": "a", "anchors": anchors(5, 5, 5, 3_000_000_000)},
        2: {"host": "b", "anchors": anchors(0, 0, 50_000_000, 0)},  # one rank, put aside while reading
        3: {"host": "b", "anchors": anchors(0, 0, 0, 0)},
    }
    [step] = wall_steps(records_of(metas))
    assert (step.host, round(step.step_ns / SECOND, 3)) == ("a", 3.0)
    assert step.after_ns < EPOCH + 25 * SECOND < step.before_ns
    [note] = step_notes(records_of(metas))
    assert "+3.000 s" in cause_text(note) and "a" in figure_text(note)


def test_slewing_and_damaged_pairs_are_no_jump() -> None:
    slewed = anchors(0, 4 * MS, 8 * MS, 12 * MS)  # 400 ppm
    metas: dict[int, dict[str, Any]] = {
        0: {"host": "a", "anchors": slewed},
        1: {"host": "b", "anchors": [[1, 2], None, ["x", 3], [4], [True, 2]]},
        2: {"host": "c"},
    }
    assert wall_steps(records_of(metas)) == ()


def test_a_run_says_which_clocks_are_unknown_and_which_were_set(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, world_size=2)
    for rank, host, jump in ((0, "a", 0), (1, "b", 2 * SECOND)):
        run.rank(rank, host=host, anchors=anchors(0, 0, jump))
        # A broadcast synchronizes nobody: its root may be gone before the others enter.
        calls = [comm(1000 * k + 10 * rank, 500, k, collective="broadcast") for k in range(12)]
        run.window(rank, calls, [(0, 0, 20_000)])
    analysis = analyze_run(run.read())
    assert analysis.clocks.unlinked == ("b",) and analysis.clock_residual_ns is None
    [result] = analysis.collectives
    assert result.num_waits_uncertain == 12  # each call's wait of a for b
    said = {figure_text(missing): cause_text(missing) for missing in analysis.missing}
    assert "no synchronizing collective" in said["clocks of b"]
    assert "+2.000 s" in said["times of b across a jump of its clock"]
