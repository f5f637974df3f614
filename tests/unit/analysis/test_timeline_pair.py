"""Steps of two runs on one axis of time."""

from __future__ import annotations

from pathlib import Path

from perfscope.analysis.run import analyze_run
from perfscope.analysis.timeline_extract import TimelineExtract, extract_timeline
from perfscope.analysis.timeline_pair import StepSide, pair_timelines, representative_ranks
from tests.support.synthetic_run import SyntheticRun, comm, span


def traced(
    path: Path, steps: list[tuple[int, int, int]], ranks: int = 2, layer: str = "conv"
) -> SyntheticRun:
    """Each step of each rank: half of it one operator, then a call of 10 ns."""
    run = SyntheticRun(path)
    for rank in range(ranks):
        run.rank(rank)
        spans = []
        for _, start, end in steps:
            begin, half = start + 5 * rank, (end - start) // 2
            spans.append(span(begin, half, "compute", name="aten::conv", layer=layer, phase="forward"))
            spans.append(comm(begin + half, 10, 0, name="gloo:all_reduce"))
        run.window(rank, spans, [(number, start + 5 * rank, end) for number, start, end in steps])
    return run


def extract(run: SyntheticRun) -> TimelineExtract:
    return extract_timeline(run.read())


def test_the_typical_steps_begin_at_0_and_keep_their_durations(tmp_path: Path) -> None:
    before = traced(tmp_path / "a", [(3, 0, 300), (4, 300, 500), (5, 500, 600)])
    after = traced(tmp_path / "b", [(7, 1000, 1400)], ranks=1)
    pair = pair_timelines(extract(before), extract(after))
    assert pair is not None
    assert pair.steps == ((StepSide(window=0, step=4, dur_ns=200), StepSide(window=0, step=7, dur_ns=400)),)
    assert pair.ranks == {0: (0, 0), 1: (0, 1), 2: (1, 0)}
    [window] = pair.extract.windows
    mains = {lane.rank: lane for lane in window.lanes if lane.role == "main"}
    assert {rank: lane.start_ns.tolist() for rank, lane in mains.items()} == {0: [0], 1: [5], 2: [0]}
    assert {rank: lane.dur_ns.tolist() for rank, lane in mains.items()} == {0: [100], 1: [100], 2: [200]}
    assert window.dur_ns == 400
    assert {(mark.rank, mark.step, mark.start_ns) for mark in window.steps} == {
        (0, 0, 0),
        (1, 0, 5),
        (2, 0, 0),
    }


def test_the_same_layer_has_one_number_in_both_runs_and_another_one_its_own(tmp_path: Path) -> None:
    before, same = traced(tmp_path / "a", [(1, 0, 100)]), traced(tmp_path / "b", [(1, 0, 100)])
    other = traced(tmp_path / "c", [(1, 0, 100)], layer="fc")
    for after, is_same in ((same, True), (other, False)):
        pair = pair_timelines(extract(before), extract(after))
        assert pair is not None
        names = [
            pair.extract.strings[lane.layer[0]]
            for lane in pair.extract.windows[0].lanes
            if lane.role == "main"
        ]
        assert names == ["conv"] * 4 if is_same else names == ["conv", "conv", "fc", "fc"]


def test_a_run_without_traced_steps_makes_no_pair(tmp_path: Path) -> None:
    before, after = traced(tmp_path / "a", [(1, 0, 100)]), traced(tmp_path / "b", [])
    assert pair_timelines(extract(before), extract(after)) is None
    assert pair_timelines(extract(after), extract(before)) is None


def test_of_many_ranks_those_that_compute_longest_shortest_and_the_median_are_drawn(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    for rank, compute in enumerate((50, 10, 90, 30, 70)):
        run.rank(rank, world_size=5)
        run.window(rank, [span(0, compute, "compute", name="aten::conv")], [(1, 0, 100)])
    assert representative_ranks(analyze_run(run.read())) == (0, 1, 2)
