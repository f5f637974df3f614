"""The critical path in reports: its sentence, its table, its line on the timeline, its JSON."""

from __future__ import annotations

import itertools
import json
from typing import Any

from msgspec import structs

from perfscope.analysis.critical.results import CriticalPath, PathSegment
from perfscope.analysis.timeline_extract import TimelineExtract
from perfscope.reports.document import path_document, to_plain
from perfscope.reports.drawing.print_picture import paper_svg
from perfscope.reports.drawing.still import lay_out_still
from perfscope.reports.model import Note, StackedBars, Table, Timeline
from perfscope.reports.sections.critical_path import critical_path_section, path_sentence
from perfscope.reports.sections.timeline import focus_step, timeline_section
from perfscope.reports.timeline_data import timeline_payload
from perfscope.reports.timeline_path import NO_LANE, path_pieces
from tests.unit.reports.test_synthetic import synthetic_timeline


def segment(rank: int, start: int, end: int, kind: str = "compute", **columns: Any) -> PathSegment:
    told: dict[str, Any] = {
        "host": f"host{rank // 2}",
        "device": -1,
        "lane": -1,
        "layer": None,
        "phase": None,
        "name": "",
        "collective": None,
        "group": None,
        "late_rank": None,
        "hosts": (),
        "reason": "program order",
        "uncertain": False,
    }
    return PathSegment(rank=rank, kind=kind, start_ns=start, end_ns=end, **{**told, **columns})


def path_of(segments: list[PathSegment], step: int = 0, window: int = 0, ranks: int = 4) -> CriticalPath:
    return CriticalPath(
        window=window,
        step=step,
        begin_ns=segments[0].start_ns,
        end_ns=segments[-1].end_ns,
        segments=tuple(segments),
        ranks=tuple(range(ranks)),
        complete=True,
    )


def late_rank_path() -> CriticalPath:
    """Rank 2 computes fc6 for 10, then 81 of transfer, then rank 0 computes 9."""
    transfer = {"collective": "all_reduce", "group": "0", "late_rank": 2, "hosts": ("host0", "host1")}
    return path_of(
        [
            segment(2, 0, 10, layer="fc6", phase="backward", reason="waited for rank 2"),
            segment(0, 10, 91, "transfer", lane=5, uncertain=True, **transfer),
            segment(0, 91, 100, layer="head", phase="forward", reason="end of the step"),
        ]
    )


def timeline_paths(extract: TimelineExtract) -> tuple[CriticalPath, ...]:
    """Of each step: rank 3 for its first half, then its backend's thread, then rank 0."""
    paths = []
    for window in extract.windows:
        for number in sorted({mark.step for mark in window.steps}):
            marks = {mark.rank: mark for mark in window.steps if mark.step == number}
            begin = window.start_ns + marks[3].start_ns
            end = window.start_ns + max(mark.start_ns + mark.dur_ns for mark in marks.values())
            first, second = begin + (end - begin) // 2, begin + (end - begin) * 3 // 4
            segments = [
                segment(3, begin, first, reason="waited for rank 3"),
                segment(0, first, second, "transfer", lane=4200, collective="all_reduce"),
                segment(0, second, end, reason="end of the step"),
            ]
            paths.append(path_of(segments, number, window.window))
    return tuple(paths)


def test_the_sentence_names_what_the_step_is_made_of() -> None:
    assert path_sentence([late_rank_path()]) == (
        "Largest parts of the critical path (path of 100 ns): all_reduce transfer between host0 and host1 "
        "(81 %), rank 2's fc6 backward (10 %), rank 0's head forward (9 %)."
    )


def test_the_section_adds_up_and_names_who_is_never_on_it() -> None:
    section = critical_path_section([late_rank_path()])
    assert section is not None
    bars = next(block for block in section.blocks if isinstance(block, StackedBars))
    assert [bar.total for bar in bars.bars] == [100]
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["group", "2", "0"]
    assert [row[3] for row in table.rows] == [81, 10, 9]
    notes = [block.text for block in section.blocks if isinstance(block, Note)]
    assert any("ranks 1 and 3" in note for note in notes)
    assert any("may not have been the last" in note for note in notes)


def test_threads_of_one_role_stand_in_the_order_of_their_numbers_on_every_rank() -> None:
    extract = synthetic_timeline()
    window = extract.windows[0]
    lanes = []
    for lane in window.lanes:
        if lane.role != "backend":
            lanes.append(lane)
            continue
        for number in (10, 2) if lane.rank % 2 else (2, 10):
            again = structs.replace(lane, lane=lane.lane + number, label=f"communication thread {number}")
            lanes.append(again)
    mixed = structs.replace(extract, windows=(structs.replace(window, lanes=tuple(lanes)),))
    (block,) = timeline_section(mixed).blocks
    assert isinstance(block, Timeline)
    shown: dict[int, list[str]] = {}
    for lane in block.extract.windows[0].lanes:
        if lane.role == "backend":
            shown.setdefault(lane.rank, []).append(lane.label)
    assert set(map(tuple, shown.values())) == {("communication thread 2", "communication thread 10")}


def test_without_a_traced_step_there_is_no_section() -> None:
    assert critical_path_section([]) is None
    assert path_document([]) is None


def test_the_document_is_finite_and_adds_up() -> None:
    document = to_plain(path_document([late_rank_path()]))
    assert document is not None
    read = json.loads(json.dumps(document, allow_nan=False))
    [step] = read["steps"]
    assert sum(step["kinds_ns"].values()) == step["total_ns"] == 100
    assert sum(entry["ns"] for entry in read["entries"]) == 100
    assert (step["off_path"], read["never_on_path"]) == ([1, 3], [1, 3])


def test_pieces_lie_on_the_lanes_that_ran_them() -> None:
    extract = synthetic_timeline(num_windows=1)
    [window] = extract.windows
    pieces = path_pieces(timeline_paths(extract), window)
    assert len(pieces) == 3 * 3
    lanes = [(window.lanes[piece.lane].rank, window.lanes[piece.lane].role) for piece in pieces[:3]]
    assert lanes == [(3, "main"), (0, "backend"), (0, "main")]
    for one, following in itertools.pairwise(pieces[:3]):
        assert one.end_ns == following.start_ns


def test_a_rank_that_is_not_drawn_has_no_lane() -> None:
    extract = synthetic_timeline(num_windows=1, num_ranks=4)
    [window] = extract.windows
    fewer = structs.replace(window, lanes=tuple(lane for lane in window.lanes if lane.rank != 3))
    lanes = [piece.lane for piece in path_pieces(timeline_paths(extract), fewer)]
    assert lanes[0] == NO_LANE
    assert NO_LANE not in lanes[1:3]


def test_the_timeline_carries_the_path_of_each_window() -> None:
    extract = synthetic_timeline()
    section = timeline_section(extract, None, timeline_paths(extract))
    [timeline] = [block for block in section.blocks if isinstance(block, Timeline)]
    windows: Any = timeline_payload(timeline)["windows"]
    for window in windows:
        path = window["path"]
        assert len({len(path[key]) for key in ("lane", "start", "dur", "step", "reason")}) == 1
        assert "waited for rank 3" in path["reasons"]
        assert max(path["reason"]) < len(path["reasons"])
        assert all(time > 0 for time in path["dur"])
    [bare] = [block for block in timeline_section(extract).blocks if isinstance(block, Timeline)]
    without: Any = timeline_payload(bare)["windows"]
    assert [window["path"] for window in without] == [None, None]


def test_the_still_picture_shows_the_path_and_its_legend() -> None:
    extract = synthetic_timeline(num_windows=1)
    section = timeline_section(extract, None, timeline_paths(extract))
    [timeline] = [block for block in section.blocks if isinstance(block, Timeline)]
    assert timeline.focus == focus_step(extract)
    assert "Critical path" in paper_svg(lay_out_still(timeline))
    assert "Critical path" not in paper_svg(lay_out_still(structs.replace(timeline, paths=())))
