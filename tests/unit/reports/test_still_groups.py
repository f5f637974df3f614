"""The printed timeline: lanes stand in groups with headings, as in the page."""

from __future__ import annotations

from msgspec import structs

from perfscope.analysis.rank_groupings import HOST, RankGrouping
from perfscope.reports.build import build_report
from perfscope.reports.drawing.shapes import Text
from perfscope.reports.drawing.still import lay_out_still, picture_lanes
from perfscope.reports.model import Timeline
from tests.unit.reports.test_synthetic import synthetic_analysis, synthetic_timeline

HOSTS = RankGrouping(by=HOST, group_of={0: 1, 1: 0, 2: 1, 3: 0}, names=("node7", "node8"))


def printed(groupings: tuple[RankGrouping, ...]) -> Timeline:
    timeline = structs.replace(synthetic_timeline(), groupings=groupings)
    blocks = build_report(synthetic_analysis(), timeline).section("timeline").blocks
    return next(block for block in blocks if isinstance(block, Timeline))


def test_lanes_of_a_host_stand_together_under_its_name() -> None:
    block = printed((HOSTS,))
    lanes = picture_lanes(block)
    ranks = list(dict.fromkeys(lane.rank for lane in lanes))
    assert ranks == sorted(ranks, key=lambda rank: HOSTS.group_of[rank])
    headed = {lane.rank: lane.heading for lane in lanes if lane.heading}
    assert list(headed) == [ranks[0], next(rank for rank in ranks if HOSTS.group_of[rank] == 1)]
    assert ["node7" in text or "node8" in text for text in headed.values()] == [True, True]
    words = [shape.text for shape in lay_out_still(block).panels[0].boxes[0].axis if isinstance(shape, Text)]
    assert words.index(headed[ranks[0]]) < words.index(f"rank {ranks[0]}")


def test_without_groups_there_are_no_headings_and_ranks_stay_in_order() -> None:
    lanes = picture_lanes(printed(()))
    assert [lane.rank for lane in lanes] == sorted(lane.rank for lane in lanes)
    assert not any(lane.heading for lane in lanes)
