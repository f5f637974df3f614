"""Ranks that the timeline draws where there are more than it can."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from perfscope.analysis.run import analyze_run
from perfscope.analysis.timeline_ranks import MAX_RANKS, MOST_NAMED, drawn_ranks, named_ranks
from perfscope.api.documents import report_of
from perfscope.reports.drawing.still import lay_out_still, shown_ranks
from perfscope.reports.model import Timeline
from perfscope.reports.timeline_path import path_pieces
from tests.support.synthetic_run import SyntheticRun, comm, span

MS = 1_000_000
RANKS, SLOW, NUM_STEPS = 512, 137, 3
STEP = 20 * MS


def test_ranks_of_findings_the_critical_path_and_outliers_are_drawn(tmp_path: Path) -> None:
    reader = straggler_run(tmp_path).read()
    analysis = analyze_run(reader)
    report = report_of(reader, analysis)
    [timeline] = [block for block in report.section("timeline").blocks if isinstance(block, Timeline)]
    [window] = timeline.extract.windows
    drawn = {lane.rank for lane in window.lanes}
    assert len(drawn) == MAX_RANKS and drawn.isdisjoint(window.ranks_left_out)
    assert SLOW in {finding.rank for finding in analysis.findings}
    assert {finding.rank for finding in analysis.findings if finding.rank is not None} <= drawn
    medians = {rank.rank: rank.step_ns.median for rank in analysis.ranks if rank.step_ns is not None}
    assert max(medians, key=lambda rank: medians[rank]) in drawn
    pieces = path_pieces(timeline.paths, window)
    assert {SLOW} <= {piece.rank for piece in pieces}
    assert all(piece.lane >= 0 for piece in pieces), "the path has no end in the void"
    assert f"{MAX_RANKS} of {RANKS} ranks" in report.section("timeline").lead
    assert SLOW in shown_ranks(timeline, window)
    assert f"of {RANKS} ranks" in lay_out_still(timeline).caption


def straggler_run(path: Path) -> SyntheticRun:
    """All ranks wait in each step's call for the slow one; nothing else differs."""
    run = SyntheticRun(path, world_size=RANKS, expected_ranks=RANKS)
    for rank in range(RANKS):
        run.rank(rank, host=f"node{rank // 8}", world_size=RANKS)
        work = (15 if rank == SLOW else 10) * MS + rank
        spans = []
        for step in range(NUM_STEPS):
            start = step * STEP
            spans += [
                span(start, work, "compute", name="aten::conv", layer="conv", phase="forward"),
                comm(start + work, 16 * MS - work, step, name="gloo:all_reduce"),
                span(start + 16 * MS, 2 * MS, "optimizer"),
            ]
        marks = [(step, step * STEP, (step + 1) * STEP) for step in range(NUM_STEPS)]
        run.window(rank, spans, marks, host=f"node{rank // 8}")
        run.steps(rank, [STEP + 1_000 * (rank == SLOW)] * 20)
    return run


def test_the_ranks_of_most_interest_come_first_and_the_others_are_evenly_spaced() -> None:
    drawn = drawn_ranks(range(1000), [137, 5, 2000])
    assert {0, 5, 137, 999} <= drawn and len(drawn) == MAX_RANKS
    others = sorted(drawn - {137, 5})
    assert max(after - before for before, after in pairwise(others)) <= 40
    crowded = drawn_ranks(range(1000), range(500, 700))
    assert len(crowded) == MAX_RANKS and set(range(500, 500 + MOST_NAMED)) <= crowded
    assert {0, 999} <= crowded


def test_few_ranks_are_all_drawn(tmp_path: Path) -> None:
    assert drawn_ranks(range(MAX_RANKS), [3]) == set(range(MAX_RANKS))
    run = SyntheticRun(tmp_path)
    run.rank(0)
    assert named_ranks(analyze_run(run.read())) == ()
