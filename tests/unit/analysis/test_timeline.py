"""What the interactive timeline gets: everything when it fits, and an honest count of what does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfscope.analysis.clocks.fit import ClockFit
from perfscope.analysis.communication import RankComm
from perfscope.analysis.run import analyze_run
from perfscope.analysis.timeline_extract import MERGED, LaneExtract, TimelineExtract, extract_timeline
from perfscope.analysis.timeline_thin import fill
from tests.support.expert_run import expert_run
from tests.support.synthetic_run import AUTOGRAD, BACKEND, EPOCH, MAIN, SyntheticRun, comm, span


def names_of(extract: TimelineExtract, lane: LaneExtract) -> list[str]:
    return [extract.strings[index] for index in lane.name.tolist()]


def test_a_small_window_comes_whole(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    for rank in (0, 1):
        run.rank(rank)
        start = 100 * rank
        spans = [
            span(start + 10, 50, "compute", name="aten::conv", layer="conv", phase="forward", flops=9),
            span(start + 20, 10, "compute", name="aten::mul", depth=1, bytes_read=3, bytes_written=4),
            comm(start + 60, 30, 0, name="gloo:all_reduce"),
        ]
        run.window(rank, spans, [(4, start, start + 100)])
    extract = extract_timeline(run.read())
    [window] = extract.windows
    assert (window.start_ns, window.dur_ns) == (EPOCH, 200)
    assert [(mark.rank, mark.step, mark.start_ns, mark.dur_ns) for mark in window.steps] == [
        (0, 4, 0, 100),
        (1, 4, 100, 100),
    ]
    assert [(lane.rank, lane.role) for lane in window.lanes] == [
        (0, "main"), (0, "backend"), (1, "main"), (1, "backend"),
    ]  # fmt: skip
    main, backend = window.lanes[2:]
    assert names_of(extract, main) == ["aten::conv", "aten::mul"]
    assert main.start_ns.tolist() == [110, 120] and main.dur_ns.tolist() == [50, 10]
    assert main.depth.tolist() == [0, 1] and main.count.tolist() == [1, 1]
    assert main.flops.tolist() == [9, -1] and main.bytes.tolist() == [-1, 7]
    assert extract.strings[main.layer[0]] == "conv" and main.layer[1] == -1
    assert [extract.kinds[kind] for kind in main.kind] == ["compute", "compute"]
    assert [extract.phases[phase] for phase in main.phase] == ["forward", "other"]
    assert main.step.tolist() == [4, 4]
    assert backend.bytes.tolist() == [4096]
    assert (extract.num_recorded, extract.num_drawn, extract.num_left_out, extract.resolution_ns) == (
        6,
        6,
        0,
        0,
    )


def crowded(path: Path, num_short: int) -> SyntheticRun:
    """One long span, then many short ones in three lanes, some close together and some apart."""
    run = SyntheticRun(path)
    run.rank(0)
    spans = [span(0, 5_000, "compute", name="long")]
    for k in range(num_short):
        gap = 12 if k % 50 else 400
        spans.append(span(6_000 + k * 20 + (gap if gap == 400 else 0), 8, "compute", name="short"))
        spans.append(span(6_000 + k * 500, 3, "compute", name="lone", lane=AUTOGRAD))
        spans.append(comm(6_000 + k * 20, 15, k, name="gloo:all_reduce", lane=BACKEND))
    run.window(0, spans, [(0, 0, 1_000_000)])
    return run


@pytest.mark.parametrize("budget", [0, 1, 7, 100, 1000])
def test_a_crowded_window_stays_within_the_budget_and_accounts_for_every_span(
    tmp_path: Path, budget: int
) -> None:
    run = crowded(tmp_path, 1000)
    extract = extract_timeline(run.read(), span_budget=budget)
    lanes = extract.windows[0].lanes
    assert extract.num_recorded == 3001
    assert extract.num_drawn == sum(len(lane.start_ns) for lane in lanes) <= budget
    assert sum(int(lane.count.sum()) for lane in lanes) + extract.num_left_out == 3001
    for lane in lanes:
        assert (lane.start_ns[1:] >= lane.start_ns[:-1]).all()
        assert int(lane.count.sum()) + lane.num_left_out == lane.num_recorded
    assert extract.resolution_ns > 0
    if budget:
        assert "long" in names_of(extract, lanes[0])


def test_merged_spans_cover_their_neighbours_and_say_how_many(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.rank(0)
    short = [span(1_000 + 10 * k, 8, "compute", name="short", layer="a", flops=2) for k in range(20)]
    long = [span(2_000 * k, 900, "compute", name="long") for k in range(1, 4)]
    run.window(0, [*short, *long], [(0, 0, 10_000)])
    extract = extract_timeline(run.read(), span_budget=5)
    [lane] = extract.windows[0].lanes
    merged = names_of(extract, lane).index(MERGED)
    assert (lane.start_ns[merged], lane.dur_ns[merged], lane.count[merged]) == (1_000, 198, 20)
    assert lane.flops[merged] == 40
    assert extract.strings[lane.layer[merged]] == "a"
    assert names_of(extract, lane).count("long") == 3
    assert extract.num_left_out == 0


def test_of_too_many_ranks_evenly_spaced_ones_are_drawn_and_the_others_named(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    for rank in range(9):
        run.rank(rank)
        run.window(rank, [span(0, 10, "compute")], [(0, 0, 100)])
    [window] = extract_timeline(run.read(), max_ranks=3).windows
    assert [lane.rank for lane in window.lanes] == [0, 4, 8]
    assert window.ranks_left_out == (1, 2, 3, 5, 6, 7)


def test_host_clocks_are_brought_together(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    for rank, host in ((0, "a"), (1, "b")):
        run.rank(rank, host=host)
        run.window(rank, [span(5_000_000 * rank, 10, "compute")], [])
    clocks = ClockFit(reference="a", offset_ns={"a": 0, "b": 5_000_000})
    [window] = extract_timeline(run.read(), clocks=clocks).windows
    assert [lane.start_ns.tolist() for lane in window.lanes] == [[0], [0]]


def test_a_clock_that_runs_fast_is_slowed_down_spans_and_steps_alike(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    minute, ppm = 60_000_000_000, 50
    ahead = minute * ppm // 1_000_000  # what b's clock gains in a minute
    for rank, host, gain in ((0, "a", 0), (1, "b", ahead)):
        run.rank(rank, host=host)
        start = minute + gain
        run.window(
            rank, [span(0, 10, "compute"), span(start, 10, "compute")], [(0, start, start + 1_000_000)]
        )
    drift = (1 - 1 / (1 + ppm * 1e-6)) * 1e6  # per second of b's own clock
    clocks = ClockFit(
        reference="a",
        offset_ns={"a": 0, "b": 0},
        drift_ppm={"a": 0.0, "b": drift},
        at_ns={"a": 0, "b": EPOCH},
    )
    [window] = extract_timeline(run.read(), clocks=clocks).windows
    assert [lane.start_ns.tolist() for lane in window.lanes] == [[0, minute], [0, minute]]
    assert [step.start_ns for step in window.steps] == [minute, minute]
    assert [step.dur_ns for step in window.steps] == [1_000_000, 1_000_000 - ppm]


def test_a_timeline_that_is_missing_leaves_the_other_ranks(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    for rank in (0, 1):
        run.rank(rank)
        run.window(rank, [span(0, 10, "compute", lane=MAIN)], [(0, 0, 100)])
    (tmp_path / "derived/timeline/rank-00000-window-000.parquet").unlink()
    [window] = extract_timeline(run.read()).windows
    assert [lane.rank for lane in window.lanes] == [1]


def test_a_run_without_windows_has_an_empty_timeline(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.rank(0)
    extract = extract_timeline(run.read())
    assert extract.windows == () and extract.num_recorded == 0


def test_what_small_ranks_do_not_need_goes_to_the_large() -> None:
    assert fill([1, 100, 2, 100], 43) == [1, 20, 2, 20]
    assert fill([5, 5], 100) == [5, 5]
    assert fill([], 10) == []


def test_calls_that_the_analysis_attributed_are_not_attributed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = expert_run(tmp_path, [[[100, 300], [150, 250]]] * 2)
    source = run.read()
    analysis = analyze_run(source)
    groups = analysis.process_groups
    again = extract_timeline(source, groups=groups)
    assert {text for text in again.strings} >= {"moe0", "moe1"}
    monkeypatch.setattr(RankComm, "add_window", None)
    kept = extract_timeline(source, groups=groups, calls=analysis.labeled_calls)
    assert kept.strings == again.strings
    for one, other in zip(kept.windows[0].lanes, again.windows[0].lanes, strict=True):
        assert one.axis is not None and other.axis is not None
        assert np.array_equal(one.layer, other.layer) and np.array_equal(one.axis, other.axis)
